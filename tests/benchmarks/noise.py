"""What noise and several heads cost: processor time of a run, side by side, one thread.

python -m tests.benchmarks.noise [--quick]
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from meanfield_pde import Attention, ExpressionDensity, Heads, sphere_mesh
from meanfield_pde.solver.simulation import Simulation
from tests.benchmarks.tables import Table, is_quick

BETA = 100.0
UNTIL = 0.15


def seconds(attention: Attention | Heads, mesh: Any, noise: float) -> tuple[float, int]:
    """Processor time per unit of time, and steps taken, after a first stretch that compiles."""
    simulation = Simulation(attention, mesh, ExpressionDensity("1 + 0.5*x*y + 0.3*z"), noise=noise)
    simulation.evolution.advance(0.02)
    started, steps = time.process_time(), simulation.evolution.step
    simulation.evolution.advance(0.02 + UNTIL)
    spent = time.process_time() - started
    steps = simulation.evolution.step - steps
    simulation.close()
    return spent / UNTIL, steps


def main() -> None:
    """Print the table."""
    mesh = sphere_mesh(1280 if is_quick(__doc__) else 20_480)
    one = np.eye(3)
    single = Attention(one, one, np.diag([1.0, 0.5, 0.3]), BETA)
    third = Attention(one, one, np.diag([1.0, 0.5, 0.3]) / 3, BETA)
    columns = ("case", "s per unit of time", "steps", "over one head")
    table = Table(f"{mesh.topology.index_map(2).size_global} cells, beta = {BETA:g}", columns)
    base = None
    for name, attention, noise in (
        ("one head", single, 0.0),
        ("noise 0.01", single, 0.01),
        ("noise 0.1", single, 0.1),
        ("three heads", Heads([third] * 3), 0.0),
    ):
        spent, steps = seconds(attention, mesh, noise)
        base = base or spent
        table.row(name, f"{spent:.3g}", steps, f"{spent / base:.2f}")


if __name__ == "__main__":
    main()
