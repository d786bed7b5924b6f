"""What the commands share: types of arguments, whose errors say what was expected."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from meanfield_pde.errors import InputError, StorageError
from meanfield_pde.support.checks import to_path

# Adds a command: its name, what it does, and its line in the help.
Command = Callable[
    [str, Callable[[argparse.Namespace], None], str],
    argparse.ArgumentParser,
]


def number(text: str) -> float:
    """A number, which may be infinite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise argparse.ArgumentTypeError(f"expected a number, got '{text}'")
    return value


def vector(text: str) -> list[float]:
    """Numbers separated by commas."""
    return [number(part) for part in text.split(",")]


def add_allow_long(parser: argparse.ArgumentParser) -> None:
    """The option that lifts the bound on the number of steps."""
    parser.add_argument(
        "--allow-long", action="store_true", help="more than 1e9 steps are meant, not a slip"
    )


def add_figures_folder(parser: argparse.ArgumentParser) -> None:
    """The option that says where figures go."""
    parser.add_argument(
        "--output", type=path, metavar="FOLDER", help="put figures/ there, not in the result folder"
    )


@contextmanager
def figures_elsewhere() -> Iterator[None]:
    """Name that option where a folder cannot be written."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{error}; have the figures in another folder", "--output") from None


def path(text: str) -> Path:
    """A path; an empty one would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got ''")
    try:
        return to_path(text, "the path")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
