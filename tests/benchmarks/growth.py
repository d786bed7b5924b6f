"""Growth of time and memory with the number of cells of the sphere, one thread.

    python -m tests.benchmarks.growth [--quick]

Every row runs in a process of its own, so that the peak memory is that of one case; the time is the
processor time of one step (five attention sums, two diagnostics and compilation not counted).
"""

from __future__ import annotations

import subprocess
import sys

from tests.benchmarks.tables import Table, is_quick

WORKER = """
import sys, time
import numpy as np
from meanfield_pde import Attention, sphere_mesh
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.support.memory import peak_memory
cells, beta = int(sys.argv[1]), float(sys.argv[2])
one = np.eye(3)
started = time.process_time()
run = Simulation(
    Attention(one, one, np.diag([1.0, 0.6, 0.3]), beta), sphere_mesh(cells), "1 + 0.3*x", threads=1
)
run.evolution.advance(1e-4)  # loads what was compiled, or compiles
prepared = time.process_time()
run.evolution.advance(2e-4)
step = time.process_time() - prepared
masses = run.volumes.gather(run.evolution.masses)
row = run.diagnostics.row(masses)
assert abs(row["mass"] - 1) < 1e-12 and masses.min() > 0
memory = peak_memory() / 2**20
print(run.volumes.global_cells, prepared - started, step, memory)
"""
SIZES = (5120, 20_480, 81_920, 327_680)
BETAS = (10.0, 1000.0)


def measure(cells: int, beta: float) -> tuple[int, float, float, float]:
    """Cells, seconds to prepare with the first step, seconds of a step, peak memory in MB."""
    command = [sys.executable, "-c", WORKER, str(cells), str(beta)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    count, prepared, step, memory = map(float, output.split())
    return int(count), prepared, step, memory


def main() -> None:
    """Print the table."""
    sizes = SIZES[:2] if is_quick(__doc__) else SIZES
    table = Table(
        "Growth with the number of cells, one thread",
        ["cells", "beta", "prepare s", "step s", "growth", "memory MB"],
    )
    for beta in BETAS:
        before: tuple[int, float] | None = None
        for cells in sizes:
            count, prepared, step, memory = measure(cells, beta)
            growth = "-" if before is None else f"{step / before[1]:.1f}"
            before = (count, step)
            table.row(count, f"{beta:g}", f"{prepared:.2f}", f"{step:.3f}", growth, f"{memory:.0f}")
    print("\n'Growth' is the factor in time for four times the cells; all pairs would give 16.\n")


if __name__ == "__main__":
    main()
