"""Multiscale sifting: large transport problems by a solver that sees few arcs at a time.

On each level, from coarse to fine: solve on few arcs, price all pairs, add the arcs that violate
u_i + v_j <= c_ij most, drop those far from being used, until the interval of the certificate is
closed. The coarser level gives the first plan and the first potentials.

Pairs of neighbours become one atom of the next coarser level, at their centre of mass. In kd order
the pairs are consecutive: atom i belongs to atom i // 2 of that level.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from meanfield_pde.support.kernels import kernel
from meanfield_pde.wasserstein.certificate import (
    EMPTY_PLAN,
    Plan,
    Potentials,
    Problem,
    feasible_plan,
    feasible_potentials,
    lower_bound,
    upper_bound,
)
from meanfield_pde.wasserstein.cloud import Cloud, make_cloud
from meanfield_pde.wasserstein.pricing import best_arcs, c_transform
from meanfield_pde.wasserstein.restricted import Solution, Solver, Tree

_EPS = float(np.finfo(float).eps)
# Atoms of one of the next coarser level, neighbours in kd order.
GROUP = 2


@dataclass(frozen=True)
class SiftSettings:
    """How arcs are chosen; none of it decides about the interval, only about the time it takes.

    Times are those of densities on the sphere with 4,000 atoms (`tests.problems`), p = 1 and 2.

    Attributes:
        coarsest: atoms of the coarsest level, where all pairs are arcs: 1,024 take 1.3 and 2.1
            times as long, 64 as long to 6 %.
        coarse_gap: relative width of the interval at which a coarser level ends: 1e-2 and 1e-6 take
            as long to 8 %.
        first_arcs: arcs of each atom to begin with, by p: W1 has many near-optimal arcs where W2
            has few. Half as many and twice as many take up to 1.14 times as long.
        added_arcs: arcs of an atom that are added in a round: half as many, 1.17 times (p = 1).
        kept_arcs: arcs that are kept for each atom: half as many, 1.16 times (p = 1).
        rounds: a bound on the cost; what is left open is said by the status.
        idle_rounds: rounds without new arcs, after which rounding is what keeps the interval open.
    """

    coarsest: int = 256
    coarse_gap: float = 1e-4
    first_arcs: Mapping[int, int] = field(default_factory=lambda: {1: 12, 2: 8})
    added_arcs: Mapping[int, int] = field(default_factory=lambda: {1: 10, 2: 4})
    kept_arcs: Mapping[int, int] = field(default_factory=lambda: {1: 10, 2: 3})
    rounds: int = 60
    idle_rounds: int = 3


@dataclass(frozen=True, eq=False)
class Bracket:
    """A feasible plan and feasible potentials, the costs they certify, and why they are the last.

    Attributes:
        status: "optimal", "rounding limit", "iteration limit", "time limit" or "solver failure".
    """

    plan: Plan
    potentials: Potentials
    lower: float
    upper: float
    status: str


def sift(
    problem: Problem,
    gap: float,
    deadline: float,
    solve: Solver,
    earlier: Potentials | None = None,
    settings: SiftSettings | None = None,
) -> Bracket:
    """Close the interval of the transport cost to the relative `gap`, or as far as time permits.

    Args:
        problem: masses positive.
        gap: relative width of the interval at which to stop.
        deadline: value of time.monotonic() at which to stop.
        solve: what solves on the arcs of a round.
        earlier: potentials of a similar problem on the same atoms, from which it goes on without
            coarser levels.
        settings: how arcs are chosen.
    """
    settings = settings or SiftSettings()
    how = deadline, solve, settings
    if earlier is not None:
        return _solve_level(problem, EMPTY_PLAN, earlier.v, gap, *how, finest=True)
    levels = make_levels(problem, settings.coarsest)
    plan, v = EMPTY_PLAN, np.zeros(len(levels[-1].problem.b))
    for depth in range(len(levels) - 1, 0, -1):
        coarse, fine = levels[depth].problem, levels[depth - 1]
        bracket = _solve_level(coarse, plan, v, settings.coarse_gap, *how, finest=False)
        plan = refine_plan(bracket.plan, fine)
        v = c_transform(problem.cost, fine.problem.targets, coarse.sources, bracket.potentials.u)
    return _solve_level(problem, plan, v, gap, *how, finest=True)


def _solve_level(
    problem: Problem,
    plan: Plan,
    v: np.ndarray,
    gap: float,
    deadline: float,
    solve: Solver,
    settings: SiftSettings,
    *,
    finest: bool,
) -> Bracket:
    """Sifting on one level, from a plan and potentials that need not be feasible."""
    cost, m, total = problem.cost, len(problem.b), float(problem.a.sum())
    plan, missing = feasible_plan(problem, plan, joint=finest)
    upper = upper_bound(problem, plan, missing)
    potentials = base = feasible_potentials(problem, v)
    lower = lower_bound(problem, base)
    arcs = _union(_first_arcs(problem, base, settings), plan.rows * m + plan.columns)
    idle_rounds = 0
    tree: Tree | None = None
    dearest = cost.upper_bound(problem.sources.points, problem.targets.points)
    for _ in range(settings.rounds):
        if upper - lower <= gap * upper:
            return Bracket(plan, potentials, lower, upper, "optimal")
        if idle_rounds >= settings.idle_rounds:
            return Bracket(plan, potentials, lower, upper, "rounding limit")
        rows, columns = arcs // m, arcs % m
        costs = cost.of_arcs(problem.sources.points, problem.targets.points, rows, columns)
        # Costs less feasible potentials: the same optimal plans, but what is left to decide is
        # no longer small against the numbers the solver sees, so that each round gains digits.
        reduced = np.maximum(0.0, costs - base.u[rows] - base.v[columns])
        solution: Solution | None = None
        if time.monotonic() < deadline:
            tie = dearest + float(np.abs(base.u).max() + np.abs(base.v).max())
            solution = solve(rows, columns, reduced, problem.a, problem.b, tie, deadline, tree)
        if solution is None:
            late = time.monotonic() >= deadline
            status = "time limit" if late else "solver failure"
            return Bracket(plan, potentials, lower, upper, status)
        flow = Plan(rows, columns, solution.flow)
        candidate, missing = feasible_plan(problem, flow, joint=finest)
        candidate_upper = upper_bound(problem, candidate, missing)
        if candidate_upper < upper:
            plan, upper = candidate, candidate_upper

        u, v = base.u + solution.u, base.v + solution.v
        # A violation too small to keep the interval open is none, nor is rounding.
        slack = max(0.01 * gap * upper / total, 32 * _EPS * float(np.abs(u).max()))
        violated, pairs = _price(problem, Potentials(u, v), slack, settings.added_arcs[cost.p])
        base = max(pairs, key=lambda pair: lower_bound(problem, pair))
        potentials, lower = _better(problem, base, potentials, lower)

        new = _without(violated, arcs)
        idle_rounds = 0 if len(new) else idle_rounds + 1
        excess = reduced - solution.u[rows] - solution.v[columns]
        keep = _closest_to_use(excess, settings.kept_arcs[cost.p] * (len(problem.a) + m))
        arcs, tree = _next_arcs(arcs, keep, new, solution)
    return Bracket(plan, potentials, lower, upper, "iteration limit")


def _better(
    problem: Problem, candidate: Potentials, best: Potentials, lower: float
) -> tuple[Potentials, float]:
    """The potentials with the larger lower bound, and that bound."""
    candidate_lower = lower_bound(problem, candidate)
    return (candidate, candidate_lower) if candidate_lower > lower else (best, lower)


def _first_arcs(problem: Problem, potentials: Potentials, settings: SiftSettings) -> np.ndarray:
    """Keys of all arcs of a small problem, of the arcs closest to tight of a large one."""
    n, m = len(problem.a), len(problem.b)
    if n * m <= settings.coarsest**2:
        return np.arange(n * m)
    cost, sources, targets = problem.cost, problem.sources, problem.targets
    count = settings.first_arcs[cost.p]
    by_row, _ = best_arcs(cost, sources, targets, potentials.v, count)
    by_column, _ = best_arcs(cost, targets, sources, potentials.u, count)
    return _union(_row_keys(by_row, m), _column_keys(by_column, m))


def _price(
    problem: Problem, potentials: Potentials, slack: float, count: int
) -> tuple[np.ndarray, list[Potentials]]:
    """Keys of the `count` arcs of an atom that violate u_i + v_j <= c_ij most, two feasible pairs.

    The pairs are (v^c, v) and (u, u^c).
    """
    cost, sources, targets = problem.cost, problem.sources, problem.targets
    u, v = potentials.u, potentials.v
    by_row, row_values = best_arcs(cost, sources, targets, v, count)
    by_column, column_values = best_arcs(cost, targets, sources, u, count)
    violated = np.concatenate(
        [
            _row_keys(by_row, len(v))[(row_values < u[:, None] - slack).ravel()],
            _column_keys(by_column, len(v))[(column_values < v[:, None] - slack).ravel()],
        ]
    )
    return violated, [Potentials(row_values[:, 0], v), Potentials(u, column_values[:, 0])]


def _next_arcs(
    arcs: np.ndarray, keep: np.ndarray, new: np.ndarray, solution: Solution
) -> tuple[np.ndarray, Tree | None]:
    """The arcs kept, those in use, and new ones; and the basis among them, to start from."""
    tree = solution.tree
    if tree is None:
        return _union(arcs[keep | (solution.flow > 0)], new), None
    basic = tree.arc >= 0
    keep[tree.arc[basic]] = True
    kept = _union(arcs[keep], new)
    arc = tree.arc.copy()
    arc[basic] = np.searchsorted(kept, arcs[tree.arc[basic]])
    return kept, Tree(tree.parent, arc)


def _closest_to_use(excess: np.ndarray, count: int) -> np.ndarray:
    """Which arcs have one of the `count` smallest reduced costs."""
    if len(excess) <= count:
        return np.ones(len(excess), dtype=bool)
    return excess <= np.partition(excess, count)[count]


def _union(keys: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Sorted keys of either, each once: by sorting, ten times as fast as numpy's hashing."""
    both = np.sort(np.concatenate([keys, others]))
    return both[np.append(True, both[1:] != both[:-1])] if len(both) else both


def _without(keys: np.ndarray, arcs: np.ndarray) -> np.ndarray:
    """The keys that are not among the arcs, which are sorted, each once."""
    keys = _union(keys, keys[:0])
    place = np.minimum(np.searchsorted(arcs, keys), len(arcs) - 1)
    return keys[arcs[place] != keys]


def _row_keys(targets: np.ndarray, m: int) -> np.ndarray:
    """Keys i m + j of the arcs (i, targets[i, k])."""
    return (np.arange(len(targets))[:, None] * m + targets).ravel()


def _column_keys(sources: np.ndarray, m: int) -> np.ndarray:
    """Keys i m + j of the arcs (sources[j, k], j)."""
    return (sources * m + np.arange(len(sources))[:, None]).ravel()


@dataclass(frozen=True, eq=False)
class Level:
    """A transport problem and how many of its atoms make one of the next coarser level."""

    problem: Problem
    source_group: int
    target_group: int


def make_levels(problem: Problem, coarsest: int) -> list[Level]:
    """From the problem itself to one with at most `coarsest` atoms on either side."""
    levels = []
    while max(len(problem.a), len(problem.b)) > coarsest:
        source_group = GROUP if len(problem.a) > coarsest else 1
        target_group = GROUP if len(problem.b) > coarsest else 1
        levels.append(Level(problem, source_group, target_group))
        on_sphere = problem.cost.geodesic
        sources, a = _coarsen(problem.sources, problem.a, source_group, on_sphere)
        targets, b = _coarsen(problem.targets, problem.b, target_group, on_sphere)
        problem = Problem(problem.cost, sources, targets, a, b)
    levels.append(Level(problem, 1, 1))
    return levels


def _coarsen(
    cloud: Cloud, masses: np.ndarray, group: int, on_sphere: bool
) -> tuple[Cloud, np.ndarray]:
    if group == 1:
        return cloud, masses
    starts = np.arange(0, len(cloud), group)
    coarse = np.add.reduceat(masses, starts)
    share = masses / np.repeat(coarse, group)[: len(masses)]
    points = np.add.reduceat(cloud.points * share[:, None], starts, axis=0)
    if on_sphere:
        length = np.sqrt((points**2).sum(axis=1))
        # A group spread over the whole sphere may have no direction: its first point will do.
        points = np.where(length[:, None] > 1e-3, points, cloud.points[starts])
        points /= np.sqrt((points**2).sum(axis=1))[:, None]
    return make_cloud(points), coarse


def refine_plan(coarse: Plan, fine: Level) -> Plan:
    """Split each arc of a coarse plan among the atoms of its two ends, as they come."""
    return Plan(
        *_refine(
            coarse.rows,
            coarse.columns,
            coarse.flow,
            fine.problem.a,
            fine.problem.b,
            fine.source_group,
            fine.target_group,
        )
    )


@kernel
def _refine(
    rows: np.ndarray,
    columns: np.ndarray,
    flow: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    source_group: int,
    target_group: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n, m = a.size, b.size
    left_a, left_b = a.copy(), b.copy()
    next_row = np.arange(0, n, source_group)
    next_column = np.arange(0, m, target_group)
    capacity = rows.size + n + m
    out_rows = np.empty(capacity, np.int64)
    out_columns = np.empty(capacity, np.int64)
    out_flow = np.empty(capacity)
    used = 0
    for e in range(rows.size):
        row_end = min(n, (rows[e] + 1) * source_group)
        column_end = min(m, (columns[e] + 1) * target_group)
        left = flow[e]
        while left > 0.0:
            i, j = next_row[rows[e]], next_column[columns[e]]
            if i == row_end or j == column_end:
                break
            amount = min(left, left_a[i], left_b[j])
            if amount > 0.0:
                out_rows[used], out_columns[used], out_flow[used] = i, j, amount
                used += 1
            left -= amount
            left_a[i] -= amount
            left_b[j] -= amount
            if left_a[i] <= 0.0:
                next_row[rows[e]] += 1
            if left_b[j] <= 0.0:
                next_column[columns[e]] += 1
    return out_rows[:used], out_columns[:used], out_flow[:used]
