"""Evolution beyond the range of doubles: each mass is m 2^e, with a mantissa and an exponent.

The metastable state ends when the tail of the density has died out, and the tail at the predicted
switch may be far below the smallest double. Every stage of the Runge-Kutta method rks2 is a convex
combination of forward Euler steps, and such a step of length h is a sum of positive terms,

    M_c(new) = M_c (1 - h out_c) + h in_c,
    out_c = sum_f max(q_f, 0) exp(g_f) / |c|,    in_c = sum_f max(-q_f, 0) rho_j exp(g_f),

with q_f the flux out of cell c and rho_j the density of the neighbour. So log M is computed to full
relative accuracy, whatever its size. Mantissas and exponents are kept apart, because a single
number log M = -2000 would carry a relative error of 2e-13 in M; they agree with `Evolution` to
rounding as long as that works.

The method is the one that `Evolution` has by default, with the same steps; other methods of PETSc
need doubles. What is saved (density.h5, the history) are doubles: zero where they underflow.
"""

from __future__ import annotations

import math

from mpi4py import MPI

import numpy as np

from meanfield_pde.attention.heads import Layer
from meanfield_pde.errors import InputError
from meanfield_pde.history.store import MASSES, Arrays
from meanfield_pde.mesh.transfer import Transfer
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.evolution import Evolution
from meanfield_pde.solver.reconstruction import face_factors
from meanfield_pde.support.kernels import kernel, part
from meanfield_pde.theory.projection_limit import ProjectionLimit

# Logarithm of the tail from which on doubles are not enough: the smallest is exp(-708), and the
# mass of a cell is that of the tail times its volume.
FEWEST_LOG = -650.0
MANTISSA, EXPONENT = "mantissa", "exponent"
_LOG2 = math.log(2.0)
_NOTHING = -(2.0**52)  # exponent of a mass of exactly zero


def doubles_run_out(projection: ProjectionLimit) -> bool:
    """Whether the tail is predicted to leave the range of doubles before the switch.

    It decays like exp(-r t), r the largest unsettled rate of the saddles, up to the predicted
    lifetime of the metastable state.
    """
    if not (projection.exists and projection.saddles):
        return False
    if not math.isfinite(projection.lifetime):
        return False
    fastest = max(saddle.unsettled_rate for saddle in projection.saddles)
    return bool(-fastest * projection.lifetime < FEWEST_LOG)


class LogEvolution(Evolution):
    """An `Evolution` whose masses may be arbitrarily small.

    Attributes:
        mantissa, exponent: of the masses of own cells, M = mantissa 2^exponent.
    """

    compiled = False

    def _settle(self, equation: Equation, layer: Layer, masses: np.ndarray) -> None:
        super()._settle(equation, layer, masses)
        if not self._stepper.rks2:
            raise InputError(
                "log masses are evolved by -ts_type ssp -ts_ssp_type rks2 only; leave these "
                "options out, or evolve the masses as doubles"
            )
        volumes = equation.volumes
        self._mantissa_of_all = volumes.new_vector()
        self._exponent_of_all = volumes.new_vector()
        self._face_factors = volumes.new_vector(volumes.dimension)
        self._put(*split(masses))

    @property
    def mantissa(self) -> np.ndarray:
        """Mantissas of the masses of own cells."""
        return self.state[MANTISSA]

    @property
    def exponent(self) -> np.ndarray:
        """Exponents of the masses of own cells."""
        return self.state[EXPONENT]

    @property
    def log_masses(self) -> np.ndarray:
        """Logarithms of the masses of own cells; -inf where a mass is exactly zero."""
        return log_of(self.mantissa, self.exponent)

    def carried(self, transfer: Transfer, arrays: Arrays | None = None) -> dict[str, np.ndarray]:
        """The state, or the arrays given instead, on another mesh, whatever its size."""
        given = self.state.gather() if arrays is None else arrays
        mantissa, exponent = transfer.wide(given[MANTISSA], given[EXPONENT])
        wide = {MANTISSA: mantissa, EXPONENT: exponent, MASSES: _doubles(mantissa, exponent)}
        return super().carried(transfer, given) | wide

    def _put(self, mantissa: np.ndarray, exponent: np.ndarray) -> None:
        """Set the state, and the masses with it."""
        self.state[MANTISSA], self.state[EXPONENT] = mantissa, exponent
        self.state[MASSES] = _doubles(mantissa, exponent)

    def _flux_of_state(self) -> np.ndarray:
        return self.terms.flux_from_log(self.log_masses, self.spots)

    def changed(
        self, arrays: Arrays, left: np.ndarray | float, added: np.ndarray | float
    ) -> dict[str, np.ndarray]:
        """Arrays of all cells with a part of the masses left, and others added."""
        rest = arrays[MANTISSA] * left
        new = split(np.broadcast_to(added, rest.shape))
        mantissa, exponent = _mixed(rest, arrays[EXPONENT], *new, 1.0, 1.0)
        found = super().changed(arrays, left, added)
        return found | {MANTISSA: mantissa, EXPONENT: exponent}

    def _attempt(self, dt: float) -> bool:
        start = (self.mantissa.copy(), self.exponent.copy())
        length = dt / self.coefficient
        self._stage_rate = 0.0
        within = True
        for stage in range(self._stepper.stages):
            self._stage_rate = max(self._stage_rate, self._present_rate())
            worst = self._comm.allreduce(self._stage_rate, MPI.MAX)
            # Beyond the limit a mass could become negative, which has no logarithm.
            within = bool(worst * length <= self.terms.transport.scheme.positive)
            if not within:
                break
            self._euler_step(length)
            if stage < self._stepper.stages - 1:
                self._forget_flux()
        if within:
            last = (self._stepper.stages - 1) / self._stepper.stages
            self._put(*_mixed(*start, self.mantissa, self.exponent, 1 - last, last))
            self._forget_flux()
        else:
            self._put(*start)
        return within

    def _euler_step(self, length: float) -> None:
        """Replace the masses by those after a forward Euler step, with the present fluxes."""
        assert self._flux is not None
        transport = self.terms.transport
        volumes = transport.volumes
        d, owned = volumes.dimension, volumes.owned
        mantissa, exponent = self._mantissa_of_all.array, self._exponent_of_all.array
        mantissa[:owned], exponent[:owned] = self.mantissa, self.exponent
        self._mantissa_of_all.scatter_forward()
        self._exponent_of_all.scatter_forward()
        factors = self._face_factors.array.reshape(-1, d)
        factors[:owned] = 1.0
        if transport.slopes is not None:
            log_density = log_of(mantissa, exponent) - np.log(volumes.volume)
            face_factors(
                transport.facets, log_density, volumes.neighbours, transport.slopes, factors
            )
        self._face_factors.scatter_forward()
        self.state[MANTISSA], self.state[EXPONENT] = _euler(
            self._flux * length,
            volumes.cell_facets,
            volumes.cell_signs,
            volumes.neighbours,
            volumes.neighbour_facets,
            volumes.volume,
            factors,
            mantissa,
            exponent,
        )


def split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mantissas in [1/2, 1) and exponents, both as floats, of non-negative numbers."""
    mantissa, exponent = np.frexp(np.asarray(values, dtype=float))
    return mantissa, np.where(mantissa > 0, exponent, _NOTHING)


def _doubles(mantissa: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """Masses mantissa 2^exponent; zero where that is below the smallest double."""
    return np.ldexp(mantissa, np.maximum(exponent, -2000.0).astype(np.int32))


def log_of(mantissa: np.ndarray, exponent: np.ndarray) -> np.ndarray:
    """log(mantissa 2^exponent); -inf for zero."""
    with np.errstate(divide="ignore"):
        return np.log(mantissa) + exponent * _LOG2


# What follows is compiled, and carries no types: numba compiles it for the arguments it meets.
@part
def _scaled(mantissa, shift):  # type: ignore[no-untyped-def]
    """Mantissa 2^shift; below the last digit of anything it is added to, zero."""
    return math.ldexp(mantissa, int(shift)) if shift > -1000 else 0.0


@kernel
def _euler(  # type: ignore[no-untyped-def]
    flow, cell_facets, cell_signs, neighbours, neighbour_facets, volume, factors, mantissa, exponent
):
    cells, d = cell_facets.shape
    new_mantissa = np.empty(cells)
    new_exponent = np.empty(cells)
    for c in range(cells):
        # The largest exponent among those that contribute is the common scale of the sum.
        scale = exponent[c]
        for i in range(d):
            if cell_signs[c, i] * flow[cell_facets[c, i]] < 0:
                scale = max(scale, exponent[neighbours[c, i]])
        out = 0.0
        total = 0.0
        for i in range(d):
            outward = cell_signs[c, i] * flow[cell_facets[c, i]]
            if outward > 0:
                out += outward * factors[c, i]
            elif outward < 0:
                j = neighbours[c, i]
                share = -outward * factors[j, neighbour_facets[c, i]] / volume[j]
                total += share * _scaled(mantissa[j], exponent[j] - scale)
        total += max(1.0 - out / volume[c], 0.0) * _scaled(mantissa[c], exponent[c] - scale)
        fraction, power = math.frexp(total)
        new_mantissa[c] = fraction
        new_exponent[c] = scale + power if total > 0 else _NOTHING
    return new_mantissa, new_exponent


@kernel
def _mixed(  # type: ignore[no-untyped-def]
    mantissa, exponent, other_mantissa, other_exponent, weight, other_weight
):
    """Weight M + other_weight M', cell by cell."""
    new_mantissa = np.empty_like(mantissa)
    new_exponent = np.empty_like(exponent)
    for c in range(len(mantissa)):
        scale = max(exponent[c], other_exponent[c])
        total = weight * _scaled(mantissa[c], exponent[c] - scale)
        total += other_weight * _scaled(other_mantissa[c], other_exponent[c] - scale)
        fraction, power = math.frexp(total)
        new_mantissa[c] = fraction
        new_exponent[c] = scale + power if total > 0 else _NOTHING
    return new_mantissa, new_exponent
