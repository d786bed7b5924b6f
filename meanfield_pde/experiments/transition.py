"""`meanfield-pde transition`: stationary states against the strength of the noise.

Stable states are followed through the strengths, up from the initial density at the smallest, then
down from the last. Where the ways up and down differ there is hysteresis.

Beside them stand, where the uniform density is stationary,

- the strength at which it loses its stability, a root of the growth rate of its perturbations;
- the branch of ordered states that begins there, by its order parameter r = |∫ x dmu|, with the
  states that are not stable and that no evolution finds. If the strength falls with r^2 from there
  the transition is continuous, if it rises the transition jumps, and the largest strength on the
  branch is that up to which the ordered state survives;
- where it jumps and there is a free energy, the strength at which those of the ordered and of the
  uniform state cross: below it the ordered one has the lower.

What cannot be found is null in the summary, with its reason under `reasons`; the rest is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
from scipy.optimize import brentq

from meanfield_pde.case.case import Case
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.experiments.folder import experiment_folder
from meanfield_pde.experiments.levels import level, ratio
from meanfield_pde.experiments.transition_continuation import Continuation
from meanfield_pde.experiments.transition_states import (
    States,
    end_of_order,
    kind_of_transition,
    ways,
    with_intervals,
)
from meanfield_pde.figures.failures import drawn_if_possible
from meanfield_pde.results.checked_text import write_summary
from meanfield_pde.results.tables import Row, write_table
from meanfield_pde.solver.stationary import Growth, Stationary, StationaryState
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.checks import real
from meanfield_pde.support.old_names import accept_old_keywords
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.threads import set_threads
from meanfield_pde.support.versions import versions
from meanfield_pde.theory.richardson import FEWEST

TABLE, BRANCH = "transition.csv", "branch.csv"
# Sections in which the case of a folder may differ: strengths replace that of the noise, and the
# others do not change a stationary state.
_FREE = ("noise", "time", "compare", "output")
# Orders r at which the branch is followed: even steps, as figures show it.
_ORDERS = (0.05, 0.1, *np.round(np.arange(0.15, 0.96, 0.05), 2))
# |F| of the uniform density, relative to its largest change by a first or second moment of size
# _SMALL, if it is a stationary state: 0.003 with 320 cells of the sphere at beta = 5, by the mesh.
_UNIFORM, _SMALL = 0.02, 1e-4
# The same relative to the speed of the flow, where first moments change nothing: what roundings of
# 1e-16 and the sum's tolerance of 1e-14 leave.
_ROUNDING = 1e-12
# The threshold is looked for beside the strengths, by this factor at a time, this often: a
# factor 1,000 on either side.
_FURTHER, _TIMES = 4.0, 5
# Of the order at the crossing: it moves the strength by less than 1e-6 of it, as d sigma / d r is
# some -0.3 sigma there (beta = 5).
_ORDER = 1e-7
# Relative change of the uniform density with which the branch begins (chosen, not tuned).
_FIRST = 0.05


@accept_old_keywords
@typed
def run_transition(
    case: Case,
    strengths: Sequence[float],
    *,
    directory: Path,
    check: bool = False,
    allow_long: bool = False,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> dict[str, Any]:
    """Follow, analyse and draw. Collective.

    Args:
        case: attention, mesh, initial density and scheme; its own noise does not matter.
        strengths: of the noise, two or more.
        directory: where transition.csv, branch.csv, summary.json and the figure go.
        check: follow them on two finer meshes, too (`levels`), in folders `level-...`, and conclude
            from the finest, with intervals.
        allow_long: do not refuse evolutions of more than 1e9 steps.
        comm: the ranks that share the work.

    Returns:
        What summary.json says; `states` is the number of states that were found.
    """
    wanted = sorted({real(s, "strengths", "a number > 0", lambda s: s > 0) for s in strengths})
    if len(wanted) < 2:
        raise InputError(f"strengths needs 2 different values or more, got {len(wanted)}")
    if len(case.attention.layers) > 1:
        raise InputError(
            "a transition needs an attention that does not change, got "
            f"{len(case.attention.layers)} layers"
        )
    set_threads(comm)
    if not check:
        return _followed(case, wanted, directory, allow_long, comm).summary
    cases = [level(case, number).case for number in range(FEWEST)]
    with experiment_folder(directory, case, ignore=_FREE, comm=comm):
        levels = [
            _followed(one, wanted, directory / f"level-{number}", allow_long, comm)
            for number, one in enumerate(cases)
        ]
        found = with_intervals(levels, ratio(case))
        on_root(comm, _conclude, directory, case, found)
    return found.summary


def _followed(
    case: Case, strengths: Sequence[float], directory: Path, allow_long: bool, comm: MPI.Comm
) -> States:
    """The states on the mesh of a case, with a folder of their own. Collective."""
    continuation = Continuation(case, comm, allow_long=allow_long)
    with experiment_folder(directory, case, ignore=_FREE, comm=comm):
        rows, missing = continuation.there_and_back(strengths, directory / TABLE)
        branch: list[Row] = []
        found, reasons = _analyse(continuation, strengths, branch)
        branch.sort(key=lambda row: row["order"])  # with the state where free energies cross
        continuation.mark([*rows, *branch], [*rows, *branch])
        if continuation.without_free_energy:
            reasons["free_energy"] = (
                f"{continuation.without_free_energy}: growth rates alone decide what is stable"
            )
        summary = ways(rows, strengths) | found
        summary |= {
            "stability_by": "growth"
            if continuation.without_free_energy
            else "growth and free energy",
            "states": len(rows) + len(branch),
            "missing": [{"way": way, "strength": s, "reason": why} for way, s, why in missing],
            "reasons": reasons,
        }
        if not math.isnan(case.attention.beta):
            summary["beta"] = case.attention.beta
        states = States(rows, branch, continuation.uniform_row, summary)
        on_root(comm, _conclude, directory, case, states)
    return states


def _conclude(directory: Path, case: Case, found: States) -> None:
    """Tables, summary and figure."""
    from meanfield_pde.figures.transition import draw_transition  # matplotlib: see `_lazy`

    for name, table in ((TABLE, found.rows), (BRANCH, found.branch)):
        if table:
            write_table(directory / name, table)
        else:  # of an earlier analysis
            (directory / name).unlink(missing_ok=True)
    write_summary(directory, found.summary | {"versions": versions()})
    if found.rows or found.branch:
        drawn_if_possible(
            draw_transition,
            directory,
            case.attention,
            found.rows,
            found.branch,
            found.uniform,
            found.summary,
        )


def _analyse(
    continuation: Continuation, strengths: Sequence[float], branch: list[Row]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Threshold, kind of the transition, end of order, crossing, and reasons for those None.

    Args:
        continuation: of the states.
        strengths: in increasing order.
        branch: takes the rows of the ordered states that begin at the threshold.
    """
    found: dict[str, Any] = dict.fromkeys(
        ("threshold", "uniform_stable_from", "transition", "ordered_up_to", "crossing")
    )
    reasons: dict[str, str] = {}
    try:
        threshold, growth = find_threshold(continuation.problem, strengths)
    except SolverError as error:
        reasons = dict.fromkeys(found, f"there is no threshold: {error}")
        return found, reasons | {"threshold": str(error), "uniform_stable_from": str(error)}
    found |= {"threshold": threshold, "uniform_stable_from": threshold}
    ended = ""
    ordered: list[StationaryState] = []
    try:
        least = min(strengths[0], threshold)
        follow_branch(continuation, threshold, growth, least, branch, ordered)
    except SolverError as error:
        ended = f": {error}"
    for name, what in (("transition", kind_of_transition), ("ordered_up_to", end_of_order)):
        try:
            found |= what(branch, threshold)
        except SolverError as error:
            reasons[name] = f"{error}{ended}"
    try:
        crossing = free_energy_crossing(continuation, branch, ordered)
        branch.append(crossing)
        found |= {"crossing": crossing["strength"], "order_at_crossing": crossing["order"]}
    except SolverError as error:
        reasons["crossing"] = f"{error}{ended}"
    return found, reasons


def _first_and_second(x: np.ndarray) -> np.ndarray:
    """Coordinates and their products at points x of the whole surface, as columns.

    A kernel that is even, as of two heads of opposite sign, does not see the first ones.
    """
    d = x.shape[1]
    products = [x[:, i] * x[:, j] for i in range(d) for j in range(i, d)]
    return np.column_stack([x, *products])


def find_threshold(problem: Stationary, strengths: Sequence[float]) -> tuple[float, Growth]:
    """Where the uniform density loses its stability, and to what. Collective.

    SolverError if there is no such strength.
    """
    uniform = problem.uniform
    rate = problem.rate(uniform, 0.0)
    moved = float(np.abs(rate).sum())
    change = max(
        float(np.abs(problem.rate(uniform * (1 + _SMALL * x), 0.0) - rate).sum()) / _SMALL
        for x in _first_and_second(problem.mean).T
    )
    allowed = _UNIFORM * change + _ROUNDING * problem.speed
    if moved > allowed:
        raise SolverError(
            f"the uniform density is not a stationary state: it changes at {moved:.3g}, and it "
            f"would by less than {allowed:.3g} by errors of the mesh"
        )

    def growth(strength: float) -> float:
        return problem.growth(uniform, strength).rate

    low, high = strengths[0] / 2, 2 * strengths[-1]
    for _ in range(_TIMES):
        if growth(low) > 0:
            break
        low, high = low / _FURTHER, low
    else:
        raise SolverError(f"the uniform density is stable at every strength down to {high:.3g}")
    for _ in range(_TIMES):
        if growth(high) < 0:
            break
        low, high = high, high * _FURTHER
    else:
        raise SolverError(f"the uniform density is unstable at every strength up to {low:.3g}")
    found = float(brentq(growth, low, high, rtol=1e-7))
    return found, problem.growth(uniform, found)


def follow_branch(
    continuation: Continuation,
    threshold: float,
    growth: Growth,
    least: float,
    branch: list[Row],
    ordered: list[StationaryState],
) -> None:
    """Add the ordered states from the threshold on, and their rows to `branch`. Collective.

    As far as the least strength. SolverError says why it ends before.
    """
    problem = continuation.problem
    # A perturbation of the first moments alone changes the order r.
    if problem.order(growth.shape) < 1e-3 * np.abs(growth.shape).sum():
        raise SolverError("what grows at the threshold does not change the order r = |∫ x dmu|")
    slope = growth.shape / problem.uniform
    masses = problem.uniform * (1 + _FIRST * slope / np.abs(slope).max())
    strength = threshold
    for order in _ORDERS:
        try:
            state = problem.at_order(masses, strength, order)
        except SolverError as error:
            # Such as begins states that turn, if rotations commute with the equation; else none.
            how = ", and what grows at the threshold oscillates" if growth.oscillates else ""
            raise SolverError(f"{error}{how}") from error
        branch.append(continuation.ordered_row(state))
        ordered.append(state)
        if state.strength < least and len(branch) > 2:
            break
        masses, strength = state.masses, state.strength


def free_energy_crossing(
    continuation: Continuation, branch: Sequence[Row], ordered: Sequence[StationaryState]
) -> Row:
    """The row of the ordered state whose free energy is that of the uniform density. Collective.

    Along the branch d F / d sigma is the entropy, which is least for the uniform density: its
    distance to the free energy of the uniform one rises with the strength up to where order ends,
    and falls with it from there on. SolverError says why there is no such state.

    Args:
        continuation: of the states.
        branch: the rows of the ordered states, from the threshold on.
        ordered: these states.
    """
    if continuation.without_free_energy:
        raise SolverError(f"{continuation.without_free_energy}: there is no free energy")
    if not branch:
        raise SolverError("no ordered states were found")
    top = int(np.argmax([row["strength"] for row in branch]))
    if not top:
        raise SolverError("the strength falls along the branch of ordered states: it does not jump")
    above = [row["above_uniform"] for row in branch]
    falls = [i for i in range(top, len(above) - 1) if above[i] > 0 >= above[i + 1]]
    if not falls:
        raise SolverError(
            f"free energies do not cross on the branch of ordered states, which was followed from "
            f"r = {branch[0]['order']:g} to {branch[-1]['order']:g}"
        )
    found, after = ordered[falls[0]], ordered[falls[0] + 1]
    states = {}

    def difference(order: float) -> float:
        states[order] = continuation.problem.at_order(found.masses, found.strength, order)
        return continuation.above_uniform(states[order])

    order = float(brentq(difference, found.order, after.order, xtol=_ORDER))
    return continuation.ordered_row(states[order])


# By the name of its command, as the package exports it.
transition = run_transition
