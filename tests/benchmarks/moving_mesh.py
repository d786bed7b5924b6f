"""Parts of `adaptivity`: a travelling cluster, the axis in time, what following the mass costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from scipy.interpolate import CubicSpline

from meanfield_pde import Attention, Component, VonMises, circle_mesh, solve, sphere_mesh
from meanfield_pde.initial.given import InitialLike
from meanfield_pde.solver.controller import Controller
from meanfield_pde.solver.simulation import Simulation
from tests.benchmarks.moving_arcs import Arcs
from tests.benchmarks.tables import Table

TURN = np.array([[0.0, -1.0], [1.0, 0.0]])
# From here on the axis of the case of the lifetimes is that of two clusters, until it has left.
AXIS_FROM, AXIS_LEAVES, AXIS_UNTIL, AXIS_EVERY = 12.0, 27.0, 34.0, 0.1
_FITTED = 11  # times to which a cubic is fitted (chosen, not tuned)
_PER_CELL = 100  # atoms: their distance is an error of 1/400 of a cell


def against_exact(
    title: str,
    attention: Attention,
    mesh: Callable[[int], Any],
    density: Any,
    times: Sequence[float],
    runs: Sequence[tuple[int, float | None]],
    error: Callable[[Any, int, float | None], object],
) -> None:
    """A table of the error of solutions at these times, and what they took on one thread.

    Args:
        title: of the table.
        attention: at zero temperature.
        mesh: its number of cells.
        density: the initial one.
        times: the last ends the run.
        runs: cells and tolerance.
        error: of a solution at the time of that number, the tolerance being asked for.
    """
    columns = ["tolerance", "cells", *(f"t = {t:g}" for t in times)]
    table = Table(title, [*columns, "estimate", "steps", "seconds"])
    for cells, tolerance in runs:
        given = mesh(cells)
        begun = time.process_time()
        solution = solve(
            attention,
            given,
            density,
            until=times[-1],
            save_at=times[:-1],
            adapt=tolerance,
            threads=1,
        )
        seconds = time.process_time() - begun
        name, most, estimate = "uniform", cells, "-"
        if tolerance is not None:
            history = solution.history
            name, most = f"{tolerance:g}", int(history["cells"].max())
            estimate = f"{history['w1_error_estimate'].max():.1e}"
        errors = [error(solution, index, tolerance) for index in range(1, len(times) + 1)]
        table.row(name, most, *errors, estimate, solution.steps, f"{seconds:.2f}")


def atoms_of(solution: Any, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Angles and masses of the density on the circle as it is in its cells, many atoms in each."""
    cells, masses = solution.cells_at(index), solution.store.read(index)
    place = (np.arange(_PER_CELL) + 0.5) / _PER_CELL - 0.5
    middle = np.arctan2(cells.points[:, 1], cells.points[:, 0])
    angle = middle[:, None] + cells.volumes[:, None] * place
    return angle.ravel(), np.repeat(masses / _PER_CELL, _PER_CELL)


def travelling_cluster(quick: bool, distance: Callable[..., float]) -> None:
    """Zero temperature, Q = K = I, V a rotation: once round, and compared with the start."""
    table = Table(
        "A cluster (concentration 1,000) once round the circle",
        ["tolerance", "cells", "W1", "mass drift", "steps", "seconds"],
    )
    turn = Attention(np.eye(2), np.eye(2), TURN, math.inf)
    cluster = VonMises((Component(1.0, 1000.0, (1.0, 0.0)),))
    exact = solve(turn, circle_mesh(20_000), cluster, until=0.0)
    runs: list[tuple[int, float | None]] = [(60, 3e-2), (60, 1e-2), (200, None), (400, None)]
    runs += [] if quick else [(60, 3e-3), (800, None), (1600, None)]
    for cells, tolerance in runs:
        begun = time.process_time()
        solution = solve(
            turn, circle_mesh(cells), cluster, until=2 * np.pi, adapt=tolerance, threads=1
        )
        seconds = time.process_time() - begun
        error = distance(atoms_of(solution, -1), atoms_of(exact, 0))
        history = solution.history
        most = int(history["cells"].max()) if tolerance else cells
        drift = np.abs(history["mass"] - 1).max()
        name = f"{tolerance:g}" if tolerance else "uniform"
        table.row(name, most, f"{error:.1e}", f"{drift:.0e}", solution.steps, f"{seconds:.1f}")


def axis(
    quick: bool, attention: Attention, density: Callable[[np.ndarray], np.ndarray], arcs: Arcs
) -> None:
    """How smoothly the principal axis moves: second differences, in degrees.

    They are largest where the axis leaves. What is left of them by cubics fitted to `_FITTED`
    neighbouring times are jerks; the leaving itself has some, as moving arcs show.
    """
    table = Table(
        f"Axis at beta = {attention.beta:g}, every {AXIS_EVERY} from t = {AXIS_FROM:g}",
        [
            "tolerance",
            "coarsest",
            "largest step",
            "second difference",
            "jerk",
            "before",
            "seconds",
        ],
    )
    runs: list[tuple[int, float | None]] = [(100, 1e-4), (400, None)]
    runs += [] if quick else [(100, 1e-3), (800, None), (1600, None)]
    for cells, tolerance in runs:
        begun = time.process_time()
        solution = solve(
            attention,
            circle_mesh(cells),
            density,
            until=AXIS_UNTIL,
            save_every=AXIS_EVERY,
            adapt=tolerance,
            threads=1,
        )
        seconds = time.process_time() - begun
        history = solution.history
        late = history["time"] > AXIS_FROM - 1e-9
        double = np.arctan2(2 * history["second_xy"], history["second_xx"] - history["second_yy"])
        angle = np.degrees(np.unwrap(double[late]) / 2)
        name = f"{tolerance:g}" if tolerance else "uniform"
        table.row(name, cells, *_differences(angle), f"{seconds:.0f}")
    begun = time.process_time()
    times, angles = [0.0], [arcs.axis()]
    while times[-1] < AXIS_UNTIL:
        times.append(times[-1] + arcs.step())
        angles.append(arcs.axis())
    at = np.arange(AXIS_FROM, AXIS_UNTIL + 1e-9, AXIS_EVERY)
    angle = np.degrees(CubicSpline(times, angles)(at))
    seconds = time.process_time() - begun
    table.row("moving arcs", len(arcs.angle), *_differences(angle), f"{seconds:.0f}")


def _differences(angle: np.ndarray) -> list[str]:
    """The largest of the first and second differences, and of the jerks."""
    from scipy.signal import savgol_filter  # 0.4 s, of which tests that import this have no need

    first, second = np.diff(angle), np.diff(angle, 2)
    jerks = second - savgol_filter(second, _FITTED, 3)
    before = jerks[: round((AXIS_LEAVES - AXIS_FROM) / AXIS_EVERY)]
    return [f"{np.abs(one).max():.4f}" for one in (first, second, jerks, before)]


def cost(quick: bool, circle: Attention, sphere: Attention, density: InitialLike) -> None:
    """What the mesh that follows costs beside the steps."""
    table = Table(
        "Cost of following the mass (per cent of the time)",
        ["mesh", "beta", "cells", "steps", "changes", "following"],
    )
    runs: list[tuple[Attention, Any, InitialLike, float, float]]
    runs = [(circle, circle_mesh(100), "1 + 0.5*x + 0.3*x*y", 1e-4, 25.0)]
    if not quick:
        runs += [(sphere, sphere_mesh(1280), density, 2e-3, 9.0)]
    for attention, mesh, initial, tolerance, until in runs:
        solve(attention, mesh, initial, until=0.01, adapt=0.3)  # compiles
        run = Simulation(attention, mesh, initial, adapt=tolerance, threads=1)
        with closing(run):
            evolution = run.evolution
            following = _timed_adapting(evolution)
            begun = time.process_time()
            evolution.advance(until)
            seconds = time.process_time() - begun
            table.row(
                "circle" if attention.dimension == 2 else "sphere",
                f"{attention.beta:g}",
                evolution.state.volumes.global_cells,
                evolution.step,
                evolution.state.clocks.regrids,
                f"{100 * following[0] / seconds:.0f}",
            )


def _timed_adapting(evolution: Controller) -> list[float]:
    """Processor time of looking at the mesh and changing it, in a list of one."""
    inner: Any = evolution._adapt
    spent = [0.0]

    def timed(settings: Any) -> None:
        started = time.process_time()
        inner(settings)
        spent[0] += time.process_time() - started

    setattr(evolution, "_adapt", timed)  # noqa: B010 (mypy refuses a method assigned to)
    return spent
