"""Cells of other ranks that a stage of transport needs: rings about the own ones.

The density at a facet of an own cell may be that of the cell beyond, which is in the first ring.
What is reconstructed there takes the rings about it. With those at hand a rank makes a whole stage
by itself, after one exchange of masses.

Cells are numbered own ones first, as in `FiniteVolumes`, then ring by ring, each in the order of
the mesh's input.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.mesh.finite_volume import FiniteVolumes


class Halo:
    """Own cells, and rings of others about them.

    Attributes:
        count: number of cells, own ones and those of the rings.
        inner: number of own cells and those of the first ring.
        neighbours: the cell across facet i of each cell but those of the last ring.
        ghosts: room for two numbers of each cell of the rings, such as masses and their exponents.
    """

    neighbours: np.ndarray

    def __init__(self, volumes: FiniteVolumes, rings: int) -> None:
        """Collective.

        Args:
            volumes: the cells of this rank.
            rings: how many, at least one.
        """
        self._comm, self._owned = volumes.comm, volumes.owned
        self.count = self.inner = volumes.owned
        if self._comm.size == 1:
            self.neighbours = volumes.neighbours
            self.ghosts = np.empty((2, 0))
            return
        own = volumes.input_cells[: volumes.owned]
        beside = volumes.gather(volumes.input_cells[volumes.neighbours].astype(np.int32))
        number = np.full(len(beside), -1, dtype=np.int32)
        number[own] = np.arange(len(own))
        found = [own]
        for _ in range(rings):
            around = np.unique(beside[found[-1]])
            found.append(around[number[around] < 0])
            number[found[-1]] = self.count + np.arange(len(found[-1]))
            self.count += len(found[-1])
        self.inner += len(found[1])
        self.neighbours = number[beside[np.concatenate(found[:-1])]]
        self.ghosts = np.empty((2, self.count - self._owned))
        self._plan(np.concatenate(found[1:]), own, volumes)

    def _plan(self, wanted: np.ndarray, own: np.ndarray, volumes: FiniteVolumes) -> None:
        """Find out which own cells other ranks want, and whose the wanted ones are."""
        owner = volumes.gather(np.full(self._owned, self._comm.rank, dtype=np.int32))[wanted]
        self._order = np.argsort(owner, kind="stable")
        parts = np.bincount(owner, minlength=self._comm.size)
        asked = self._comm.alltoall(np.split(wanted[self._order], np.cumsum(parts)[:-1]))
        place = np.argsort(own)
        self._sent = place[np.searchsorted(own[place], np.concatenate(asked))]
        self._counts = np.array([len(one) for one in asked]), parts

    def extended(self, values: np.ndarray) -> np.ndarray:
        """Values of all cells, from those of own cells (along the first axis). Collective."""
        if self._comm.size == 1:
            return values
        return np.concatenate([values, self._received(values)])

    def exchange(self, values: np.ndarray) -> None:
        """Write `ghosts` from one number for each own cell, or two rows of them. Collective."""
        if self._comm.size > 1:
            rows = np.atleast_2d(values)
            self.ghosts[: len(rows)] = self._received(rows.T).T

    def _received(self, values: np.ndarray) -> np.ndarray:
        """Values of the cells of the rings."""
        width = int(np.prod(values.shape[1:], dtype=int))
        received = np.empty((self.count - self._owned, *values.shape[1:]), dtype=values.dtype)
        sent, wanted = (count * width for count in self._counts)
        own = np.ascontiguousarray(values[self._sent])
        self._comm.Alltoallv([own, sent], [received, wanted])
        result = np.empty_like(received)
        result[self._order] = received
        return result
