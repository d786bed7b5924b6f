"""Tokens with noise: dx_i = v(x_i) dt + sqrt(2 sigma) dW_i on the sphere S^n, n = d - 1.

Two methods, in whose names W is a Brownian motion of the sphere:

splitting        W for h/2, the drift for h by the midpoint rule, W for h/2. For a time s / sigma
                 W goes a geodesic of length sqrt(2 s (1 - (n - 1) s / 3)) |xi| in the direction of
                 the normal tangent vector xi. Both moments of that length are those of Brownian
                 motion up to s^2, so that the whole is of weak order 2.
Euler-Maruyama   x <- (x + h v + sqrt(2 sigma h) xi) / |.|, of weak order 1.

The random numbers belong to the seed and to the time at which a step begins: they do not depend on
the number of ranks, and a simulation that is resumed at a saved time goes on with the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from meanfield_pde.attention.heads import Layer, speed_bound
from meanfield_pde.mesh.geometry import normalised

# Steps of the splitting, in units of 1 / (the bound on the velocity) and of 1 / sigma: of weak
# order 2, so that means are off by some (1/50)^2 = 4e-4.
STEP = 0.02
# Steps of the Runge-Kutta method are at most so long, in units of 1 / (that bound): it is explicit.
STABLE = 10.0

Velocity = Callable[[np.ndarray], np.ndarray]


def longest_step(layer: Layer, noise: float) -> float:
    """The longest step with which a layer is followed, unless one is given."""
    if noise:
        return STEP / max(speed_bound(layer), noise)
    return STABLE / max(speed_bound(layer), 1e-300)


def normals(seed: int, time: float, shape: tuple[int, ...]) -> np.ndarray:
    """Normal numbers for the step that begins at a time."""
    bits = int(np.float64(time).view(np.uint64))
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, bits]))).normal(
        size=shape
    )


def wandered(x: np.ndarray, spread: float, xi: np.ndarray) -> np.ndarray:
    """Points after Brownian motion for a time s / sigma, s = `spread`, with normal numbers xi."""
    tangent = xi - (xi * x).sum(axis=-1, keepdims=True) * x
    curved = max(1 - (x.shape[-1] - 2) * spread / 3, 0.0)
    angle = math.sqrt(2 * spread * curved) * np.linalg.norm(tangent, axis=-1, keepdims=True)
    return normalised(np.cos(angle) * x + np.sin(angle) * normalised(tangent))


def splitting(
    velocity: Velocity,
    x: np.ndarray,
    begin: float,
    stops: Sequence[float],
    step: float,
    strength: float,
    seed: int,
) -> Iterator[np.ndarray]:
    """Positions at the stops, by the splitting with steps of at most this length."""
    for time, h, ends in _steps(begin, stops, step):
        first, second = normals(seed, time, (2, *x.shape))
        y = wandered(x, strength * h / 2, first)
        middle = normalised(y + h / 2 * velocity(y))
        y = normalised(y + h * velocity(middle))
        x = wandered(y, strength * h / 2, second)
        if ends:
            yield x


def euler_maruyama(
    velocity: Velocity,
    x: np.ndarray,
    begin: float,
    stops: Sequence[float],
    step: float,
    strength: float,
    seed: int,
) -> Iterator[np.ndarray]:
    """Positions at the stops, by Euler-Maruyama."""
    for time, h, ends in _steps(begin, stops, step):
        xi = normals(seed, time, x.shape)
        tangent = xi - (xi * x).sum(axis=1, keepdims=True) * x
        x = normalised(x + h * velocity(x) + math.sqrt(2 * strength * h) * tangent)
        if ends:
            yield x


def _steps(
    begin: float, stops: Sequence[float], step: float
) -> Iterator[tuple[float, float, bool]]:
    """Beginning and length of each step, and whether a stop is at its end."""
    for stop in stops:
        count = math.ceil((stop - begin) / step * (1 - 1e-9))
        h = (stop - begin) / max(count, 1)
        for i in range(count):
            yield begin + i * h, h, i == count - 1
        begin = stop
