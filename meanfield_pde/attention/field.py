"""A constant external field: a direction in which all tokens are pushed.

    g(x) = b,     v(x) = P_x b,

the gradient on the sphere of <b, x>: alone it moves the density to b / |b|.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from meanfield_pde.attention.term import Sources, TermBeside, generators_of
from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import number_list, points_of, real


@dataclass(frozen=True, eq=False)
class ConstantField(TermBeside):
    """A constant external field.

    Attributes:
        vector: b, d numbers.
    """

    section: ClassVar[str] = "field"
    keys: ClassVar[tuple[str, ...]] = ("vector",)
    noun: ClassVar[str] = "an external field"

    vector: Any

    def __post_init__(self) -> None:
        entries = number_list(self.vector, "field.vector")
        found = [real(b, f"field.vector[{i}]", "a finite number") for i, b in enumerate(entries)]
        if len(found) < 2:
            raise InputError(f"field.vector must be d >= 2 numbers, got {len(found)}")
        vector = np.array(found)
        vector.setflags(write=False)
        object.__setattr__(self, "vector", vector)

    @property
    def dimension(self) -> int:
        """Dimension d of the space; tokens live on the sphere S^(d-1)."""
        return len(self.vector)

    @property
    def speed_bound(self) -> float:
        """|b|: the field itself does not change, its projection by P_x as fast as x does."""
        return float(np.linalg.norm(self.vector))

    def push(
        self, x: np.ndarray, sources: Sources | None = None, *, tolerance: float = 1e-12
    ) -> np.ndarray:
        """Return b at each row of x."""
        x = points_of(x, self.dimension, "x", clouds=True)
        return np.broadcast_to(self.vector, x.shape).copy()

    def commutators(self, generators: np.ndarray) -> list[np.ndarray]:
        """Rotations about b commute with it: Omega b = 0."""
        generators = generators_of(generators, self.dimension)
        return [generators @ (self.vector / max(self.speed_bound, 1e-300))]
