"""Peak memory of a rank: what the program takes, and each cell, repeated and shared out.

    python -m tests.benchmarks.memory [--quick] [--cells N ...] [--ranks N ...]  (10 minutes)

A step with beta = 100 on a uniform mesh of the sphere, three sources a cell, saved before and
after; without files and figures. Every row is of processes of its own; the peak is that of the rank
that has most. The fit, by least squares of relative errors over all rows, is

    bytes of a rank = program + cells (repeated + own / ranks),

'repeated' what each rank has of every cell of the whole mesh, 'own' what one has of a cell that is
its own. Case and dry run say what a run needs by it (`experiments.cost`).
"""

from __future__ import annotations

import json
import subprocess

import numpy as np

from tests.benchmarks.tables import Table, options, present, python

WORKER = """
import json, sys
import numpy as np
from mpi4py import MPI
from meanfield_pde import Attention, solve, sphere_mesh
from meanfield_pde.support.memory import peak_memory

attention = Attention(np.eye(3), np.eye(3), np.diag([1.0, 0.6, 0.3]), 100.0)
solution = solve(attention, sphere_mesh(int(sys.argv[1])), "1 + 0.3*x", until=1e-4, threads=1)
assert abs(solution.history["mass"][-1] - 1) < 1e-12
peaks = MPI.COMM_WORLD.gather(peak_memory())
if MPI.COMM_WORLD.rank == 0:
    print(json.dumps([len(solution.cells.volumes), max(peaks)]))
"""
COMPILING = 81_920  # cells of a run that has all kernels compiled
SIZES, RANKS = (81_920, 327_680, 1_310_720), (1, 2, 4)
PROJECTED_CELLS, PROJECTED_RANKS = 10_000_000, 16
OPTIONS = options("memory", __doc__)
OPTIONS.add_argument("--cells", type=int, nargs="+")
OPTIONS.add_argument("--ranks", type=int, nargs="+", default=RANKS)


def peak_of(cells: int, ranks: int) -> tuple[int, float]:
    """The cells of the mesh, and the most bytes that a rank has had."""
    command = python("-c", WORKER, str(cells), ranks=ranks)
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    count, peak = json.loads(printed.splitlines()[-1])
    return int(count), float(peak)


def fitted(rows: np.ndarray) -> np.ndarray:
    """Bytes of the program, repeated and own, of rows (cells, ranks, peak)."""
    cells, ranks, peak = rows.T
    terms = np.stack([np.ones_like(cells), cells, cells / ranks], axis=1)
    return np.asarray(np.linalg.lstsq(terms / peak[:, None], np.ones(len(peak)))[0])


def main() -> None:
    """Print the table, the fit, and what it says of a large mesh."""
    asked = OPTIONS.parse_args()
    sizes = asked.cells or ((20_480, *SIZES[:1]) if asked.quick else SIZES)
    columns = ["cells", "ranks", "MB of a rank", "bytes a cell"]
    table = Table("Peak memory, sphere, beta = 100", columns)
    peak_of(COMPILING, 1)  # to compile takes 0.2 GB
    alone = peak_of(320, 1)[1]
    rows = []
    for wanted in sizes:
        for ranks in asked.ranks:
            cells, peak = peak_of(wanted, ranks)
            rows.append((cells, ranks, peak))
            table.row(cells, ranks, f"{peak / 1e6:.0f}", f"{(peak - alone) / cells:.0f}")
    found = np.array(rows, dtype=float)
    program, repeated, own = fit = fitted(found)
    said = fit @ np.stack([np.ones(len(found)), found[:, 0], found[:, 0] / found[:, 1]])
    far = np.abs(said / found[:, 2] - 1).max()
    print(
        f"\nBytes a cell are those beyond the {alone / 1e6:.0f} MB of a run with 320 cells on one "
        f"rank.\n\nFit: {program / 1e6:.0f} MB of the program, {repeated:.0f} bytes repeated on "
        f"every rank for each cell of the whole mesh, {own:.0f} bytes for each own cell; it is off "
        f"by {far:.1%} at most."
    )
    columns = ["cells", "ranks", "MB of a rank", "of it repeated"]
    table = Table("The same for a large mesh, by the fit", columns)
    large = program + PROJECTED_CELLS * (repeated + own / PROJECTED_RANKS)
    repeats = PROJECTED_CELLS * repeated
    table.row(PROJECTED_CELLS, PROJECTED_RANKS, f"{large / 1e6:.0f}", f"{repeats / 1e6:.0f}")
    print()


if __name__ == "__main__":
    present(main, OPTIONS)
