r"""Saved densities in an HDF5 file, and the latest of them in a journal beside it.

An HDF5 file that is being written to is not valid if the program is killed. So it is only ever
replaced whole, and what is saved in between is appended to a journal of checked records:

    b"density\n", length of the header, header (JSON: time, names, shapes), the arrays, CRC-32.

The journal is put into the file when it holds as many times as the file does, so that the time
that saving takes, on average, does not grow with the number of saved times; and at the end. No
rank but 0 writes, and it holds no density but the one that is being written.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from mpi4py import MPI

import h5py
import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.history.store import CELLS, MASSES, ZERO_MASSES, Arrays, Store
from meanfield_pde.support.files import append, replace_file, writing
from meanfield_pde.support.hdf5 import UNREADABLE, new_hdf5
from meanfield_pde.support.ranks import on_root

_MAGIC = b"density\n"
_NUMBER = struct.Struct("<Q")
_TIMES, _SAVED = "times", "saved"  # a dataset, and the attribute that names the saved arrays


@dataclass(frozen=True)
class _Record:
    """Where in the journal the arrays of one time are."""

    time: float
    places: dict[str, tuple[int, tuple[int, ...]]]
    end: int


class FileStore(Store):
    """Densities in a file; what does not change with time stands in it besides.

    Args:
        path: the HDF5 file.
        comm: the ranks that append; reading is every rank's own affair.
        constants: arrays that are written with the densities, by name.
        attributes: texts that are written with them.
    """

    def __init__(
        self,
        path: Path,
        comm: MPI.Comm = MPI.COMM_SELF,
        constants: Mapping[str, np.ndarray] | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.path = path
        self._comm = comm
        self._journal = path.with_suffix(".journal")
        self._constants = dict(constants or {})
        self._attributes = dict(attributes or {})
        self._records: list[_Record] = []
        self._names: list[str] = []
        self._folded = 0  # times in the HDF5 file

    @classmethod
    def open(cls, path: Path, comm: MPI.Comm = MPI.COMM_SELF, **arguments: Any) -> FileStore:
        """The densities that are there already. Collective."""
        store = cls(path, comm, **arguments)
        found = on_root(comm, store._scan)
        store.times, store._names, store._folded, store._records = found
        return store

    def append(self, time: float, arrays: Arrays) -> None:
        """Put the arrays in the journal, and the journal in the file when it has grown to it."""
        self._names = list(arrays)
        self._records.append(on_root(self._comm, self._append_record, time, arrays))
        self.times.append(time)
        if len(self._records) > self._folded:
            self._fold()

    def read(self, index: int, name: str = MASSES) -> np.ndarray:
        """Read the array of one time from the file or the journal."""
        index = range(len(self.times))[index]
        if index < self._folded:
            with h5py.File(self.path) as file:
                if not self.moves:
                    return file[name][index]
                begin, end = file[_offsets(name)][index : index + 2]
                return file[name][begin:end]
        position, shape = self._records[index - self._folded].places[name]
        with self._journal.open("rb") as file:
            file.seek(position)
            return np.fromfile(file, dtype="<f8", count=int(np.prod(shape))).reshape(shape)

    def names(self) -> list[str]:
        """Names of the arrays that are kept."""
        return self._names

    def truncate(self, count: int) -> None:
        """Write the file anew with the first so many times."""
        del self.times[count:]
        del self._records[max(count - self._folded, 0) :]
        self._fold()

    def finish(self) -> None:
        """Put what is left of the journal in the file."""
        if self._records:
            self._fold()

    def _append_record(self, time: float, arrays: Arrays) -> _Record:
        header = {"time": time, "shapes": {name: np.shape(a) for name, a in arrays.items()}}
        text = json.dumps(header).encode()
        record = io.BytesIO()
        record.write(_MAGIC + _NUMBER.pack(len(text)) + text)
        for array in arrays.values():
            record.write(np.ascontiguousarray(array, dtype="<f8").tobytes())
        content = record.getvalue()
        begin = self._records[-1].end if self._records else 0
        append(self._journal, begin, content + _NUMBER.pack(zlib.crc32(content)))
        return next(_records(self._journal, begin))

    def _fold(self) -> None:
        self._comm.barrier()  # a rank that still reads would find its journal gone
        on_root(self._comm, self._replace)
        self._records, self._folded = [], len(self.times)

    def _replace(self) -> None:
        """Write a file with all times, one at a time, and then empty the journal."""
        replace_file(self.path, self._write)
        with writing(self._journal):
            self._journal.unlink(missing_ok=True)

    def _write(self, path: Path) -> None:
        with new_hdf5(path) as file:
            for name, constant in self._constants.items():
                file[name] = constant
            file[_TIMES] = np.array(self.times)
            for name in self._names:
                if self.moves:
                    self._write_moving(file, name)
                    continue
                first = self.read(0, name) if self.times else np.empty(0)
                shape = (len(self.times), *first.shape)
                dataset = file.create_dataset(name, shape, dtype=float)
                for index in range(len(self.times)):
                    dataset[index] = self.read(index, name)
            file.attrs.update(self._attributes | {_SAVED: self._names})

    def _write_moving(self, file: h5py.File, name: str) -> None:
        """The arrays of all times one after the other, and where each of them begins."""
        indices = range(len(self.times))
        first = self.read(0, name)
        if (offsets := _offsets(name)) not in file:
            counts = [len(self.read(index, name)) for index in indices]
            file[offsets] = np.concatenate([[0], np.cumsum(counts)])
        begin = file[offsets][()]
        dataset = file.create_dataset(name, (begin[-1], *first.shape[1:]), dtype=float)
        for index in indices:
            dataset[begin[index] : begin[index + 1]] = self.read(index, name)

    def _scan(self) -> tuple[list[float], list[str], int, list[_Record]]:
        """Times, names, the number of times in the file, and the records of the journal."""
        times: list[float] = []
        names: list[str] = []
        if self.path.is_file():
            try:
                with h5py.File(self.path) as file:
                    times = [float(time) for time in file[_TIMES][()]]
                    names = _time_series(file, len(times))
            except UNREADABLE as error:
                raise InputError(f"{self.path}: not a readable density file ({error})") from error
        folded = len(times)
        # A journal that was put into the file just before the program was killed is still there.
        records = [one for one in _records(self._journal) if not times or one.time > times[-1]]
        if records:
            names = list(records[0].places)
        return times + [record.time for record in records], names, folded, records


def _time_series(file: h5py.File, saved: int) -> list[str]:
    """Names of the datasets that hold an array for each saved time."""
    known = [name for name in (MASSES, ZERO_MASSES) if name in file]
    names = [str(name) for name in file.attrs.get(_SAVED, known)]
    for name in (MASSES, *names):
        if CELLS[0] in names:
            if len(offsets := file[_offsets(name)][()]) != saved + 1 or offsets[-1] != len(
                file[name]
            ):
                raise ValueError(f"{name} does not agree with {_offsets(name)}")
        elif file[name].shape[:1] != (saved,):
            raise ValueError(f"{name} must be times x cells")
    return names


def _offsets(name: str) -> str:
    """Name of the dataset that says where, in the one of this name, each time begins."""
    return name.rpartition("/")[0] + "/offsets"


def _records(path: Path, begin: int = 0) -> Iterator[_Record]:
    """The whole records of a journal; it ends at the first that is torn or does not check."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        file.seek(begin)
        while (record := _record(file)) is not None:
            yield record


def _record(file: BinaryIO) -> _Record | None:
    head = file.read(len(_MAGIC) + _NUMBER.size)
    if len(head) < len(_MAGIC) + _NUMBER.size or not head.startswith(_MAGIC):
        return None
    text = file.read(_NUMBER.unpack(head[len(_MAGIC) :])[0])
    checksum = zlib.crc32(text, zlib.crc32(head))
    try:
        header = json.loads(text)
    except ValueError:
        return None
    places: dict[str, tuple[int, tuple[int, ...]]] = {}
    for name, shape in header["shapes"].items():
        places[name] = (file.tell(), tuple(shape))
        checksum = zlib.crc32(file.read(8 * int(np.prod(shape))), checksum)
    tail = file.read(_NUMBER.size)
    if len(tail) < _NUMBER.size or _NUMBER.unpack(tail)[0] != checksum:
        return None
    return _Record(header["time"], places, file.tell())
