"""Transport on the circle: a one-dimensional problem with one unknown, where to cut.

Unrolled, an optimal plan is monotone: it matches the quantile t of one measure with t + s of the
other, for a shift s that minimises a convex, piecewise linear function,

    W_p^p = min_s f(s),      f(s) = integral over t in (0, 1) of |F^-1(t) - G^-1(t + s)|^p,

with G^-1(t + 1) = G^-1(t) + 2 pi (Delon, Salomon, Sobolevski 2010). At the best s the plan is a
chain of arcs, and the potentials follow from one arc to the next.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.support.kernels import kernel, part
from meanfield_pde.wasserstein.certificate import Plan, Potentials, Problem, potentials_of_sources

# Halvings of the shift's interval [-1, 1]: down to the rounding of the masses.
_HALVINGS = 60


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
    *plan, used, u_low, slope_low = _chain(x, y, a, b, b_cumulated, low, p)
    rows, columns, flow = (array[:used] for array in plan)
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
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int, np.ndarray, float]:
    """The monotone plan with this shift, potentials along it, and the derivative of f.

    The plan is so much of the first three arrays as the number after them says.
    """
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
    rows = np.empty(n + m + 1, np.int64)
    columns = np.empty(n + m + 1, np.int64)
    flow = np.empty(n + m + 1)
    u = np.empty(n)
    u[0] = 0.0
    v = _distance(x[0], y[j] + 2.0 * math.pi * turn, p)
    slope = 0.0
    used = jumps = 0
    while True:
        rows[used], columns[used], flow[used] = i, j, min(left_a, left_b)
        used += 1
        here = y[j] + 2.0 * math.pi * turn
        # Rounding must not let either side run out early: m jumps and n - 1 steps, always.
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
        else:
            break
    return rows, columns, flow, used, u, slope
