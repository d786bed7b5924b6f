"""Schemes of transport that a user chooses from: reconstructions, and limits on a step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.gradients import STEEPEST, gradient_weights

if TYPE_CHECKING:  # a case needs the names alone: see `_lazy`
    from meanfield_pde.mesh.finite_volume import FiniteVolumes


def slope_weights(volumes: FiniteVolumes, arrows: np.ndarray) -> np.ndarray:
    """W[c, i, j]: log rho changes along arrow i of cell c by sum_j W (log rho_j - log rho_c).

    The gradient solves the least-squares problem over the neighbours j in the tangent plane.

    Args:
        volumes: the cells.
        arrows: tangent vectors at the centres of own cells, cells x k x d.
    """
    centre = volumes.centre[: volumes.owned]
    frame, weights = gradient_weights(centre, volumes.centre[volumes.neighbours])
    return np.ascontiguousarray(arrows @ np.swapaxes(frame, 1, 2) @ weights)


def least_squares_slopes(volumes: FiniteVolumes) -> np.ndarray:
    """W of `slope_weights` for the ways from the centres of own cells to points of their facets."""
    x = volumes.centre[: volumes.owned, None]
    points = geometry.gauss_points(volumes.facet_points)[volumes.cell_facets]
    d = volumes.dimension
    ways = geometry.tangent_vector(x, points.reshape(volumes.owned, d * (d - 1), d))
    return slope_weights(volumes, ways)


@dataclass(frozen=True)
class Scheme:
    """A choice of rho_f, with its limits on dt x outflow rate of a forward Euler step.

    Attributes:
        accurate: the value at which steps are taken, with room for rounding. Beyond `positive` the
            step is taken again where a cell gives away more than it holds.
        on_sphere: the same on the sphere; None if it is the same.
        slopes: g as weights W[c, k, j] of log rho_j - log rho_c, for own cells c, their neighbours
            j, and the points k of their facets: those of facet 0, which lies between the cell and
            its neighbour 0, then those of facet 1, and so on. None for g = 0.
        quadratic: whether rho_f is that of `mesh.quadratic_fit`.
    """

    accurate: float
    slopes: Callable[[FiniteVolumes], np.ndarray] | None = None
    quadratic: bool = False
    on_sphere: float | None = None

    def share(self, dimension: int) -> float:
        """`accurate` on the circle or the sphere, of dimension d = 2 or 3."""
        return self.accurate if dimension == 2 or self.on_sphere is None else self.on_sphere

    @property
    def rings(self) -> int:
        """How far from an own cell those are that its facets take densities from; without fits."""
        return 1 if self.slopes is None else 2

    @property
    def positive(self) -> float:
        """Beyond this, a mass could become negative: slopes are scaled to |g_f| <= STEEPEST."""
        constant = self.slopes is None and not self.quadratic
        return 1.0 if constant else math.exp(-STEEPEST)


SCHEMES = {
    "muscl": Scheme(accurate=0.36, slopes=least_squares_slopes),
    # With 0.36 mean errors of log masses at t = 9 are 4.4e-3, 8.9e-4, 7.6e-5 on 1,280, 5,120 and
    # 20,480 cells of the sphere, with 0.6 4.4e-3, 9.8e-4, 9.6e-5 in 0.6 of the time, with 0.9
    # 5.4e-3, 9.8e-4, 1.3e-4; on the circle they would grow threefold (seed 0,
    # `tests.benchmarks.tails`).
    "quadratic": Scheme(accurate=0.36, on_sphere=0.6, quadratic=True),
    "upwind": Scheme(accurate=0.98),
}
