"""What a row of the history says about a density: mass, extremes, moments, energy, Lyapunov.

A column is one entry of `Diagnostics.columns`: its name, and the function that computes it from a
`Saved` density.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

import numpy as np

from meanfield_pde.amr.patches import NONE, Patches
from meanfield_pde.attention.heads import Layer
from meanfield_pde.attention.reconstructed_sources import SlopedCells
from meanfield_pde.attention.sum.shared import SharedSum
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.geometry import AXES
from meanfield_pde.theory.projection_limit import ProjectionLimit


@dataclass(frozen=True, eq=False)
class Saved:
    """A density at a saved time, for the functionals of `Diagnostics`.

    Attributes:
        masses: of all cells, in input order, those of patches with the cells that show them.
        log_energy: the logarithm of its energy; nan where that is not defined.
    """

    masses: np.ndarray
    log_energy: float
    _diagnostics: Diagnostics
    _rest: np.ndarray  # the masses without those of patches
    _patches: Patches

    @cached_property
    def density(self) -> np.ndarray:
        """Masses per arc length or area."""
        return self.masses / self._diagnostics.volume

    @cached_property
    def mean(self) -> np.ndarray:
        """First moments ∫ x_i dmu, patches being where they are, and cells as they are sloped."""
        beside = [patch.masses @ patch.middles for patch in self._patches]
        sloped = self._of_slopes(lambda points: points)
        return np.asarray(self._rest @ self._diagnostics.mean + sloped + sum(beside))

    @cached_property
    def second(self) -> np.ndarray:
        """Second moments ∫ x_i x_j dmu, in the order of `Diagnostics.pairs`."""
        first, second = np.transpose(self._diagnostics.pairs)
        beside = [s.masses @ (s.middles[:, first] * s.middles[:, second]) for s in self._patches]
        sloped = self._of_slopes(lambda points: points[..., first] * points[..., second])
        return np.asarray(self._rest @ self._diagnostics.second + sloped + sum(beside))

    def _of_slopes(self, function: Callable[[np.ndarray], np.ndarray]) -> np.ndarray | float:
        """What the slopes of log rho in the cells add to the integral of a function."""
        cells = self._diagnostics.sloped_cells
        if cells is None:
            return 0.0
        return np.einsum("ck,ckf->f", self._tilts, function(cells.points))

    @cached_property
    def _tilts(self) -> np.ndarray:
        """The masses that slopes move between the three points of each cell."""
        cells = self._diagnostics.sloped_cells
        assert cells is not None
        with np.errstate(divide="ignore"):
            shares = cells.sloped(np.log(self._rest))
        return np.asarray(self._rest[:, None] * (shares - cells.shares))

    @property
    def lyapunov(self) -> float:
        """∫ dist(x, E)^2 dmu; nan if there is no E."""
        squares = self._diagnostics.square_distance
        return math.nan if squares is None else float(self.masses @ squares)

    @property
    def free_energy(self) -> float:
        """Sigma ∫ rho log rho - energy."""
        full = self.masses > 0
        entropy = float(self.masses[full] @ np.log(self.density[full]))
        with np.errstate(over="ignore"):
            return self._diagnostics.noise * entropy - float(np.exp(self.log_energy))

    @property
    def unresolved(self) -> float:
        """Mass in cells beside one whose density is less by the factor `STEEP`, without patches."""
        density = self._rest / self._diagnostics.volume
        beside = density[self._diagnostics.neighbours].min(axis=1)
        return float(self._rest[density > STEEP * beside].sum())


Column = Callable[[Saved], float]

# From cell to cell, where the density is no longer resolved: a normal distribution has most of its
# mass in such cells when its standard deviation is half of their width.
STEEP = math.e**2


class Diagnostics:
    """Functionals of the density, exact for one that is constant in each cell.

    On an adaptive mesh the moments are those of the density that is sloped in each cell, as the
    velocity is, and whose clusters are where they are.

    With layers, those of the layer that acts up to the time in question.

    energy      (1 / 2 beta) ∬ exp(beta <x, B y>) dmu dmu, and its logarithm, which does not
                overflow; of several heads their sum; not defined (nan) at beta = 0 and at zero
                temperature
    free_energy sigma ∫ rho log rho - energy, with noise of strength sigma only: without the
                denominator and for V = B = B^T it never increases
    lyapunov    ∫ dist(x, E)^2 dmu with E the dominant eigenspace of A = V B^T, if there is one
    unresolved_mass  the part of the mass that is in clusters narrower than their cells

    Attributes:
        volumes: the mesh they are for.
        columns: the functionals by name, in the order of the history.
        volume, mean, second: of all cells, with the means of x_i and x_i x_j over each.
        neighbours: of all cells, in input order.
        sloped_cells: the same with slopes, on an adaptive mesh.
        pairs: the indices i, j of the second moments.
        square_distance: mean over each cell of dist(x, E)^2, or None.
    """

    def __init__(
        self,
        volumes: FiniteVolumes,
        tolerance: float,
        layer: Layer,
        projection: ProjectionLimit | None = None,
        *,
        noise: float = 0.0,
        sloped: bool = False,
    ) -> None:
        self.noise = noise
        self.sloped_cells = SlopedCells(volumes) if sloped else None
        self.volumes = volumes
        self._tolerance = tolerance
        d = volumes.dimension
        own = slice(0, volumes.owned)
        self.volume = volumes.gather(volumes.volume[own])
        self.mean = volumes.gather(volumes.cell_mean[own])
        self.neighbours = volumes.gather(volumes.input_cells[volumes.neighbours])
        self.pairs = [(i, j) for i in range(d) for j in range(i, d)]
        first, second = np.array(self.pairs).T

        def products(points: np.ndarray) -> np.ndarray:
            return points[:, first] * points[:, second]

        self.second = volumes.gather(volumes.integrate(products) / volumes.volume[own, None])
        self.square_distance: np.ndarray | None = None
        self._energy_sums: list[tuple[float, SharedSum]] = []
        self.columns = self._all_columns()
        self.use(layer, projection)

    def use(self, layer: Layer, projection: ProjectionLimit | None = None) -> None:
        """Take the attention, and the eigenspace, of another layer. Collective."""
        self.layer = layer
        volumes = self.volumes
        own = slice(0, volumes.owned)
        projection = projection or ProjectionLimit(layer)
        self.square_distance = None
        if projection.dimension == volumes.dimension:  # every point lies in E
            self.square_distance = np.zeros(volumes.global_cells)
        elif projection.exists:
            integral = volumes.integrate(lambda x: projection.distance_to_eigenspace(x) ** 2)
            self.square_distance = volumes.gather(integral / volumes.volume[own])
        self._energy_sums = []
        heads = layer.heads
        if all(0 < head.beta < math.inf for head in heads):
            centres = volumes.gather(volumes.centre[own])
            for head in heads:
                # <x, B y> = <B^T x, y>: the log of the inner integral is the log partition at x.
                scores = head.scores(centres)
                inner = SharedSum(volumes.comm, centres, centres, scores, self._tolerance)
                self._energy_sums.append((head.beta, inner))

    def row(
        self, masses: np.ndarray, rest: np.ndarray | None = None, patches: Patches = NONE
    ) -> dict[str, float]:
        """The functionals of a density. Collective.

        Args:
            masses: of all cells, in input order.
            rest: the same without the patches that they show, if there are any.
            patches: these.
        """
        rest = masses if rest is None else rest
        saved = Saved(masses, self._log_energy(masses), self, rest, patches)
        with np.errstate(over="ignore"):
            return {name: float(column(saved)) for name, column in self.columns.items()}

    def _all_columns(self) -> dict[str, Column]:
        columns: dict[str, Column] = {
            "mass": lambda saved: saved.masses.sum(),
            "min_density": lambda saved: saved.density.min(),
            "max_density": lambda saved: saved.density.max(),
        }
        for i in range(self.volumes.dimension):
            columns[f"mean_{AXES[i]}"] = partial(_entry, "mean", i)
        for k, (i, j) in enumerate(self.pairs):
            columns[f"second_{AXES[i]}{AXES[j]}"] = partial(_entry, "second", k)
        if self.noise:
            columns["free_energy"] = lambda saved: saved.free_energy
        return columns | {
            "energy": lambda saved: np.exp(saved.log_energy),
            "lyapunov": lambda saved: saved.lyapunov,
            "log_energy": lambda saved: saved.log_energy,
            "unresolved_mass": lambda saved: saved.unresolved,
        }

    def _log_energy(self, masses: np.ndarray) -> float:
        if not self._energy_sums:
            return math.nan
        with np.errstate(divide="ignore"):
            log_masses = np.log(masses)
        heads = [
            np.logaddexp.reduce(log_masses + inner(log_masses)[:, -1]) - math.log(2 * beta)
            for beta, inner in self._energy_sums
        ]
        return float(np.logaddexp.reduce(heads))


def _entry(name: str, index: int, saved: Saved) -> float:
    """One of the moments."""
    return float(getattr(saved, name)[index])
