"""The stages of rks2, PETSc's strong-stability-preserving method of second order, compiled.

With s stages, a step of length dt is s forward Euler steps of length dt / (s - 1), the last of them
mixed with the state before:

    M_0 = M,     M_k = M_(k-1) + dt / (s - 1) d/dt M_(k-1),     M_new = M / s + (1 - 1/s) M_s.

PETSc's own TS takes these steps when its options ask for anything (`-ts_...`); they agree to
rounding.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.solver.stepper import fitting_step, time_after
from meanfield_pde.solver.transport import Transport, euler_alone
from meanfield_pde.support.kernels import kernel
from meanfield_pde.support.timings import timed

# Masses below the smallest normal double have lost their digits; they become exactly zero.
_TINY = float(np.finfo(float).tiny)
# Cells times steps that are taken at once, before Python has a look at signals again.
_AT_ONCE = 1_000_000


# Carries no types: numba compiles it for the arguments it meets.
@kernel
def settle(masses):  # type: ignore[no-untyped-def]
    """Set tiny masses to zero; whether all are finite and none is negative."""
    valid = True
    for c in range(masses.size):
        if not 0.0 <= masses[c] < np.inf:
            valid = False
        elif masses[c] < _TINY:
            masses[c] = 0.0
    return valid


@timed("Transport")
def many_steps(
    transport: Transport,
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray],
    span: tuple[float, float, float],
    stages: int,
) -> tuple[int, float, float]:
    """Steps with fixed fluxes, on a rank that is alone.

    Args:
        transport: the operator.
        arrays: masses, which change; room for those before a step; and fluxes.
        span: the time, where to end, and the longest step.
        stages: of rks2.

    Returns:
        How many were taken, the time then, and the length of the last. It stops before a step that
        would make a mass negative, and from time to time.
    """
    most = max(1, _AT_ONCE // len(transport.volumes.volume))
    return _steps(*arrays, *span, stages, most, transport.facets, *transport.arrays)


@kernel
def _steps(  # type: ignore[no-untyped-def]
    masses, before, flux, time, until, limit, stages, most, facets,
    volume, cell_facets, cell_signs, neighbours, neighbour_facets, weights,
    density, log_density, factors, change,
):  # fmt: skip
    taken, last = 0, 0.0
    while taken < most and time < until:
        dt = fitting_step(until - time, limit)
        for c in range(masses.size):  # assigned as a whole, it would take a second to compile
            before[c] = masses[c]
        for stage in range(1, stages + 1):
            share = 1.0 / stage if stage == stages else 0.0
            euler_alone(
                masses, flux, dt / (stages - 1), before, share, facets,
                volume, cell_facets, cell_signs, neighbours, neighbour_facets, weights,
                density, log_density, factors, change,
            )  # fmt: skip
        if not settle(masses):
            for c in range(masses.size):
                masses[c] = before[c]
            break
        taken += 1
        last, time = dt, time_after(time, dt, until)
    return taken, time, last
