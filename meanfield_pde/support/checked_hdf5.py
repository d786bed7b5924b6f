"""HDF5 files with a checksum of every block, which is held against it before HDF5 sees the block.

    512 bytes    HEAD: the file has checksums; HDF5 leaves these bytes to its user
    HDF5         what any program that knows HDF5 reads
    checksums    CRC-32 of each block of all before, 4 bytes each
    64 bytes     magic, number of bytes before the checksums, size of a block, SHA-256 of the
                 checksums and of these two numbers

A block is checked when something in it is read, so that one density of many costs its own bytes
only. Data and checksums are one file, which is put into its place whole: neither is ever there
without the other. Files of an earlier version begin with the signature of HDF5 and have none.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from meanfield_pde.support.hdf5 import new_hdf5

# HDF5 looks for its own signature at 0, 512, 1024, ...
HEAD = b"meanfield_pde: HDF5 from byte 512 on, then CRC-32 of blocks\n".ljust(512, b"\0")
_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_FOOT = struct.Struct("<16sQQ32s")
_MAGIC = b"checksums above\n"
# Bytes. A block is read whole for one number in it (20 us), and its checksum takes 4 bytes (6e-5).
_BLOCK = 1 << 16
_SUM = struct.Struct("<I")


@contextmanager
def new_checked_hdf5(path: Path) -> Iterator[h5py.File]:
    """A new HDF5 file, with its checksums when the block has ended; OSError if it fails."""
    with new_hdf5(path, userblock=len(HEAD)) as file:
        yield file
    add_checksums(path)


def add_checksums(path: Path) -> None:
    """Write the head of an HDF5 file with a user block of 512 bytes, and append its checksums."""
    with path.open("r+b") as file:
        file.write(HEAD)
        file.seek(0)
        sums = b"".join(
            _SUM.pack(zlib.crc32(block)) for block in iter(lambda: file.read(_BLOCK), b"")
        )
        length = file.tell()
        file.write(sums + _FOOT.pack(_MAGIC, length, _BLOCK, _digest(sums, length, _BLOCK)))


def has_checksums(path: Path) -> bool:
    """Whether a file has checksums; ValueError if it is neither such a file nor plain HDF5."""
    with path.open("rb") as file:
        found = file.read(len(HEAD))
    if found != HEAD and not found.startswith(_SIGNATURE):
        raise ValueError("its first bytes are not those of such a file")
    return found == HEAD


@contextmanager
def open_checked(path: Path) -> Iterator[h5py.File]:
    """A file to be read, with checksums or of an earlier version without.

    ValueError in the block where what is read is not what was written.
    """
    if not has_checksums(path):
        with h5py.File(path) as file:
            yield file
        return
    with path.open("rb", buffering=0) as raw, h5py.File(_Checked(raw), "r") as file:
        yield file


class _Checked(io.RawIOBase):
    """What HDF5 reads from: the bytes before the checksums, in blocks that are as written."""

    def __init__(self, raw: io.FileIO) -> None:
        self._handle = raw.fileno()
        self._position = 0
        self._latest: tuple[int, bytes] | None = None
        end = os.fstat(self._handle).st_size
        foot = os.pread(self._handle, _FOOT.size, max(end - _FOOT.size, 0))
        if len(foot) < _FOOT.size or not foot.startswith(_MAGIC):
            raise ValueError(
                "its checksums are missing: it was cut, or changed after it was written"
            )
        _, self._length, self._block, digest = _FOOT.unpack(foot)
        size = end - _FOOT.size - self._length
        blocks = -(-self._length // self._block) if self._block else -1
        if size != _SUM.size * blocks:
            raise ValueError("its checksums are wrong")
        self._sums = os.pread(self._handle, size, self._length)
        if _digest(self._sums, self._length, self._block) != digest:
            raise ValueError("its checksums are wrong")

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # HDF5 gives no other
        end = min(self._position + len(buffer), self._length)
        done = 0
        while self._position < end:
            number, begin = divmod(self._position, self._block)
            piece = self._whole(number)[begin : begin + end - self._position]
            buffer[done : done + len(piece)] = piece
            done += len(piece)
            self._position += len(piece)
        return done

    def _whole(self, number: int) -> bytes:
        """A block; ValueError unless it is as it was written."""
        if self._latest is None or self._latest[0] != number:
            begin = number * self._block
            wanted = min(self._block, self._length - begin)
            content = os.pread(self._handle, wanted, begin)
            expected = _SUM.unpack_from(self._sums, _SUM.size * number)[0]
            if len(content) < wanted or zlib.crc32(content) != expected:
                raise ValueError(f"its checksum is wrong, in bytes {begin} to {begin + wanted}")
            self._latest = number, content
        return self._latest[1]


def _digest(sums: bytes, length: int, block: int) -> bytes:
    return hashlib.sha256(sums + struct.pack("<QQ", length, block)).digest()
