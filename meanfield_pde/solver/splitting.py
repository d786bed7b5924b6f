"""How far transport and noise may act one after the other: the error of the splitting, estimated.

While the velocity stands still transport is cheap, and the two symmetric orders

    T(h) D(2h) T(h)     and     D(h) T(2h) D(h)

have errors of the same size, h^3 times double commutators of transport and noise. Their difference
estimates it.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.solver.flow import Flow
from meanfield_pde.solver.integrator import Velocity
from meanfield_pde.solver.masses import Doubles
from meanfield_pde.support.ranks import total


def longest_split(
    flow: Flow, masses: np.ndarray, velocity: Velocity, length: float, bound: float
) -> float:
    """The length h with an error of this bound, estimated at another length. Collective.

    Args:
        flow: transport and noise.
        masses: of own cells.
        velocity: stands still.
        length: h at which the error is estimated.
        bound: on the error, in total variation.
    """
    noise = flow.noise
    assert noise is not None

    def carried(given: np.ndarray, time: float) -> np.ndarray:
        return flow.carried(Doubles(given), velocity, time)[0].doubles

    first = carried(noise.advance(carried(masses, length), 2 * length), length)
    inside = carried(noise.advance(masses, length, 2), 2 * length)
    second = noise.advance(inside, length, 2)
    error = total(flow.transport.volumes.comm, float(np.abs(first - second).sum()))
    return float(length * np.cbrt(bound / max(error, 1e-300)))
