"""What `run --dry-run` says against what the run then takes, on uniform meshes.

    python -m tests.benchmarks.dry_run [--quick] [--cells N ...]      (half an hour)

Forecast and run are processes of their own. The memory is the most that a run has had, figures and
files among it, the time what it says at its end: steps, distances and output. From 50,000 cells on
a run goes as far as about twenty steps.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.tables import Table, options, present

ROOT = Path(__file__).parents[2]
# The demo, and cells: those of the circle compare with zero temperature beside the limit.
CASES = (
    ("circle", 400),
    ("circle", 800),
    ("circle", 3200),
    ("sphere", 1280),
    ("sphere", 5120),
    ("sphere", 20_480),
    ("sphere", 81_920),
    ("sphere", 1_003_520),
)
QUICK = CASES[:2] + CASES[3:5]
# With this many cells a run is one of twenty steps, without distances, whose linear programs are
# not of the size that anyone waits for.
LARGE, SHORT = 50_000, 5.0
WORKER = """
import json, sys
from meanfield_pde import read_case
from meanfield_pde.experiments.run import forecast_run, run_case
from meanfield_pde.support.memory import peak_memory
case = read_case(sys.argv[1], output=sys.argv[2])
if sys.argv[3] == "forecast":
    found = forecast_run(case)
    print(json.dumps([found.memory, found.steps, found.seconds]))
else:
    solution = run_case(case, quiet=True)
    print(json.dumps([peak_memory(), solution.steps + solution.rejected, solution.wall_time]))
"""


def case_of(demo: str, cells: int) -> str:
    """The case of a demo on a uniform mesh."""
    text = (ROOT / f"demos/{demo}.toml").read_text(encoding="utf-8")
    text = re.sub(r"\[adapt\]\ntolerance = .*\n", "", text)
    text = re.sub(r"cells *= *\d+", f"cells = {cells}", text)
    if cells >= LARGE:
        text = re.sub(r"\[compare\](\n.+)+\n", "", text)
        text = re.sub(r"until *= *[\d.]+\nsave_at .*\n", f"until = {SHORT}\n", text)
    return text


def measured(case: Path, output: Path, what: str) -> list[Any]:
    """Memory in bytes, steps and seconds, as forecast or as they were."""
    command = [sys.executable, "-c", WORKER, str(case), str(output), what]
    output_text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return list(json.loads(output_text.splitlines()[-1]))


OPTIONS = options("dry_run", __doc__)
OPTIONS.add_argument("--cells", type=int, nargs="+", help="of the cases that are wanted")


def main() -> None:
    """Print the table."""
    asked = OPTIONS.parse_args()
    table = Table(
        "Forecast and run",
        ["demo", "cells", "MB forecast", "MB", "ratio", "steps", "s forecast", "s", "ratio"],
    )
    for demo, cells in QUICK if asked.quick else CASES:
        if asked.cells and cells not in asked.cells:
            continue
        with tempfile.TemporaryDirectory() as folder:
            case = Path(folder) / "case.toml"
            case.write_text(case_of(demo, cells), encoding="utf-8")
            measured(case, Path(folder) / "compiling", "forecast")
            said = measured(case, Path(folder) / "out", "forecast")
            assert not (Path(folder) / "out").exists()
            found = measured(case, Path(folder) / "out", "run")
        table.row(
            demo,
            cells,
            f"{said[0] / 1e6:.0f}",
            f"{found[0] / 1e6:.0f}",
            f"{said[0] / found[0]:.2f}",
            f"{said[1]:.0f} / {found[1]}",
            f"{said[2]:.2f}",
            f"{found[2]:.2f}",
            f"{said[2] / found[2]:.2f}",
        )
    print()


if __name__ == "__main__":
    present(main, OPTIONS)
