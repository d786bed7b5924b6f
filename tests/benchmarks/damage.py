"""Result folders with one damaged file: refused in one line, or exactly the numbers as before.

    python -m tests.benchmarks.damage [--quick]
    mpiexec -n 2 python -m tests.benchmarks.damage --quick

Each file that is read back is cut, has a block set to zero, or some bytes changed, at random. The
folders are those of a finished run and of one that was killed (kill -9) half way. Every command
that reads the file is then given the folder. What is counted as a fault: numbers that differ from
those of the undamaged folder, an exit code other than 0 and 2, an error of more than one line or
300 characters, and more than 60 seconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from unittest.mock import patch

from mpi4py import MPI

import numpy as np

from meanfield_pde import InputError, SolverError, read_case, read_result, run_case
from meanfield_pde.cli import main as cli
from meanfield_pde.experiments import run as runs
from meanfield_pde.history.store import ZERO_MASSES
from meanfield_pde.results import writer
from meanfield_pde.results.tables import HistoryFile
from meanfield_pde.support.ranks import on_root
from tests.benchmarks.tables import Table, options, present
from tests.problems import CIRCLE

COMM = MPI.COMM_WORLD
MOST_SECONDS = 60  # for a command: those that are right take a few
CASE = (
    CIRCLE.replace("cells = 200", "cells = {cells}")
    .replace("until = 5.0\nsave_every = 0.5", "until = 0.8\nsave_every = 0.1")
    .replace("beta  = 40.0", "beta  = 4.0")
    + '[compare]\nlimit = true\nzero_temperature = true\np = [1]\n[output]\nfields = "none"\n'
    "checkpoint_every = 1\n"
)
KILLED_AT = 6  # rows that are written; three times are in density.h5 then, three in the journal
# Kills a run of the command line there; the first rank writes.
HOOK = """
import os, signal, sys
from tests.benchmarks.damage import stopping
from meanfield_pde.cli import main
with stopping(lambda: os.kill(os.getpid(), signal.SIGKILL)):
    main.main(sys.argv[1:])
"""
RUN = ["run", "case.toml", "--output", "work", "--quiet"]
READERS: dict[str, list[str]] = {
    "read_result": [],
    "wasserstein": ["wasserstein", "work", "start.npz"],
    "plot": ["plot", "work", "--output", "figures"],
    "compare": ["compare", "work", "tokens.npz", "--json"],
    "run": RUN,
    "resume": [*RUN, "--resume"],
}
READ = ("read_result", "wasserstein", "plot", "compare", "resume")
# By folder and file, the commands that read it; `run` leaves a finished run as it is.
Plan = Mapping[tuple[str, str], tuple[str, ...]]
PLAN: Plan = {
    (folder, name): readers
    for folder in ("finished", "killed")
    for name, readers in {
        "case.toml": READ,
        "history.csv": READ,
        "density.h5": READ,
        "density.journal": READ,
        "summary.json": ("run", "resume"),
        "checkpoint.h5": ("resume",),
        "checkpoint.previous.h5": ("resume",),
        "tokens-band.npz": ("compare",),
    }.items()
    if name != ("summary.json" if folder == "killed" else "density.journal")
}


class KilledError(Exception):
    """In the place of a kill, in a process that is still needed."""


class TooLongError(BaseException):
    """A command that does not end."""


@contextlib.contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Stop a run when it has written n rows of the history; checkpoints are written often."""
    append, count = HistoryFile.append, [0]

    def counted(self: HistoryFile, row: dict[str, float]) -> None:
        append(self, row)
        count[0] += 1
        if count[0] == KILLED_AT:
            stop()

    with patch.object(HistoryFile, "append", counted), patch.object(writer, "WRITING_SHARE", 1e9):
        yield


def stop_here() -> None:
    """Break a run off."""
    raise KilledError


def prepare(cells: int, *, killed: bool) -> None:
    """Folders `finished` and `killed` in the current one, and what is held against them.

    Args:
        cells: of the mesh.
        killed: kill a process of its own (-9), and compare with tokens; otherwise a run in this
            process is broken off.
    """
    angle = np.linspace(0, 6, 12)
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    if COMM.rank == 0:
        Path("case.toml").write_text(CASE.format(cells=cells))
        np.savez("start.npz", points=points, masses=np.ones(len(points)))
        np.savez("tokens.npz", tokens=points[None], times=np.array([0.2]))
    COMM.barrier()
    said = command(["run", "case.toml", "--quiet", "--output", "finished"])
    assert said[0] == 0, said
    if not killed:
        with stopping(stop_here), contextlib.suppress(KilledError, SolverError):
            run_case(read_case("case.toml", output="killed"), quiet=True)
    elif COMM.rank == 0:
        line = [sys.executable, "-c", HOOK, "run", "case.toml", "--quiet", "--output", "killed"]
        alone = {name: value for name, value in os.environ.items() if "PMI" not in name}
        root = Path(__file__).parents[2]  # of the tests, which are not installed
        alone["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [alone.get("PYTHONPATH")])])
        ended = subprocess.run(line, env=alone, check=False, capture_output=True, text=True)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
    COMM.barrier()
    if killed:  # the samples of `compare` are kept, and read back
        for name in ("finished", "killed"):
            said = command(["compare", name, "tokens.npz"])
            assert said[0] in (0, 3), said


def command(line: list[str], most: int = 0) -> tuple[int, str, str]:
    """Exit code, output and errors of a command line in this process. Collective.

    Args:
        line: the arguments.
        most: seconds after which it is ended; 0 for none.
    """

    def expired(number: int, frame: object) -> None:
        raise TooLongError

    out, err = io.StringIO(), io.StringIO()
    if most and COMM.size == 1:  # on several ranks, one that raises would leave the others waiting
        signal.signal(signal.SIGALRM, expired)
        signal.alarm(most)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli._run(line)
    except SystemExit as ended:
        code = int(ended.code or 0)
    except TooLongError:
        return -1, "", f"{most} seconds"
    finally:
        signal.alarm(0)
    return code, out.getvalue(), err.getvalue()


def numbers(folder: str) -> str:
    """A digest of all that `read_result` gives; InputError as it is. Collective."""

    def read() -> str:
        found = read_result(folder)
        cells = [found.cells_at(i).arrays() for i in range(len(found.times))]
        zero = found.store.all(ZERO_MASSES)
        all_of_it = found.times, found.masses, zero, cells, found.history, vars(found.limit)
        return hashlib.sha256(pickle.dumps(all_of_it)).hexdigest() + found.case_text

    return on_root(COMM, read)


def outcome(reader: str) -> tuple[str, str]:
    """The state "ok" and what a command gives for `work`; or "refused" or "fault", and why."""
    if reader == "read_result":
        try:
            return "ok", numbers("work")
        except InputError as error:
            return ("refused" if len(str(error)) <= 300 else "fault"), str(error)
    # Figures are not read back.
    with (
        patch.object(runs, "draw_run", lambda *_: [])
        if "run" in READERS[reader]
        else contextlib.nullcontext()
    ):
        code, out, err = command(READERS[reader], MOST_SECONDS)
    lines = [line for line in err.splitlines() if line.startswith("meanfield-pde: ")]
    if code == 2 and len(lines) == 1 and len(lines[0]) <= 300 and not out:
        return ("refused" if err.count("\n") == 1 else "fault"), err
    if code not in (0, 3) or lines or "Traceback" in err:
        return "fault", f"exit {code}: {err[:200]}"
    if reader == "plot":
        drawn = sorted(Path("figures/figures").glob("*.png"))
        return "ok", out + "".join(hashlib.sha256(one.read_bytes()).hexdigest() for one in drawn)
    return "ok", out + (numbers("work") if reader in ("run", "resume") else "")


def damaged(content: bytes) -> tuple[str, bytes]:
    """A kind of damage, and a content that has it."""
    kind, at = random.choice(("cut", "zeroed", "flipped")), random.randrange(len(content))
    if kind == "cut":
        return kind, content[:at]
    found = bytearray(content)
    if kind == "zeroed":
        size = random.choice((1, 8, 64, 512, 4096))
        found[at : at + size] = bytes(len(found[at : at + size]))
    else:
        for _ in range(random.choice((1, 1, 2, 8))):
            found[random.randrange(len(found))] ^= random.randrange(1, 256)
    return kind, bytes(found)


def restored(template: str) -> None:
    """The folder `work`, as the template is. Collective."""
    COMM.barrier()
    if COMM.rank == 0:
        shutil.rmtree("work", ignore_errors=True)
        shutil.copytree(template, "work")
    COMM.barrier()


def references(template: str, readers: tuple[str, ...]) -> dict[str, str]:
    """What each command gives for an undamaged folder."""
    found = {}
    for reader in readers:
        restored(template)
        state, found[reader] = outcome(reader)
        assert state == "ok", found[reader]
    return found


def trial(template: str, name: str, right: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Damage one file once: what each command that reads it does, "equal" or else."""
    kind, content = damaged(Path(template, name).read_bytes())
    restored(template)
    if COMM.rank == 0:
        Path("work", name).write_bytes(content)
    COMM.barrier()
    for reader, expected in right.items():  # of which only the last, `resume`, changes the files
        state, said = outcome(reader)
        if state == "ok":
            state = "equal" if said == expected else "fault"
            said = f"other numbers: {said[-60:]}"
        yield state, f"{template}/{name} {kind}, {len(content)} bytes, {reader}: {said}"


def damage(
    count: int,
    *,
    killed: bool = True,
    cells: int = 500,
    plan: Plan = PLAN,
    seed: int = 1,
) -> list[str]:
    """Print the table of n damages to each file; the faults that were found."""
    random.seed(seed)  # the same on every rank
    before, faults = Path.cwd(), []
    folder = COMM.bcast(tempfile.mkdtemp() if COMM.rank == 0 else None)
    columns = ["folder", "file", "damages", "commands", "refused", "equal", "faults"]
    with open(os.devnull, "w") as silent:
        shown = contextlib.nullcontext() if COMM.rank == 0 else contextlib.redirect_stdout(silent)
        with shown:
            os.chdir(folder)
            try:
                prepare(cells, killed=killed)
                table = Table(f"Damaged result folders, ranks: {COMM.size}", columns)
                for (template, name), readers in plan.items():
                    right = references(template, readers)
                    found: Counter[str] = Counter()
                    for _ in range(count):
                        for state, said in trial(template, name, right):
                            found[state] += 1
                            faults += [said] if state == "fault" else []
                    ended = (found[state] for state in ("refused", "equal", "fault"))
                    table.row(template, name, count, found.total(), *ended)
            finally:
                COMM.barrier()
                os.chdir(before)
                if COMM.rank == 0:
                    shutil.rmtree(folder)
    return faults


OPTIONS = options("damage", __doc__)


def main() -> None:
    """Print the table."""
    faults = damage(15 if OPTIONS.parse_args().quick else 300)
    if COMM.rank == 0:
        for said in sorted(set(faults))[:40]:
            print("   ", " ".join(said.split()))


if __name__ == "__main__":
    present(main, OPTIONS)
