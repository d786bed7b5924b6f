"""Coarser versions of a transport problem, and plans carried from one to the next finer.

Pairs of neighbours become one atom at their centre of mass. In kd order the pairs are consecutive:
atom i belongs to atom i // 2 of the coarser level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meanfield_pde.support.kernels import kernel
from meanfield_pde.wasserstein.certificate import Plan, Problem
from meanfield_pde.wasserstein.cloud import Cloud, make_cloud

GROUP = 2


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
