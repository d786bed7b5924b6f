"""Initial densities: uniform, von Mises-Fisher mixtures, an expression, the tokens of a file.

Each says what the user asked for, and can

    check(d)             raise InputError unless it makes sense on the sphere S^(d-1), d = 2 or 3
    density(points)      values at N x d points of the sphere, with respect to arc length or area
    length_scale(d)      the angle over which it changes most, the width of its peaks
    peaks(d)             the points where it is concentrated, which a quadrature must not miss

but for `Tokens`, which are atoms to be deposited in cells. Densities need not have mass one: the
solver divides by the total mass.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from scipy.special import exprel, i0e

from meanfield_pde.errors import InputError
from meanfield_pde.initial.expression import Expression
from meanfield_pde.support.checks import number_list, real
from meanfield_pde.tokens.cloud import read_tokens, to_sphere
from meanfield_pde.wasserstein.measure import Measure

VARIABLES = ("x", "y", "z")
PROBES = {2: 4096, 3: 20480}
# Values below zero by no more than this fraction of the largest are the rounding of a zero, as in
# 1 - x**2 - y**2 on the equator of the sphere.
ROUNDING = 1e-13
# Beyond this the rounding of a point of the sphere, 1e-16, is no longer small against the width.
MAX_CONCENTRATION = 1e12


@dataclass(frozen=True)
class Uniform:
    """The uniform probability density on the sphere."""

    def check(self, dimension: int) -> None:
        """Nothing to check: it makes sense in every dimension."""

    def density(self, points: np.ndarray) -> np.ndarray:
        """Values at the rows of points: 1/(2 pi) on the circle, 1/(4 pi) on the sphere."""
        points = np.atleast_2d(points)
        return np.full(len(points), 1 / {2: 2 * math.pi, 3: 4 * math.pi}[points.shape[1]])

    def length_scale(self, dimension: int) -> float:
        """Angle over which the density changes: it never does."""
        return math.inf

    def peaks(self, dimension: int) -> np.ndarray:
        """There are none."""
        return np.empty((0, dimension))


@dataclass(frozen=True)
class Component:
    """One von Mises-Fisher density of a mixture, proportional to exp(concentration <x, mean>).

    Attributes:
        weight: its share of the mass, relative to the other components.
        concentration: k >= 0, the inverse square of its width.
        mean: its centre; any non-zero vector, of which only the direction counts.
    """

    weight: float
    concentration: float
    mean: tuple[float, ...]

    def __post_init__(self) -> None:
        weight = real(self.weight, "weight", "a number >= 0", lambda v: v >= 0)
        concentration = real(
            self.concentration,
            "concentration",
            f"a number from 0 to {MAX_CONCENTRATION:g}",
            lambda v: 0 <= v <= MAX_CONCENTRATION,
        )
        object.__setattr__(self, "weight", weight)
        object.__setattr__(self, "concentration", concentration)
        given = number_list(self.mean, "mean")
        mean = tuple(real(v, f"mean[{i}]", "a number") for i, v in enumerate(given))
        if not any(mean):
            raise InputError(f"mean must be a non-zero vector, got {list(mean)}")
        object.__setattr__(self, "mean", mean)

    @property
    def direction(self) -> np.ndarray:
        """The unit vector along mean."""
        mean = np.array(self.mean)
        mean /= np.abs(mean).max()  # the square of a very small or large entry is out of range
        return mean / np.linalg.norm(mean)

    def density(self, points: np.ndarray) -> np.ndarray:
        """Values of the normalised density, weight left aside, at the rows of points.

        d = 2: exp(k t) / (2 pi I_0(k)),  d = 3: k exp(k t) / (4 pi sinh k),  with t = <x, mean>.
        exp(k) is taken out of both, and t - 1 is -|x - mean|^2 / 2, which does not cancel.
        """
        points = np.atleast_2d(np.asarray(points, dtype=float))
        k = self.concentration
        # exprel(-2k) = (1 - exp(-2k)) / 2k = exp(-k) sinh(k) / k, which is exact down to k = 0.
        scaled_mass = {
            2: lambda: 2 * math.pi * i0e(k),
            3: lambda: 4 * math.pi * exprel(-2 * k),
        }[points.shape[1]]()
        distance_squared = ((points - self.direction) ** 2).sum(axis=1)
        return np.exp(-0.5 * k * distance_squared) / scaled_mass


@dataclass(frozen=True)
class VonMises:
    """A mixture of normalised von Mises-Fisher densities; weights are divided by their sum."""

    components: tuple[Component, ...]

    def __post_init__(self) -> None:
        components = tuple(self.components)
        if not components:
            raise InputError("initial.components must have at least one component")
        if not sum(component.weight for component in components) > 0:
            raise InputError("initial.components must have a positive sum of weights, got 0")
        object.__setattr__(self, "components", components)

    def check(self, dimension: int) -> None:
        """Refuse means that do not live in this dimension."""
        for i, component in enumerate(self.components):
            if len(component.mean) != dimension:
                raise InputError(
                    f"initial.components[{i}].mean must have {dimension} entries, the dimension "
                    f"of attention.value, got {list(component.mean)}"
                )

    def density(self, points: np.ndarray) -> np.ndarray:
        """Values of the mixture, a probability density, at the rows of points."""
        # The largest weight goes first, so that a sum of huge weights does not overflow.
        largest = max(component.weight for component in self.components)
        weights = np.array([component.weight / largest for component in self.components])
        values = [component.density(points) for component in self.components]
        return (weights / weights.sum()) @ np.array(values)

    @property
    def max_concentration(self) -> float:
        """The largest concentration among the components that have a weight."""
        return max(c.concentration for c in self.components if c.weight > 0)

    def length_scale(self, dimension: int) -> float:
        """Width 1/sqrt(k) of the most concentrated component."""
        k = self.max_concentration
        return 1 / math.sqrt(k) if k > 0 else math.inf

    def peaks(self, dimension: int) -> np.ndarray:
        """The means of the components."""
        return np.array([c.direction for c in self.components if c.weight > 0])


@dataclass(frozen=True)
class ExpressionDensity:
    """A density given by a formula in x, y and, on the sphere, z.

    It must be finite and >= 0 everywhere, and not zero everywhere; its mass does not matter.
    """

    expression: str

    def __post_init__(self) -> None:
        if not isinstance(self.expression, str):
            raise InputError(
                f"initial.density must be a formula in quotes, got {reprlib.repr(self.expression)}"
            )
        _expression(self.expression, 3)

    def check(self, dimension: int) -> None:
        """Evaluate the formula all over the sphere and refuse it if it is not a density."""
        self.density(probes(dimension))
        if not _largest(self.expression, dimension) > 0:
            raise InputError(f"initial.density is zero everywhere: {self.expression!r}")

    def density(self, points: np.ndarray) -> np.ndarray:
        """Values of the formula at the rows of points; InputError where it is not a density."""
        points = np.atleast_2d(np.asarray(points, dtype=float))
        dimension = points.shape[1]
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


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokens on the sphere, atoms to be deposited in the cells of the mesh.

    Attributes:
        points: N x d positions; those off the sphere by up to 1e-6 are put back on it.
        masses: N weights >= 0, or None if all tokens weigh the same.
        path: the file the tokens were read from, if any; a case file can only name a file.
    """

    points: np.ndarray
    masses: np.ndarray | None = None
    path: Path | None = None

    def __post_init__(self) -> None:
        measure = Measure(self.points, self._equal() if self.masses is None else self.masses)
        points, _ = to_sphere(measure.points, lambda i: f"token {i[0]}")
        object.__setattr__(self, "points", points)
        if self.masses is not None:
            object.__setattr__(self, "masses", measure.masses)

    @classmethod
    def read(cls, path: str | Path) -> Tokens:
        """Read the tokens of an `.npz` or `.csv` file, at the first of its times."""
        cloud = read_tokens(path)
        return cls(cloud.tokens[0], cloud.masses, Path(path))

    def check(self, dimension: int) -> None:
        """Refuse tokens that do not live in this dimension."""
        if self.points.shape[1] != dimension:
            source = f" in {self.path}" if self.path else ""
            raise InputError(
                f"initial tokens must have {dimension} coordinates, the dimension of "
                f"attention.value, got {self.points.shape[1]}{source}"
            )

    def measure(self) -> Measure:
        """The tokens as a probability measure."""
        masses = self._equal() if self.masses is None else self.masses
        return Measure(self.points, masses / masses.sum())

    def _equal(self) -> np.ndarray:
        return np.ones(len(np.atleast_2d(self.points)))


Initial = Uniform | VonMises | ExpressionDensity | Tokens


@lru_cache(maxsize=4)
def probes(dimension: int) -> np.ndarray:
    """Points all over the circle (equal angles) or the sphere (Fibonacci lattice), and the axes."""
    count = PROBES[dimension]
    i = np.arange(0.5, count)
    axes = np.vstack([np.eye(dimension), 0 - np.eye(dimension)])
    if dimension == 2:
        angle = 2 * math.pi / count * i
        return np.vstack([axes, np.column_stack([np.cos(angle), np.sin(angle)])])
    z = 1 - 2 / count * i
    radius, angle = np.sqrt(1 - z * z), i * math.pi * (3 - math.sqrt(5))
    return np.vstack([axes, np.column_stack([radius * np.cos(angle), radius * np.sin(angle), z])])


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
