"""Memory of each rank, and time for a saved time, against the number of saved times.

    python -m tests.benchmarks.saved_times [--quick]

A case on 20,480 cells of the sphere at zero temperature, with a step for each saved time, run by
`run_case` into a folder on one and two ranks. Every row runs in processes of its own.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

from tests.benchmarks.tables import Table, options, present

WORKER = """
import sys, time
from dataclasses import replace
from pathlib import Path
import numpy as np
from mpi4py import MPI
from meanfield_pde import Attention, run_case
from meanfield_pde.case.case import Case, MeshCase, OutputCase
from meanfield_pde.solver.settings import TimeCase
from meanfield_pde.support.memory import peak_memory
cells, saved, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
one = np.eye(3)
case = Case(
    attention=Attention(one, one, np.diag([1.0, 0.6, 0.3]), np.inf),
    mesh=MeshCase("sphere", cells),
    time=TimeCase(1e-4 * saved, save_every=1e-4),
    output=OutputCase(folder, fields="none", checkpoint_every=50),
)
from meanfield_pde.history.file_store import FileStore
append, stamps = FileStore.append, []
def timed(self, *arguments):
    begun = time.perf_counter()
    append(self, *arguments)
    stamps.append(time.perf_counter() - begun)
FileStore.append = timed
solution = run_case(case, quiet=True)
memory = peak_memory() / 2**20
memories = MPI.COMM_WORLD.gather(memory)
if MPI.COMM_WORLD.rank == 0:
    half = len(stamps) // 2
    print(1e3 * np.mean(stamps[:half]), 1e3 * np.mean(stamps[half:]), *memories)
"""


def measure(cells: int, saved: int, ranks: int) -> list[float]:
    """Milliseconds to keep a density, in the first and the second half; MB of each rank."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
        command += [sys.executable, "-c", WORKER, str(cells), str(saved), folder + "/out"]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(number) for number in output.split()]


OPTIONS = options("saved_times", __doc__)


def main() -> None:
    """Print the table."""
    cells, counts = (1280, (25, 100)) if OPTIONS.parse_args().quick else (20_480, (100, 400))
    table = Table(
        f"Saved times, {cells} cells",
        ["ranks", "saved times", "ms to keep one: first half", "second half", "MB of each rank"],
    )
    for ranks in (1, 2):
        for saved in counts:
            first, second, *memory = measure(cells, saved, ranks)
            each = ", ".join(f"{one:.0f}" for one in memory)
            table.row(ranks, saved, f"{first:.1f}", f"{second:.1f}", each)


if __name__ == "__main__":
    present(main, OPTIONS)
