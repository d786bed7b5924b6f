"""`meanfield-pde transition`: stationary states against the strength of the noise.

Stable states are followed through the strengths, up from the initial density at the smallest, then
down from the last. Each is found by Newton's method from the one before and tested for stability;
where it has lost it, or is gone, the density is evolved until it has settled somewhere else. Where
the ways up and down differ there is hysteresis.

Beside them stand, where the uniform density is stationary,

- the strength at which it loses its stability, a root of the growth rate of its perturbations;
- the branch of ordered states that begins there, by its order parameter r = |∫ x dmu|, with the
  states that are not stable and that no evolution finds. If the strength falls with r^2 from there
  the transition is continuous, if it rises the transition jumps, and the largest strength on the
  branch is that up to which the ordered state survives.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
from scipy.optimize import brentq

from meanfield_pde.attention.layers import layers_of
from meanfield_pde.case.case import Case
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.experiments.case_mesh import case_mesh
from meanfield_pde.experiments.cost import check_steps
from meanfield_pde.experiments.folder import experiment_folder
from meanfield_pde.experiments.taken_up import keep, taken_up
from meanfield_pde.figures.transition import draw_transition
from meanfield_pde.history.store import MASSES
from meanfield_pde.initial.masses import cell_masses
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.results.tables import Row, write_summary, write_table
from meanfield_pde.solver.diagnostics import Diagnostics
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.evolution import Evolution
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.stationary import Stationary, StationaryState, top_of_branch
from meanfield_pde.support.checks import real
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.threads import set_threads
from meanfield_pde.support.versions import versions

LOG = logging.getLogger("meanfield_pde")

TABLE, BRANCH = "transition.csv", "branch.csv"
_FREE = ("noise", "time", "compare", "output")
_TOLERANCE = 1e-14  # of the attention sum: derivatives are taken from differences
_STABLE = 1e-3  # growth in units of the strength that counts as none; turning a state has none
_CHUNK, _PATIENCE = 0.1, 300.0  # times after which, and until when, Newton's method is tried
_ROUGH = 1e-3  # error of a step on the way, which Newton's method takes away
_NEAR = 0.3  # total variation between the density and the state that it is taken to come to
_THERE = 0.01  # total variation between the density and a state that it has come to
_KICK = 0.1  # the largest relative change of a state that is pushed off its balance
_SAME = 0.02  # orders that differ by less are the same state
_ORDERS = (0.05, 0.1, *np.round(np.arange(0.15, 0.96, 0.05), 2))
_UNIFORM = 0.02  # |F| of the uniform density, in units of the strength, if it is a stationary state


def run_transition(
    case: Case,
    strengths: Sequence[float],
    *,
    directory: Path,
    however_long: bool = False,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> dict[str, Any]:
    """Follow, analyse and draw. Collective.

    Args:
        case: attention, mesh, initial density and scheme; its own noise does not matter.
        strengths: of the noise, two or more.
        directory: where transition.csv, branch.csv, summary.json and the figure go.
        however_long: do not refuse evolutions of more than 1e9 steps.
        comm: the ranks that share the work.

    Returns:
        What summary.json says.
    """
    wanted = sorted({real(s, "strengths", "a number > 0", lambda s: s > 0) for s in strengths})
    if len(wanted) < 2:
        raise InputError(f"strengths needs 2 different values or more, got {len(wanted)}")
    if len(layers_of(case.attention)) > 1:
        raise InputError(
            "a transition needs an attention that does not change, got "
            f"{len(layers_of(case.attention))} layers"
        )
    set_threads(comm)
    follower = Follower(case, comm, however_long=however_long)
    with experiment_folder(directory, case, ignore=_FREE, comm=comm):
        rows = follower.there_and_back(wanted, directory / TABLE)
        threshold, shape = follower.threshold(wanted)
        branch = follower.branch(threshold, shape, wanted[0]) if threshold else []
        summary = _summary(case, rows, threshold, branch)
        on_root(comm, _conclude, directory, case, rows, branch, summary)
    return summary


def _conclude(
    directory: Path,
    case: Case,
    rows: list[Row],
    branch: list[StationaryState],
    summary: dict[str, Any],
) -> None:
    """Table of the branch, summary and figure."""
    if branch:
        write_table(directory / BRANCH, [_branch_row(one) for one in branch])
    write_summary(directory, summary | {"versions": versions()})
    draw_transition(directory, case.attention, rows, branch, summary)


class Follower:
    """Follows the stationary states of a case."""

    def __init__(self, case: Case, comm: MPI.Comm, *, however_long: bool = False) -> None:
        self._however_long = however_long
        self.volumes = FiniteVolumes(case_mesh(case.mesh, case.attention, comm))
        settings = SolverCase(case.solver.scheme, _TOLERANCE, "off")
        self._equation = Equation(case.attention, self.volumes, settings)
        self.problem = Stationary(self._equation)
        layer = layers_of(case.attention)[0]
        self._diagnostics = Diagnostics(self.volumes, settings.tolerance, layer, noise=1.0)
        self._start = self.volumes.gather(cell_masses(case.initial, self.volumes))

    def there_and_back(self, strengths: Sequence[float], table: Path) -> list[Row]:
        """A row for each strength on the way up, and on the way down again. Collective.

        Each is kept in the table, and what is there of the same way is not followed again.
        """
        up = [("up", strength) for strength in strengths]
        legs = up + [("down", strength) for strength in strengths[::-1]]
        comm = self.volumes.comm
        rows, last = on_root(comm, taken_up, table, legs, len(self._start))
        masses = self._start if last is None else last
        if rows:
            LOG.info("%d of %d states are in %s already", len(rows), len(legs), table)
        for way, strength in legs[len(rows) :]:
            state, growth = self._follow(masses, strength, bool(rows))
            masses = state.masses
            rows.append(self._row(way, state, growth))
            on_root(comm, keep, table, rows, masses)
            LOG.info("%s, strength %g: order %.6f", way, strength, state.order)
        return rows

    def threshold(self, strengths: Sequence[float]) -> tuple[float | None, np.ndarray]:
        """Where the uniform density loses its stability, and to what; None for nowhere."""
        problem, uniform = self.problem, self.problem.uniform
        low, high = 0.5 * strengths[0], 2 * strengths[-1]
        if np.abs(problem.rate(uniform, high)).sum() > _UNIFORM * high:
            return None, uniform

        def growth(strength: float) -> float:
            return problem.growth(uniform, strength)[0]

        if growth(low) <= 0 or growth(high) >= 0:
            return None, uniform
        found = float(brentq(growth, low, high, rtol=1e-7))
        return found, problem.growth(uniform, found)[1]

    def branch(self, threshold: float, shape: np.ndarray, least: float) -> list[StationaryState]:
        """The ordered states from the threshold on, as far as the least strength. Collective."""
        problem = self.problem
        slope = shape / problem.uniform
        masses = problem.uniform * (1 + 0.05 * slope / np.abs(slope).max())
        # A perturbation of the first moments alone changes the order r.
        if problem.order(shape) < 1e-3 * np.abs(shape).sum():
            return []
        strength = threshold
        found: list[StationaryState] = []
        for order in _ORDERS:
            try:
                state = problem.at_order(masses, strength, order)
            except SolverError as error:
                LOG.info("the ordered states are followed up to r = %g (%s)", order, error)
                break
            found.append(state)
            if state.strength < least:
                break
            masses, strength = state.masses, state.strength
        return found

    def _follow(
        self, masses: np.ndarray, strength: float, settled: bool
    ) -> tuple[StationaryState, float]:
        """The stable state that the masses lead to, and its largest growth rate."""
        if settled:
            found = self._stationary(masses, strength)
            if found is not None:
                state, growth, shape = found
                if growth <= _STABLE * strength:
                    return state, growth
                masses = _pushed(state, shape)
        return self._settle(masses, strength)

    def _stationary(
        self, masses: np.ndarray, strength: float
    ) -> tuple[StationaryState, float, np.ndarray] | None:
        """The stationary state near these masses, its growth rate and shape; None for none."""
        try:
            state = self.problem.newton(masses, strength)
            if np.abs(state.masses - masses / masses.sum()).sum() > _NEAR:
                return None
            return state, *self.problem.growth(state.masses, strength)
        except SolverError:
            return None

    def _settle(self, masses: np.ndarray, strength: float) -> tuple[StationaryState, float]:
        """The stable state that the evolution from these masses comes to."""
        here = self._equation
        equation = Equation(here.attention, self.volumes, here.settings, strength)
        evolution = Evolution(equation, self.volumes.scatter(masses / masses.sum()))
        evolution.split_error = _ROUGH
        assert equation.diffusion is not None
        equation.diffusion.error = _ROUGH / 10
        chunk = _CHUNK / strength
        try:
            what = f"noise.strength = {strength:g}: settling up to t"
            check_steps([evolution], _PATIENCE / strength, what, however_long=self._however_long)
            while evolution.time < _PATIENCE / strength:
                evolution.advance(evolution.time + chunk)
                now = self.volumes.gather(evolution.masses)
                found = self._stationary(now, strength)
                if found is not None:
                    state, growth, shape = found
                    if growth <= _STABLE * strength:
                        return state, growth
                    # By its symmetry the density may come to a state that is not stable, and stay.
                    if np.abs(state.masses - now).sum() < _THERE:
                        pushed = self.volumes.scatter(_pushed(state, shape))
                        evolution.restore({MASSES: pushed}, time=evolution.time, step=0)
                chunk *= 1.5
        finally:
            evolution.close()
        raise SolverError(
            f"noise.strength = {strength:g}: the density has not settled by t = "
            f"{evolution.time:.4g}; leave this strength out"
        )

    def _row(self, way: str, state: StationaryState, growth: float) -> Row:
        self._diagnostics.noise = state.strength
        found = self._diagnostics.row(state.masses)
        names = [name for name in found if name.startswith(("mean_", "second_"))]
        return {
            "way": way,
            "strength": state.strength,
            "order": state.order,
            "free_energy": found["free_energy"],
            "growth": growth,
            "residual": state.residual,
        } | {name: found[name] for name in names}


def _pushed(state: StationaryState, shape: np.ndarray) -> np.ndarray:
    """The masses of a state that is not stable, pushed the way they grow."""
    slope = shape / state.masses
    return state.masses * (1 + _KICK * slope / np.abs(slope).max())


def _branch_row(state: StationaryState) -> Row:
    return {"order": state.order, "strength": state.strength, "residual": state.residual}


def _summary(
    case: Case, rows: list[Row], threshold: float | None, branch: list[StationaryState]
) -> dict[str, Any]:
    """What was found."""
    up = {row["strength"]: row["order"] for row in rows if row["way"] == "up"}
    down = {row["strength"]: row["order"] for row in rows if row["way"] == "down"}
    apart = [strength for strength in up if abs(up[strength] - down[strength]) > _SAME]
    summary: dict[str, Any] = {
        "strengths": list(up),
        "order_up": list(up.values()),
        "order_down": list(down.values()),
        "hysteresis": [min(apart), max(apart)] if apart else None,
        "uniform_stable_from": threshold,
    }
    if len(branch) > 2 and threshold:
        first, second = branch[:2]
        slope = (second.strength - first.strength) / (second.order**2 - first.order**2)
        last, order = top_of_branch(branch)
        summary |= {
            "slope_in_order_squared": slope,
            "transition": "jumps" if slope > 0 else "continuous",
            "ordered_up_to": max(last, threshold),
            "order_there": order if last > threshold else 0.0,
        }
    if not math.isnan(case.attention.beta):
        summary["beta"] = case.attention.beta
    return summary
