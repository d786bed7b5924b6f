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

from functools import cached_property

import numpy as np
from dolfinx import la

from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.reconstruction import face_factors, facet_numbers, logarithms
from meanfield_pde.solver.schemes import Scheme
from meanfield_pde.support.kernels import kernel
from meanfield_pde.support.timings import timed


class Transport:
    """The transport operator on the cells of this rank.

    Attributes:
        volumes, scheme: the cells, and how densities at the facets are made.
        facets: the numbers of a cell's facets.
        slopes: those of the scheme; None without.
        arrays: those of the mesh, and room to work in, for `euler_alone`.
    """

    def __init__(self, volumes: FiniteVolumes, scheme: Scheme) -> None:
        self.volumes = volumes
        self.scheme = scheme
        self._density = volumes.new_vector()
        self._factors = volumes.new_vector(volumes.dimension)
        self.slopes = None if scheme.slopes is None else scheme.slopes(volumes)
        local, d = len(volumes.volume), volumes.dimension
        self.facets = facet_numbers(d)
        self.arrays = (
            volumes.volume,
            volumes.cell_facets,
            volumes.cell_signs,
            volumes.neighbours,
            volumes.neighbour_facets,
            np.empty((0, d, d)) if self.slopes is None else self.slopes,
            self._density.array,
            np.empty(local),
            self._factors.array.reshape(-1, d),
            np.empty(volumes.owned),
        )

    @cached_property
    def log_volume(self) -> np.ndarray:
        """Logarithms of the volumes of own and ghost cells."""
        return np.asarray(np.log(self.volumes.volume))

    @cached_property
    def extended_vectors(self) -> tuple[la.Vector, la.Vector, la.Vector]:
        """Room for mantissas, exponents and factors of own and ghost cells."""
        volumes = self.volumes
        return volumes.new_vector(), volumes.new_vector(), volumes.new_vector(volumes.dimension)

    def outflow_rate(self, flux: np.ndarray) -> float:
        """Largest over own cells of sum_f max(q_f, 0) / |c|, for the facet fluxes q."""
        volumes = self.volumes
        return _outflow_rate(flux, volumes.cell_facets, volumes.cell_signs, volumes.volume)

    @timed("Transport")
    def rate_of_change(self, masses: np.ndarray, flux: np.ndarray, out: np.ndarray) -> None:
        """Write d/dt M of own cells to `out`; `masses` are those of own cells. Collective."""
        volume, *links, weights, density, log_density, factors, _ = self.arrays
        _densities(masses, volume, density)
        self._density.scatter_forward()
        _reconstruct(self.facets, self.volumes.neighbours, weights, density, log_density, factors)
        self._factors.scatter_forward()
        _divergence(self.facets, flux, *links, density, factors, out)

    @timed("Transport")
    def euler(
        self,
        masses: np.ndarray,
        flux: np.ndarray,
        length: float,
        before: np.ndarray,
        share: float = 0.0,
    ) -> None:
        """Forward Euler step of this length, in place, then share x before + (1 - share) x it.

        Collective. Where there are no other ranks, it is one call and allocates nothing.
        """
        if self.volumes.comm.size == 1:
            euler_alone(masses, flux, length, before, share, self.facets, *self.arrays)
        else:
            change = self.arrays[-1]
            self.rate_of_change(masses, flux, change)
            _update(masses, change, length, before, share)


# What follows is compiled, and carries no types: numba compiles it for the arguments it meets.
@kernel
def _outflow_rate(flux, cell_facets, cell_signs, volume):
    largest = 0.0
    for c in range(cell_facets.shape[0]):
        outflow = 0.0
        for i in range(cell_facets.shape[1]):
            outflow += max(cell_signs[c, i] * flux[cell_facets[c, i]], 0.0)
        largest = max(largest, outflow / volume[c])
    return largest


@kernel
def _densities(masses, volume, density):
    for c in range(masses.size):
        # A stage of a step that is too long may be negative; the step will be rejected.
        density[c] = max(masses[c], 0.0) / volume[c]


@kernel
def _reconstruct(facets, neighbours, weights, density, log_density, factors):
    if weights.size == 0:
        for c in range(neighbours.shape[0]):
            for i in range(neighbours.shape[1]):
                factors[c, i] = 1.0
    else:
        logarithms(density, log_density)
        face_factors(facets, log_density, neighbours, weights, factors)


@kernel
def _divergence(
    facets, flux, cell_facets, cell_signs, neighbours, neighbour_facets, density, factors, out
):
    for c in range(cell_facets.shape[0]):
        change = 0.0
        for i in range(len(facets)):
            outward = cell_signs[c, i] * flux[cell_facets[c, i]]
            if outward > 0:
                change -= outward * (factors[c, i] * density[c])
            else:
                j = neighbours[c, i]
                change -= outward * (factors[j, neighbour_facets[c, i]] * density[j])
        out[c] = change


@kernel
def _update(masses, change, length, before, share):
    # Not share x one + (1 - share) x other: the rounded shares of 1/5 and 4/5 add up to 1 + 6e-17,
    # and the total mass would grow by that with every step.
    for c in range(masses.size):
        after = masses[c] + length * change[c]
        masses[c] = after + share * (before[c] - after)


@kernel
def euler_alone(
    masses, flux, length, before, share, facets,
    volume, cell_facets, cell_signs, neighbours, neighbour_facets, weights,
    density, log_density, factors, change,
):  # fmt: skip
    """`Transport.euler` without ghosts; the last two lines are `Transport.arrays`.

    They are arguments each, since taking a tuple apart costs as much as fifty cells.
    """
    _densities(masses, volume, density)
    _reconstruct(facets, neighbours, weights, density, log_density, factors)
    _divergence(
        facets, flux, cell_facets, cell_signs, neighbours, neighbour_facets, density, factors,
        change,
    )  # fmt: skip
    _update(masses, change, length, before, share)
