"""Conservative, positive transport: d/dt M_c = - sum over facets f of c of q_f rho_f.

M_c is the mass of cell c, q_f the integral of <v, conormal> over facet f, and rho_f the density
there, taken from the cell that the flow leaves.

    upwind   rho_f = rho_c, first order
    muscl    rho_f = rho_c exp(g_f), second order: g_f is the least-squares slope of log rho in the
             cell, times the way from its centre to the facet, and scaled back so that |g_f| <= 1

Slopes of the logarithm keep the tails right: a density that falls by decades from cell to cell is
reconstructed with the same relative accuracy everywhere. A forward Euler step dt keeps every mass
non-negative when dt times the outflow rate max_c sum_f max(q_f, 0) / |c| is at most 1 for upwind
and exp(-1) for muscl, because then no cell gives away more than it holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numba
import numpy as np

from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.gradients import gradient_weights
from meanfield_pde.support.timings import timed

STEEPEST = 1.0  # bound on |g_f|


@dataclass(frozen=True)
class Scheme:
    """A choice of rho_f, with its limits on dt x outflow rate of a forward Euler step.

    Attributes:
        positive: beyond this, a mass could become negative.
        accurate: the value at which steps are taken, with room for the velocity to change.
    """

    name: str
    positive: float
    accurate: float


SCHEMES = {
    "muscl": Scheme("muscl", positive=math.exp(-STEEPEST), accurate=0.3),
    "upwind": Scheme("upwind", positive=1.0, accurate=0.9),
}


class Transport:
    """The transport operator on the cells of this rank."""

    def __init__(self, volumes: FiniteVolumes, scheme: Scheme) -> None:
        self.volumes = volumes
        self.scheme = scheme
        self._density = volumes.new_vector()
        self._faces = volumes.new_vector(volumes.dimension)
        # W of `slope_weights`; None for upwind, which has no slopes.
        self.slopes: np.ndarray | None = None
        if scheme.name == "muscl":
            x = volumes.centre[: volumes.owned, None]
            to_facets = geometry.tangent_vector(x, volumes.facet_midpoint[volumes.cell_facets])
            self.slopes = slope_weights(volumes, to_facets)

    def outflow_rate(self, flux: np.ndarray) -> float:
        """Largest over own cells of sum_f max(q_f, 0) / |c|, for the facet fluxes q."""
        volumes = self.volumes
        return _outflow_rate(flux, volumes.cell_facets, volumes.cell_signs, volumes.volume)

    @timed("Transport")
    def rate_of_change(self, masses: np.ndarray, flux: np.ndarray, out: np.ndarray) -> None:
        """Write d/dt M of own cells to `out`; `masses` are those of own cells. Collective."""
        volumes = self.volumes
        d, owned = volumes.dimension, volumes.owned
        density = self._density.array
        density[:owned] = masses / volumes.volume[:owned]
        faces = self._faces.array.reshape(-1, d)
        if self.slopes is None:
            faces[:owned] = density[:owned, None]
        else:
            self._density.scatter_forward()
            _reconstruct(density, volumes.neighbours, self.slopes, faces)
        self._faces.scatter_forward()
        _divergence(
            flux,
            volumes.cell_facets,
            volumes.cell_signs,
            volumes.neighbours,
            volumes.neighbour_facets,
            faces,
            out,
        )


def slope_weights(volumes: FiniteVolumes, arrows: np.ndarray) -> np.ndarray:
    """W[c, i, j]: log rho changes along arrow i of cell c by sum_j W (log rho_j - log rho_c).

    The gradient solves the least-squares problem over the neighbours j in the tangent plane.

    Args:
        volumes: the cells.
        arrows: tangent vectors at the centres of own cells, cells x k x d.
    """
    centre = volumes.centre[: volumes.owned]
    frame, weights = gradient_weights(centre, volumes.centre[volumes.neighbours])
    return np.ascontiguousarray(np.einsum("cid,ctd->cit", arrows, frame) @ weights)


# What follows is compiled, and carries no types: numba compiles it for the arguments it meets.
_jit: Callable = numba.njit(cache=True)


@_jit
def _outflow_rate(flux, cell_facets, cell_signs, volume):  # type: ignore[no-untyped-def]
    largest = 0.0
    for c in range(cell_facets.shape[0]):
        outflow = 0.0
        for i in range(cell_facets.shape[1]):
            outflow += max(cell_signs[c, i] * flux[cell_facets[c, i]], 0.0)
        largest = max(largest, outflow / volume[c])
    return largest


@_jit
def face_factors(log_density, neighbours, weights, factors):  # type: ignore[no-untyped-def]
    """exp(g_f) at the facets of own cells, from the log densities of own and ghost cells."""
    d = neighbours.shape[1]
    difference = np.empty(d)
    slope = np.empty(d)
    for c in range(neighbours.shape[0]):
        resolved = log_density[c] > -np.inf
        for j in range(d):
            # Beside an empty cell (below the smallest double) there is no slope to speak of.
            resolved = resolved and log_density[neighbours[c, j]] > -np.inf
            difference[j] = log_density[neighbours[c, j]] - log_density[c]
        if not resolved:
            factors[c, :] = 1.0
            continue
        steepest = STEEPEST
        for i in range(d):
            slope[i] = 0.0
            for j in range(d):
                slope[i] += weights[c, i, j] * difference[j]
            steepest = max(steepest, abs(slope[i]))
        for i in range(d):
            factors[c, i] = math.exp(slope[i] * (STEEPEST / steepest))


@_jit
def _reconstruct(density, neighbours, weights, faces):  # type: ignore[no-untyped-def]
    face_factors(np.log(density), neighbours, weights, faces)
    for c in range(neighbours.shape[0]):
        faces[c, :] *= density[c]


@_jit
def _divergence(  # type: ignore[no-untyped-def]
    flux, cell_facets, cell_signs, neighbours, neighbour_facets, faces, out
):
    for c in range(cell_facets.shape[0]):
        change = 0.0
        for i in range(cell_facets.shape[1]):
            outward = cell_signs[c, i] * flux[cell_facets[c, i]]
            if outward > 0:
                change -= outward * faces[c, i]
            else:
                change -= outward * faces[neighbours[c, i], neighbour_facets[c, i]]
        out[c] = change
