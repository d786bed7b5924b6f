"""A first start: which kernels compile, and how long each takes, against a start with them cached.

    python -m tests.benchmarks.first_start [--quick]

The first command of the README, `run demos/circle.toml --until 0.5`, twice, in processes and a
folder of kernels of their own. "own" is the time of a kernel without those that it calls.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.tables import Table, options, present

WORKER = """
import json, sys, time
from numba.core import event

class Compiled(event.Listener):
    def __init__(self):
        self.begun, self.rows = [], []
    def on_start(self, what):
        self.begun.append([time.process_time(), 0.0])
    def on_end(self, what):
        begun, inside = self.begun.pop()
        whole = time.process_time() - begun
        function = what.data["dispatcher"].py_func
        self.rows.append((whole - inside, whole, f"{function.__module__}.{function.__name__}"))
        if self.begun:
            self.begun[-1][1] += whole

compiled = Compiled()
event.register("numba:compile", compiled)
from meanfield_pde.cli.main import main
begun = time.perf_counter()
try:
    main(sys.argv[1:])
except SystemExit:
    pass
print(json.dumps([time.process_time(), time.perf_counter() - begun, sorted(compiled.rows)[::-1]]))
"""


def start(folder: Path, output: str) -> list[Any]:
    """Processor time of a start, wall time of the command, and what was compiled."""
    arguments = ["run", "demos/circle.toml", "--until", "0.5", "--quiet"]
    found = subprocess.run(
        [sys.executable, "-c", WORKER, *arguments, "--output", str(folder / output)],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder / "kernels")},
        check=True,
        capture_output=True,
        text=True,
    )
    return list(json.loads(found.stdout.splitlines()[-1]))


OPTIONS = options("first_start", __doc__)


def main() -> None:
    """Print the tables."""
    shown = 5 if OPTIONS.parse_args().quick else 25
    with tempfile.TemporaryDirectory() as name:
        starts = {kind: start(Path(name), kind) for kind in ("first", "second")}
    table = Table(
        "A first start, and one with kernels cached", ["start", "processor s", "wall s", "kernels"]
    )
    for kind, (processor, wall, rows) in starts.items():
        table.row(kind, f"{processor:.1f}", f"{wall:.1f}", len(rows))
    table = Table(
        "Kernels that take longest to compile", ["own s", "with what it calls s", "kernel"]
    )
    for own, whole, kernel in starts["first"][2][:shown]:
        table.row(f"{own:.2f}", f"{whole:.2f}", kernel)
    print()


if __name__ == "__main__":
    present(main, OPTIONS)
