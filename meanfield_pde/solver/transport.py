"""Conservative, positive transport: d/dt M_c = - sum over facets f of c of sum over q_f rho_f.

M_c is the mass of cell c, q_f the part of the integral of <v, conormal> over facet f that belongs
to one of its points (two Gauss points on an edge of the sphere), and rho_f the density there, taken
from the cell that this part leaves.

    upwind     rho_f = rho_c, first order
    muscl      rho_f = rho_c exp(g_f), second order: g_f is the least-squares slope of log rho in
               the cell, times the way from its centre to the point, scaled back so that |g_f| <= 1
    quadratic  third order: rho_f is that of a quadratic fit to log rho, with the mean rho_c over
               the cell (`mesh.quadratic_fit`), and that of muscl where the fit is not resolved

Slopes of the logarithm keep the tails right: a density that falls by decades from cell to cell is
reconstructed with the same relative accuracy everywhere. A forward Euler step dt keeps every mass
non-negative if no cell gives away more than it holds,

    dt sum_f max(q_f, 0) (rho_f / rho_c) / |c| <= 1,

which is so where dt times the outflow rate max_c sum_f max(q_f, 0) / |c| is at most 1 for upwind
and exp(-1) for the others, as rho_f <= e rho_c. Where densities are resolved they hardly differ,
and steps may be longer: whether they are too long is seen as they are taken.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.amr.remap import ZERO_EXPONENT
from meanfield_pde.mesh.cell_fits import cell_fits
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.halo import Halo
from meanfield_pde.mesh.quadratic_fit import STEEP_FLUXES, quadratic_factors
from meanfield_pde.mesh.reconstruction import face_factors, facet_numbers, logarithms
from meanfield_pde.solver.schemes import Scheme
from meanfield_pde.support.kernels import kernel, part
from meanfield_pde.support.timings import timed

_LOG2 = math.log(2.0)  # from exponents of two to logarithms


class Transport:
    """The transport operator on the cells of this rank.

    Masses are those of own cells: M (cells), or mantissas and exponents (2 x cells) of M in the
    extended range (`masses`).

    Attributes:
        volumes, scheme: the cells, and how densities at the facets are made.
        facets: the numbers of a cell's facets.
        arrays: those of the mesh, and room to work in, for `euler_alone`.
    """

    def __init__(self, volumes: FiniteVolumes, scheme: Scheme) -> None:
        """Collective."""
        self.volumes = volumes
        self.scheme = scheme
        fits = cell_fits(volumes) if scheme.quadratic else None
        self._halo = halo = Halo(volumes, scheme.rings) if fits is None else fits.halo
        d = volumes.dimension
        self.facets = facet_numbers(d)
        slopes = np.empty((0, d * (d - 1), d))
        if scheme.slopes is not None:
            slopes = np.ascontiguousarray(halo.extended(scheme.slopes(volumes))[: halo.inner])
        fit: tuple[np.ndarray, ...] = tuple(np.empty((0,) * axes) for axes in (3, 3, 3))
        fit = np.empty((0, 0), dtype=np.int32), *fit
        if fits is not None:
            fit = fits.at_facets()
        self.arrays = (
            halo.ghosts,
            halo.extended(volumes.volume[: volumes.owned]),
            volumes.cell_facets,
            volumes.cell_signs,
            halo.neighbours[: halo.inner],
            volumes.neighbour_facets,
            slopes,
            *fit,
            np.empty(halo.count),
            np.empty(halo.count),
            np.empty(halo.count),
            np.empty((halo.inner, d * (d - 1))),
            np.empty(volumes.owned),
        )

    def outflow_rate(self, flux: np.ndarray) -> float:
        """Largest over own cells of sum_f max(q_f, 0) / |c|, for the facet fluxes q."""
        volumes = self.volumes
        return _outflow_rate(flux, volumes.cell_facets, volumes.cell_signs, volumes.volume)

    @timed("Transport")
    def rate_of_change(self, masses: np.ndarray, flux: np.ndarray, out: np.ndarray) -> None:
        """Write d/dt M of own cells to `out`; `masses` are those of own cells. Collective."""
        self._halo.exchange(masses)
        _rate_of_change(masses, flux, 0.0, out, self.facets, *self.arrays)

    @timed("Transport")
    def euler(
        self,
        masses: np.ndarray,
        flux: np.ndarray,
        length: float,
        before: np.ndarray,
        share: float = 0.0,
    ) -> bool:
        """Forward Euler step of this length, in place, then share x before + (1 - share) x it.

        Collective: one exchange where there are other ranks, and one call, which allocates nothing.
        It returns whether no cell of this rank gave away more than it held.
        """
        self._halo.exchange(masses)
        return euler_alone(masses, flux, length, before, share, self.facets, *self.arrays)


# What follows is compiled, and carries no types: numba compiles it for the arguments it meets.
@kernel
def _outflow_rate(flux, cell_facets, cell_signs, volume):
    largest = 0.0
    for c in range(cell_facets.shape[0]):
        outflow = 0.0
        for i in range(cell_facets.shape[1]):
            for q in range(flux.shape[1]):
                outflow += max(cell_signs[c, i] * flux[cell_facets[c, i], q], 0.0)
        largest = max(largest, outflow / volume[c])
    return largest


@part
def _densities(masses, ghosts, volume, density):
    owned = masses.size
    for c in range(owned):
        # A stage of a step that is too long may be negative; the step will be rejected.
        density[c] = max(masses[c], 0.0) / volume[c]
    for c in range(owned, volume.size):
        density[c] = max(ghosts[0, c - owned], 0.0) / volume[c]


@part
def _mantissas(masses, ghosts, volume, density, exponents):
    """Densities density 2^exponents, from mantissas and exponents of masses."""
    owned = masses.shape[1]
    for c in range(owned):
        density[c], exponents[c] = masses[0, c] / volume[c], masses[1, c]
    for c in range(owned, volume.size):
        density[c], exponents[c] = ghosts[0, c - owned] / volume[c], ghosts[1, c - owned]


@part
def _reconstruct(facets, log_density, neighbours, weights, stencil, fit, bend, points, factors):
    if stencil.size > 0:
        quadratic_factors(STEEP_FLUXES, facets, log_density, stencil, fit, bend, points, factors)
    elif weights.size > 0:
        face_factors(facets, log_density, neighbours, weights, factors)
    else:
        flat = factors.reshape(-1)
        for e in range(flat.size):
            flat[e] = 1.0


@part
def _divergence(
    facets, flux, length, cell_facets, cell_signs, neighbours, neighbour_facets, volume, density,
    factors, out,
):  # fmt: skip
    """Write d/dt M; whether no cell would give away more than it holds in a step of this length."""
    points = len(facets) - 1
    held = True
    for c in range(cell_facets.shape[0]):
        change, given = 0.0, 0.0
        for i in range(len(facets)):
            j = neighbours[c, i]
            for q in range(points):
                outward = cell_signs[c, i] * flux[cell_facets[c, i], q]
                if outward > 0:
                    given += outward * factors[c, points * i + q]
                else:
                    there = factors[j, points * neighbour_facets[c, i] + q]
                    change -= outward * (there * density[j])
        out[c] = change - given * density[c]
        held = held and length * given <= volume[c]
    return held


@part
def _update(masses, change, length, before, share):
    # Not share x one + (1 - share) x other: the rounded shares of 1/5 and 4/5 add up to 1 + 6e-17,
    # and the total mass would grow by that with every step.
    for c in range(masses.size):
        after = masses[c] + length * change[c]
        masses[c] = after + share * (before[c] - after)


@part
def scaled(mantissa, shift):
    """Return mantissa 2^shift; below the last digit of anything it is added to, zero."""
    return math.ldexp(mantissa, int(shift)) if shift > -1000 else 0.0


@part
def _extended_update(
    facets, masses, flux, length, before, share,
    cell_facets, cell_signs, neighbours, neighbour_facets, volume, density, exponents, factors,
):  # fmt: skip
    points = len(facets) - 1
    held = True
    for c in range(cell_facets.shape[0]):
        # The largest exponent among those that contribute is the common scale of the sum.
        scale = exponents[c]
        for i in range(len(facets)):
            for q in range(points):
                if cell_signs[c, i] * flux[cell_facets[c, i], q] < 0:
                    scale = max(scale, exponents[neighbours[c, i]])
        out = 0.0
        total = 0.0
        for i in range(len(facets)):
            j = neighbours[c, i]
            for q in range(points):
                outward = length * cell_signs[c, i] * flux[cell_facets[c, i], q]
                if outward > 0:
                    out += outward * factors[c, points * i + q]
                elif outward < 0:
                    there = factors[j, points * neighbour_facets[c, i] + q]
                    total -= outward * there * scaled(density[j], exponents[j] - scale)
        held = held and out <= volume[c]
        total += max(volume[c] - out, 0.0) * scaled(density[c], exponents[c] - scale)
        mantissa, power = math.frexp(total)
        exponent = scale + power if total > 0 else ZERO_EXPONENT
        if share > 0:
            scale = max(exponent, before[1, c])
            total = (1 - share) * scaled(mantissa, exponent - scale)
            total += share * scaled(before[0, c], before[1, c] - scale)
            mantissa, power = math.frexp(total)
            exponent = scale + power if total > 0 else ZERO_EXPONENT
        masses[0, c], masses[1, c] = mantissa, exponent
    return held


@kernel
def _rate_of_change(
    masses, flux, length, out, facets,
    ghosts, volume, cell_facets, cell_signs, neighbours, neighbour_facets, weights,
    stencil, fit, bend, points, density, log_density, exponents, factors, change,
):  # fmt: skip
    _densities(masses, ghosts, volume, density)
    if weights.size + stencil.size > 0:
        logarithms(density, log_density)
    _reconstruct(facets, log_density, neighbours, weights, stencil, fit, bend, points, factors)
    return _divergence(
        facets, flux, length, cell_facets, cell_signs, neighbours, neighbour_facets, volume,
        density, factors, out,
    )  # fmt: skip


@kernel
def euler_alone(
    masses, flux, length, before, share, facets,
    ghosts, volume, cell_facets, cell_signs, neighbours, neighbour_facets, weights,
    stencil, fit, bend, points, density, log_density, exponents, factors, change,
):  # fmt: skip
    """`Transport.euler` after its exchange; the last two lines are `Transport.arrays`.

    They are arguments each, since taking a tuple apart costs as much as fifty cells.
    """
    if masses.ndim == 1:  # known to the compiler
        held = _rate_of_change(
            masses, flux, length, change, facets,
            ghosts, volume, cell_facets, cell_signs, neighbours, neighbour_facets, weights,
            stencil, fit, bend, points, density, log_density, exponents, factors, change,
        )  # fmt: skip
        _update(masses, change, length, before, share)
    else:
        _mantissas(masses, ghosts, volume, density, exponents)
        if weights.size + stencil.size > 0:
            logarithms(density, log_density)
            for c in range(log_density.size):
                log_density[c] += exponents[c] * _LOG2
        _reconstruct(facets, log_density, neighbours, weights, stencil, fit, bend, points, factors)
        held = _extended_update(
            facets, masses, flux, length, before, share,
            cell_facets, cell_signs, neighbours, neighbour_facets, volume, density, exponents,
            factors,
        )  # fmt: skip
    return held
