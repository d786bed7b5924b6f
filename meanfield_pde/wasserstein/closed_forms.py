"""Transport problems with a closed form: to one or two atoms, on the circle, and of equal masses.

*Atoms.* With targets y_1, y_2 the sources of smallest c_i1 - c_i2 go to y_1 until it is full. If
the last of them has difference t, then v = (t, 0) and u_i = min(c_i1 - t, c_i2) are optimal.

*Equal masses* are an assignment problem, which scipy solves without a linear program. If i goes to
s(i), potentials with u_i + v_s(i) = c_i,s(i) are feasible when

    v_j - v_s(i) <= c_ij - c_i,s(i)     for all i, j:

v_j is the length of a shortest path to j, in a graph that has no cycle of negative length because
the assignment is optimal. A few sweeps over all arcs find it (Bellman and Ford).

*On the circle* the problem is one-dimensional with one unknown, where to cut. Unrolled, an optimal
plan is monotone: it matches the quantile t of one measure with t + s of the other, for a shift s
that minimises a convex, piecewise linear function,

    W_p^p = min_s f(s),      f(s) = integral over t in (0, 1) of |F^-1(t) - G^-1(t + s)|^p,

with G^-1(t + 1) = G^-1(t) + 2 pi (Delon, Salomon, Sobolevski 2010). At the best s the plan is a
chain of arcs, and the potentials follow from one arc to the next.
"""

from __future__ import annotations

import math

import numpy as np
import scipy  # `optimize` is imported when it is used: see `_lazy`

from meanfield_pde.support.kernels import kernel, part
from meanfield_pde.wasserstein.certificate import (
    Plan,
    Potentials,
    Problem,
    feasible_potentials,
    potentials_of_sources,
)

# Beyond, n x n costs are slower than the linear programs, which never look at most of them.
MOST_ATOMS = 500
# Of shortest paths, which have MOST_ATOMS arcs at most: by then only rounding is left to gain.
_SWEEPS = 500
# Halvings of the shift's interval [-1, 1]: down to the rounding of the masses, 2^-59.
_HALVINGS = 60


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


def is_assignment(problem: Problem) -> bool:
    """Whether the masses of each side are equal, as many on both, and few enough."""
    a, b = problem.a, problem.b
    equal = bool((a == a[0]).all() and (b == b[0]).all())
    return equal and len(a) == len(b) <= MOST_ATOMS


def solve_assignment(problem: Problem) -> tuple[Plan, Potentials]:
    """An optimal plan and optimal potentials for equal masses."""
    n = len(problem.a)
    costs = problem.cost.between_all(problem.sources.points, problem.targets.columns)
    chosen, goes_to = scipy.optimize.linear_sum_assignment(costs)
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


def solve_on_circle(problem: Problem) -> tuple[Plan, Potentials]:
    """An optimal plan and optimal potentials for geodesic cost on the circle."""
    # Angles from the heaviest atom, so that a cluster far smaller than the rounding of its
    # coordinates' angles is still resolved.
    origin = problem.sources.points[int(np.argmax(problem.a))]
    x, y = _angles(problem.sources.points, origin), _angles(problem.targets.points, origin)
    by_source, by_target = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    x, y = x[by_source], y[by_target]
    a, b = problem.a[by_source], problem.b[by_target]
    b_cumulated = np.cumsum(b)
    p, total = problem.cost.p, float(b_cumulated[-1])

    low, high = -total, total
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        *_, slope = _chain(x, y, a, b, b_cumulated, middle, p)
        if slope <= 0.0:
            low = middle
        if slope >= 0.0:
            high = middle
    rows, columns, flow, u_low, slope_low = _chain(x, y, a, b, b_cumulated, low, p)
    *_, u_high, slope_high = _chain(x, y, a, b, b_cumulated, high, p)

    # Once around the circle the potentials of a chain gain the slope of f. Of the two chains next
    # to the minimum one gains and one loses: their mean with the right weights is periodic.
    jump = slope_high - slope_low
    weight = slope_high / jump if jump > 0.0 else 0.5
    u = np.empty(len(a))
    u[by_source] = weight * u_low + (1.0 - weight) * u_high

    # At the best shift an arc is empty, one that leads from a source to the next target or from a
    # target to the next source (not just one of an atom with hardly any mass). After it each arc
    # takes all that it can: the same plan, free of the rounding of the shift.
    same_as_last, same_as_next = rows == np.roll(rows, 1), rows == np.roll(rows, -1)
    links = np.where(same_as_last != same_as_next, flow, np.inf)
    around = np.roll(np.arange(len(flow)), -1 - int(np.argmin(links)))
    rows, columns = by_source[rows[around]], by_target[columns[around]]
    return Plan(rows, columns, np.full(len(flow), np.inf)), potentials_of_sources(problem, u)


def _angles(points: np.ndarray, origin: np.ndarray) -> np.ndarray:
    """Angles from the origin in (-pi, pi]; differences first, which are exact close to it."""
    across = origin[0] * (points[:, 1] - origin[1]) - origin[1] * (points[:, 0] - origin[0])
    return np.arctan2(across, points @ origin)


@part
def _distance(x: float, y: float, p: int) -> float:
    difference = abs(x - y)
    return difference if p == 1 else difference * difference


@kernel
def _chain(
    x: np.ndarray,
    y: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    b_cumulated: np.ndarray,
    shift: float,
    p: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """The monotone plan with this shift, potentials along it, and the derivative of f."""
    n, m = a.size, b.size
    total = b_cumulated[m - 1]
    turn = math.floor(shift / total)
    start = shift - turn * total
    j = 0
    while j < m - 1 and b_cumulated[j] <= start:  # numpy's search takes long to compile
        j += 1
    left_b = b_cumulated[j] - start
    left_a = a[0]
    i = 0
    rows = np.empty(n + m, np.int64)
    columns = np.empty(n + m, np.int64)
    flow = np.empty(n + m)
    u = np.empty(n)
    u[0] = 0.0
    v = _distance(x[0], y[j] + 2.0 * math.pi * turn, p)
    slope = 0.0
    jumps = 0
    # Rounding must not let either side run out early: m jumps and n - 1 steps, always.
    for e in range(n + m):
        rows[e], columns[e], flow[e] = i, j, min(left_a, left_b)
        here = y[j] + 2.0 * math.pi * turn
        if jumps < m and (left_b <= left_a or i == n - 1):
            left_a = max(0.0, left_a - left_b)
            j += 1
            jumps += 1
            if j == m:
                j = 0
                turn += 1
            left_b = b[j]
            change = _distance(x[i], y[j] + 2.0 * math.pi * turn, p) - _distance(x[i], here, p)
            slope += change
            v += change
        elif i < n - 1:
            left_b = max(0.0, left_b - left_a)
            i += 1
            left_a = a[i]
            u[i] = _distance(x[i], here, p) - v
    return rows, columns, flow, u, slope
