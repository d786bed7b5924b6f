"""Where saved densities are kept: appended in order of time, and read one at a time.

Who reads does not know whether they are in memory (`MemoryStore`) or in a file (`FileStore`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import numpy as np

MASSES, ZERO = "masses", "zero_temperature/"
ZERO_MASSES = ZERO + MASSES
LOG_MASSES = "log_masses"  # without those of patches; where they say more than the masses
# Where the mesh moves each time has its own cells: these arrays, beside the masses.
CELLS = ("points", "volumes", "spread", "vertices")

# Arrays of Lagrangian patches: there may be none of these at a time.
PATCHES = "patches/"

Arrays = Mapping[str, np.ndarray]
Row = dict[str, float]  # of the history, by column


def least_rows(name: str) -> int:
    """How many rows an array of this name has at least."""
    return 0 if name.startswith(PATCHES) else 1


class Store(ABC):
    """Saved times, and at each of them arrays of a number per cell, by name.

    Attributes:
        times: the saved times so far.
    """

    def __init__(self) -> None:
        self.times: list[float] = []

    def __len__(self) -> int:
        return len(self.times)

    @abstractmethod
    def append(self, time: float, arrays: Arrays, row: Row | None = None) -> None:
        """Keep the arrays of a time after the last, and its row of the history if given.

        Collective; all ranks give the same.
        """

    @abstractmethod
    def read(self, index: int, name: str = MASSES) -> np.ndarray:
        """The array of that name at a saved time; any rank may ask on its own."""

    @abstractmethod
    def names(self) -> list[str]:
        """Names of the arrays that are kept."""

    @abstractmethod
    def truncate(self, count: int) -> None:
        """Forget all but the first `count` times. Collective."""

    @abstractmethod
    def finish(self) -> None:
        """Nothing more will be appended for now. Collective."""

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep what is read from open in a block that reads many arrays. On a rank of its own."""
        yield

    @property
    def moves(self) -> bool:
        """Whether each time has its own cells, whose arrays `CELLS` are kept with it."""
        return CELLS[0] in self.names()

    def all(self, name: str = MASSES) -> np.ndarray:
        """The arrays of all saved times, times x cells; of objects where the mesh moves."""
        arrays = [self.read(index, name) for index in range(len(self))]
        if not self.moves:
            return np.array(arrays)
        found = np.empty(len(arrays), dtype=object)
        found[:] = arrays
        return found


class MemoryStore(Store):
    """Densities in the memory of every rank."""

    def __init__(self) -> None:
        super().__init__()
        # None stands for log masses that say no more than the masses.
        self._saved: list[dict[str, np.ndarray | None]] = []

    def append(self, time: float, arrays: Arrays, row: Row | None = None) -> None:
        """Keep the arrays themselves; rows are kept by who appends.

        Log masses that say no more than the masses are made again when they are read.
        """
        kept: dict[str, np.ndarray | None] = dict(arrays)
        if LOG_MASSES in arrays and np.array_equal(_log(arrays[MASSES]), arrays[LOG_MASSES]):
            kept[LOG_MASSES] = None
        self.times.append(time)
        self._saved.append(kept)

    def read(self, index: int, name: str = MASSES) -> np.ndarray:
        """The array as it was appended."""
        found = self._saved[index][name]
        return _log(self.read(index)) if found is None else found

    def names(self) -> list[str]:
        """Names of the arrays at the first time."""
        return list(self._saved[0]) if self._saved else []

    def truncate(self, count: int) -> None:
        """Forget all but the first `count` times."""
        del self.times[count:], self._saved[count:]

    def finish(self) -> None:
        """Nothing is left to be done."""


def _log(masses: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(masses)
