"""What an evolution asks of whoever changes its mesh between steps, such as `following` does."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from meanfield_pde.history.store import Arrays
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.spots import Spots


class Follower(Protocol):
    """What changes the mesh of an evolution between its steps."""

    def follow(self, evolution: Any) -> None:
        """Called after every step; moves the `Evolution` if its mesh is to change. Collective."""

    def shown(self, spots: Spots) -> np.ndarray:
        """The mass of spots in each cell of the mesh."""

    def record(self) -> dict[str, np.ndarray]:
        """The mesh, in arrays whose names begin with "leaf_"."""

    def regrown(self, record: Arrays) -> FiniteVolumes:
        """The mesh that such arrays stand for. Collective."""
