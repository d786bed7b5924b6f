"""Runs that are killed again and again after their first checkpoint, and resumed each time.

    python -m tests.benchmarks.kills [--quick]

Half of the kills come at random moments, half at a chosen place (a hook ends the process there):
while a file is being put into its place, or, with an adaptive mesh, in the middle of a
change of it. At the end the results are compared with those of a run that was not killed: bit for
bit on one rank, to rounding on several.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from meanfield_pde import read_result
from meanfield_pde.results.folder import Result
from tests.benchmarks.tables import Table, options, present
from tests.problems import CIRCLE

CASE = CIRCLE.replace("until = 5.0", "until = 40.0") + "[output]\ncheckpoint_every = 3\n"
ADAPTIVE = CASE.replace("cells = 200", "cells = 60\n[adapt]\ntolerance = 2e-4")
MESHES = {"as given": CASE, "moving": ADAPTIVE}
RANKS = {"as given": (1, 2), "moving": (1, 2, 3)}
# Ends a rank, without a word and at once, at one of the places of a write or of a change of the
# mesh, chosen at random.
HOOK = """
import os, random, signal, sys
from meanfield_pde.solver.state import State
from meanfield_pde.cli import main
after, real, count = int(sys.argv.pop(1)), (os.fsync, os.replace), [0]
def deadly(function):
    def call(*arguments):
        count[0] += 1
        if count[0] == after: os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments)
    return call
os.fsync, os.replace = deadly(os.fsync), deadly(os.replace)
State.regridded = deadly(State.regridded)
main.main(sys.argv[1:])
"""


def run(
    case: Path, out: Path, ranks: int, *options: str, aimed: int = 0
) -> subprocess.Popen[bytes]:
    """A run in the background, killed at its n-th write if that is aimed at."""
    line = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    line += [sys.executable, "-c", HOOK, str(aimed)] if aimed else ["meanfield-pde"]
    return subprocess.Popen(
        [*line, "run", str(case), "--output", str(out), "--quiet", *options],
        env=os.environ | {"MEANFIELD_PDE_THREADS": "1"},
        stdout=subprocess.DEVNULL,  # where mpiexec says that ranks were killed
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def killed_rounds(case: Path, out: Path, ranks: int, rounds: int) -> int:
    """Kill `rounds` times, then let it end; how many kills hit a run that was at work."""
    hits = 0
    options: tuple[str, ...] = ()
    for number in range(rounds):
        aimed = random.randint(8, 60) if number % 2 and options else 0
        process = run(case, out, ranks, *options, aimed=aimed)
        if not aimed:
            limit = time.monotonic() + 300
            while not (out / "checkpoint.h5").exists() and time.monotonic() < limit:
                time.sleep(0.005)
            time.sleep(random.uniform(0.0, 0.5))
            os.killpg(process.pid, 9)
        hits += process.wait(120) != 0
        if (out / "summary.json").exists():
            return hits
        options = ("--resume",)
    process = run(case, out, ranks, *options)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return hits


OPTIONS = options("kills", __doc__)


def main() -> None:
    """Print the table."""
    quick = OPTIONS.parse_args().quick
    random.seed(1)
    table = Table("Runs killed and resumed", ["mesh", "ranks", "kills", "equal"])
    for mesh, text in MESHES.items():
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            case = folder / "case.toml"
            case.write_text(text)
            assert run(case, folder / "whole", 1).wait(300) == 0
            whole = read_result(folder / "whole")
            for ranks in RANKS[mesh]:
                wanted, hits, equal = (5 if quick else 25), 0, True
                for attempt in range(100):
                    out = folder / f"out{ranks}-{attempt}"
                    hits += killed_rounds(case, out, ranks, min(5, wanted - hits))
                    equal = equal and same(read_result(out), whole, exactly=ranks == 1)
                    if hits >= wanted:
                        break
                table.row(mesh, ranks, hits, equal)


def same(found: Result, whole: Result, *, exactly: bool) -> bool:
    """Whether two results are the same, bit for bit or to rounding."""
    if not np.array_equal(found.times, whole.times):
        return False
    pairs = zip(found.masses, whole.masses, strict=True)
    if exactly:
        return all(np.array_equal(one, other) for one, other in pairs)
    return all(
        len(one) == len(other) and np.allclose(one, other, rtol=1e-10, atol=1e-300)
        for one, other in pairs
    )


if __name__ == "__main__":
    present(main, OPTIONS)
