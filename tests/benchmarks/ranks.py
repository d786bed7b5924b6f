"""One rank against two, steps and an adaptive run on the sphere, one thread each.

    python -m tests.benchmarks.ranks [--quick] [--part steps|adaptive ...]

Wall times, the best of many steps in several runs in turn: two ranks need both cores of the
machine, and anything else that runs there counts against them. The adaptive run is that of
`demos/sphere.toml` at beta = 200 with 4e-3 to t = 6, or to t = 1 in short form, all of its steps
and changes of the mesh.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import numpy as np

from tests.benchmarks.tables import Table, milliseconds, options, present, python

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

ADAPTIVE = """
import sys, time
import numpy as np
from mpi4py import MPI
from meanfield_pde import read_case, sphere_mesh
from meanfield_pde.solver.simulation import Simulation
case, until, path, comm = read_case(sys.argv[1]), float(sys.argv[2]), sys.argv[3], MPI.COMM_WORLD
seconds = []
for end in (0.01, until):  # the first loads or compiles
    attention = case.attention.with_beta(200.0)
    run = Simulation(attention, sphere_mesh(1280), case.initial, adapt=4e-3, threads=1)
    comm.Barrier()
    started = time.perf_counter()
    run.evolution.advance(end)
    comm.Barrier()
    seconds.append(time.perf_counter() - started)
masses = run.evolution.state.gathered().doubles
if comm.rank == 0:
    np.savez(path, seconds=seconds[-1], masses=masses)
"""
DEMO = Path(__file__).parents[2] / "demos/sphere.toml"


def worked(ranks: int, worker: str, *arguments: object) -> tuple[float, np.ndarray]:
    """Seconds that some ranks take for a script, and the masses at its end."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.npz"
        command = python("-c", worker, *map(str, arguments), str(path), ranks=ranks)
        subprocess.run(command, check=True)
        with np.load(path) as result:
            return float(result["seconds"]), result["masses"]


def adaptive(quick: bool) -> None:
    """The table of the adaptive run."""
    table = Table(
        "An adaptive run on one rank and on two, seconds",
        ["cells", "one rank", "two ranks", "ratio", "difference"],
    )
    (one, masses), (two, others) = (
        worked(ranks, ADAPTIVE, DEMO, 1.0 if quick else 6.0) for ranks in (1, 2)
    )
    difference = np.abs(masses - others).sum()
    row = f"{one:.2f}", f"{two:.2f}", f"{one / two:.2f}", f"{difference:.0e}"
    table.row(len(masses), *row)
    print("\n'Difference' is L1 of the masses of cells.\n")


PARTS = ("steps", "adaptive")
OPTIONS = options("ranks", __doc__)
OPTIONS.add_argument("--part", nargs="+", choices=PARTS, default=PARTS)


def main() -> None:
    """Print the tables."""
    asked = OPTIONS.parse_args()
    if "steps" in asked.part:
        steps(asked.quick)
    if "adaptive" in asked.part:
        adaptive(asked.quick)


def steps(quick: bool) -> None:
    """The table of steps."""
    table = Table(
        "A step on one rank and on two, milliseconds",
        ["cells", "beta", "one rank", "two ranks", "ratio", "difference"],
    )
    for cells, beta in CASES[:1] if quick else CASES:
        times: dict[int, list[float]] = {1: [], 2: []}
        masses = {}
        for _ in range(1 if quick else 3):
            for ranks in (1, 2):
                count = 25 if cells < 50_000 else 8
                seconds, masses[ranks] = worked(ranks, WORKER, cells, beta, count)
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
