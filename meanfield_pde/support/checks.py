"""Checks of single values that a user gives: numbers, names, paths and lists.

Each returns the value in the type that the program works with, or raises an `InputError` that
begins with the name of the key and says what was expected and what was found.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde.errors import InputError

# Points that a user gives, tokens or vertices, may be off the unit sphere by this much: single
# precision. They are put back on it.
OFF_SPHERE = 1e-6
LONGEST_NAME, LONGEST_PATH = 255, 4000  # bytes, on all file systems in use
# What takes more steps does not end: at ten microseconds a step it takes three hours, on a mesh of
# any use weeks to years.
MOST_STEPS = 1e9
SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}


def real(
    value: Any, name: str, expected: str, accept: Callable[[float], bool] = lambda _: True
) -> float:
    """The value as a float, or InputError if it is not a finite number that is accepted."""
    try:
        # A bool is an int in Python, but true is not a number in a case file.
        number = float(value) if isinstance(value, Real) and type(value) is not bool else math.nan
    except OverflowError:
        number = math.inf
    if not (math.isfinite(number) and accept(number)):
        raise InputError(f"{name} must be {expected}, got {reprlib.repr(value)}")
    return number


def whole(value: Any, name: str, least: int) -> int:
    """The value as an int, or InputError if it is not a whole number from `least` on."""
    if type(value) is bool or not isinstance(value, Integral) or value < least:
        raise InputError(f"{name} must be a whole number >= {least}, got {reprlib.repr(value)}")
    return int(value)


def duration(text: str, name: str) -> float:
    """Seconds of a text such as "90s", "10min" or "1.5h", or InputError if it is none."""
    match = re.fullmatch(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|h)\s*", text, re.ASCII)
    seconds = float(match[1]) * SECONDS[match[2]] if match else 0.0
    if seconds <= 0:
        raise InputError(
            f'{name} must be a number of steps or a time such as "90s", "10min" or "1.5h", '
            f"got {reprlib.repr(text)}"
        )
    return seconds


def check_ends(steps: float, what: str, remedy: str, options: str = "") -> None:
    """InputError if so many steps do not end.

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
            f"got {reprlib.repr(value)}{did_you_mean(value, options)}"
        )


def number_list(value: Any, name: str) -> Collection[Any]:
    """The value, or InputError if it is not a list; its entries are still to be checked."""
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise InputError(f"{name} must be a list of numbers, got {reprlib.repr(value)}")
    return value


def numbers(given: Any, name: str) -> np.ndarray:
    """The array as floats, or InputError if it does not hold real numbers."""
    try:
        array = np.asarray(given)
    except ValueError:
        raise InputError(
            f"{name} must be an array of numbers whose rows have equal length"
        ) from None
    if array.dtype.kind not in "iuf":
        raise InputError(f"{name} must be an array of real numbers, got type {array.dtype}")
    return array.astype(float)


def to_path(value: Any, name: str) -> Path:
    """The value as a path, or InputError if it cannot be one."""
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or "\0" in str(value):
        raise InputError(f"{name} must be a path in quotes, got {reprlib.repr(value)}")
    path = Path(value)
    if (
        any(len(os.fsencode(part)) > LONGEST_NAME for part in path.parts)
        or len(os.fsencode(path)) > LONGEST_PATH
    ):
        raise InputError(f"{name} has a name of more than {LONGEST_NAME} characters in it")
    return path


def input_path(value: Any, name: str, folder: Path) -> Path:
    """The absolute path of an input, given relative to a folder; InputError if no such file."""
    path = (folder / to_path(value, name)).resolve()
    if not path.is_file():
        raise InputError(f"{name} names a file that does not exist: {path}")
    return path


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
