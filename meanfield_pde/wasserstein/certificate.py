"""Bounds that hold whoever made the plan and the potentials.

    min { sum c_ij x_ij : x >= 0, marginals a and b }  =  max { a.u + b.v : u_i + v_j <= c_ij }

Any feasible plan bounds the optimum from above, any feasible pair of potentials from below. Both
are made feasible here, and the rounding of both sums is added to the interval: solvers are asked
for candidates, never for a verdict.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meanfield_pde.support.kernels import kernel, part
from meanfield_pde.wasserstein.cloud import Cloud, kd_order
from meanfield_pde.wasserstein.costs import COST_ERROR, Cost
from meanfield_pde.wasserstein.pricing import c_transform

_EPS = float(np.finfo(float).eps)


@dataclass(frozen=True, eq=False)
class Plan:
    """A sparse transport plan: flow[e] goes from source rows[e] to target columns[e].

    As a candidate it may be infeasible; an infinite flow asks for as much as the ends allow.
    """

    rows: np.ndarray
    columns: np.ndarray
    flow: np.ndarray


@dataclass(frozen=True, eq=False)
class Potentials:
    """A pair of dual potentials, u on the sources and v on the targets."""

    u: np.ndarray
    v: np.ndarray


EMPTY_PLAN = Plan(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))


@dataclass(frozen=True, eq=False)
class Problem:
    """Transport from masses a at the sources to masses b at the targets, in kd order.

    Attributes:
        mass_error: the bounds hold for all masses within this relative error of a and b.
    """

    cost: Cost
    sources: Cloud
    targets: Cloud
    a: np.ndarray
    b: np.ndarray
    mass_error: float = 0.0


@part
def _subtract(high: np.ndarray, low: np.ndarray, i: int, amount: float) -> None:
    """Subtract from a number held as an unevaluated sum high[i] + low[i] (Knuth's TwoSum)."""
    result = high[i] - amount
    virtual = result - high[i]
    low[i] += (high[i] - (result - virtual)) - (amount + virtual)
    high[i] = result + low[i]
    low[i] -= high[i] - result


@kernel
def _complete(
    rows: np.ndarray,
    columns: np.ndarray,
    flow: np.ndarray,
    left_a: np.ndarray,
    low_a: np.ndarray,
    left_b: np.ndarray,
    low_b: np.ndarray,
    row_order: np.ndarray,
    column_order: np.ndarray,
    out_rows: np.ndarray,
    out_columns: np.ndarray,
    out_flow: np.ndarray,
) -> int:
    """Write a plan that takes all but rounding from left_a + low_a and left_b + low_b.

    Its number of arcs is returned.
    """
    n, m, arcs = left_a.size, left_b.size, rows.size
    used = 0
    for e in range(arcs):
        i, j = rows[e], columns[e]
        amount = min(flow[e], left_a[i], left_b[j])
        if amount > 0.0:
            out_rows[used], out_columns[used], out_flow[used] = i, j, amount
            used += 1
            _subtract(left_a, low_a, i, amount)
            _subtract(left_b, low_b, j, amount)
    s = t = 0
    while s < n and t < m:
        i, j = row_order[s], column_order[t]
        row_first = left_a[i] <= left_b[j]
        amount = left_a[i] if row_first else left_b[j]
        if amount > 0.0:
            out_rows[used], out_columns[used], out_flow[used] = i, j, amount
            used += 1
            _subtract(left_a, low_a, i, amount)
            _subtract(left_b, low_b, j, amount)
        if row_first:
            s += 1
        else:
            t += 1
    return used


def feasible_plan(problem: Problem, plan: Plan, joint: bool = False) -> tuple[Plan, float]:
    """A plan with the right marginals, and the mass it could not place (rounding of a and b).

    Each arc in turn carries what its source still has and its target still lacks, at most its
    flow in `plan`; what remains is placed by the north-west corner rule.

    Args:
        problem: the transport problem.
        plan: any flow; its arcs are served in their order.
        joint: run the north-west corner along one kd order of all points, so that what is left
            over moves to targets close by.
    """
    n, m = len(problem.a), len(problem.b)
    row_order, column_order = np.arange(n), np.arange(m)
    if joint:
        order = kd_order(np.concatenate([problem.sources.points, problem.targets.points]))
        row_order, column_order = order[order < n], order[order >= n] - n
    left_a, left_b = problem.a.copy(), problem.b.copy()
    most = len(plan.rows) + n + m
    rows, columns, flow = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    used = _complete(
        plan.rows, plan.columns, plan.flow, left_a, np.zeros(n), left_b, np.zeros(m),
        row_order, column_order, rows, columns, flow,
    )  # fmt: skip
    missing = max(np.abs(left_a).sum(), np.abs(left_b).sum())
    return Plan(rows[:used], columns[:used], flow[:used]), float(missing)


def exact_sum(terms: np.ndarray) -> float:
    """The sum, rounded once."""
    return math.fsum(terms.tolist())  # several times as fast as over an array


def plan_value(problem: Problem, plan: Plan) -> float:
    """The cost of a plan, sum c_ij x_ij."""
    sources, targets = problem.sources.points, problem.targets.points
    costs = problem.cost.of_arcs(sources, targets, plan.rows, plan.columns)
    return exact_sum(costs * plan.flow)


def _cost_of_mass_error(problem: Problem) -> float:
    """How far the optimal cost may move when a and b move by their relative errors.

    The mass that changes place is charged the largest cost there is.
    """
    if problem.mass_error == 0.0:
        return 0.0
    largest = problem.cost.upper_bound(problem.sources.points, problem.targets.points)
    return 2 * problem.mass_error * exact_sum(problem.a) * largest


def upper_bound(problem: Problem, plan: Plan, missing: float) -> float:
    """Upper bound of the optimal cost from a feasible plan that lacks `missing` mass."""
    value = plan_value(problem, plan) * (1 + 2 * COST_ERROR)
    if missing > 0.0:
        sources, targets = problem.sources.points, problem.targets.points
        value += missing * problem.cost.upper_bound(sources, targets)
    return value + _cost_of_mass_error(problem)


def feasible_potentials(problem: Problem, v: np.ndarray) -> Potentials:
    """The potentials (v^c, v), v shifted to mean zero, where the sums lose the fewest digits."""
    v = v - (problem.b @ v) / problem.b.sum()
    return Potentials(c_transform(problem.cost, problem.sources, problem.targets, v), v)


def potentials_of_sources(problem: Problem, u: np.ndarray) -> Potentials:
    """The potentials (u, u^c), u shifted to mean zero: feasible whatever u is."""
    u = u - (problem.a @ u) / problem.a.sum()
    return Potentials(u, c_transform(problem.cost, problem.targets, problem.sources, u))


def lower_bound(problem: Problem, potentials: Potentials) -> float:
    """Lower bound a.u + b.v of the optimal cost from feasible potentials, rounded down."""
    terms = np.concatenate([problem.a * potentials.u, problem.b * potentials.v])
    rounding = 2 * _EPS * float(np.abs(terms).sum())
    return exact_sum(terms) - rounding - _cost_of_mass_error(problem)
