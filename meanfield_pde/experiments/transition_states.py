"""What rows of stationary states say: which are stable, and what kind of transition they make.

A state is

    unstable     if a perturbation of it grows;
    metastable   if none does, but a density of lower free energy is known;
    stable       if none does, and none is known. Without a free energy growth rates alone decide.

For one density the free energy is linear in the strength, F = sigma S - E with the entropy S and
the energy E. So every density that is known, at whatever strength it was found, bounds from above
the least free energy at every other strength.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meanfield_pde.errors import SolverError
from meanfield_pde.results.tables import Row
from meanfield_pde.solver.stationary import is_stable
from meanfield_pde.theory.richardson import interval

# Free energies in units of the strength that differ by less are the same, when it is asked whether
# a density may come to a state: as the evolution is accurate to 1e-3 of the masses, and free
# energies are of second order about a state.
LOWER = 1e-4
# Moments that differ by less are those of one state, turned. A mesh gives it another free energy:
# 0.015 apart with 320 cells of the sphere, sigma = 2, beta = 5. A density of the same branch that
# differs by so much has one that is higher by 0.1.
_TURNED = 0.05
# Errors of free energies by cells of width h, over sigma h^2 and the squared difference of moments:
# 1/12 for a first moment on the circle, where the density is nearly uniform.
_BY_THE_MESH = 0.25
# Orders that differ by less are the same on the ways up and down: far above the 1e-5 to which
# states are found at the worst (`solver.stationary`), and otherwise chosen, not tuned.
_SAME = 0.02


@dataclass(frozen=True)
class States:
    """What was found on a mesh.

    Attributes:
        rows: of the states on the ways up and down.
        branch: of the ordered states.
        uniform: of the uniform density, at strength one.
        summary: what was concluded.
    """

    rows: list[Row]
    branch: list[Row]
    uniform: Row
    summary: dict[str, Any]


def with_intervals(levels: Sequence[States], finer: float) -> States:
    """What was found on the finest of several meshes, with intervals.

    States are the same on two meshes if way and strength are, and on the branch if the order is, or
    free energies cross at both.

    Args:
        levels: what was found on each, from the coarsest on.
        finer: how many times finer each mesh is than the one before.
    """
    finest = levels[-1]
    rows = _rows_with_intervals(
        [one.rows for one in levels], ("way", "strength"), ("order", "free_energy"), finer
    )
    # Orders are prescribed to it, and found as exactly as Newton's method ends.
    branches = [
        [
            row | {"at": None if row["order"] == crossing else round(row["order"], 6)}
            for row in one.branch
        ]
        for one in levels
        for crossing in [one.summary.get("order_at_crossing")]
    ]
    branch = _rows_with_intervals(branches, ("at",), ("strength", "free_energy"), finer)
    for row in branch:
        del row["at"]
    numbers = {
        name: interval([one.summary[name] for one in levels], finer).describe()
        for name in ("threshold", "ordered_up_to", "crossing")
        if any(one.summary[name] is not None for one in levels)
    }
    return States(rows, branch, finest.uniform, finest.summary | {"numbers": numbers})


def _rows_with_intervals(
    levels: Sequence[Sequence[Row]], keys: Sequence[str], names: Sequence[str], finer: float
) -> list[Row]:
    """The rows of the last level, with the intervals of some columns."""
    tables = [{tuple(row[key] for key in keys): row for row in rows} for rows in levels]
    found = []
    for key, row in tables[-1].items():
        each = [table.get(key, {}) for table in tables]
        columns: Row = {}
        for name in names:
            columns |= interval([one.get(name) for one in each], finer).columns(name)
        found.append(row | columns)
    return found


def mark_states(
    rows: Sequence[Row], known: Sequence[Row], width: float, without_free_energy: str
) -> None:
    """Set `stability` of rows.

    Args:
        rows: of states.
        known: rows of densities that are known, these and others.
        width: of the cells.
        without_free_energy: why there is no free energy; "" if there is one.
    """
    for row in rows:
        stable = is_stable(row["growth"], row["strength"])
        row["stability"] = "stable" if stable else "unstable"
    if without_free_energy:
        return
    energy, free, strength = (
        np.array([row[name] for row in known]) for name in ("energy", "free_energy", "strength")
    )
    entropy = (free + energy) / strength
    moments = np.array([_moments(row) for row in known])
    for row in rows:
        apart = np.abs(moments - _moments(row)).max(axis=1)
        error = _BY_THE_MESH * row["strength"] * (width * apart) ** 2
        lower = row["strength"] * entropy - energy < row["free_energy"] - error
        if row["stability"] == "stable" and (lower & (apart > _TURNED)).any():
            row["stability"] = "metastable"


def _moments(row: Row) -> np.ndarray:
    """First and second moments as they are the same for a state that is turned."""
    second = [value for name, value in row.items() if name.startswith("second_")]
    d = 2 if len(second) == 3 else 3
    matrix = np.zeros((d, d))
    matrix[np.triu_indices(d)] = second
    return np.append(np.linalg.eigvalsh(matrix, UPLO="U"), row["order"])


def kind_of_transition(branch: Sequence[Row], threshold: float) -> dict[str, Any]:
    """Whether it jumps, by the branch of ordered states that begins at the threshold."""
    if len(branch) < 2:
        raise SolverError(_too_few(branch))
    first, second = branch[:2]
    rise = second["strength"] - first["strength"]
    slope = rise / (second["order"] ** 2 - first["order"] ** 2)
    return {
        "slope_in_order_squared": slope,
        "transition": "jumps" if slope > 0 else "continuous",
    }


def end_of_order(branch: Sequence[Row], threshold: float) -> dict[str, Any]:
    """Up to which strength ordered states exist, and their order there."""
    strengths = [row["strength"] for row in branch]
    if len(branch) < 2:
        raise SolverError(_too_few(branch))
    if max(strengths) == strengths[-1]:
        raise SolverError(
            f"the branch of ordered states was followed up to r = {branch[-1]['order']:g}, where "
            "the strength does not fall yet"
        )
    last, order = top_of_branch(strengths, [row["order"] for row in branch])
    beyond = last > threshold
    return {
        "ordered_up_to": last if beyond else threshold,
        "order_there": order if beyond else 0.0,
    }


def _too_few(branch: Sequence[Row]) -> str:
    return (
        f"{len(branch)} ordered states were found next to the threshold, and it takes 2 to say "
        "where their branch goes"
    )


def top_of_branch(strengths: Sequence[float], orders: Sequence[float]) -> tuple[float, float]:
    """The largest strength on a branch of states, by a parabola in r^2 through its top, and the r.

    That of an end of the branch if it is there.
    """
    squares = np.array(orders) ** 2
    top = int(np.argmax(strengths))
    if top in (0, len(squares) - 1):
        return float(strengths[top]), math.sqrt(squares[top])
    near = slice(top - 1, top + 2)
    a, b, c = np.polyfit(squares[near], strengths[near], 2)
    return float(c - b * b / (4 * a)), math.sqrt(-b / (2 * a))


def ways(rows: Sequence[Row], strengths: Sequence[float]) -> dict[str, Any]:
    """Orders and stability on both ways, each in the order of the strengths, and where they part.

    None stands for a state that was not found.
    """
    found = {(row["way"], row["strength"]): row for row in rows}
    summary: dict[str, Any] = {"strengths": list(strengths)}
    for name in ("order", "stability"):
        for way in ("up", "down"):
            states = [found.get((way, strength)) for strength in strengths]
            summary[f"{name}_{way}"] = [None if one is None else one[name] for one in states]
    both = zip(strengths, summary["order_up"], summary["order_down"], strict=True)
    apart = [s for s, up, down in both if None not in (up, down) and abs(up - down) > _SAME]
    return summary | {"hysteresis": [min(apart), max(apart)] if apart else None}
