"""What the commands share: types of arguments, whose errors say what was expected."""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde.errors import InputError, StorageError
from meanfield_pde.support.checks import check_no_device, to_path

# Adds a command: its name, what it does, and its line in the help.
Command = Callable[
    [str, Callable[[argparse.Namespace], None], str],
    argparse.ArgumentParser,
]


# Of values in a range: more points than that no grid may have.
MOST_SPACED = 10_000


def number(text: str) -> float:
    """A number, which may be infinite."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value):
        hint = "; write several with spaces between them" if "," in text else ""
        raise argparse.ArgumentTypeError(f"expected a number, got '{text}'{hint}")
    return value


def vector(text: str) -> list[float]:
    """Numbers separated by commas."""
    return [number(part) for part in text.split(",")]


def variation(text: str) -> tuple[str, list[Any]]:
    """KEY=VALUES: a key of a case file and values, listed with commas, or evenly spaced.

    Values are those of TOML, and words need no quotes: 1,2,4 or muscl,upwind or [1,0],[0,1].
    START:STOP:COUNT has both ends, START:STOP:COUNT:log equal ratios; ends that are whole numbers
    give whole numbers, where these are.
    """
    key, _, values = text.partition("=")
    key, values = key.strip(), values.strip()
    if not key or not values:
        raise argparse.ArgumentTypeError(
            f"expected KEY=START:STOP:COUNT, with :log after it for equal ratios, or "
            f"KEY=VALUE,VALUE,..., got '{text}'"
        )
    first = values.partition(",")[0]
    return key, _spaced(values) if ":" in first and first[0] not in "'\"[" else _listed(values)


def _spaced(text: str) -> list[Any]:
    """Evenly spaced values, or with equal ratios, rounded to 12 digits, as folders are named."""
    start, stop, *rest = [*text.split(":"), ""]
    try:
        count = int(rest[0])
    except ValueError:
        count = 0
    ends = number(start), number(stop)
    logarithmic = rest[1:-1] == ["log"]
    if not (2 <= count <= MOST_SPACED and all(map(math.isfinite, ends))) or (
        rest[1:-1] and not (logarithmic and min(ends) > 0)
    ):
        raise argparse.ArgumentTypeError(
            f"expected START:STOP:COUNT with a count from 2 to {MOST_SPACED}, or "
            f"START:STOP:COUNT:log with ends > 0, got '{text}'"
        )
    found = np.geomspace(*ends, count) if logarithmic else np.linspace(*ends, count)
    rounded = [float(f"{value:.12g}") for value in found]
    whole = all(end.strip().lstrip("+-").isdigit() for end in (start, stop))
    return [int(value) if whole and value.is_integer() else value for value in rounded]


def _listed(text: str) -> list[Any]:
    """Values separated by commas that stand in no brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "[{") - (character in "]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [_value(part.strip()) for part in parts]


def _value(text: str) -> Any:
    if not text:
        raise argparse.ArgumentTypeError("a value between two commas is missing")
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


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
