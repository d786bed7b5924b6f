"""How far transport and noise may act one after the other: the error of the splitting, estimated.

With the fluxes held fixed T is cheap, and the two symmetric orders

    T(h) D(2h) T(h)     and     D(h) T(2h) D(h)

have errors of the same size, h^3 times double commutators of transport and noise. Their difference
estimates it.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.solver.diffusion import Diffusion
from meanfield_pde.solver.transport import Transport

# Forward Euler steps in T(h), doubled until masses stay positive (chosen, not tuned).
_EULER_STEPS = 6


def longest_split(
    transport: Transport,
    noise: Diffusion,
    masses: np.ndarray,
    flux: np.ndarray,
    length: float,
    bound: float,
) -> float:
    """The length h with an error of this bound, estimated at another length. Collective.

    Args:
        transport: what carries the masses.
        noise: the diffusion.
        masses: of own cells.
        flux: through the facets, held fixed.
        length: h at which the error is estimated.
        bound: on the error, in total variation.
    """
    count, rate = _EULER_STEPS, transport.outflow_rate(flux)
    while rate * length / count > transport.scheme.positive:
        count *= 2
    comm = transport.volumes.comm
    count = max(comm.allgather(count))

    def transported(given: np.ndarray, steps: int) -> np.ndarray:
        result, change = given.copy(), np.empty_like(given)
        for _ in range(steps):
            transport.rate_of_change(result, flux, change)
            result = np.maximum(result + length / count * change, 0.0)
        return result

    first = transported(noise.advance(transported(masses, count), 2 * length), count)
    inside = transported(noise.advance(masses, length, 2), 2 * count)
    second = noise.advance(inside, length, 2)
    error = comm.allreduce(float(np.abs(first - second).sum()))
    return float(length * np.cbrt(bound / max(error, 1e-300)))
