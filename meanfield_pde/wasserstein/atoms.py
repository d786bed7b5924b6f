"""Transport to one or two atoms: sort the sources by the difference of their two costs.

With targets y_1, y_2 the sources of smallest c_i1 - c_i2 go to y_1 until it is full. If the last of
them has difference t, then v = (t, 0) and u_i = min(c_i1 - t, c_i2) are optimal potentials.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.wasserstein.certificate import (
    Plan,
    Potentials,
    Problem,
    feasible_potentials,
    potentials_of_sources,
)


def solve_to_atoms(problem: Problem) -> tuple[Plan, Potentials]:
    """An optimal plan and optimal potentials when one side has at most two atoms."""
    if len(problem.b) <= 2:
        rows, columns, flow, v = _towards_atoms(problem)
        return Plan(rows, columns, flow), feasible_potentials(problem, v)
    mirrored = Problem(problem.cost, problem.targets, problem.sources, problem.b, problem.a)
    columns, rows, flow, u = _towards_atoms(mirrored)
    return Plan(rows, columns, flow), potentials_of_sources(problem, u)


def _towards_atoms(
    problem: Problem,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Arcs (source, atom, flow) and the potential of the atoms."""
    n = len(problem.a)
    sources = np.arange(n)
    if len(problem.b) == 1:
        return sources, np.zeros(n, np.int64), problem.a, np.zeros(1)
    points, atoms = problem.sources.points, problem.targets.points
    first = problem.cost.of_arcs(points, atoms, sources, np.zeros(n, np.int64))
    second = problem.cost.of_arcs(points, atoms, sources, np.ones(n, np.int64))
    difference = first - second
    order = np.argsort(difference, kind="stable")
    before = np.cumsum(problem.a[order]) - problem.a[order]
    to_first = np.clip(problem.b[0] - before, 0.0, problem.a[order])
    last = max(0, int(np.count_nonzero(to_first)) - 1)
    rows = np.concatenate([order, order])
    columns = np.repeat([0, 1], n)
    flow = np.concatenate([to_first, problem.a[order] - to_first])
    return rows, columns, flow, np.array([difference[order[last]], 0.0])
