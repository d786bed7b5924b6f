"""What noise and several heads cost: processor time of a run, side by side, one thread.

python -m tests.benchmarks.noise [--quick]

A step of noise lies between two steps of transport; what it adds is given in parts of one of those.
Per unit of time noise costs more than that where the error of the splitting makes steps shorter.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from meanfield_pde import Attention, ExpressionDensity, Heads, sphere_mesh
from meanfield_pde.solver.diffusion import Diffusion
from meanfield_pde.solver.simulation import Simulation
from tests.benchmarks.tables import Table, options, present

BETA = 100.0
UNTIL = 0.5


class TimedDiffusion(Diffusion):
    """Noise that adds up its processor time."""

    seconds = 0.0

    def advance(self, masses: np.ndarray, length: float, parts: int = 1) -> np.ndarray:
        """As it is, timed."""
        started = time.process_time()
        result = super().advance(masses, length, parts)
        TimedDiffusion.seconds += time.process_time() - started
        return result


def measure(attention: Attention | Heads, mesh: Any, noise: float) -> tuple[float, int, float]:
    """Seconds of processor time, steps of transport, and seconds of noise, after a first step."""
    simulation = Simulation(attention, mesh, ExpressionDensity("1 + 0.5*x*y + 0.3*z"), noise=noise)
    evolution = simulation.evolution
    evolution.advance(0.02)
    if evolution.equation.diffusion is not None:
        evolution.equation.diffusion.__class__ = TimedDiffusion
    TimedDiffusion.seconds = 0.0
    started, steps = time.process_time(), evolution.step
    evolution.advance(0.02 + UNTIL)
    spent = time.process_time() - started
    transports = (evolution.step - steps) * (2 if noise else 1)
    simulation.close()
    return spent, transports, TimedDiffusion.seconds


OPTIONS = options("noise", __doc__)


def main() -> None:
    """Print the table."""
    mesh = sphere_mesh(1280 if OPTIONS.parse_args().quick else 20_480)
    one = np.eye(3)
    single = Attention(one, one, np.diag([1.0, 0.5, 0.3]), BETA)
    third = Attention(one, one, np.diag([1.0, 0.5, 0.3]) / 3, BETA)
    columns = (
        "case",
        "steps of transport",
        "s per unit of time",
        "s per step",
        "over one head",
        "noise adds, in parts of a step",
    )
    table = Table(f"{mesh.topology.index_map(2).size_global} cells, beta = {BETA:g}", columns)
    base = None
    for name, attention, noise in (
        ("one head", single, 0.0),
        ("noise 0.01", single, 0.01),
        ("noise 0.1", single, 0.1),
        ("three heads", Heads([third] * 3), 0.0),
    ):
        spent, steps, noisy = measure(attention, mesh, noise)
        each = spent / steps
        base = base or each
        table.row(
            name,
            steps,
            f"{spent / UNTIL:.3g}",
            f"{each:.3g}",
            f"{each / base:.2f}",
            f"{noisy / (spent - noisy):.2f}" if noise else "",
        )


if __name__ == "__main__":
    present(main, OPTIONS)
