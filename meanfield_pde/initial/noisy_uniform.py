"""The uniform density with random modes, the same for a seed on every mesh and number of ranks.

    rho(x) = (1 + a Σ_k Σ_m xi_km Y_km(x)) / |S^(d-1)|

over the degrees k that are chosen, with independent standard normal xi. The Y_km are orthonormal
with respect to the uniform probability: 2^(1/2) cos k theta and 2^(1/2) sin k theta on the circle,
the real spherical harmonics of degree k on the sphere. So the moments ∫ Y_km dmu are a xi_km, of
standard deviation a; those of N independent uniform tokens have N^(-1/2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.initial.pointwise import PROBES, PointwiseDensity, probes
from meanfield_pde.initial.uniform import Uniform
from meanfield_pde.support.checks import number_list, points_of, real, whole

# Of the degrees k: by the distance of probes, the lower bound of the density is then off by 2 %
# (circle) and 29 % (sphere) of the largest perturbation (`_least`).
MOST_DEGREE = {2: 256, 3: 32}
# How far the nearest probe is at most: half of 2 pi / 4096, and on the Fibonacci lattice 0.72 of
# the square root of the area of a point, as 2 million random points have found.
_AWAY = {2: math.pi / PROBES[2], 3: 0.85 * math.sqrt(4 * math.pi / PROBES[3])}


@dataclass(frozen=True)
class NoisyUniform(PointwiseDensity):
    """The uniform density with random modes of chosen degrees.

    Attributes:
        seed: a whole number >= 0. The coefficients of degree k are standard normal numbers of
            `numpy.random.default_rng([seed, k])`, the same whatever other degrees are chosen:
            cosine and sine on the circle; m = 0, then cosine and sine of m = 1, 2, ... on the
            sphere, without the sign of Condon and Shortley.
        modes: the degrees k, from 1 to 256 on the circle, to 32 on the sphere.
        amplitude: a > 0, the standard deviation of the moments ∫ Y_km dmu.
    """

    seed: int
    modes: tuple[int, ...]
    amplitude: float

    kind = "noisy-uniform"
    keys = ("seed", "modes", "amplitude")

    def __post_init__(self) -> None:
        object.__setattr__(self, "seed", whole(self.seed, "initial.seed", 0))
        given = number_list(self.modes, "initial.modes")
        modes = tuple(whole(k, f"initial.modes[{i}]", 1) for i, k in enumerate(given))
        if not modes or len(set(modes)) < len(modes):
            raise InputError(f"initial.modes must have a degree or more, each once, got {modes}")
        object.__setattr__(self, "modes", modes)
        amplitude = real(self.amplitude, "initial.amplitude", "a number > 0", lambda a: a > 0)
        object.__setattr__(self, "amplitude", amplitude)

    def check(self, dimension: int) -> None:
        """Refuse degrees that are too high, and what is not positive."""
        least = _least(self.seed, self.modes, dimension)
        if 1 + self.amplitude * least < 0:
            raise InputError(
                f"initial.amplitude must be at most {-1 / least:.3g} for this seed and these "
                f"modes, or the density could be negative, got {self.amplitude:g}"
            )

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Logarithms of the density, which has mass one, at the rows of points."""
        return np.log(self.density(points))

    def density(self, points: np.ndarray) -> np.ndarray:
        """Values of the density, which has mass one, at the rows of points."""
        points = points_of(points)
        perturbation = self.amplitude * _sum_of_modes(points, self.seed, self.modes)
        return np.asarray(Uniform().density(points) * (1 + perturbation))

    def length_scale(self, dimension: int) -> float:
        """1 / k of the highest degree."""
        return 1 / max(self.modes)


@lru_cache(maxsize=16)
def _least(seed: int, modes: tuple[int, ...], dimension: int) -> float:
    """A lower bound of Σ_k Σ_m xi_km Y_km.

    Along every great circle it is a trigonometric polynomial of degree K = max k, so that by
    Bernstein its second derivative is at most K^2 times its largest value.
    """
    points = probes(dimension)
    highest = MOST_DEGREE[dimension]
    if max(modes) > highest:
        raise InputError(f"initial.modes must be at most {highest}, got {max(modes)}")
    values = _sum_of_modes(points, seed, modes)
    missed = (max(modes) * _AWAY[dimension]) ** 2 / 2
    return float(values.min() - missed / (1 - missed) * np.abs(values).max())


def _sum_of_modes(points: np.ndarray, seed: int, modes: tuple[int, ...]) -> np.ndarray:
    """Σ_k Σ_m xi_km Y_km at the rows of points."""
    d = points.shape[1]
    xi = {
        k: np.random.default_rng([seed, k]).standard_normal(2 if d == 2 else 2 * k + 1)
        for k in modes
    }
    if d == 3:
        return _spherical(points, xi)
    angle = np.arctan2(points[:, 1], points[:, 0])
    parts = [xi[k][0] * np.cos(k * angle) + xi[k][1] * np.sin(k * angle) for k in modes]
    return np.asarray(math.sqrt(2) * np.sum(parts, axis=0))


def _spherical(points: np.ndarray, xi: dict[int, np.ndarray]) -> np.ndarray:
    """Σ_l (xi_l0 Y_l0 + Σ_m xi_lm Y_lm) by the recurrence in l of normalised Legendre functions.

    Y_lm = P_lm(z) Re or Im (x + i y)^m, where (x + i y)^m holds the power of sin theta.
    """
    z, across = points[:, 2], points[:, 0] + 1j * points[:, 1]
    power = np.ones(len(points), dtype=complex)
    total = np.zeros(len(points))
    for m in range(max(xi) + 1):
        if m:
            power = power * across * math.sqrt((2 * m + 1) / (2 * m) * (2 if m == 1 else 1))
        before, now = np.zeros(len(points)), np.ones(len(points))
        for l in range(m, max(xi) + 1):  # noqa: E741  # its name everywhere
            if l > m:
                first = math.sqrt((4 * l * l - 1) / (l * l - m * m))
                second = math.sqrt(((l - 1) ** 2 - m * m) / (4 * (l - 1) ** 2 - 1))
                before, now = now, first * (z * now - second * before)
            if l in xi:
                turned = (
                    xi[l][2 * m - 1] * power.real + xi[l][2 * m] * power.imag if m else xi[l][0]
                )
                total += now * turned
    return total
