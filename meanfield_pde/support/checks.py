"""Checks of single values that a user gives: numbers, names, paths and lists.

Each returns the value in the type that the program works with, or raises an `InputError` that
begins with the name of the key and says what was expected and what was found.
"""

from __future__ import annotations

import difflib
import errno
import math
import os
import re
import reprlib
import stat
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde.errors import InputError, TimeIndexError

LARGEST_COORDINATE = 1e100  # whose square, and the costs made of it, are finite
# Points that a user gives, tokens or vertices, may be off the unit sphere by this much: single
# precision. They are put back on it.
OFF_SPHERE = 1e-6
# Those that are off by more than this are put back, so that what was written, rounded, is read back
# bit by bit.
ROUNDING = 1e-14
# The mass of a density before it is scaled to one: a double below 1e-308 is a multiple of 5e-324
# only, and what is made of the density in small cells is far smaller than the density.
LEAST_MASS = 1e-280
# Entries of matrices: of four factors the product is in the range of doubles.
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-70, 1e70
LONGEST_NAME, LONGEST_PATH = 255, 4000  # bytes, on all file systems in use
# What takes more steps does not end: at ten microseconds a step it takes three hours, on a mesh of
# any use weeks to years.
MOST_STEPS = 1e9
# Seconds in each unit of a duration.
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def is_number(value: Any) -> bool:
    """Whether a value is a real number, and a double holds it; infinity is one."""
    # A bool is an int in Python and a duration one in numpy; neither is a number in a case file.
    if not isinstance(value, Real) or isinstance(value, bool | np.timedelta64):
        return False
    try:
        with np.errstate(over="ignore"):  # of a long double
            number = float(value)
    except OverflowError:  # a whole number of more digits
        return False
    return not math.isinf(number) or bool(number == value)


def shown(value: Any) -> str:
    """The value for a message, cut short; not all objects can be printed, nor all whole numbers."""
    try:
        return reprlib.repr(value)
    except Exception:  # what `__repr__` of somebody else's object raises
        return f"one that cannot be printed, of type {type(value).__name__}"


def real(
    value: Any, name: str, expected: str, accept: Callable[[float], bool] = lambda _: True
) -> float:
    """The value as a float, or InputError if it is not a finite number that is accepted."""
    number = float(value) if is_number(value) else math.nan
    if not (math.isfinite(number) and accept(number)):
        raise InputError(f"{name} must be {expected}, got {shown(value)}")
    return number


def whole(value: Any, name: str, least: int) -> int:
    """The value as an int, or InputError if it is not a whole number from `least` on."""
    if not isinstance(value, Integral) or not is_number(value) or value < least:
        raise InputError(f"{name} must be a whole number >= {least}, got {shown(value)}")
    return int(value)


def time_index(index: Any, count: int) -> int:
    """The index, from 0 on, of one of n = `count` saved times; one below 0 counts from the last."""
    if not isinstance(index, Integral) or not is_number(index):
        raise InputError(f"the index of a saved time must be a whole number, got {shown(index)}")
    number = int(index)
    if not -count <= number < count:
        raise TimeIndexError(
            f"there is no saved time {shown(index)}: there are {count}, counted from 0, or from -1 "
            "backwards"
        )
    return number % count


def duration(text: str, name: str) -> float:
    """Seconds of a text such as "90s", "10min" or "1.5h", or InputError if it is none."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|h)\s*", text, re.ASCII)
    seconds = float(match[1]) * SECONDS[match[2]] if match else 0.0
    if seconds <= 0:
        raise InputError(
            f'{name} must be a number of steps or a time such as "90s", "10min" or "1.5h", '
            f"got {shown(text)}"
        )
    return seconds


def check_ends(steps: float, what: str, remedy: str, options: str = "") -> None:
    """InputError if N = `steps` steps do not end.

    Args:
        steps: how many there would be.
        what: the name and the value of what asks for them.
        remedy: what to change.
        options: of the command line, that are a remedy.
    """
    if not steps <= MOST_STEPS:
        raise InputError(
            f"{what} is about {steps:.1e} steps away, which does not end; {remedy}", options
        )


def choice(value: Any, name: str, options: Collection[str]) -> None:
    """InputError unless the value is one of the options."""
    if not isinstance(value, str) or value not in options:
        raise InputError(
            f"{name} must be one of {', '.join(map(repr, options))}, "
            f"got {shown(value)}{did_you_mean(value, options)}"
        )


def number_list(value: Any, name: str) -> Collection[Any]:
    """The value, or InputError if it is not a list; its entries are still to be checked."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str | bytes)
    if not (is_list or (isinstance(value, np.ndarray) and value.ndim)):
        raise InputError(f"{name} must be a list of numbers, got {shown(value)}")
    return value


def numbers(given: Any, name: str, what: str = "an array") -> np.ndarray:
    """The array as floats, or InputError if it does not hold real numbers."""
    array = numbers_as_given(given, name, what)
    try:
        return array.astype(float)
    except MemoryError:  # one that is broadcast takes none itself
        raise InputError(f"{name} has {array.size} entries, more than memory holds") from None


def numbers_as_given(given: Any, name: str, what: str = "an array") -> np.ndarray:
    """The array in the type that it has, or InputError if it does not hold real numbers."""
    try:
        array = np.asarray(given)
    except Exception:  # rows of different lengths, or what somebody else's `__array__` raises
        raise InputError(f"{name} must be {what} of numbers whose rows have equal length") from None
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name} must be {what} of real numbers, got type {array.dtype}")
    masked = np.ma.getmask(given)
    if masked is not np.ma.nomask and np.any(masked):
        raise InputError(
            f"{name} is a masked array with {np.count_nonzero(masked)} entries left out; give an "
            "array of the others, or fill them in"
        )
    return array


def check_mass(total: float, what: str) -> None:
    """InputError unless the mass of a density is positive, finite and not near the least double."""
    if not (math.isfinite(total) and total > 0):
        raise InputError(f"{what} must have a positive, finite mass, got {total:g}")
    if total < LEAST_MASS:
        raise InputError(
            f"{what} must have a mass of {LEAST_MASS:g} or more, below which doubles lose their "
            f"digits, got {total:g}; scale it, its mass does not matter"
        )


def points_of(
    given: Any, dimension: int | None = None, name: str = "points", *, clouds: bool = False
) -> np.ndarray:
    """The points as floats, N x d; InputError unless they are up to 1e100, and d fits.

    Args:
        given: the points; one alone is a row.
        dimension: d; any, if left out.
        name: of the points.
        clouds: whether there may be axes before these two, and numbers that are not finite, as in
            a scheme that diverges.
    """
    points = np.atleast_2d(numbers(given, name))
    d = points.shape[-1] if dimension is None else dimension
    if (points.ndim > 2 and not clouds) or points.shape[-1] != d:
        shape = "d numbers each" if dimension is None else f"{d} coordinates"
        raise InputError(f"{name} must be rows of {shape}, got an array of shape {points.shape}")
    # Least and largest are no numbers where a coordinate is none, and take no array in between.
    low, high = points.min(initial=0), points.max(initial=0)
    if not (low >= -LARGEST_COORDINATE and high <= LARGEST_COORDINATE) and not clouds:
        *row, _ = np.argwhere(~(np.abs(points) <= LARGEST_COORDINATE))[0].tolist()
        raise InputError(
            f"{name} must be finite, up to {LARGEST_COORDINATE:g}, got "
            f"{points[tuple(row)].tolist()} in row {row[-1]}"
        )
    return points


def to_sphere(points: np.ndarray, name: Callable[[Sequence[int]], str]) -> tuple[np.ndarray, str]:
    """Points (... x d) put back on the unit sphere, and a note that is empty if none was off.

    Args:
        points: refused if a point is further than 1e-6 from the sphere.
        name: what to call the point with a given index in the message.
    """
    length = np.linalg.norm(points, axis=-1, keepdims=True)
    off = np.abs(length[..., 0] - 1)
    wrong = ~(off <= OFF_SPHERE)  # also true for nan
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise InputError(
            f"{name(index)} is not on the unit sphere: {points[index].tolist()} has length "
            f"{length[index].item():.9g} ({wrong.sum()} of {wrong.size} are off by more than "
            f"{OFF_SPHERE:g})"
        )
    near = off > ROUNDING
    if not near.any():
        return points, ""
    note = (
        f"{near.sum()} of {near.size} positions were off the unit sphere by up to "
        f"{off.max():.1e} and were renormalised"
    )
    return np.where(near[..., None], points / length, points), note


def magnitudes(array: np.ndarray, name: str) -> np.ndarray:
    """The array, or InputError unless its entries are finite and not all out of a common range.

    The largest has to be zero, or between 1e-70 and 1e70 in magnitude, so that products of four
    factors, and their sums, are neither infinite nor lost.
    """
    largest = float(np.abs(array).max(initial=0.0)) if np.isfinite(array).all() else math.nan
    if math.isnan(largest):
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise InputError(f"{name} must have finite entries, got {array[where]} at {list(where)}")
    if largest and not SMALLEST_FACTOR <= largest <= LARGEST_FACTOR:
        raise InputError(
            f"{name} must have its largest entry from {SMALLEST_FACTOR:g} to {LARGEST_FACTOR:g} in "
            f"magnitude, or zero, got {largest:g}; scale it"
        )
    return array


def to_path(value: Any, name: str) -> Path:
    """The value as a path, or InputError if it cannot be one."""
    try:
        text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
    except Exception:  # of somebody else's `__fspath__`
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputError(f"{name} must be a path in quotes, got {shown(value)}")
    path = Path(value)
    try:
        lengths = [len(os.fsencode(part)) for part in path.parts]
        str(path).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{name} has characters in it that are not text in the encoding "
            f"{sys.getfilesystemencoding()}, got {shown(str(path))}; rename it, or set "
            "LC_ALL to C.UTF-8"
        ) from None
    if any(length > LONGEST_NAME for length in lengths):
        raise InputError(f"{name} has a name of more than {LONGEST_NAME} characters in it")
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise InputError(f"{name} must be a path of at most {LONGEST_PATH} characters")
    return path


def input_path(value: Any, name: str, folder: Path) -> Path:
    """The absolute path of an input, given relative to a folder; InputError if no such file."""
    path = folder / to_path(value, name)
    check_file(path, f"{name} names a file that does not exist: {path}")
    return path.resolve()


def check_file(path: Path, otherwise: str) -> None:
    """InputError unless a path leads to a regular file; one that never ends is not opened.

    Args:
        path: the path.
        otherwise: the message if there is nothing, or a folder.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        absent = error.errno in (errno.ENOENT, errno.ENOTDIR)
        raise InputError(otherwise if absent else f"{otherwise} ({error.strerror})") from None
    if stat.S_ISREG(mode):
        return
    check_no_device(path)
    raise InputError(otherwise)


def check_no_device(path: Path) -> None:
    """InputError if a path leads to a pipe, a device or a socket."""
    kinds = {
        stat.S_IFIFO: "a pipe",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFSOCK: "a socket",
    }
    try:
        found = kinds.get(stat.S_IFMT(path.stat().st_mode))
    except OSError:  # nothing that can be reached
        return
    if found:
        raise InputError(f"{path} is {found}, not a file")


def known_keys(
    table: Iterable[str],
    known: Collection[str],
    where: str,
    homes: Mapping[str, Collection[str]] | None = None,
) -> None:
    """InputError if a table has a key that is not known.

    Args:
        table: its keys.
        known: those it may have.
        where: what the table is called.
        homes: the keys of the sections to one of which an unknown key may belong.
    """
    for key in table:
        if key not in known:
            hint = did_you_mean(key, known) or f" (known: {', '.join(known)})"
            sections = [f"[{name}]" for name, keys in (homes or {}).items() if key in keys]
            if sections:
                hint = f"; it belongs to {' or '.join(sections)}"
            raise InputError(f"{where} unknown key '{key}'{hint}")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The clause "; did you mean '...'?" with the nearest known name; empty if none is near."""
    if not isinstance(name, str):
        return ""
    # A single letter in the wrong case has no near match, so cases are folded first.
    names = {one.lower(): one for one in known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.6)
    return f"; did you mean '{names[near[0]]}'?" if near else ""


def matrix_rows(given: Any, name: str) -> list[list[float]]:
    """The rows of a matrix as lists of floats, or InputError that names the entry."""
    if not isinstance(given, list) or not all(isinstance(row, list) for row in given):
        raise InputError(
            f"{name} must be a matrix [[...], [...]], a list of rows, got {shown(given)}"
        )
    rows = [
        [real(entry, f"{name}[{i}][{j}]", "a finite number") for j, entry in enumerate(row)]
        for i, row in enumerate(given)
    ]
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise InputError(
                f"{name} must have rows of equal length, got {len(rows[0])} entries in row 0 "
                f"and {len(row)} in row {i}"
            )
    return rows
