"""Damaged and made-up input to every command: one line, exit code 2, no traceback, no hang.

    python -m tests.benchmarks.fuzz [--quick]

Cases, tokens, measures, checkpoints and command lines are made by changing right ones at random:
numbers by extreme ones, bytes by others, parts left out or doubled. Each goes through the command
line in this process. What is counted as a fault: an exit code other than 0 and 2, an error of more
than one line or 300 characters, and more than 30 seconds of a run that has not said how long it is.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
import re
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from meanfield_pde.cli import main as cli
from tests.benchmarks.tables import Table, options, present
from tests.problems import CIRCLE

MOST_SECONDS = 30  # for a case: those that are right take a few
MANY_STEPS = 1e5  # more take longer than that
ODD = "nan inf -inf 1e308 -1e308 1e-320 0 -1 1e999 true [] {} '' 'x' 1e16 2147483648 [1,[2]] 0x10"
NUMBERS = tuple(ODD.split(" "))
CASE = CIRCLE.replace("cells = 200", "cells = 20").replace("until = 5.0", "until = 0.5")
LINES = (
    "run case.toml --until {}", "run case.toml --output {}", "limit {}", "wasserstein a.npz {}",
    "tokens case.toml --count {} --until 0", "tokens case.toml --count 5 --step {} --until 0.1",
    "mesh circle --cells {} --output m.xdmf", "mesh circle --cells 9 --grade {} --grade-to 1,0 "
    "--output m.xdmf", "wasserstein a.npz a.npz --p {}", "plot {}", "compare out {}",
    "run case.toml -ts_ssp_nstages {}", "run case.toml {}",
)  # fmt: skip


class TooLongError(BaseException):
    """A command that does not end."""


@contextlib.contextmanager
def cost_shown(stream: io.StringIO) -> Iterator[None]:
    """Messages on the cost of runs are written there, which a command keeps for its --log."""
    logger, handler = logging.getLogger("meanfield_pde.cost"), logging.StreamHandler(stream)
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def outcome(arguments: list[str]) -> str:
    """What is wrong with what a command did; nothing if all is well."""

    def expired(number: int, frame: object) -> None:
        raise TooLongError

    shown = io.StringIO()
    signal.signal(signal.SIGALRM, expired)
    signal.alarm(MOST_SECONDS)
    try:
        with (
            cost_shown(shown),
            contextlib.redirect_stderr(shown),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            code = cli._run(arguments)
    except TooLongError:
        # A long run that says so is none that hangs.
        announced = re.search(r", (\S+) of them to the end", shown.getvalue())
        return "" if announced and float(announced[1]) > MANY_STEPS else f"{MOST_SECONDS} seconds"
    except SystemExit as ended:
        code = int(ended.code or 0)
    finally:
        signal.alarm(0)
    errors = [line for line in shown.getvalue().splitlines() if line.startswith("meanfield-pde: ")]
    if code not in (0, 2):
        return f"exit {code}: {shown.getvalue()[:200]}"
    if code == 2 and (len(errors) != 1 or len(errors[0]) > 300):
        return f"{len(errors)} lines: {shown.getvalue()[:200]}"
    return "Traceback" if "Traceback" in shown.getvalue() else ""


def changed_text(text: str) -> str:
    """A case in which a few things are different."""
    for _ in range(random.randint(1, 2)):
        lines = text.splitlines()
        at = random.randrange(len(lines))
        match random.randrange(4):
            case 0:
                places = list(re.finditer(r"\d+\.?\d*", text))
                if places:
                    place = random.choice(places)
                    text = text[: place.start()] + random.choice(NUMBERS) + text[place.end() :]
            case 1:
                text = "\n".join(lines[:at] + lines[at + 1 :])
            case 2:
                text = "\n".join([*lines[:at], lines[at], *lines[at:]])
            case _:
                place = random.randrange(len(text) + 1)
                text = text[:place] + chr(random.choice((0, 9, 34, 91, 123, 955))) + text[place:]
    return text


def changed_bytes(content: bytes) -> bytes:
    """A file with some bytes different, or cut short."""
    found = bytearray(content)
    for _ in range(random.randint(1, 6)):
        found[random.randrange(len(found))] = random.randrange(256)
    return bytes(found[: random.randrange(len(found))] if random.random() < 0.3 else found)


def prepare() -> dict[str, bytes]:
    """Right input in the current folder, and the files of it that are to be changed."""
    Path("case.toml").write_text(CASE)
    angle = np.linspace(0, 6, 7)
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    np.savez("a.npz", points=points, masses=np.ones(7))
    np.savez("t.npz", tokens=points, times=np.zeros(1))
    cli._run(["run", "case.toml", "--until", "0.1", "--output", "out", "--quiet"])
    cli._run(["mesh", "circle", "--cells", "20", "--output", "mesh.xdmf"])
    names = ("a.npz", "t.npz", "out/checkpoint.h5", "mesh.xdmf", "mesh.h5", "out/density.h5")
    return {name: Path(name).read_bytes() for name in names}


def cases() -> str:
    """A changed case, run."""
    Path("fuzzed.toml").write_text(changed_text(CASE), encoding="utf-8")
    shutil.rmtree("fuzzed", ignore_errors=True)
    said = outcome(["run", "fuzzed.toml", "--until", "0.02", "--output", "fuzzed"])
    lines = set(Path("fuzzed.toml").read_text(encoding="utf-8").splitlines())
    return f"{said}: {sorted(lines - set(CASE.splitlines()))}" if said else ""


def command_lines() -> str:
    """An odd value at an odd place."""
    value = random.choice([*NUMBERS, "n" * 300, "1" * 5000, "--", "-1e-300", ".", "é", "/dev/null"])
    return outcome([part.format(value) for part in random.choice(LINES).split()])


def files(right: dict[str, bytes]) -> str:
    """A changed file, given to the command that reads it."""
    name = random.choice(list(right))
    Path(name).write_bytes(changed_bytes(right[name]))
    commands = {
        "a.npz": ["wasserstein", "a.npz", "t.npz"],
        "t.npz": ["compare", "out", "t.npz"],
        "out/checkpoint.h5": ["run", "case.toml", "--until", "0.12", "--output", "out", "--resume"],
        "out/density.h5": ["wasserstein", "out", "out"],
    }
    Path("mesh.toml").write_text(
        CASE.replace('kind = "circle"\ncells = 20', 'kind = "file"\npath = "mesh.xdmf"')
    )
    mesh = ["run", "mesh.toml", "--until", "0", "--output", "m", "--overwrite"]
    try:
        return outcome(commands.get(name, mesh))
    finally:
        for one, content in right.items():
            Path(one).write_bytes(content)


def fuzz(count: int, seed: int = 1) -> dict[str, list[str]]:
    """The faults found in `count` cases of each kind."""
    random.seed(seed)
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            right = prepare()
            kinds: dict[str, Callable[[], str]] = {
                "cases": cases,
                "command lines": command_lines,
                "files": lambda: files(right),
            }
            return {
                name: [said for said in (one() for _ in range(count)) if said]
                for name, one in kinds.items()
            }
        finally:
            os.chdir(before)


OPTIONS = options("fuzz", __doc__)


def main() -> None:
    """Print the table."""
    count = 70 if OPTIONS.parse_args().quick else 700
    table = Table("Fuzzed input", ["what", "cases", "faults"])
    for name, found in fuzz(count).items():
        table.row(name, count, len(found))
        for said in sorted(set(found))[:20]:
            print("   ", " ".join(said.split()))


if __name__ == "__main__":
    present(main, OPTIONS)
