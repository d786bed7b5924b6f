"""Tests on several ranks in one start of mpiexec for all of the session that want as many.

pytest-mpi starts one for each of them, in which every rank imports pytest and DOLFINx, 3 s of a
core: with three schemes on two surfaces more than all that the tests do. Here the first of them
runs the others along, and each of these asks how it went. One that did not pass, or that was not
reached because ranks wait for each other, runs by itself as before, and says what is wrong.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from mpi4py import MPI

import pytest

# That of pytest-mpi (CHILD_PROCESS_FLAG), which conda's environment is without.
_STARTED = "_PYTEST_MPI_CHILD_PROCESS"
# Where ranks note what has passed, a file each: set in those that are started together.
_PASSED = "MEANFIELD_PDE_TESTS_PASSED"
# Seconds; they take 10 to 20 on two idle cores, and pytest's own limit of a test is 300.
_LONGEST = 150


def ranks_of(item: pytest.Item) -> int:
    """How many ranks a test wants, by the mark that pytest-mpi puts on it; one without that."""
    marks = (mark.name for mark in item.iter_markers())
    return next((int(name[9:-1]) for name in marks if name.startswith("parallel[")), 1)


def note_passed(report: pytest.TestReport) -> None:
    """Write down what has passed on this rank, if the test was started with others."""
    if _PASSED in os.environ and report.passed:
        with open(f"{os.environ[_PASSED]}.{MPI.COMM_WORLD.rank}", "a", encoding="utf-8") as file:
            file.write(f"{report.when} {report.nodeid}\n")


def wait_for_others() -> None:
    """Sleep until all ranks have ended a test: in the next they would wait at full speed."""
    if MPI.COMM_WORLD.size > 1:
        here = MPI.COMM_WORLD.Ibarrier()
        while not here.Test():
            time.sleep(0.005)


def run_with_others(item: pytest.Item, folder: Path) -> None:
    """Have a test that pytest-mpi would start by itself ask first how it went with the others.

    The folder is one of the session, where workers that test side by side find what one has run.
    """
    if not item.get_closest_marker("parallel") or _STARTED in os.environ:
        return
    ranks, by_itself = ranks_of(item), item.obj

    def ask_first(**given: Any) -> None:
        if not _passed(item, ranks, folder):
            by_itself(**given)

    if ranks > MPI.COMM_WORLD.size == 1:
        item.obj = ask_first


def _passed(item: pytest.Item, ranks: int, folder: Path) -> bool:
    """Whether a test has passed on each of its ranks, beside all others that want as many."""
    passed = folder / f"passed-on-{ranks}"
    with open(folder / f"started-on-{ranks}", "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.fstat(lock.fileno()).st_size:
            lock.write("once\n")
            tests = [one.nodeid for one in item.session.items if ranks_of(one) == ranks]
            _run(tests, ranks, item.config.rootpath, passed)
    notes = [passed.with_name(f"{passed.name}.{rank}") for rank in range(ranks)]
    wanted = {f"{phase} {item.nodeid}" for phase in ("setup", "call", "teardown")}
    return all(one.exists() and wanted <= set(one.read_text().splitlines()) for one in notes)


def _run(tests: list[str], ranks: int, root: Path, passed: Path) -> None:
    """Run tests on several ranks; what goes wrong is said by those that then run by themselves."""
    line = ["mpiexec", "-n", str(ranks), sys.executable, "-m", "pytest", "-q", "-p", "no:xdist"]
    line += ["--assert=plain"]  # no rank rewrites what says how it fails
    with subprocess.Popen(
        [*line, *tests],
        cwd=root,
        env=os.environ | {_STARTED: "1", _PASSED: str(passed)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as job:
        try:
            job.wait(_LONGEST)
        except subprocess.TimeoutExpired:
            job.terminate()  # mpiexec ends its ranks
