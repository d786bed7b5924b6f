"""Mixtures of von Mises-Fisher densities, each proportional to exp(k <x, mean>)."""

from __future__ import annotations

import math
import reprlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import exprel, i0e

from meanfield_pde.errors import InputError
from meanfield_pde.initial.direction import unit_vector, vector_of
from meanfield_pde.initial.pointwise import PointwiseDensity, uniform_points
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.support.arguments import check_fields, typed
from meanfield_pde.support.checks import known_keys, points_of, real, whole

# Beyond this the rounding of a point of the sphere, 1e-16, is no longer small against the width.
MAX_CONCENTRATION = 1e12


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
        object.__setattr__(self, "mean", vector_of(self.mean, "mean"))

    @property
    def direction(self) -> np.ndarray:
        """The unit vector along mean."""
        return unit_vector(self.mean)

    def density(self, points: np.ndarray) -> np.ndarray:
        """Values of the normalised density, weight left aside, at the rows of points.

        d = 2: exp(k t) / (2 pi I_0(k)),  d = 3: k exp(k t) / (4 pi sinh k),  with t = <x, mean>.
        exp(k) is taken out of both, and t - 1 is -|x - mean|^2 / 2, which does not cancel.
        """
        points = points_of(points, len(self.mean))
        _check_known(points.shape[1])
        k = self.concentration
        # exprel(-2k) = (1 - exp(-2k)) / 2k = exp(-k) sinh(k) / k, which is exact down to k = 0.
        scaled_mass = {
            2: lambda: 2 * math.pi * i0e(k),
            3: lambda: 4 * math.pi * exprel(-2 * k),
        }[points.shape[1]]()
        apart = points - self.direction
        distance_squared = np.einsum("nd,nd->n", apart, apart)
        return np.exp(-0.5 * k * distance_squared) / scaled_mass

    @typed
    def sample(self, generator: np.random.Generator, count: int) -> np.ndarray:
        """Independent tokens of this component."""
        whole(count, "count", 1)
        if self.concentration == 0:
            return uniform_points(generator, count, len(self.mean))
        from scipy.stats import vonmises_fisher  # takes 0.4 s: see `_lazy`

        law = vonmises_fisher(self.direction, self.concentration)
        return normalised(law.rvs(count, random_state=generator))


def _check_known(dimension: int) -> None:
    """InputError unless the mass of a component in this dimension is known."""
    if dimension not in (2, 3):
        raise InputError(f"a density has values on the circle or the sphere, got d = {dimension}")


COMPONENT_KEYS = tuple(key.name for key in fields(Component))


@dataclass(frozen=True)
class VonMises(PointwiseDensity):
    """A mixture of normalised von Mises-Fisher densities; weights are divided by their sum.

    Attributes:
        components: one density or more.
    """

    components: tuple[Component, ...]

    kind = "von-mises"
    keys = ("components",)

    def __post_init__(self) -> None:
        check_fields(self, "initial.")
        components = tuple(self.components)
        if not components:
            raise InputError("initial.components must have at least one component")
        if not sum(component.weight for component in components) > 0:
            raise InputError("initial.components must have a positive sum of weights, got 0")
        object.__setattr__(self, "components", components)

    @classmethod
    def from_table(cls, table: dict[str, Any], folder: Path) -> VonMises:
        """The mixture of a list of tables, one for each component."""
        given = table["components"]
        if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
            raise InputError(
                "initial.components must be a list of tables "
                "{ weight = ..., concentration = ..., mean = [...] }, "
                f"got {reprlib.repr(given)}"
            )
        return cls(tuple(_component(one, i) for i, one in enumerate(given)))

    def to_table(self) -> dict[str, Any]:
        """The components as tables."""
        tables = [
            asdict(component) | {"mean": list(component.mean)} for component in self.components
        ]
        return {"kind": self.kind, "components": tables}

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

    def sample(self, generator: np.random.Generator, count: int, dimension: int) -> np.ndarray:
        """A component for each token, then the token from it, in any dimension."""
        weights = np.array([component.weight for component in self.components])
        weights /= weights.max()
        chosen = generator.choice(len(self.components), count, p=weights / weights.sum())
        tokens = np.empty((count, dimension))
        for i, component in enumerate(self.components):
            own = chosen == i
            if own.any():
                tokens[own] = component.sample(generator, int(own.sum()))
        return tokens


def _component(table: dict[str, Any], i: int) -> Component:
    name = f"initial.components[{i}]"
    known_keys(table, COMPONENT_KEYS, name)
    for key in COMPONENT_KEYS:
        if key not in table:
            raise InputError(f"{name}.{key} is missing")
    try:
        return Component(**table)
    except InputError as error:
        raise InputError(f"{name}.{error}") from None
