"""A simulation that is closed has freed what it had of PETSc."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import environment

# Every kind of evolution, all of them kept, so that nothing is freed because it has gone.
SCRIPT = """
import sys
import numpy as np
from meanfield_pde import Attention, CompareCase, circle_mesh
from meanfield_pde.solver.simulation import Simulation
from petsc4py import PETSc
PETSc.Log.begin()
attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), 4.0)
kept = []
for options in (
    {"petsc": "rks2"},
    {"petsc": "rks2", "adapt": 0.01},
    {"compare": CompareCase(limit=True, zero_temperature=True)},
    {"noise": 0.1},
    {"noise": 0.01, "adapt": 0.01},
    {"adapt": 0.01},
):
    chosen = options.pop("petsc", None)
    if chosen:
        PETSc.Options().setValue("ts_ssp_type", chosen)
    run = Simulation(attention, circle_mesh(60), "1 + 0.5*x", **options)
    run.run([0.0, 0.2])
    run.close()
    kept.append(run)
    if chosen:
        PETSc.Options().delValue("ts_ssp_type")
PETSc.Log.view(PETSc.Viewer().createASCII(sys.argv[1]))
PETSc.Options().setValue("ts_ssp_type", "rks2")
left_open = Simulation(attention, circle_mesh(60), "1")
PETSc.Log.view(PETSc.Viewer().createASCII(sys.argv[2]))
"""


def objects(path: Path) -> dict[str, int]:
    """Objects of each kind of PETSc's that were made and not freed."""
    _, _, table = path.read_text().partition("Object Type")
    rows = re.findall(r"^ +([A-Z][A-Za-z ]+?) +(\d+) +(\d+)$", table, re.MULTILINE)
    return {name: int(made) - int(gone) for name, made, gone in rows if name != "Viewer"}


def test_nothing_of_petsc_is_left(tmp_path: Path) -> None:
    paths = tmp_path / "closed.txt", tmp_path / "open.txt"
    line = [sys.executable, "-c", SCRIPT, *map(str, paths)]
    subprocess.run(line, env=environment(), check=True)
    closed, left_open = map(objects, paths)
    assert {"Vector", "Matrix", "Krylov Solver", "TS"} <= closed.keys()
    assert not any(closed.values())
    assert left_open["TS"] == 1  # what is not closed is seen
