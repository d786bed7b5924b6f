"""Whole runs, steps, starts and memory beside those of another version, in turn.

    python -m tests.benchmarks.beside [--before FOLDER] [--quick] [--only WORD ...]

FOLDER is a checkout of the other version, which runs in the environment of this one; without it
the numbers are of this version alone. Every entry is the least of some runs in a process of their
own, after one that loads or compiles: processor seconds of one thread for runs on one rank, wall
seconds for runs on two and for starts, MB for memory. 'Times' is before over now, above 1 where
this version is better. Cases are those of `demos/circle.toml` and `demos/sphere.toml`.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.benchmarks.tables import Table, options, present, python

DEMOS = Path(__file__).parents[2] / "demos"
SOLVE = """
import gc, json, sys, time
from mpi4py import MPI
import numpy as np
from meanfield_pde import circle_mesh, read_case, solve, sphere_mesh
asked, comm = json.loads(sys.argv[1]), MPI.COMM_WORLD
case = read_case(asked["case"])
mesh = (circle_mesh if asked["case"].endswith("circle.toml") else sphere_mesh)(asked["cells"])
attention = case.attention.with_beta(float(asked["beta"]))
now = time.process_time if comm.size == 1 else time.perf_counter
def run(until):
    settings = {"adapt": asked["adapt"]} if asked["adapt"] else {}
    if asked["every"]:
        settings["save_at"] = list(np.arange(asked["every"], until, asked["every"]))
    gc.collect()
    comm.Barrier()
    begun = now()
    solve(attention, mesh, case.initial, until=until, threads=1, **settings)
    comm.Barrier()
    return now() - begun
run(asked["until"] / 50)
found = min(run(asked["until"]) for _ in range(asked["repeat"]))
if comm.rank == 0:
    print(found)
"""
MEMORY = """
import json, sys
from meanfield_pde import read_case, solve, sphere_mesh
from meanfield_pde.support.memory import peak_memory
asked = json.loads(sys.argv[1])
case = read_case(asked["case"])
mesh = sphere_mesh(asked["cells"])
solve(case.attention.with_beta(100.0), mesh, case.initial, until=1e-4, threads=1)
print(peak_memory() / 2**20)
"""
COMMAND = "from meanfield_pde.cli.main import main; import sys; sys.exit(main())"
Measure = Callable[[Path], float]


def printed(version: Path, *arguments: str, ranks: int = 1, cwd: str | None = None) -> str:
    """What Python prints for some arguments, with the version whose folder this is."""
    environment = os.environ | {"PYTHONPATH": str(version), "MEANFIELD_PDE_THREADS": "1"}
    command = python("-P", *arguments, ranks=ranks)  # not that of the folder that this runs in
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment, cwd=cwd
    ).stdout


def solved(
    surface: str,
    cells: int,
    beta: float | str,
    until: float,
    *,
    adapt: float | None = None,
    every: float | None = None,
    ranks: int = 1,
    repeat: int = 2,
) -> Measure:
    """Seconds of a run of a demo, with an adaptive mesh of that tolerance, saved so often."""
    case = str(DEMOS / f"{surface}.toml")
    asked = {"case": case, "cells": cells, "beta": beta, "until": until, "adapt": adapt}
    asked |= {"every": every, "repeat": repeat}
    return lambda version: float(printed(version, "-c", SOLVE, json.dumps(asked), ranks=ranks))


def memory(cells: int) -> Measure:
    """Peak memory in MB of a step at beta = 100 on the sphere."""
    asked = json.dumps({"case": str(DEMOS / "sphere.toml"), "cells": cells})
    return lambda version: float(printed(version, "-c", MEMORY, asked))


def started(*arguments: str) -> Measure:
    """Wall seconds of a command, the least of three."""

    def measured(version: Path) -> float:
        seconds = []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as folder:
                begun = time.perf_counter()
                printed(version, "-c", COMMAND, *arguments, cwd=folder)
                seconds.append(time.perf_counter() - begun)
        return min(seconds)

    return measured


def measures() -> dict[str, Measure]:
    """What is measured, by its name."""
    circle, sphere = (str(DEMOS / f"{name}.toml") for name in ("circle", "sphere"))
    found = {
        "start: --help": started("--help"),
        "start: limit": started("limit", circle),
        "start: a run of no time": started("run", circle, "--until", "0", "--quiet"),
        "run: circle, whole demo": started("run", circle, "--quiet"),
        "run: sphere, demo to t = 2": started("run", sphere, "--until", "2", "--quiet"),
        "circle, 400, beta 100": solved("circle", 400, 100, 6.0),
        "circle, 1,600, beta 100": solved("circle", 1600, 100, 6.0),
        "circle, 1,600, zero temperature": solved("circle", 1600, "inf", 4.0, repeat=5),
        "circle, adaptive, beta 160": solved("circle", 200, 160, 6.0, adapt=1e-3),
        "circle, adaptive, beta 80, saved every 0.1": solved(
            "circle", 200, 80, 6.0, adapt=1e-3, every=0.1
        ),
        "sphere, 5,120, beta 100": solved("sphere", 5120, 100, 6.0),
        "sphere, 5,120, beta 1000": solved("sphere", 5120, 1000, 2.0),
        "sphere, 5,120, zero temperature": solved("sphere", 5120, "inf", 4.0),
        "sphere, 20,480, zero temperature": solved("sphere", 20_480, "inf", 4.0),
    }
    for beta, until in ((1, 2.0), (10, 2.0), (100, 1.0), (1000, 1.0)):
        for ranks in (1, 2):
            name = f"sphere, 20,480, beta {beta}" + ", two ranks" * (ranks == 2)
            found[name] = solved("sphere", 20_480, beta, until, ranks=ranks)
    for beta, until in ((10, 1.0), (100, 0.2), (1000, 0.2)):
        found[f"sphere, 81,920, beta {beta}"] = solved("sphere", 81_920, beta, until, repeat=1)
    found["sphere, 327,680, beta 1000, to 0.02"] = solved("sphere", 327_680, 1000, 0.02, repeat=1)
    for ranks in (1, 2):
        name = "sphere, adaptive, 4e-3, beta 200, to 6" + ", two ranks" * (ranks == 2)
        found[name] = solved("sphere", 1280, 200, 6.0, adapt=4e-3, ranks=ranks, repeat=1)
    return found | {"memory: 81,920, MB": memory(81_920), "memory: 327,680, MB": memory(327_680)}


OPTIONS = options("beside", __doc__)
OPTIONS.add_argument("--before", type=Path, help="a checkout of the other version")
OPTIONS.add_argument("--only", nargs="+", help="entries whose names have one of these words")


def main() -> None:
    """Print the table."""
    asked, here = OPTIONS.parse_args(), DEMOS.parent
    # Without the package there, Python would find that of this version, and measure it twice.
    if asked.before and not (asked.before / "meanfield_pde").is_dir():
        OPTIONS.error(f"--before {asked.before}: there is no meanfield_pde in this folder")
    versions = [asked.before.resolve(), here] if asked.before else [here]
    columns = ["what", "before", "now", "times"] if asked.before else ["what", "now"]
    table = Table("Beside another version", columns)
    for name, measure in measures().items():
        if asked.only and not any(word in name for word in asked.only):
            continue
        if asked.quick and not name.startswith(("start", "circle")):
            continue
        found = [measure(version) for version in versions]
        times = [f"{found[0] / found[1]:.2f}"] if asked.before else []
        table.row(name, *(f"{one:.3g}" for one in found), *times)
    print()


if __name__ == "__main__":
    present(main, OPTIONS)
