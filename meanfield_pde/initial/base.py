"""What every initial density can do: be read and written, fill cells, be sampled and pushed on.

    d mu_0 = rho_0 d sigma   on the circle or the sphere, d = 2 or 3, of any mass: the solver
                             divides by the total

A density is one class in a module of its own, and `initial.kinds` finds it by its `kind`. One that
is known at every point is a `PointwiseDensity` and has to give little but its values.
"""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from meanfield_pde.support.arguments import required_keys, typed
from meanfield_pde.support.checks import whole
from meanfield_pde.wasserstein.measure import Measure

if TYPE_CHECKING:
    from meanfield_pde.mesh.finite_volume import FiniteVolumes


@dataclass(frozen=True)
class Content:
    """What a piece of a cell holds, for integrals over pieces that no mesh has as cells.

    Attributes:
        values: the mass of each cell, spread evenly over it, or the density as a function of
            points (N x d -> N).
        length_scale: for a function, the width of its peaks.
        peaks: for a function, the points where it is concentrated.
    """

    values: np.ndarray | Callable[[np.ndarray], np.ndarray]
    length_scale: float = math.inf
    peaks: np.ndarray | None = None


_METHODS = {"check", "sample", "exact", "length_scale", "peaks"}
_LEAST = {"dimension": 2, "count": 1}


def _checked[**P, R](method: Callable[P, R]) -> Callable[P, R]:
    """The method of a density, with an InputError for arguments that it cannot use."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        given = signature.bind(*arguments, **options).arguments
        for name, least in _LEAST.items():
            if name in given:
                whole(given[name], name, least)
        return typed(method)(*arguments, **options)

    return checked


class InitialDensity(ABC):
    """The density at t = 0; its mass need not be one.

    Attributes:
        kind: its name in a case file, [initial] kind.
        keys: what else its table may have, each of which is also its field unless the class has
            its own `from_table` and `to_table`.
    """

    kind: ClassVar[str]
    keys: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Hold what the methods are given against their annotations, and numbers against least."""
        super().__init_subclass__()
        for name in _METHODS & vars(cls).keys():
            setattr(cls, name, _checked(vars(cls)[name]))

    @classmethod
    def required(cls) -> tuple[str, ...]:
        """The keys that its table must have: by default those that are no field with a default."""
        return required_keys(cls, cls.keys)

    @classmethod
    def from_table(cls, table: dict[str, Any], folder: Path) -> Self:
        """The density of a table that has the keys required; paths are relative to folder."""
        return cls(**{key: table[key] for key in cls.keys if key in table})

    def to_table(self) -> dict[str, Any]:
        """The table of a case file that gives this density; InputError if none can."""
        values = ((key, getattr(self, key)) for key in self.keys)
        return {"kind": self.kind} | {key: one for key, one in values if one is not None}

    @abstractmethod
    def check(self, dimension: int) -> None:
        """Raise InputError unless it makes sense on the sphere S^(d-1)."""

    @abstractmethod
    def cell_masses(self, volumes: FiniteVolumes) -> np.ndarray:
        """Masses of this rank's own cells, not scaled. Collective."""

    @abstractmethod
    def sample(self, generator: np.random.Generator, count: int, dimension: int) -> np.ndarray:
        """Independent tokens, count x d."""

    @abstractmethod
    def exact(self, dimension: int) -> Measure | Content:
        """The density before any mesh: its atoms, or what it holds in any piece of a cell."""
