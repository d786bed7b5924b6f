"""Initial densities given by a formula in the coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.initial.expression import Expression
from meanfield_pde.initial.pointwise import PointwiseDensity, probes
from meanfield_pde.support.checks import LEAST_MASS, points_of, shown

VARIABLES = ("x", "y", "z")
# Values below zero by no more than this fraction of the largest are the rounding of a zero, some
# hundred roundings of 1e-16, as in 1 - x**2 - y**2 on the equator of the sphere.
ROUNDING = 1e-13


@dataclass(frozen=True)
class ExpressionDensity(PointwiseDensity):
    """A density given by a formula in x, y and, on the sphere, z.

    It must be finite and >= 0 everywhere, and not zero everywhere; its mass does not matter.

    Attributes:
        expression: the formula, as in "1 + 0.5*x + 0.3*x*y".
    """

    expression: str

    kind = "expression"
    keys = ("density",)

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise InputError(
                f"initial.density must be a formula in quotes, got {shown(self.expression)}"
            )
        _expression(self.expression, 3)

    @classmethod
    def from_table(cls, table: dict[str, Any], folder: Path) -> ExpressionDensity:
        """The formula under the key `density`."""
        return cls(table["density"])

    def to_table(self) -> dict[str, Any]:
        """The formula under the key `density`."""
        return {"kind": self.kind, "density": self.expression}

    def check(self, dimension: int) -> None:
        """Evaluate the formula all over the sphere and refuse it if it is not a density."""
        self.density(probes(dimension))
        largest = _largest(self.expression, dimension)
        if not largest > 0:
            raise InputError(f"initial.density is zero everywhere: {self.expression!r}")
        if largest < LEAST_MASS:
            raise InputError(
                f"initial.density must not be below {LEAST_MASS:g} everywhere, where doubles lose "
                f"their digits; scale it, its mass does not matter: {self.expression!r}"
            )

    def density(self, points: np.ndarray) -> np.ndarray:
        """Values of the formula at the rows of points; InputError where it is not a density."""
        points = points_of(points)
        dimension = _known(points.shape[1])
        values = _expression(self.expression, dimension)(points)
        smallest = -ROUNDING * _largest(self.expression, dimension)
        wrong = ~((values >= smallest) & np.isfinite(values))
        if wrong.any():
            i = int(wrong.argmax())
            point = ", ".join(f"{coordinate:.6g}" for coordinate in points[i])
            raise InputError(
                f"initial.density must be finite and >= 0 everywhere, got "
                f"{values[i]:.6g} at ({point}) from {self.expression!r}"
            )
        return np.maximum(values, 0.0)

    def length_scale(self, dimension: int) -> float:
        """Estimate max rho / max |grad rho| from differences at points all over the sphere."""
        points, step = probes(dimension), 1e-4
        squared_slope = np.zeros(len(points))
        for axis in np.eye(dimension) * step:
            ahead, behind = points + axis, points - axis
            ahead /= np.linalg.norm(ahead, axis=1, keepdims=True)
            behind /= np.linalg.norm(behind, axis=1, keepdims=True)
            # Differences along the projected axes add up to the tangential gradient.
            squared_slope += ((self.density(ahead) - self.density(behind)) / (2 * step)) ** 2
        slope = math.sqrt(squared_slope.max())
        largest = _largest(self.expression, dimension)
        return largest / slope if slope > 1e-8 * largest else math.inf

    def peaks(self, dimension: int) -> np.ndarray:
        """The probe with the largest value."""
        points = probes(dimension)
        return points[[int(np.argmax(self.density(points)))]]


def _known(dimension: int) -> int:
    """The dimension; InputError unless the coordinates have names in it."""
    if not 2 <= dimension <= len(VARIABLES):
        raise InputError(
            f"a formula is a function on the circle or the sphere, d = 2 or 3, got d = {dimension}"
        )
    return dimension


@lru_cache(maxsize=64)
def _expression(text: str, dimension: int) -> Expression:
    try:
        return Expression(text, VARIABLES[:dimension])
    except InputError as error:
        raise InputError(f"initial.density: {error}") from None


@lru_cache(maxsize=64)
def _largest(text: str, dimension: int) -> float:
    """The largest finite value of the formula at the probes, or zero."""
    values = _expression(text, dimension)(probes(dimension))
    return float(values.max(initial=0.0, where=np.isfinite(values)))
