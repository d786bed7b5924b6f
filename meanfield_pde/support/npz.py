"""Arrays in `.npz` files: nothing in one that somebody else wrote is unpickled or trusted.

The messages about what is read do not name the file; the callers do, who know what it was to hold.
"""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import check_file
from meanfield_pde.support.files import make_folder, replace_file
from meanfield_pde.support.memory import check_claim

# More along one axis is no file: 10^15 bytes are a petabyte.
MOST_ENTRIES = 10**15
# What numpy, zipfile, zlib and, for the header of an array, tokenize raise on a damaged file.
UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    OverflowError,
    RuntimeError,
    EOFError,
    zipfile.BadZipFile,
    zlib.error,
    tokenize.TokenError,
    MemoryError,  # what Python's parser raises on a header that is nested deeply
    RecursionError,
)


def read_arrays(path: str | Path) -> dict[str, np.ndarray]:
    """All arrays of an `.npz` file, unpickling nothing; the caller's message names the file."""
    check_file(Path(path), "no such file")
    if not zipfile.is_zipfile(path):
        raise InputError("not an .npz file")
    try:
        _check_claims(path)
        with np.load(path, allow_pickle=False) as data:
            return {name: np.asarray(data[name]) for name in data.files}
    except InputError:
        raise
    except UNREADABLE as error:
        # The text of an OSError ends with the name of the file; its strerror does not.
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:120]
        raise InputError(f"not a readable .npz file ({reason})") from None


def unused_arrays(arrays: Mapping[str, Any], known: Collection[str]) -> str:
    """The sentence that says which arrays of a file are not used; empty if all are."""
    extra = sorted(arrays.keys() - set(known))
    return f"arrays not used: {', '.join(extra)}" if extra else ""


def write_arrays(path: str | Path, arrays: Mapping[str, np.ndarray | float]) -> None:
    """Write arrays to a file, whole and under the name given; its folder is made if need be.

    InputError unless the name ends in .npz, in letters of either case, and for arrays of objects.
    """
    path = Path(path)
    if path.suffix.lower() != ".npz":
        raise InputError(f"{path}: a file of arrays must end in .npz, got '{path.suffix}'")

    given: dict[str, Any] = {name: np.asarray(array) for name, array in arrays.items()}
    for name, array in given.items():
        if array.dtype.hasobject:  # numpy refuses to pickle these if asked to, but not before 2.2
            raise InputError(f"{path}: '{name}' is an array of Python objects, not of numbers")

    def write(part: Path) -> None:
        with part.open("wb") as file:  # numpy adds a suffix of its own to other names
            np.savez_compressed(file, **given)

    make_folder(path.parent)
    replace_file(path, write)


def _check_claims(path: str | Path) -> None:
    """InputError if an array would be far larger than what is stored of it; nothing is read yet."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            check_claim(member.file_size, member.compress_size)
            with archive.open(member) as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0
                if version >= (2, 0):
                    read = np.lib.format.read_array_header_2_0
                try:
                    shape, _, kind = read(stream)
                except UNREADABLE:  # whose texts speak of Python's parser
                    raise ValueError(
                        f"the header of {member.filename} is not a shape and a type of numbers"
                    ) from None
            # A header may say anything: True is a number in Python, and zero times 10^21 is zero.
            if any(type(n) is not int or not 0 <= n <= MOST_ENTRIES for n in shape):
                raise ValueError(f"{member.filename} cannot have the shape {shape}")
            if math.prod(shape) * kind.itemsize > member.file_size:
                raise ValueError(f"{member.filename} has fewer numbers than its shape {shape} says")
