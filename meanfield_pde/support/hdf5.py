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
def new_hdf5(path: Path, *, userblock: int = 0) -> Iterator[h5py.File]:
    """A new HDF5 file; an OSError in the block or at its end if it could not be written.

    Args:
        path: where it is to stand.
        userblock: bytes at its beginning that HDF5 leaves to its user: 0, or 512.
    """
    with path.open("w+b", buffering=0) as raw:
        disk = _Disk(raw)
        try:
            with h5py.File(disk, "w", userblock_size=userblock) as file:
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


def shape_of(dataset: h5py.Dataset) -> tuple[int, ...]:
    """The shape of a dataset; ValueError if it is a group, or has none."""
    if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
        raise ValueError(f"{dataset.name.lstrip('/')} must be numbers")
    return dataset.shape


def read_array(dataset: h5py.Dataset) -> np.ndarray:
    """The numbers of a dataset; InputError if it claims far more of them than are stored."""
    shape_of(dataset)
    check_claim(dataset.size * dataset.dtype.itemsize, dataset.id.get_storage_size())
    return np.asarray(dataset[()])


def seal(path: Path) -> None:
    """Append a checksum of a whole file, where HDF5 does not look."""
    with path.open("r+b") as file:
        file.write(_SEAL + hashlib.file_digest(file, "sha256").digest())


def check_seal(path: Path) -> None:
    """ValueError if a file is not as it was sealed; HDF5 may not come back from a damaged one."""
    with path.open("rb") as file:
        length = max(0, os.fstat(file.fileno()).st_size - len(_SEAL) - hashlib.sha256().digest_size)
        found = hashlib.sha256()
        for begin in range(0, length, _PIECE):
            found.update(file.read(min(_PIECE, length - begin)))
        if file.read() != _SEAL + found.digest():
            raise ValueError("its checksum is wrong")


_SEAL, _PIECE = b"sha256 of all before ", 1 << 20
