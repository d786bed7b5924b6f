"""What the commands share: types of arguments, whose errors say what was expected."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from meanfield_pde.errors import InputError, StorageError
from meanfield_pde.support.checks import check_no_device, to_path

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
        "--output",
        type=folder,
        metavar="FOLDER",
        help="put figures/ there, not in the result folder",
    )


@contextmanager
def figures_elsewhere() -> Iterator[None]:
    """Name that option where a folder cannot be written."""
    try:
        yield
    except StorageError as error:
        raise StorageError(f"{error}; have the figures in another folder", "--output") from None


def check_outputs(options: argparse.Namespace) -> None:
    """InputError if a file that a command is to write is a pipe, a device, or one of its inputs."""
    for name in ("output", "log"):
        place = getattr(options, name, None)
        if place is not None:
            check_no_input(place, options, f"--{name}")
            if name == "output":  # a log may go to a device
                check_no_device(place)


def check_no_input(place: Path, options: argparse.Namespace, name: str) -> None:
    """InputError if a file to be written is one that the options, or the case, name as an input.

    Args:
        place: of the file; a folder may be that of an input.
        options: of the command.
        name: of the option, or what else says where the file goes.
    """
    if not place.is_file():
        return
    from meanfield_pde.case.file import input_files

    for key, given in vars(options).items():
        if key in ("output", "log") or not isinstance(given, Path):
            continue
        for read in input_files(given) if key == "case" else [given]:
            if read.exists() and place.samefile(read):
                what = f"the {key} file" if read is given else f"an input of {given}"
                raise InputError(f"{place}: {name} is {what} itself; name another")


def folder(text: str) -> Path:
    """A path of a folder, which need not be there yet."""
    found = path(text)
    if found.exists() and not found.is_dir():
        kind = "a file" if found.is_file() else "a pipe or a device"
        raise argparse.ArgumentTypeError(f"{found} is {kind}, not a folder")
    return found


def path(text: str) -> Path:
    """A path; an empty one would be the current folder."""
    if not text:
        raise argparse.ArgumentTypeError("expected a path, got ''")
    try:
        return to_path(text, "the path")
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
