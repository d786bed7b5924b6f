"""Equal masses on both sides: an assignment problem, which scipy solves without a linear program.

If i goes to s(i), potentials with u_i + v_s(i) = c_i,s(i) are feasible when

    v_j - v_s(i) <= c_ij - c_i,s(i)     for all i, j:

v_j is the length of a shortest path to j, in a graph that has no cycle of negative length because
the assignment is optimal. A few sweeps over all arcs find it (Bellman and Ford).
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from meanfield_pde.wasserstein.certificate import Plan, Potentials, Problem, feasible_potentials

# Beyond, n x n costs are slower than the linear programs, which never look at most of them.
MOST_ATOMS = 500
_SWEEPS = 500  # of shortest paths; by then only rounding is left to gain


def is_assignment(problem: Problem) -> bool:
    """Whether the masses of each side are equal, as many on both, and few enough."""
    a, b = problem.a, problem.b
    equal = bool((a == a[0]).all() and (b == b[0]).all())
    return equal and len(a) == len(b) <= MOST_ATOMS


def solve_assignment(problem: Problem) -> tuple[Plan, Potentials]:
    """An optimal plan and optimal potentials for equal masses."""
    n = len(problem.a)
    costs = problem.cost.between_all(problem.sources.points, problem.targets.columns)
    chosen, goes_to = linear_sum_assignment(costs)
    # Rows in the order of the targets they go to: path[k, j] leads from target k to target j.
    came_from = np.argsort(goes_to)
    path = costs[came_from] - costs[came_from, np.arange(n)][:, None]
    v = np.zeros(n)
    changed = np.arange(n)
    for _ in range(_SWEEPS):
        if not len(changed):
            break
        shorter = np.minimum(v, (v[changed, None] + path[changed]).min(axis=0))
        changed = np.flatnonzero(shorter < v)
        v = shorter
    return Plan(chosen, goes_to, problem.a.copy()), feasible_potentials(problem, v)
