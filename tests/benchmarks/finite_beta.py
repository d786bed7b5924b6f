"""A part of `adaptivity`: W1 at finite beta, against the nodes of `characteristics`.

'Reference' is how far the reference is from itself with half the nodes and steps: on the circle
W1 between the two, on the sphere half of the sum of differences of the masses of cells times the
widths of these.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

from meanfield_pde import Attention, circle_mesh, solve, sphere_mesh
from tests.benchmarks import exact_distance
from tests.benchmarks.characteristics import Density, Flow, Nodes, circle_nodes, sphere_nodes
from tests.benchmarks.tables import Table

TIMES = (1.0, 4.0)
BETA = {2: 20.0, 3: 10.0}
# Nodes begin denser where the flow of zero temperature is thinned out, by so much of its time.
_AHEAD = {2: 1.0, 3: 2.0}
_NODES, _STEPS = {2: 500, 3: 24}, {2: 40, 3: 12}  # and steps for each unit of time
_SUBARCS = 8
_MOST_PIECES = 4000


def circle(
    quick: bool, value: np.ndarray, density: Density, distance: Callable[..., float]
) -> None:
    """W1 on the circle, with resolutions."""
    table = Table(
        f"Circle at beta = {BETA[2]:g}: W1 to moving nodes",
        ["resolution", "cells", *(f"t = {t:g}" for t in TIMES), "reference"],
    )
    fine = {t: [_flow(2, circle_nodes, value, density, t, part) for part in (1, 2)] for t in TIMES}
    for resolution in (1e-2, 1e-3) if quick else (1e-2, 1e-3, 1e-4):
        solution = _solved(value, circle_mesh(100), density, resolution)
        found, open_part = [], 0.0
        for index, moment in enumerate(TIMES, start=1):
            cells, masses = solution.cells_at(index).vertices, solution.store.read(index)
            angles, ends = _subarcs(cells)
            measures = [(angles, np.repeat(masses / _SUBARCS, _SUBARCS))]
            for flow in fine[moment]:
                measures.append((angles, _between(flow.origin(ends), density)))
            found.append(f"{distance(measures[0], measures[1]):.1e}")
            open_part = max(open_part, distance(measures[1], measures[2]))
        most = int(solution.history["cells"].max())
        table.row(f"{resolution:g}", most, *found, f"{open_part:.0e}")


def sphere(quick: bool) -> None:
    """W1 on the sphere, with resolutions."""
    value, density = exact_distance.DRIFT, exact_distance.density
    table = Table(
        f"Sphere at beta = {BETA[3]:g}: W1 to moving nodes",
        ["resolution", "cells", *(f"t = {t:g}" for t in TIMES), "reference"],
    )
    fine = {t: [_flow(3, sphere_nodes, value, density, t, part) for part in (1, 2)] for t in TIMES}
    for resolution in (3e-2,) if quick else (3e-2, 1e-2):
        solution = _solved(value, sphere_mesh(320), density, resolution)
        found, open_part = [], 0.0
        for index, moment in enumerate(TIMES, start=1):
            cells, masses = solution.cells_at(index), solution.store.read(index)
            exact = [exact_distance.traced_masses(flow.origin) for flow in fine[moment]]
            change = np.abs(exact[0](cells.vertices) - exact[1](cells.vertices))
            open_part = max(open_part, float(change @ np.sqrt(cells.volumes)) / 2)
            found.append(
                exact_distance.distance(
                    cells.vertices, masses, exact[0], resolution / 10, _MOST_PIECES
                )
            )
        most = int(solution.history["cells"].max())
        table.row(f"{resolution:g}", most, *found, f"{open_part:.0e}")


def _solved(value: np.ndarray, mesh: Any, density: Density, resolution: float) -> Any:
    one = np.eye(len(value))
    attention = Attention(one, one, value, BETA[len(value)])
    return solve(
        attention, mesh, density, until=TIMES[-1], save_at=TIMES[:-1], resolution=resolution
    )


def _flow(
    dimension: int,
    nodes: Callable[[int, Density, np.ndarray], Nodes],
    value: np.ndarray,
    density: Density,
    until: float,
    part: int,
) -> Flow:
    """The reference, or with part = 2 that of half the nodes and steps."""
    ahead = scipy.linalg.expm(-_AHEAD[dimension] * value)
    steps = 2 * round(_STEPS[dimension] * until / part / 2)
    start = nodes(_NODES[dimension] // part, density, ahead)
    return Flow.of(start, value, BETA[dimension], until=until, steps=steps)


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
