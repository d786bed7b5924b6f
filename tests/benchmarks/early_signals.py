"""Signals that come while the command starts: exit code 75 from the first of its lines on.

    python -m tests.benchmarks.early_signals [--quick]

A run of a case that takes long gets SIGTERM or SIGUSR1 s seconds after it was started, from
before Python runs at all to after the first steps. What comes before the package is imported ends
Python itself, by the signal, and is counted apart: no code of a package can change that. On two
ranks, SIGUSR1 goes to `mpiexec`, which passes it on; SIGTERM, on which `mpiexec` ends its ranks,
goes to the ranks, as a scheduler sends it to the processes of a step.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.benchmarks.tables import Table, options, present
from tests.problems import CIRCLE

# 5,000 cells to t = 2000: minutes, of which a few seconds are looked at.
CASE = CIRCLE.replace("cells = 200", "cells = 5000").replace("until = 5.0", "until = 2000.0")
LATEST = 4.0  # seconds after the start: past the first steps
MOST_SECONDS = 60.0  # for a run to end after its signal


def ranks_of(process: int) -> list[int]:
    """The processes under `mpiexec` that run the command."""
    found = []
    children = Path(f"/proc/{process}/task/{process}/children")
    for child in children.read_text().split() if children.exists() else []:
        try:
            line = Path(f"/proc/{child}/cmdline").read_bytes()
        except OSError:
            continue
        is_rank = b"meanfield-pde" in line and b"mpiexec" not in line and b"proxy" not in line
        found += [int(child)] if is_rank else ranks_of(int(child))
    return found


def outcome(case: Path, number: signal.Signals, ranks: int, delay: float) -> str:
    """How a run ended that got a signal: "75", "not yet Python's", or what went wrong."""
    out = case.parent / f"out-{number.name}-{ranks}-{delay:.4f}"
    line = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    process = subprocess.Popen(
        [*line, "meanfield-pde", "run", str(case), "--output", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"MEANFIELD_PDE_THREADS": "1"},
        start_new_session=True,
    )
    time.sleep(delay)
    targets = [process.pid]
    if ranks > 1 and number == signal.SIGTERM:
        targets = ranks_of(process.pid)
        while len(targets) < ranks and process.poll() is None:  # mpiexec has not started them yet
            targets = ranks_of(process.pid)
    for target in targets:
        os.kill(target, number)
    try:
        _, err = process.communicate(timeout=MOST_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "hangs, or goes on"
    code, text = process.returncode, err.decode(errors="replace")
    if code == 75 and text.count("stopped by a signal") == 1:
        return "75"
    if code != 0 and not text.strip():  # neither the command nor PETSc has said a word
        return "ended by the signal"
    return f"exit {code}: {' '.join(text.split())[:150]}"


OPTIONS = options("early_signals", __doc__)


def main() -> None:
    """Print the table."""
    count = 8 if OPTIONS.parse_args().quick else 40
    generator = random.Random(1)
    table = Table(
        "Signals while the command starts",
        ["signal", "ranks", "sent", "75", "ended by the signal", "latest of these [s]", "others"],
    )
    for number in (signal.SIGTERM, signal.SIGUSR1):
        for ranks in (1, 2):
            found: Counter[str] = Counter()
            latest = 0.0
            with tempfile.TemporaryDirectory() as folder:
                case = Path(folder) / "case.toml"
                case.write_text(CASE)
                for i in range(count):
                    delay = LATEST * (i + generator.random()) / count
                    result = outcome(case, number, ranks, delay)
                    found[result] += 1
                    if result == "ended by the signal":
                        latest = max(latest, delay)
            others = {
                what: n for what, n in found.items() if what not in ("75", "ended by the signal")
            }
            table.row(
                number.name,
                ranks,
                count,
                found["75"],
                found["ended by the signal"],
                f"{latest:.2f}",
                sum(others.values()),
            )
            for what, n in others.items():
                print(f"    {n} x {what}")


if __name__ == "__main__":
    present(main, OPTIONS)
