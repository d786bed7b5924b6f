"""A part of `adaptivity`: W1 at finite beta, against the nodes of `characteristics`.

'Reference' is how far the reference is from itself with half of everything that it is made of,
nodes, steps, grid and parts of edges: on the circle W1 between the two, on the sphere half of the
sum of differences of the masses of cells times the widths of these.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import scipy.linalg

from meanfield_pde import Attention, circle_mesh, solve, sphere_mesh
from tests import oracles
from tests.benchmarks import exact_distance
from tests.benchmarks.characteristics import Density, Flow, Origins, gathered
from tests.benchmarks.tables import Table

TIMES = (1.0, 4.0)
BETA = {2: 20.0, 3: 10.0}
# Nodes begin denser where the flow of zero temperature is thinned out, by so much of its time.
_AHEAD = {2: 1.0, 3: 1.5}
_NODES, _STEPS = {2: 1000, 3: 64}, {2: 16, 3: 8}  # and steps for each unit of time
_GRID, _EDGE = 48, 8  # of the tables of the sphere, and parts of an edge that is traced back
_SUBARCS = 8


def circle(
    quick: bool, value: np.ndarray, density: Density, distance: Callable[..., float]
) -> None:
    """W1 on the circle, with tolerances."""
    table = _table("Circle", BETA[2])
    fine, coarse = (_flow(oracles.circle_nodes, value, density, part) for part in (1, 2))
    for tolerance in (1e-2, 1e-3) if quick else (1e-2, 1e-3, 1e-4):
        solution = _solved(value, circle_mesh(100), density, tolerance)
        found, open_part = [], 0.0
        for index, moment in enumerate(TIMES, start=1):
            cells, masses = solution.cells_at(index).vertices, solution.store.read(index)
            angles, ends = _subarcs(cells)
            exact = [
                (angles, _between(flow.origin(ends, moment), density)) for flow in (fine, coarse)
            ]
            spread = (angles, np.repeat(masses / _SUBARCS, _SUBARCS))
            found.append(f"{distance(spread, exact[0]):.1e}")
            open_part = max(open_part, distance(*exact))
        most = int(solution.history["cells"].max())
        table.row(f"{tolerance:g}", most, *found, f"{open_part:.0e}")


def sphere(quick: bool) -> None:
    """W1 on the sphere, with tolerances."""
    value, density = exact_distance.DRIFT, exact_distance.density
    table = _table("Sphere", BETA[3])
    fine, coarse = (
        Origins(_flow(oracles.sphere_nodes, value, density, part), _GRID // part) for part in (1, 2)
    )
    for tolerance in (3e-2,) if quick else (3e-2, 1e-2, 3e-3):
        solution = _solved(value, sphere_mesh(320), density, tolerance)
        found, open_part = [], 0.0
        for index, moment in enumerate(TIMES, start=1):
            cells, masses = solution.cells_at(index), solution.store.read(index)
            exact, rough = (
                exact_distance.traced_masses(partial(origins.origin, moment=moment), edge)
                for origins, edge in ((fine, _EDGE), (coarse, _EDGE // 2))
            )
            change = np.abs(exact(cells.vertices) - rough(cells.vertices))
            open_part = max(open_part, float(change @ np.sqrt(cells.volumes)) / 2)
            wanted = exact_distance.BARS * tolerance
            found.append(exact_distance.distance(cells.vertices, masses, exact, wanted))
        most = int(solution.history["cells"].max())
        table.row(f"{tolerance:g}", most, *found, f"{open_part:.0e}")


def _table(surface: str, beta: float) -> Table:
    columns = ["tolerance", "cells", *(f"t = {t:g}" for t in TIMES), "reference"]
    return Table(f"{surface} at beta = {beta:g}: W1 to moving nodes", columns)


def _solved(value: np.ndarray, mesh: Any, density: Density, tolerance: float) -> Any:
    one = np.eye(len(value))
    attention = Attention(one, one, value, BETA[len(value)])
    return solve(attention, mesh, density, until=TIMES[-1], save_at=TIMES[:-1], adapt=tolerance)


def _flow(
    rule: Callable[[int], tuple[np.ndarray, np.ndarray]],
    value: np.ndarray,
    density: Density,
    part: int,
) -> Flow:
    """The reference, or with part = 2 that of half the nodes and steps."""
    dimension = len(value)
    ahead = scipy.linalg.expm(-_AHEAD[dimension] * value)
    start = gathered(*rule(_NODES[dimension] // part), density, ahead)
    steps = round(_STEPS[dimension] // part * TIMES[-1])
    return Flow.of(start, value, BETA[dimension], until=TIMES[-1], steps=steps)


def _subarcs(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Angles of the middles of equal parts of arcs, and their ends: parts x 2 points."""
    start = np.arctan2(cells[:, 0, 1], cells[:, 0, 0])
    length = (np.arctan2(cells[:, 1, 1], cells[:, 1, 0]) - start + np.pi) % (2 * np.pi) - np.pi
    share = np.arange(_SUBARCS + 1) / _SUBARCS
    angle = start[:, None] + length[:, None] * share
    ends = np.stack([angle[:, :-1], angle[:, 1:]], axis=2).reshape(-1)
    middle = (angle[:, :-1] + angle[:, 1:]).ravel() / 2
    return middle, np.column_stack([np.cos(ends), np.sin(ends)])


def _between(ends: np.ndarray, density: Density) -> np.ndarray:
    """The initial mass between pairs of points, by Gauss's rule; all are the whole."""
    angle = np.arctan2(ends[:, 1], ends[:, 0]).reshape(-1, 2)
    length = (angle[:, 1] - angle[:, 0] + np.pi) % (2 * np.pi) - np.pi
    nodes, weights = np.polynomial.legendre.leggauss(6)
    places = angle[:, :1] + length[:, None] * (nodes + 1) / 2
    values = density(np.column_stack([np.cos(places.ravel()), np.sin(places.ravel())]))
    masses = np.abs(length) / 2 * (values.reshape(places.shape) @ weights)
    return np.asarray(masses / masses.sum())
