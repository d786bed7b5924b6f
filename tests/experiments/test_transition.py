"""The transition in the strength of noise: thresholds, kinds, folds, the command."""

from __future__ import annotations

import json

from mpi4py import MPI

import numpy as np
import pytest
from scipy.special import iv, spherical_in

from meanfield_pde import Attention, SolverError, read_case
from meanfield_pde.errors import StoppedError
from meanfield_pde.experiments.transition import Follower
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.results.tables import read_table
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.stationary import Stationary, StationaryState, top_of_branch
from tests.problems import MESHES

# Where the transition of the flow without the denominator begins to jump (arXiv:2604.16288).
JUMPS_FROM = {2: 2.44692, 3: 1.81615}
CELLS = {2: 200, 3: 1280}


def stationary(d, beta, cells, normalise=False):
    volumes = FiniteVolumes(MESHES[d](cells))
    one = np.eye(d)
    attention = Attention(one, one, one, beta, normalise)
    return Stationary(Equation(attention, volumes, SolverCase("muscl", 1e-14)))


def threshold(d, beta):
    """Sigma = I_1(beta) / beta on the circle, i_1(beta) / beta on the sphere."""
    return (iv(1, beta) if d == 2 else spherical_in(1, beta)) / beta


def branch(problem, strength, orders):
    axis = problem.volumes.gather(problem.volumes.cell_mean[: problem.volumes.owned])[:, 0]
    masses = problem.uniform * (1 + 0.2 * axis)
    found = []
    for order in orders:
        found.append(problem.at_order(masses, strength, order))
        masses, strength = found[-1].masses, found[-1].strength
    return found


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("beta", [1.0, 5.0])
def test_the_uniform_state_loses_its_stability_where_theory_says(d, beta):
    """The sign of its largest growth rate changes within one per cent."""
    problem, exact = stationary(d, beta, CELLS[d]), threshold(d, beta)
    assert problem.growth(problem.uniform, 0.99 * exact)[0] > 0
    assert problem.growth(problem.uniform, 1.01 * exact)[0] < 0


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("share", [0.95, 1.05])
def test_the_transition_begins_to_jump_where_theory_says(d, share):
    """The sign of d sigma / d r^2 on the branch of ordered states, 5 % beside beta*."""
    beta = share * JUMPS_FROM[d]
    problem = stationary(d, beta, CELLS[d])
    first, second = branch(problem, threshold(d, beta), (0.1, 0.2))
    assert np.sign(second.strength - first.strength) == (1 if share > 1 else -1)


def test_how_far_the_ordered_state_survives():
    """Beta = 5 on the circle: the top of the branch, the same on two meshes and by parabolas."""
    tops = []
    for cells in (80, 160):
        found = branch(stationary(2, 5.0, cells), threshold(2, 5.0), (0.2, 0.4, 0.5, 0.6, 0.7))
        tops.append(top_of_branch(found)[0])
    assert tops[1] == pytest.approx(tops[0], rel=4e-3)
    assert tops[1] == pytest.approx(5.43, abs=0.02)
    assert tops[1] > 1.05 * threshold(2, 5.0)


def test_states_of_noisy_oscillators():
    """Beta = 0: r = I_1(r / sigma) / I_0(r / sigma), a test of Newton's method alone."""
    problem = stationary(2, 0.0, 400, normalise=True)
    (state,) = branch(problem, 0.4, (0.6,))
    assert iv(1, 0.6 / state.strength) / iv(0, 0.6 / state.strength) == pytest.approx(0.6, abs=1e-4)
    assert state.residual < 1e-9
    again = problem.newton(state.masses * np.exp(0.1 * np.cos(np.arange(400))), state.strength)
    assert again.order == pytest.approx(0.6, abs=1e-6)
    assert problem.growth(again.masses, state.strength)[0] < 1e-4


def test_no_state_is_an_error():
    problem = stationary(2, 0.0, 60, normalise=True)
    with pytest.raises(SolverError, match="no stationary state was found"):
        problem.at_order(problem.uniform, 0.4, 1.5)


CASE = """
[attention]
query = [[1.0, 0.0], [0.0, 1.0]]
key   = [[1.0, 0.0], [0.0, 1.0]]
value = [[1.0, 0.0], [0.0, 1.0]]
beta  = 4.0
normalise = false
[mesh]
cells = 60
[initial]
kind = "expression"
density = "exp(2*x)"
[time]
until = 1.0
"""


def test_a_state_that_is_not_stable_is_left(write_case):
    """By its symmetry a density may stay at a state between two cells, which grows at 0.06.

    On 40 cells; the states it may turn to, half a cell of 9 degrees away, are stable.
    """
    follower = Follower(
        read_case(write_case(CASE, ("cells = 60", "cells = 40"), ("2*x", "7*x"))), MPI.COMM_WORLD
    )
    between = follower.problem.at_order(follower._start, 2.0, 0.92)
    assert follower.problem.growth(between.masses, between.strength)[0] > 0.05
    state, growth = follower._settle(between.masses, between.strength)
    assert growth < 1e-3
    x, y = state.masses @ follower.problem._mean
    assert np.degrees(np.arctan2(y, x)) % 9 == pytest.approx(4.5, abs=0.1)
    assert state.order == pytest.approx(between.order, abs=1e-3)


def test_a_stopped_transition_is_taken_up(write_case, tmp_path, monkeypatch):
    """States that were found are not followed again, and the next begins with the last of them."""
    case = read_case(write_case(CASE, ("cells = 60", "cells = 20")))
    followed = []

    def follow(self, masses, strength, settled):
        if len(followed) == 3:
            raise StoppedError("by a signal")
        followed.append((round(masses[0] / self.problem.uniform[0]), settled))
        step = self.problem.uniform * (strength + len(followed))
        return StationaryState(step, strength, strength, 0.0), -1.0

    follower, table = Follower(case, MPI.COMM_WORLD), tmp_path / "transition.csv"
    follower._start = follower.problem.uniform
    monkeypatch.setattr(Follower, "_follow", follow)
    with pytest.raises(StoppedError):
        follower.there_and_back((2.0, 4.0), table)
    assert followed == [(1.0, False), (3.0, True), (6.0, True)]
    followed = []
    rows = follower.there_and_back((2.0, 4.0), table)
    assert followed == [(7.0, True)]
    legs = [("up", 2.0), ("up", 4.0), ("down", 4.0), ("down", 2.0)]
    assert [(row["way"], row["strength"]) for row in rows] == legs
    assert rows == read_table(table)
    followed = []
    assert follower.there_and_back((2.0, 4.0), table) == rows
    assert followed == []
    with pytest.raises(StoppedError):  # another way begins anew
        follower.there_and_back((2.0, 5.0), table)
    assert followed[0] == (1.0, False)


@pytest.mark.slow
def test_the_command(main, write_case, tmp_path):
    """Hysteresis at beta = 4, between the uniform state's threshold and the top of the branch."""
    folder = tmp_path / "transition"
    exact = threshold(2, 4.0)
    strengths = [exact * share for share in (0.95, 1.03, 1.2)]
    code, _ = main("transition", write_case(CASE), "--strength", *strengths, "--output", folder)
    assert code == 0
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["transition"] == "jumps"
    assert summary["uniform_stable_from"] == pytest.approx(exact, rel=0.02)
    assert 1.03 < summary["ordered_up_to"] / exact < 1.2
    assert summary["hysteresis"] == pytest.approx([strengths[1]] * 2)
    rows = read_table(folder / "transition.csv")
    assert len(rows) == 6
    assert all(row["growth"] <= 1e-3 * row["strength"] for row in rows)
    free = {(row["way"], row["strength"]): row["free_energy"] for row in rows}
    assert free["up", strengths[0]] == pytest.approx(free["down", strengths[0]], abs=1e-6)
    assert (folder / "figures" / "transition.png").is_file()


@pytest.mark.parametrize(
    ("strengths", "fragment"),
    [((1,), "needs 2 different values"), ((0, 1), "finite number > 0"), ((-1, 1), "number > 0")],
)
def test_wrong_strengths(main, write_case, tmp_path, strengths, fragment):
    code, error = main(
        "transition", write_case(CASE), "--strength", *strengths, "--output", tmp_path / "out"
    )
    assert code == 2
    assert fragment in error
    assert not (tmp_path / "out").exists()
