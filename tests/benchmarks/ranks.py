"""One rank against two, whole steps on the sphere, one thread each.

    python -m tests.benchmarks.ranks [--quick]

Wall times, the best of many steps in several runs in turn: two ranks need both cores of the
machine, and anything else that runs there counts against them.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from tests.benchmarks.tables import Table, milliseconds, options, present

CASES = [(20_480, 10.0), (20_480, 100.0), (20_480, 1000.0), (81_920, 1000.0)]

WORKER = """
import sys, time
import numpy as np
from mpi4py import MPI
from meanfield_pde import Attention, sphere_mesh
from meanfield_pde.solver.simulation import Simulation
cells, beta, steps, path = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
one, comm = np.eye(3), MPI.COMM_WORLD
value = np.diag([1.0, 0.6, 0.3])
run = Simulation(
    Attention(one, one, value, beta), sphere_mesh(cells), "1 + 0.3*x + 0.2*y*z", threads=1
)
evolution = run.evolution
best = np.inf
for number in range(steps + 1):
    # Every step is of the same length, and does the same work on any number of ranks.
    comm.Barrier()
    started = time.perf_counter()
    evolution.advance(1e-3 * (number + 1))
    comm.Barrier()
    if number:  # the first one loads or compiles
        best = min(best, time.perf_counter() - started)
masses = run.volumes.gather(evolution.masses)
if comm.rank == 0:
    np.savez(path, seconds=best, masses=masses)
"""


def run(ranks: int, cells: int, beta: float, steps: int) -> tuple[float, np.ndarray]:
    """Seconds of a step, and the masses after the last."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.npz"
        command = [
            str(Path(sys.executable).with_name("mpiexec")),
            "-n",
            str(ranks),
            sys.executable,
            "-c",
            WORKER,
        ]
        subprocess.run([*command, str(cells), str(beta), str(steps), str(path)], check=True)
        with np.load(path) as result:
            return float(result["seconds"]), result["masses"]


OPTIONS = options("ranks", __doc__)


def main() -> None:
    """Print the table."""
    quick = OPTIONS.parse_args().quick
    table = Table(
        "A step on one rank and on two, milliseconds",
        ["cells", "beta", "one rank", "two ranks", "ratio", "difference"],
    )
    for cells, beta in CASES[:1] if quick else CASES:
        times: dict[int, list[float]] = {1: [], 2: []}
        masses = {}
        for _ in range(1 if quick else 3):
            for ranks in (1, 2):
                seconds, masses[ranks] = run(ranks, cells, beta, 25 if cells < 50_000 else 8)
                times[ranks].append(seconds)
        one, two = min(times[1]), min(times[2])
        largest = np.abs(masses[1] / masses[2] - 1).max()
        table.row(
            cells,
            f"{beta:g}",
            milliseconds(one),
            milliseconds(two),
            f"{one / two:.2f}",
            f"{largest:.0e}",
        )
    print("\n'Difference' is the largest relative one between the masses of a cell.\n")


if __name__ == "__main__":
    present(main, OPTIONS)
