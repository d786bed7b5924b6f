"""Saved densities in an HDF5 file, and the latest of them in a journal beside it.

An HDF5 file that is being written to is not valid if the program is killed. So it is only ever
replaced whole, with its checksums in it, and what is saved in between is appended to a journal of
checked records (`journal`).

The journal is put into the file when it holds as many times as the file does, so that the time
that saving takes, on average, does not grow with the number of saved times; and at the end. No
rank but 0 writes, and it holds no density but the one that is being written.

The row of the history at each time stands with its densities, under one checksum: history.csv,
which every program reads but nothing protects, is held against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from mpi4py import MPI

import h5py
import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.history.checks import check_saved
from meanfield_pde.history.journal import Record, read_place, record_bytes, records
from meanfield_pde.history.layout import COLUMNS, ROWS, SAVED, TIMES, Found, offsets, scan_file
from meanfield_pde.history.store import MASSES, Arrays, Row, Store
from meanfield_pde.support.checked_hdf5 import has_checksums, new_checked_hdf5, open_checked
from meanfield_pde.support.files import append, replace_file, writing
from meanfield_pde.support.hdf5 import UNREADABLE
from meanfield_pde.support.memory import check_claim
from meanfield_pde.support.ranks import on_root

# Bytes that are copied at once from one file to the next: far less than a mesh takes.
_AT_ONCE = 1 << 24


class FileStore(Store):
    """Densities in a file; what does not change with time stands in it besides.

    Args:
        path: the HDF5 file.
        comm: the ranks that append; reading is every rank's own affair.
        constants: arrays that are written with the densities, by name.
        attributes: texts that are written with them.

    Attributes:
        rows: the row of the history at each time, or nothing where they are not known.
        checked: whether the file has checksums; those of an earlier version have none.
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
        self.rows: list[Row] = []
        self.checked = True
        self._comm = comm
        self._journal = path.with_suffix(".journal")
        self._constants = dict(constants or {})
        self._attributes = dict(attributes or {})
        self._records: list[Record] = []
        self._names: list[str] = []
        self._folded = 0  # times in the HDF5 file
        self._file: h5py.File | None = None  # that one, while it is kept open

    @classmethod
    def open(cls, path: Path, comm: MPI.Comm = MPI.COMM_SELF, **arguments: Any) -> FileStore:
        """The densities that are there already. Collective."""
        store = cls(path, comm, **arguments)
        store._take(on_root(comm, store._scan))
        return store

    @property
    def case(self) -> str:
        """The text of the case that is written with the densities, if there is one."""
        return self._attributes.get("case", "")

    def append(self, time: float, arrays: Arrays, row: Row | None = None) -> None:
        """Put the arrays in the journal, and the journal in the file when it has grown to it."""
        self._names = list(arrays)
        self._records.append(on_root(self._comm, self._append_record, time, arrays, row))
        self.times.append(time)
        if row is not None:
            self.rows.append(dict(row))
        if len(self._records) > self._folded:
            self._fold()

    def read(self, index: int, name: str = MASSES) -> np.ndarray:
        """Read the array of one time from the file or the journal, checked."""
        index = range(len(self.times))[index]
        array = self._read(index, name)
        if array is None:  # a run that goes on has put its journal into the file
            found = self._scan()
            if found.times[: len(self.times)] == self.times:
                self._folded, self._records = found.folded, found.records
                self._file = None  # that of before
                array = self._read(index, name)
        if array is None:
            raise InputError(
                f"{self._journal}: not a readable journal (the checksum at t = "
                f"{self.times[index]:.6g} is wrong)"
            )
        return array

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Keep the file open in a block: opening it takes 0.1 ms, as long as reading an array."""
        if not self._folded or self._file is not None:
            yield
            return
        with ExitStack() as opened:
            try:
                self._file = opened.enter_context(open_checked(self.path))
            except UNREADABLE as error:
                raise _unreadable(self.path, error) from error
            try:
                yield
            finally:
                self._file = None

    def names(self) -> list[str]:
        """Names of the arrays that are kept."""
        return self._names

    def truncate(self, count: int) -> None:
        """Write the file anew with the first `count` times."""
        del self.times[count:], self.rows[count:]
        del self._records[max(count - self._folded, 0) :]
        self._fold()

    def finish(self) -> None:
        """Put what is left of the journal in the file."""
        if self._records:
            self._fold()

    def check(self, rows: Sequence[Row]) -> None:
        """InputError unless all arrays of the times with these rows can be read. Collective."""
        self.rows = [dict(row) for row in rows]
        on_root(self._comm, self._check)

    def _check(self) -> None:
        with self.kept_open():
            for index in range(len(self.rows)):
                for name in dict.fromkeys([MASSES, *self._names]):
                    self.read(index, name)

    def _read(self, index: int, name: str) -> np.ndarray | None:
        """The array of one time; None if the journal has it no longer."""
        path = self.path
        try:
            if index < self._folded:
                array = self._read_folded(index, name)
            else:
                path = self._journal
                found = read_place(path, self._records[index - self._folded].places[name])
                if found is None:
                    return None
                array = found
            check_saved(name, array)
            if name == MASSES and self.rows:
                self._check_mass(array, self.rows[index])
        except UNREADABLE as error:
            raise _unreadable(path, error) from error
        return array

    def _read_folded(self, index: int, name: str) -> np.ndarray:
        with nullcontext(self._file) if self._file else open_checked(self.path) as file:
            check_claim(file[name].nbytes, file[name].id.get_storage_size())
            if not self.moves:
                return np.asarray(file[name][index])
            begin, end = (int(one) for one in file[offsets(name)][index : index + 2])
            return np.asarray(file[name][begin:end])

    def _check_mass(self, masses: np.ndarray, row: Row) -> None:
        """ValueError unless the masses sum to what the history says, but for rounding."""
        total = masses.sum()
        if "mass" in row and not abs(total - row["mass"]) <= 1e-9 * abs(row["mass"]):
            raise ValueError(
                f"masses at t = {row['time']:.6g} sum to {total:.12g}, in the history to "
                f"{row['mass']:.12g}"
            )

    def _append_record(self, time: float, arrays: Arrays, row: Row | None) -> Record:
        begin = self._records[-1].end if self._records else 0
        append(self._journal, begin, record_bytes(time, arrays, row))
        return next(records(self._journal, begin))

    def _fold(self) -> None:
        self._comm.barrier()  # a rank that still reads would find its journal gone
        on_root(self._comm, self._replace)
        self._records, self._folded, self.checked = [], len(self.times), True

    def _replace(self) -> None:
        """Write a file with all times, one at a time, and then empty the journal."""
        replace_file(self.path, self._write)
        with writing(self._journal):
            self._journal.unlink(missing_ok=True)

    def _write(self, path: Path) -> None:
        with self.kept_open(), new_checked_hdf5(path) as file:
            for name, constant in self._constants.items():
                file[name] = constant
            file[TIMES] = np.array(self.times)
            if self.rows:
                columns = list(self.rows[0])
                file[ROWS] = np.array([[row[name] for name in columns] for row in self.rows])
                file[ROWS].attrs[COLUMNS] = columns
            for name in self._names:
                self._write_arrays(file, name)
            file.attrs.update(self._attributes | {SAVED: self._names})

    def _write_arrays(self, file: h5py.File, name: str) -> None:
        """The arrays of all times, and where the mesh moves also where each of them begins."""
        before = None if self._file is None else self._file[name]
        kept = min(self._folded, len(self.times))
        begin = np.arange(len(self.times) + 1)
        if self.moves:
            begin = self._offsets(name, kept)
            if offsets(name) not in file:
                file[offsets(name)] = begin
        if before is not None:
            row = before.shape[1:]
        else:
            shape = self._records[0].places[name].shape if self._records else ()
            row = shape[1:] if self.moves else shape
        dataset = file.create_dataset(name, (begin[-1], *row), dtype=float)
        if before is not None:
            _copy(before, dataset, int(begin[kept]), self.path)
        for index in range(kept, len(self.times)):
            dataset[begin[index] : begin[index + 1]] = self.read(index, name)

    def _offsets(self, name: str, kept: int) -> np.ndarray:
        """Where the array of each time begins, in the file and after it in the journal."""
        known = np.zeros(1, dtype=np.int64)
        if self._file is not None:
            known = self._file[offsets(name)][: kept + 1]
        lengths = [record.places[name].shape[0] for record in self._records]
        return np.concatenate([known, known[-1] + np.cumsum(lengths, dtype=np.int64)])

    def _take(self, found: Found) -> None:
        self.times, self.rows, self._names = found.times, found.rows, found.names
        self._folded, self._records, self.checked = found.folded, found.records, found.checked

    def _scan(self) -> Found:
        """What is in the file, and behind it in the journal."""
        # The journal first: what a run that goes on puts into the file meanwhile is in both then.
        appended, found = list(records(self._journal)), Found()
        try:
            if self.path.is_file():
                found.checked = has_checksums(self.path)
                with open_checked(self.path) as file:
                    if ROWS in file and not found.checked:  # an earlier version wrote neither
                        raise ValueError("its checksums are missing: it was changed or damaged")
                    scan_file(file, found)
        except UNREADABLE as error:
            raise _unreadable(self.path, error) from error
        for record in appended:
            # One that was put into the file just before the program was killed is still there.
            if found.times and record.time <= found.times[-1]:
                continue
            if found.names and set(record.places) != set(found.names):
                raise InputError(
                    f"{self._journal}: not a readable journal (at t = {record.time:.6g} it has "
                    f"other arrays than {self.path.name})"
                )
            found.names = found.names or list(record.places)
            found.times.append(record.time)
            found.records.append(record)
            if record.row is not None:
                found.rows.append(record.row)
        if len(found.rows) != len(found.times):  # of an earlier version
            found.rows = []
        return found


def _copy(before: h5py.Dataset, after: h5py.Dataset, count: int, path: Path) -> None:
    """Copy the first rows of a dataset; what is read is held against its checksums."""
    rows = max(1, _AT_ONCE // (8 * math.prod(before.shape[1:])))
    for begin in range(0, count, rows):
        end = min(begin + rows, count)
        try:
            found = before[begin:end]
        except UNREADABLE as error:
            raise _unreadable(path, error) from error
        after[begin:end] = found


def _unreadable(path: Path, error: Exception) -> InputError:
    if isinstance(error, InputError) and str(error).startswith(str(path)):
        return error
    kind = "journal" if path.suffix == ".journal" else "density file"
    return InputError(f"{path}: not a readable {kind} ({' '.join(str(error).split())[:160]})")
