"""Linear transport alone against public solvers: FiPy and py-pde, one thread each.

    python -m tests.benchmarks.public_solvers [--quick]      (pip install -e '.[benchmarks]')

    d/dt rho + d/dtheta (v rho) = 0 on the circle, v = -0.4 sin(2 theta),

which is the mean-field equation at zero temperature with Q = K = I and V = diag(1, 0.2); its exact
solution is the push-forward of the initial density under x -> exp(V t) x / |.|. Each solver takes
the coarsest of a series of grids on which its error in L1 is within the target. Processor time of
the time loop only; meshes, compilation and set-up are not counted.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable

import numpy as np

from meanfield_pde import Attention, circle_mesh
from meanfield_pde.solver.simulation import Simulation
from tests.benchmarks.tables import Table, milliseconds, options, present

VALUE = np.diag([1.0, 0.2])
TARGET = 1e-3
GRIDS = (50, 100, 200, 400, 800, 1600)
Solver = Callable[[int, float], tuple[float, np.ndarray]]  # seconds and cell masses


def edges(cells: int) -> np.ndarray:
    """Angles of the ends of the cells."""
    return np.linspace(0, 2 * np.pi, cells + 1)


def speed(angle: np.ndarray) -> np.ndarray:
    """The velocity along the circle, <(-sin, cos), V (cos, sin)>."""
    return -0.4 * np.sin(2 * angle)


def exact(cells: int, until: float) -> np.ndarray:
    """Masses of the cells: the density 1 + sin(theta) / 2 between the preimages of their ends."""
    angle = edges(cells)
    back = np.exp(-until * np.diag(VALUE))
    origin = np.arctan2(back[1] * np.sin(angle), back[0] * np.cos(angle))
    origin = np.unwrap(origin)
    return np.diff(origin - np.cos(origin) / 2) / (2 * np.pi)


def ours(cells: int, until: float) -> tuple[float, np.ndarray]:
    """This package, scheme muscl, with steps of its own choice."""
    one = np.eye(2)
    run = Simulation(
        Attention(one, one, VALUE, math.inf), circle_mesh(cells), exact(cells, 0.0), threads=1
    )
    started = time.process_time()
    run.evolution.advance(until)
    seconds = time.process_time() - started
    return seconds, run.volumes.gather(run.evolution.masses)


def fipy(cells: int, until: float) -> tuple[float, np.ndarray]:
    """FiPy's explicit second-order VanLeer term, Courant number 0.1 (Euler steps)."""
    os.environ["FIPY_SOLVERS"] = "scipy"
    from fipy import CellVariable, FaceVariable, PeriodicGrid1D, TransientTerm
    from fipy import VanLeerConvectionTerm as Convection

    width = 2 * np.pi / cells
    mesh = PeriodicGrid1D(nx=cells, dx=width)
    density = CellVariable(mesh=mesh, value=exact(cells, 0.0) / width, hasOld=True)
    velocity = FaceVariable(mesh=mesh, rank=1, value=speed(mesh.faceCenters.value[0])[None])
    equation = TransientTerm() + Convection(coeff=velocity) == 0
    steps = math.ceil(until * 0.4 / (0.1 * width))
    started = time.process_time()
    for _ in range(steps):
        density.updateOld()
        equation.solve(var=density, dt=until / steps)
    return time.process_time() - started, np.asarray(density.value) * width


def py_pde(cells: int, until: float) -> tuple[float, np.ndarray]:
    """py-pde: central differences, fourth-order Runge-Kutta, compiled, Courant number 0.5."""
    import pde

    width = 2 * np.pi / cells
    grid = pde.CartesianGrid([[0, 2 * np.pi]], cells, periodic=True)
    velocity = pde.ScalarField(grid, speed(edges(cells)[:-1] + width / 2))
    state = pde.ScalarField(grid, exact(cells, 0.0) / width)
    equation = pde.PDE({"c": "-d_dx(v * c)"}, consts={"v": velocity})
    steps = math.ceil(until * 0.4 / (0.5 * width))
    solver = pde.solvers.RungeKuttaSolver(equation)
    stepper = solver.make_stepper(state, dt=until / steps)
    stepper(state.copy(), 0.0, until / steps)  # compiles
    started = time.process_time()
    advanced = state.copy()
    stepper(advanced, 0.0, until)
    return time.process_time() - started, np.asarray(advanced.data) * width


SOLVERS: dict[str, Solver] = {"meanfield_pde": ours, "FiPy": fipy, "py-pde": py_pde}

OPTIONS = options("public_solvers", __doc__)


def main() -> None:
    """Print the table."""
    table = Table(
        f"Linear transport on the circle to an error of {TARGET:g} in L1, one thread",
        ["t", "solver", "cells", "error", "least density", "ms", "times ours"],
    )
    ours(GRIDS[0], 0.1)  # compiles, or loads what was compiled before
    for until in (1.0,) if OPTIONS.parse_args().quick else (1.0, 3.0):
        reference = math.nan
        for name, solver in SOLVERS.items():
            for cells in GRIDS:
                seconds, masses = solver(cells, until)
                if seconds < 0.5:
                    seconds = min(seconds, *(solver(cells, until)[0] for _ in range(4)))
                error = np.abs(masses - exact(cells, until)).sum()
                if error <= TARGET:
                    break
            if name == "meanfield_pde":
                reference = seconds
            table.row(
                f"{until:g}",
                name,
                cells,
                f"{error:.1e}",
                f"{masses.min() * cells / (2 * np.pi):.1e}",
                milliseconds(seconds),
                f"{seconds / reference:.2g}",
            )
    print("\nThe coarsest of 50, 100, ..., 1600 cells that reaches the error, or the last.\n")


if __name__ == "__main__":
    present(main, OPTIONS)
