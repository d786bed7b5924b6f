"""Stationary states with noise, followed from one strength to the next.

Each is found by Newton's method from the one before and tested for stability; where it has lost it,
or is gone, the density is evolved until it has settled somewhere else. What only turns a state is
left out of both (see `meanfield_pde.solver.turning`).

Where the equation has a free energy, a density is never left for one whose free energy is higher;
else growth rates alone decide.

The rows so far are kept with the masses of the state of the last one, from which the next is
followed, so that a `transition` that was stopped goes on if its way is the same.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mpi4py import MPI

import numpy as np

from meanfield_pde.case.case import Case
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.experiments.case_mesh import case_mesh
from meanfield_pde.experiments.cost import check_steps
from meanfield_pde.experiments.transition_states import LOWER, mark_states
from meanfield_pde.initial.masses import cell_masses
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.results.tables import Row, read_table, write_table
from meanfield_pde.solver.controller import Controller
from meanfield_pde.solver.diagnostics import Diagnostics, Snapshot
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.observables import Kind, columns_of, row_of
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.stationary import Growth, Stationary, StationaryState, is_stable
from meanfield_pde.solver.step_control import StepSettings
from meanfield_pde.solver.transport import Transport
from meanfield_pde.support.npz import read_arrays, write_arrays
from meanfield_pde.support.ranks import on_root
from meanfield_pde.theory.symmetry import without_free_energy

LOG = logging.getLogger("meanfield_pde")

# Of the attention sum: derivatives are differences over 1e-5 (`solver.linearised`), known to 1e-9.
_TOLERANCE = 1e-14
# Times, in units of 1/sigma, after which and until when Newton's method is tried: a bound on the
# cost (chosen, not tuned).
_CHUNK, _PATIENCE = 0.1, 300.0
_ROUGH = 1e-3  # error of a step on the way, which Newton's method takes away
# Total variation between the density and the state that it is taken to come to, and between the
# density and a state that it has come to (chosen, not tuned).
_NEAR, _THERE = 0.3, 0.01
# Largest relative change of a state that is pushed off its balance: small, so that the fastest
# perturbation decides where it goes, and 1e5 times what rounding would leave it to grow from.
_KICK = 0.1


@dataclass(frozen=True, eq=False)
class Found:
    """A stationary state, and its fastest perturbation."""

    state: StationaryState
    growth: Growth

    @property
    def stable(self) -> bool:
        """Whether no perturbation grows."""
        return is_stable(self.growth.rate, self.state.strength)


class Continuation:
    """Follows the stationary states of a case.

    Attributes:
        volumes: the mesh.
        problem: the stationary problem.
        without_free_energy: why the equation has no free energy; "" if it has one.
        uniform_row: the row of the uniform density, at strength one.
    """

    def __init__(self, case: Case, comm: MPI.Comm, *, allow_long: bool = False) -> None:
        self._allow_long = allow_long
        self.volumes = FiniteVolumes(case_mesh(case.mesh, case.attention, comm))
        settings = SolverCase(case.solver.scheme, _TOLERANCE, "off")
        transport = Transport(self.volumes, settings.scheme_of(noise=True))
        self._equation = Equation(case.attention, self.volumes, settings, transport=transport)
        self.problem = Stationary(self._equation)
        layer = case.attention.layers[0]
        self.without_free_energy = without_free_energy(layer)
        self._diagnostics = Diagnostics(self.volumes, settings.tolerance, layer)
        self._columns = columns_of(self.volumes.dimension, Kind(noise=True))
        uniform, order = self.problem.uniform, self.problem.order(self.problem.uniform)
        self.uniform_row = self.row(StationaryState(uniform, 1.0, order, np.nan), np.nan)
        self._start = self.volumes.gather(cell_masses(case.initial, self.volumes))

    def there_and_back(
        self, strengths: Sequence[float], table: Path
    ) -> tuple[list[Row], list[Missing]]:
        """A row for each strength on the way up, and on the way down again. Collective.

        Each is kept in the table, and what is there of the same way is not followed again. What
        is not found, and why, is returned beside them; the way goes on from the last state.
        """
        up = [("up", strength) for strength in strengths]
        legs = up + [("down", strength) for strength in strengths[::-1]]
        comm = self.volumes.comm
        rows, missing, last = on_root(comm, resume, table, legs, len(self._start))
        masses = self._start if last is None else last
        done = len(rows) + len(missing)
        if done:
            LOG.info("%d of %d states are in %s already", done, len(legs), table)
        for way, strength in legs[done:]:
            try:
                found = self._follow(masses, strength, bool(rows))
            except SolverError as error:
                missing.append((way, strength, str(error)))
                LOG.warning("%s, strength %g: %s", way, strength, error)
                continue
            masses = found.state.masses
            rows.append({"way": way} | self.row(found.state, found.growth.rate))
            self.mark(rows, rows)
            on_root(comm, keep, table, rows, missing, masses)
            LOG.info("%s, strength %g: order %.6f", way, strength, found.state.order)
        return rows, missing

    def mark(self, rows: Sequence[Row], known: Sequence[Row]) -> None:
        """Say of rows whether they are stable, by all rows that are known."""
        width = float(self.problem.volume.mean()) ** (1 / (self.volumes.dimension - 1))
        mark_states(rows, [self.uniform_row, *known], width, self.without_free_energy)

    def row(self, state: StationaryState, growth: float) -> Row:
        """What a table says about a state; its stability is yet to be marked. Collective."""
        found = row_of(self._columns, self._snapshot(state.masses, state.strength))
        names = [name for name in found if name.startswith(("mean_", "second_"))]
        names.remove("mean_norm")  # a table that is gone on with has no such column
        return {
            "strength": state.strength,
            "order": state.order,
            "free_energy": found["free_energy"],
            "growth": growth,
            "stability": "",
            "residual": state.residual,
            "turning": state.turning,
            "energy": found["energy"],
        } | {name: found[name] for name in names}

    def ordered_row(self, state: StationaryState) -> Row:
        """The row of a state on the branch of ordered ones. Collective."""
        row = self.row(state, self.problem.growth(state.masses, state.strength).rate)
        if not self.without_free_energy:
            row["above_uniform"] = self.above_uniform(state)
        return row

    def above_uniform(self, state: StationaryState) -> float:
        """By how much its free energy is above that of the uniform density. Collective."""
        masses = state.masses, self.problem.uniform
        ours, uniform = (self._snapshot(one, state.strength).free_energy for one in masses)
        return float(ours - uniform)

    def _follow(self, masses: np.ndarray, strength: float, settled: bool) -> Found:
        """The stable state that the masses lead to."""
        if settled:
            found = self._stationary(masses, strength)
            if found is not None and found.stable and self._below(found.state, masses):
                return found
        return self._settle(masses, strength)

    def _stationary(self, masses: np.ndarray, strength: float) -> Found | None:
        """The stationary state near these masses; None for none."""
        try:
            state = self.problem.newton(masses, strength)
            if _distance(state, masses) > _NEAR:
                return None
            return Found(state, self.problem.growth(state.masses, strength))
        except SolverError:
            return None

    def _below(self, state: StationaryState, masses: np.ndarray) -> bool:
        """Whether the free energy, if there is one, lets these masses come to a state."""
        if self.without_free_energy:
            return True
        there, here = (
            self._snapshot(one, state.strength).free_energy for one in (state.masses, masses)
        )
        return bool(there <= here + LOWER * state.strength)

    def _snapshot(self, masses: np.ndarray, strength: float) -> Snapshot:
        """The functionals of masses, with noise of this strength."""
        return Snapshot(masses, self._diagnostics, masses, noise=strength)

    def _settle(self, masses: np.ndarray, strength: float) -> Found:
        """The stable state that the evolution from these masses comes to."""
        here = self._equation
        equation = Equation(here.attention, self.volumes, here.settings, strength)
        before = now = masses / masses.sum()
        steps = StepSettings(splitting=_ROUGH, diffusion=_ROUGH / 10)
        evolution = Controller.start(equation, now, steps=steps)
        chunk = _CHUNK / strength
        left: Found | None = None
        try:
            what = f"noise.strength = {strength:g}: settling up to t"
            check_steps([evolution], _PATIENCE / strength, what, allow_long=self._allow_long)
            while evolution.time < _PATIENCE / strength:
                evolution.advance(evolution.time + chunk)
                before, now = now, self.volumes.gather(evolution.masses)
                found = self._stationary(now, strength)
                chunk *= 1.5
                if found is None:
                    continue
                distance = _distance(found.state, now)
                if found.stable:
                    comes = distance < max(_THERE, _distance(found.state, before))
                    if comes and self._below(found.state, now):
                        if left is None or self._below(found.state, left.state.masses):
                            return found
                        return left
                # By its symmetry the density may come to a state that is not stable, and stay.
                elif distance < _THERE:
                    left = found
                    now = _pushed(found, now)
                    evolution.set_masses(now)
        finally:
            evolution.close()
        raise SolverError(
            f"noise.strength = {strength:g}: the density has not settled by t = "
            f"{evolution.time:.4g}; leave this strength out"
        )


def _distance(state: StationaryState, masses: np.ndarray) -> float:
    """Total variation between a state and masses, which need not add up to one."""
    return float(np.abs(state.masses - masses / masses.sum()).sum())


def _pushed(found: Found, masses: np.ndarray) -> np.ndarray:
    """The masses of a state that is not stable, pushed the way they grow, toward given masses."""
    state = found.state.masses
    slope = found.growth.shape / state
    toward = float(slope @ (masses - state))
    return np.asarray(state * (1 + np.copysign(_KICK, toward) * slope / np.abs(slope).max()))


STATE = "state.npz"

# A way, "up" or "down", and a strength of the noise.
Leg = tuple[str, float]
# The same of a state that was not found, and why.
Missing = tuple[str, float, str]


def keep(table: Path, rows: Sequence[Row], missing: Sequence[Missing], masses: np.ndarray) -> None:
    """Write the rows, and then the state that the last of them belongs to."""
    write_table(table, rows)
    without = np.array([(way, repr(s), why) for way, s, why in missing], dtype=str).reshape(-1, 3)
    write_arrays(table.with_name(STATE), {"rows": len(rows), "missing": without, "masses": masses})


def resume(
    table: Path, legs: Sequence[Leg], cells: int
) -> tuple[list[Row], list[Missing], np.ndarray | None]:
    """What need not be made again, and the masses of the last row; none if it went elsewhere.

    Args:
        table: the file of rows.
        legs: all that are wanted, in order.
        cells: number of masses.

    Returns:
        The rows, the states that were looked for and not found, the masses.
    """
    path = table.with_name(STATE)
    if not (table.is_file() and path.is_file()):
        return [], [], None
    try:
        state = read_arrays(path)
        count, masses = int(state["rows"]), state["masses"]
        missing = [(str(way), float(s), str(why)) for way, s, why in state["missing"]]
    except (InputError, KeyError, TypeError, ValueError):  # nobody's work but our own: made again
        return [], [], None
    rows = [  # what is not known stands as nothing in the table
        {name: math.nan if value is None else value for name, value in row.items()}
        for row in read_table(table)[:count]
    ]
    done = legs[: count + len(missing)]
    without = [(way, strength) for way, strength, _ in missing]
    same = [(row["way"], row["strength"]) for row in rows] == [
        leg for leg in done if leg not in without
    ]
    if len(rows) < count or not same or masses.shape != (cells,):
        return [], [], None
    return rows, missing, masses
