"""The unknowns of an evolution: named arrays of a number per cell.

Whatever is here is put into checkpoints and restored from them, on any number of ranks, without
more words; what is named in `saved` is also kept at every saved time, written to density.h5 and
shown in ParaView. A quantity is added by whoever evolves it: `state["name"] = own cells`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.history.store import MASSES
from meanfield_pde.mesh.finite_volume import FiniteVolumes


class State(Mapping[str, np.ndarray]):
    """Arrays of own cells by name; assigning to a name writes into its array.

    Attributes:
        saved: names of the arrays that are kept at the saved times.
    """

    def __init__(self, volumes: FiniteVolumes, masses: np.ndarray) -> None:
        self.saved = [MASSES]
        self._volumes = volumes
        self._arrays = {MASSES: np.array(masses, dtype=float)}

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __setitem__(self, name: str, values: np.ndarray) -> None:
        if name in self._arrays:
            self._arrays[name][:] = values
        else:
            self._arrays[name] = np.array(values, dtype=float)

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def update(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Assign to the names of arrays of own cells."""
        for name, values in arrays.items():
            self[name] = values

    def gather(self, names: list[str] | None = None) -> dict[str, np.ndarray]:
        """The arrays of all cells in input order, on every rank; by default all. Collective."""
        chosen = list(self) if names is None else names
        return {name: self._volumes.gather(self[name]) for name in chosen}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Put back what `gather` gave, arrays that are not known here yet among it."""
        if not set(self) <= set(arrays):
            raise InputError(
                f"the state needs {', '.join(sorted(self))}, got {', '.join(sorted(arrays))}"
            )
        for name, values in arrays.items():
            self[name] = self._volumes.scatter(values)
