"""What each saved density is compared with: Wasserstein distances, with their certified intervals.

    w{p}_limit           W_p(mu_t^beta, limit)      the push-forward of the initial density
    w{p}_zero            W_p(mu_t^beta, mu_t^inf)   the same problem at zero temperature
    w{p}_zero_to_limit   W_p(mu_t^inf, limit)

A value is the distance of atoms at the centres of cells; its interval, w{p}_limit_low to
w{p}_limit_high and so on, holds for the densities, which are constant in each cell.
`quantisation_limit`, `quantisation_zero` and `quantisation_zero_to_limit` say how far, at most,
moving each cell's mass to its centre changes W_1 and W_2. The density and that at zero temperature
are put on common cells first, so that nothing is between them that only their centres have made; of
a cell that is cut there only its mass is taken to be known.

Rank 0 solves and the others get its numbers, so that they do not depend on the number of ranks.
"""

from __future__ import annotations

import logging

import numpy as np

from meanfield_pde.amr.overlay import Overlay
from meanfield_pde.errors import InputError
from meanfield_pde.initial.given import InitialLike, as_initial
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.solver.settings import COMPARED, CompareCase
from meanfield_pde.support.timings import timed
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.push_forward import limit_of
from meanfield_pde.wasserstein import WassersteinResult, wasserstein
from meanfield_pde.wasserstein.measure import Measure

LOG = logging.getLogger("meanfield_pde")

# Relative width at which the interval of a distance in the history is closed: far below its
# discretisation bar, and above what rounding leaves open.
RTOL = 1e-8
# Part of the mass that may have moved since the last time for its potentials to be a start, by p.
# They save a third of the time where 0.2 % has moved; with p = 2 still a seventh where 2 % has,
# with p = 1 nothing where 0.6 % has, and beyond they cost time.
MOST_MOVED = {1: 0.005, 2: 0.02}

Pair = tuple[Measure, Measure]


class Distances:
    """The distances of the saved densities to the limit and to zero temperature."""

    def __init__(
        self,
        settings: CompareCase,
        projection: ProjectionLimit,
        initial: InitialLike,
        cells: Cells,
    ) -> None:
        self.settings = settings
        self.limit: Measure | None = None
        self.open: dict[str, int] = {}  # distances whose interval was not closed, by status
        self._duals: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        self._last: dict[str, tuple[Measure, Measure]] = {}  # the measures they belong to
        if settings.limit:
            self.limit = limit_measure(projection, initial, cells)

    @timed("Distances")
    def row(
        self,
        density: Measure,
        zero: Measure | None,
        both: Overlay | None = None,
    ) -> dict[str, float]:
        """The distances of a saved time, by name; for rank 0 alone.

        Args:
            density: at this time.
            zero: the one at zero temperature, if it is compared with.
            both: the same two on common cells, if they are on different ones.
        """
        numbers: dict[str, float] = {}
        pairs = self._pairs(density, zero, both)
        asked = [one for one in COMPARED if one.asked_for(self.settings)]
        for p in self.settings.p:
            for one in asked:
                result = self._distance(one.column(p), *pairs[one.name], p)
                numbers[one.column(p)] = result.value
                if one.interval:
                    low, high = result.continuous
                    cut = both.cut if both is not None and one.name == "zero" else 0.0
                    bounds = max(0.0, low - cut), high + cut
                    numbers |= zip(one.bounds(p), bounds, strict=True)
        for one in asked:
            mu, nu = pairs[one.name]
            numbers[one.quantisation] = mu.width + nu.width
        return numbers

    def _pairs(
        self, density: Measure, zero: Measure | None, both: Overlay | None
    ) -> dict[str, Pair]:
        """What is compared at this time, by the names in `COMPARED`; of others nothing is kept."""
        pairs: dict[str, Pair] = {}
        if self.limit is not None:
            pairs["limit"] = density, self.limit
        if zero is not None:
            pairs["zero"] = (density, zero) if both is None else (both.first, both.second)
            if self.limit is not None:
                pairs["zero_to_limit"] = zero, self.limit
        return pairs

    def _distance(self, name: str, mu: Measure, nu: Measure, p: int) -> WassersteinResult:
        last = self._last.get(name)
        near = last is not None and _little_moved(mu, last[0], p) and _little_moved(nu, last[1], p)
        result = wasserstein(
            mu,
            nu,
            p,
            self.settings.cost,
            rtol=RTOL,
            time_limit=self.settings.time_limit,
            duals=self._duals[name] if near else None,
            same_cells=_on_same_cells(mu, nu),
        )
        self._duals[name], self._last[name] = result.duals, (mu, nu)
        if result.gap > 10 * RTOL and result.high > 1e-9:
            self.open[result.status] = self.open.get(result.status, 0) + 1
            LOG.debug(
                "%s: %s, between %.6g and %.6g for atoms at the centres of cells",
                name,
                result.status,
                result.low,
                result.high,
            )
        return result


def _on_same_cells(mu: Measure, nu: Measure) -> bool:
    """Whether both are densities constant in the same cells, which centres and spread tell."""
    return (
        mu.spread is not None
        and nu.spread is not None
        and np.array_equal(mu.points, nu.points)
        and np.array_equal(mu.spread, nu.spread)
    )


def _little_moved(mu: Measure, last: Measure, p: int) -> bool:
    """Whether the potentials of the last time are a start for this one: on the same cells."""
    if mu is last:
        return True
    if not np.array_equal(mu.points, last.points):
        return False
    moved = np.abs(mu.masses / mu.masses.sum() - last.masses / last.masses.sum()).sum() / 2
    return bool(moved <= MOST_MOVED[p])


def limit_measure(limit: ProjectionLimit, initial: InitialLike, cells: Cells) -> Measure:
    """The push-forward of the initial density under the projection map of the attention."""
    if not limit.exists:
        raise InputError(
            f"compare.limit = true, but there is no limit: {limit.reason}; `meanfield-pde limit` "
            "explains, and compare.limit = false leaves it out"
        )
    return limit_of(limit, as_initial(initial), cells.vertices)
