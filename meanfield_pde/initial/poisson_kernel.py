"""The conformal Poisson kernel of the sphere: what its conformal maps make of the uniform density.

    rho(x) = ((1 - |w|^2) / |x - w|^2)^(d-1) / |S^(d-1)|,      w = modulus mean / |mean|

On the circle it is the Poisson kernel (1 - |w|^2) / (2 pi |x - w|^2), or wrapped Cauchy density,
with ∫ x dmu = w. On the sphere it is (1 - |w|^2)^2 / (4 pi |x - w|^4), and not the kernel of
harmonic functions, whose exponent is 3. Densities of this form stay so where every token has the
velocity P_x a(t) + A(t) x, as at beta = 0 (Watanabe and Strogatz, Ott and Antonsen; on spheres
Lohe, and Lipton, Mirollo and Strogatz, arXiv:1907.07150).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.initial.direction import unit_vector, vector_of
from meanfield_pde.initial.pointwise import PointwiseDensity, uniform_points
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.support.checks import points_of, real

# Beyond this the rounding of a point of the sphere, 1e-16, is no longer small against the square
# of the width, 1 - modulus, as for von Mises-Fisher densities.
LEAST_WIDTH = 1e-6


@dataclass(frozen=True)
class PoissonKernel(PointwiseDensity):
    """The conformal Poisson kernel, ((1 - |w|^2) / |x - w|^2)^(d-1) over the area of the sphere.

    Attributes:
        mean: its direction; any non-zero vector, of which only the direction counts.
        modulus: |w|, from 0, the uniform density, to below 1. On the circle it is |∫ x dmu|; on the
            sphere that is (1 + r^2) / 2r - (1 - r^2)^2 / 4r^2 log((1 + r) / (1 - r)), r = |w|.
    """

    mean: tuple[float, ...]
    modulus: float

    kind = "poisson-kernel"
    keys = ("mean", "modulus")

    def __post_init__(self) -> None:
        mean = vector_of(self.mean, "initial.mean")
        modulus = real(
            self.modulus,
            "initial.modulus",
            f"a number from 0 to 1 - {LEAST_WIDTH:g}",
            lambda v: 0 <= v <= 1 - LEAST_WIDTH,
        )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "modulus", modulus)

    @property
    def direction(self) -> np.ndarray:
        """The unit vector along mean."""
        return unit_vector(self.mean)

    def check(self, dimension: int) -> None:
        """Refuse a mean that does not live in this dimension."""
        if len(self.mean) != dimension:
            raise InputError(
                f"initial.mean must have {dimension} entries, the dimension of attention.value, "
                f"got {list(self.mean)}"
            )

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Logarithms of the density, which has mass one, at the rows of points."""
        points = points_of(points, len(self.mean))
        r, d = self.modulus, len(self.mean)
        # |x - w|^2 without cancellation.
        squared = (1 - r) ** 2 + r * ((points - self.direction) ** 2).sum(axis=1)
        area = math.log(2) + d / 2 * math.log(math.pi) - math.lgamma(d / 2)
        return np.asarray((d - 1) * (math.log1p(-r) + math.log1p(r) - np.log(squared)) - area)

    def density(self, points: np.ndarray) -> np.ndarray:
        """Values of the density, which has mass one, at the rows of points."""
        return np.exp(self.log_density(points))

    def length_scale(self, dimension: int) -> float:
        """Its width, 1 - |w|."""
        return 1 - self.modulus

    def peaks(self, dimension: int) -> np.ndarray:
        """Its direction."""
        return self.direction[None]

    def sample(self, generator: np.random.Generator, count: int, dimension: int) -> np.ndarray:
        """Images of uniform points u under the conformal map that moves 0 to w, in any dimension.

        (2 (1 + <w, u>) w + (1 - |w|^2) u) / |u + w|^2.
        """
        uniform = uniform_points(generator, count, dimension)
        r, e = self.modulus, self.direction
        # 1 + <w, u> and |u + w|^2 without cancellation next to u = -e.
        apart = ((uniform + e) ** 2).sum(axis=1)[:, None]
        mapped = (2 * (1 - r) + r * apart) * r * e + (1 - r) * (1 + r) * uniform
        return normalised(mapped / ((1 - r) ** 2 + r * apart))
