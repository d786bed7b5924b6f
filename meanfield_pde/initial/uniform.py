"""The uniform density."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.initial.pointwise import PointwiseDensity, uniform_points
from meanfield_pde.support.checks import points_of


@dataclass(frozen=True)
class Uniform(PointwiseDensity):
    """The uniform probability density on the sphere."""

    kind = "uniform"

    def check(self, dimension: int) -> None:
        """Nothing to check: it makes sense in every dimension."""

    def density(self, points: np.ndarray) -> np.ndarray:
        """Values at the rows of points: 1/(2 pi) on the circle, 1/(4 pi) on the sphere."""
        points = points_of(points)
        total = {2: 2 * math.pi, 3: 4 * math.pi}.get(points.shape[1])
        if total is None:
            raise InputError(
                f"a density has values on the circle or the sphere, got d = {points.shape[1]}"
            )
        return np.full(len(points), 1 / total)

    def sample(self, generator: np.random.Generator, count: int, dimension: int) -> np.ndarray:
        """Directions of Gaussian vectors, in any dimension."""
        return uniform_points(generator, count, dimension)
