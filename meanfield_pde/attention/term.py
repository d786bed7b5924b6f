"""Terms of the velocity: what moves tokens, given at any points.

    v(x) = P_x ( sum over terms of g(x) ),     P_x = I - x x^T

A term is given by g, its push, at any points; finite volumes, tokens, verification and figures all
evaluate the same function. A self-attention head is a term whose push depends on the density; a
perceptron and a constant field are terms that do not.

The normal form of what acts: `layers`, of one `duration` each (a layer alone lasts for ever), and
in a layer `heads` and the terms `beside` them. `Attention`, `Heads` and `Layers` all have these.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.support.arguments import required_keys
from meanfield_pde.support.checks import points_of


@dataclass(frozen=True, eq=False)
class Sources:
    """A measure as points and log masses: cells, sub-cell points, patches and tokens alike.

    Attributes:
        points: N x d, on the sphere.
        log_masses: N, normalised or not; -inf for a point without mass.
    """

    points: np.ndarray
    log_masses: np.ndarray

    @classmethod
    def of(cls, points: np.ndarray, masses: np.ndarray) -> Sources:
        """Points with masses >= 0, down to the smallest double."""
        with np.errstate(divide="ignore"):
            return cls(points, np.log(np.asarray(masses, dtype=float)))


def generators_of(given: np.ndarray, dimension: int) -> np.ndarray:
    """The generators of rotations, K x d x d; InputError unless they are."""
    generators = points_of(given, dimension, "generators", clouds=True)
    if generators.ndim != 3 or generators.shape[1] != dimension:
        d = dimension
        raise InputError(f"generators must be K x {d} x {d}, got shape {generators.shape}")
    return generators


class VelocityTerm(ABC):
    """A term of the velocity.

    Attributes:
        depends_on_density: whether its push is another for other masses.
    """

    depends_on_density: ClassVar[bool] = False

    @property
    def dimension(self) -> int | None:
        """Dimension d of the space, tokens being on the sphere S^(d-1); None, the default, for any.

        It is for terms whose parameters have one.
        """
        return None

    @property
    @abstractmethod
    def speed_bound(self) -> float:
        """A bound on |g|, and on how fast it changes, over the unit ball."""

    def inverse_kernel_width_squared(self, x: np.ndarray) -> np.ndarray:
        """1 / l^2 at each row of x, l the width over which sources weigh alike at x.

        It decides where, with noise, the finite volumes take one point a cell as source, in a term
        that depends on the density. By default nothing is known, and l = 0: three points in all.
        """
        return np.full(len(x), np.inf)

    @abstractmethod
    def push(
        self, x: np.ndarray, sources: Sources | None = None, *, tolerance: float = 1e-12
    ) -> np.ndarray:
        """Return g at each row of x, N x d.

        Args:
            x: points of the sphere.
            sources: the measure; not looked at by a term that does not depend on the density.
            tolerance: bound on the error of a sum over sources.
        """


class TermBeside(VelocityTerm):
    """A term that acts beside the heads, with a section of the case file of its own.

    Attributes:
        section: the name of that section.
        keys: of the section, each a parameter of the class.
        noun: what the term is called in messages, with its article.
    """

    section: ClassVar[str]
    keys: ClassVar[tuple[str, ...]]
    noun: ClassVar[str]

    @property
    def contraction(self) -> float:
        """A bound on the rate at which it brings mass together: zero for what only turns it."""
        return self.speed_bound

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> TermBeside:
        """The term of its section, whose keys are known; InputError if something is wrong.

        By default each key is a parameter of the class, and has to be there if that has no default.
        """
        for key in required_keys(cls, cls.keys):
            if key not in table:
                raise InputError(f"{cls.section}.{key} is missing")
        return cls(**table)

    def table(self) -> dict[str, Any]:
        """The section that `from_table` reads; by default each key is an attribute."""
        values = ((key, getattr(self, key)) for key in self.keys)
        return {
            key: one.tolist() if isinstance(one, np.ndarray) else one
            for key, one in values
            if one is not None
        }

    def commutators(self, generators: np.ndarray) -> list[np.ndarray]:
        """What has to vanish for a rotation to commute with the term, linear in its generator.

        Each array has a first axis of the generators given, K x d x d. By default no rotation does.
        """
        return [generators]

    def velocity(self, x: np.ndarray) -> np.ndarray:
        """P_x g at each row of x, of a term that does not depend on the density."""
        x = points_of(x, self.dimension, "x")
        push = self.push(x)
        return push - (push * x).sum(axis=1, keepdims=True) * x
