"""The transport problem on a given set of arcs, as a linear program for HiGHS, through scipy.

    min sum_e c_e x_e,   sum_{e from i} x_e = a_i,   sum_{e to j} x_e = b_j,   x >= 0

HiGHS works to absolute tolerances. Masses of 1/n or costs of 1e-8 are below them, and it would then
call wrong plans optimal or good problems infeasible: both are scaled to order one first.
"""

from __future__ import annotations

import math
import time

import numpy as np
import scipy  # `optimize` is imported when it is used: see `_lazy`
from scipy import sparse

from meanfield_pde.wasserstein.restricted import Solution, Tree

_TOLERANCES = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
# Given reduced costs, all >= 0, the dual simplex starts from a feasible dual and needs few steps,
# 2 to 8 times faster than the interior point. HiGHS, its presolve in particular, sometimes declares
# these problems infeasible; another attempt then succeeds. Not among them is the interior point
# without presolve: on an infeasible problem it never returns.
_ATTEMPTS = (("highs-ds", False), ("highs-ipm", True), ("highs-ds", True))
_SHORTEST = 0.01  # seconds: a limit below zero is refused by scipy, which then sets none
_TIME_LIMIT = 1  # a status of scipy's linprog


def solve_on_arcs(
    rows: np.ndarray,
    columns: np.ndarray,
    cost: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    tie: float,
    deadline: float = math.inf,
    start: Tree | None = None,
) -> Solution | None:
    """A `Solver`, right to HiGHS's tolerances; None when the time or its means run out.

    `tie` and `start` are for a simplex on trees: HiGHS is given the arcs alone, and begins anew.
    """
    n, m, arcs = len(a), len(b), len(rows)
    positive = cost[cost > 0]
    cost_scale = float(np.median(positive)) if positive.size else 1.0
    mass_scale = 1e3 * math.sqrt(n * m) / float(a.sum())

    # One equation is redundant; without that of the heaviest target, rounding of the sums of a and
    # b goes where it is relatively smallest.
    dropped = n + int(np.argmax(b))
    kept = np.delete(np.arange(n + m), dropped)
    indices = np.empty(2 * arcs, np.int32)
    indices[0::2], indices[1::2] = rows, n + columns
    pointers = np.arange(0, 2 * arcs + 1, 2, dtype=np.int32)
    incidence = sparse.csc_array((np.ones(2 * arcs), indices, pointers), shape=(n + m, arcs))
    incidence = incidence.tocsr()[kept].tocsc()
    right_hand_side = (np.concatenate([a, b]) * mass_scale)[kept]

    for method, presolve in _ATTEMPTS:
        options: dict[str, float | bool] = {**_TOLERANCES, "presolve": presolve}
        if math.isfinite(deadline):
            options["time_limit"] = max(_SHORTEST, deadline - time.monotonic())
        result = scipy.optimize.linprog(
            cost / cost_scale,
            A_eq=incidence,
            b_eq=right_hand_side,
            bounds=(0, None),
            method=method,
            options=options,
        )
        if result.status == 0:
            duals = np.zeros(n + m)
            duals[kept] = result.eqlin.marginals
            duals *= cost_scale
            return Solution(result.x / mass_scale, duals[:n], duals[n:], tree=None, finished=True)
        if result.status == _TIME_LIMIT and time.monotonic() >= deadline:
            return None
    return None
