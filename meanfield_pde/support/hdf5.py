"""HDF5 files written so that a full disk is an error, not a crash, and checked when they are read.

HDF5 does not survive a write that fails: it may end the program while it closes the file. So it
writes through an object of ours, which keeps the first error of the system to itself, takes what
follows for written, and lets the error out when HDF5 has closed what it believes to be a file.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from meanfield_pde.support.memory import check_claim

# What h5py raises on a file that is damaged or is none.
UNREADABLE = (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError)


@contextmanager
def new_hdf5(path: Path) -> Iterator[h5py.File]:
    """A new HDF5 file; an OSError in the block or at its end if it could not be written."""
    with path.open("w+b", buffering=0) as raw:
        disk = _Disk(raw)
        try:
            with h5py.File(disk, "w") as file:
                yield file
        finally:
            if disk.error is not None:
                raise disk.error


class _Disk(io.RawIOBase):
    """A file for HDF5 whose writes never fail; `error` is the first that did."""

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw
        self._position = 0
        self._size = 0
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        done = 0
        while self.error is None and done < len(view):
            try:
                done += os.pwrite(self._raw.fileno(), view[done:], self._position + done)
            except OSError as error:
                self.error = error
        self._position += len(view)
        self._size = max(self._size, self._position)
        return len(view)

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self._size - self._position))
        found = b""
        if self.error is None:
            try:
                found = os.pread(self._raw.fileno(), wanted, self._position)
            except OSError as error:
                self.error = error
        # What could not be written is not missed before the file has been closed.
        view[:wanted] = found.ljust(wanted, b"\0")
        self._position += wanted
        return wanted

    def truncate(self, size: int | None = None) -> int:
        self._size = self._position if size is None else size
        try:
            if self.error is None:
                os.ftruncate(self._raw.fileno(), self._size)
        except OSError as error:
            self.error = error
        return self._size

    def flush(self) -> None:
        """Nothing is buffered here."""


def read_array(dataset: h5py.Dataset) -> np.ndarray:
    """The numbers of a dataset; InputError if it claims far more of them than are stored."""
    check_claim(dataset.size * dataset.dtype.itemsize, dataset.id.get_storage_size())
    return np.asarray(dataset[()])


def digest(group: h5py.Group) -> str:
    """A checksum of all that is in a file: names, types, shapes, numbers and attributes."""
    found = hashlib.sha256()

    def attributes(where: str, one: h5py.Group | h5py.Dataset) -> None:
        for name in sorted(one.attrs):
            if (where, name) != ("", CHECKSUM):
                found.update(f"{where}@{name}={one.attrs[name]!r}\n".encode())

    def visit(name: str, one: h5py.Group | h5py.Dataset) -> None:
        if isinstance(one, h5py.Dataset):
            array = np.ascontiguousarray(read_array(one))
            found.update(f"{name}:{array.dtype.str}{array.shape}\n".encode())
            found.update(array.tobytes())
        attributes(name, one)

    attributes("", group)
    group.visititems(visit)
    return found.hexdigest()


CHECKSUM = "checksum"  # the attribute that holds it
