r"""The latest saved densities: records appended to a file, each with a checksum of its own.

    b"density\n", length of the header, header (JSON: time, shapes, row), the arrays, CRC-32.

A record is there if it is whole: the journal ends at the first that is not, which is what a
program leaves that is killed while it writes. No number of a header is used before it is known to
be one, and no more is read than the file has.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

import numpy as np

from meanfield_pde.history.store import MASSES, Arrays, Row, least_rows

_MAGIC = b"density\n"
_NUMBER = struct.Struct("<Q")
# Names of datasets as `store` and `layout` make them; anything else is a damaged header.
_NAME = re.compile(r"[a-z_]+(/[a-z_]+){0,2}")
_MOST_AXES = 3  # cells x corners x coordinates


@dataclass(frozen=True)
class Place:
    """Where in the journal an array is, and its checksum."""

    position: int
    shape: tuple[int, ...]
    checksum: int


@dataclass(frozen=True)
class Record:
    """What the journal says of one time; `row` is None in one of an earlier version."""

    time: float
    row: Row | None
    places: dict[str, Place]
    end: int


def record_bytes(time: float, arrays: Arrays, row: Row | None) -> bytes:
    """A record as it is appended."""
    header: dict[str, Any] = {"time": time, "shapes": {n: np.shape(a) for n, a in arrays.items()}}
    if row is not None:
        header["row"] = dict(row)
    text = json.dumps(header).encode()
    record = io.BytesIO()
    record.write(_MAGIC + _NUMBER.pack(len(text)) + text)
    for array in arrays.values():
        record.write(np.ascontiguousarray(array, dtype="<f8").tobytes())
    content = record.getvalue()
    return content + _NUMBER.pack(zlib.crc32(content))


def records(path: Path, begin: int = 0) -> Iterator[Record]:
    """The whole records of a journal, the first at a position."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        file.seek(begin)
        while (record := _record(file)) is not None:
            yield record


def read_place(path: Path, place: Place) -> np.ndarray | None:
    """An array; None if it is no longer there, as in the journal of a run that goes on."""
    size = 8 * math.prod(place.shape)
    try:
        with path.open("rb") as file:
            file.seek(place.position)
            content = file.read(size)
    except FileNotFoundError:
        return None
    if len(content) < size or zlib.crc32(content) != place.checksum:
        return None
    return np.frombuffer(content, dtype="<f8").reshape(place.shape).copy()


def _record(file: BinaryIO) -> Record | None:
    left = os.fstat(file.fileno()).st_size - file.tell()
    head = file.read(len(_MAGIC) + _NUMBER.size)
    left -= len(head) + _NUMBER.size
    if left < 0 or not head.startswith(_MAGIC):
        return None
    length = _NUMBER.unpack(head[len(_MAGIC) :])[0]
    if length > left:
        return None
    text = file.read(length)
    header = _header(text, left - length)
    if header is None:
        return None
    time, shapes, row = header
    checksum = zlib.crc32(text, zlib.crc32(head))
    places: dict[str, Place] = {}
    for name, shape in shapes.items():
        position, content = file.tell(), file.read(8 * math.prod(shape))
        checksum = zlib.crc32(content, checksum)
        places[name] = Place(position, shape, zlib.crc32(content))
    tail = file.read(_NUMBER.size)
    if len(tail) < _NUMBER.size or _NUMBER.unpack(tail)[0] != checksum:
        return None
    return Record(time, row, places, file.tell())


def _header(text: bytes, left: int) -> tuple[float, dict[str, tuple[int, ...]], Row | None] | None:
    """Time, shapes and row; None unless they can be those of arrays in `left` bytes."""
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(header, dict):
        return None
    time, shapes, row = (header.get(name) for name in ("time", "shapes", "row"))
    time = float(time) if _is_number(time) else math.nan
    if not 0 <= time < math.inf or not isinstance(shapes, dict):
        return None
    if MASSES not in shapes or not all(_NAME.fullmatch(name) for name in shapes):
        return None
    if not all(_is_shape(shape, left, least_rows(name)) for name, shape in shapes.items()):
        return None
    if 8 * sum(map(math.prod, shapes.values())) > left:
        return None
    if row is not None and not (isinstance(row, dict) and all(map(_is_number, row.values()))):
        return None
    found = None if row is None else {name: float(value) for name, value in row.items()}
    return time, {name: tuple(shape) for name, shape in shapes.items()}, found


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, float) or (type(value) is int and abs(value) < 2**53)


def _is_shape(shape: object, most: int, rows: int) -> bool:
    return (
        isinstance(shape, list)
        and 1 <= len(shape) <= _MOST_AXES
        and all(type(size) is int and 0 <= size <= most for size in shape)
        and shape[0] >= rows
        and 0 not in shape[1:]
    )
