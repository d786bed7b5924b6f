"""The transition in the strength of noise: thresholds, kinds, folds, the command."""

from __future__ import annotations

import functools
import json

from mpi4py import MPI

import numpy as np
import pytest
from scipy.special import iv, spherical_in

from meanfield_pde import Attention, Heads, SolverError, read_case
from meanfield_pde.errors import StoppedError
from meanfield_pde.experiments.transition import find_threshold
from meanfield_pde.experiments.transition_continuation import Continuation, Found
from meanfield_pde.experiments.transition_states import top_of_branch
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.results.tables import read_table
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.stationary import Growth, Stationary, StationaryState
from tests.oracles import axisymmetric_state, free_energies_cross
from tests.problems import MESHES

# Where the transition of the flow without the denominator begins to jump (arXiv:2604.16288).
JUMPS_FROM = {2: 2.44692, 3: 1.81615}
CELLS = {2: 200, 3: 1280}


@functools.cache
def volumes_of(d, cells):
    return FiniteVolumes(MESHES[d](cells))


def stationary(d, beta, cells, normalise=False):
    one = np.eye(d)
    attention = Attention(one, one, one, beta, normalise)
    return Stationary(Equation(attention, volumes_of(d, cells), SolverCase("muscl", 1e-14)))


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


@pytest.mark.parametrize(
    ("d", "beta"),
    [
        (2, 1.0),
        (2, 5.0),
        (3, 1.0),
        pytest.param(3, JUMPS_FROM[3], marks=pytest.mark.slow),
        pytest.param(3, 2.5, marks=pytest.mark.slow),
        (3, 5.0),
    ],
)
def test_the_uniform_state_loses_its_stability_where_theory_says(d, beta):
    """Wherever the strengths are; at the threshold all first moments, and the mass, have rate 0."""
    problem, exact = stationary(d, beta, CELLS[d]), threshold(d, beta)
    found, growth = find_threshold(problem, [0.8 * exact, 0.9 * exact])
    assert found == pytest.approx(exact, rel=2e-3)
    assert growth.rate == pytest.approx(0, abs=1e-5 * exact)
    assert growth.shape.sum() == pytest.approx(0, abs=1e-10)
    # The shape is a first moment: f = <a, x>.
    axes = problem.uniform[:, None] * problem.mean
    rest = growth.shape - axes @ np.linalg.lstsq(axes, growth.shape)[0]
    assert np.linalg.norm(rest) < 0.02 * np.linalg.norm(growth.shape)


def test_an_even_kernel_has_a_threshold_too():
    """Two heads of opposite sign do not see first moments: degree 2 grows, below 4 i_2(beta)."""
    one, beta = np.eye(3), 0.5
    heads = Heads(
        [Attention(sign * one, one, sign * one, beta, normalise=False) for sign in (1, -1)]
    )
    equation = Equation(
        heads, FiniteVolumes(MESHES[3](80)), SolverCase("muscl", 1e-14, "off"), 0.05
    )
    found, _ = find_threshold(Stationary(equation), [0.02, 0.1])
    assert found == pytest.approx(2 * spherical_in(2, beta) / beta, rel=5e-3)


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
        tops.append(top_of_branch([one.strength for one in found], [one.order for one in found])[0])
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
    assert problem.growth(again.masses, state.strength).rate < 1e-4


def test_no_state_is_an_error():
    problem = stationary(2, 0.0, 20, normalise=True)
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


def continuation(write_case, *changes):
    return Continuation(read_case(write_case(CASE, *changes)), MPI.COMM_WORLD)


def test_a_state_that_is_not_stable_is_left(write_case):
    """By its symmetry a density may stay at one, here the uniform density for ever."""
    following = continuation(write_case, ("cells = 60", "cells = 20"), ("exp(2*x)", "1"))
    problem = following.problem
    assert problem.growth(problem.uniform, 2.0).rate > 0.2
    found = following._settle(problem.uniform, 2.0)
    assert found.state.order > 0.8
    assert found.growth.rate < -0.1


@pytest.mark.parametrize(("d", "axis"), [(2, (0.8, 0.6)), (3, (1, 0, 0)), (3, (0.6, 0.48, 0.64))])
def test_what_only_turns_a_state_does_not_count(d, axis):
    """The mesh pins an ordered state, or turns it; rates are those of any direction.

    Without what turns it, the slowest perturbation is the same wherever the state points.
    """
    problem = stationary(d, 5.0, 320 if d == 3 else 24)
    strength = {2: 4.8, 3: 3.15}[d]
    z = problem.mean @ np.array(axis)
    state = problem.newton(problem.uniform * np.exp(45 / strength * np.exp(5 * (z - 1))), strength)
    assert state.order > 0.8
    assert state.residual < 1e-8
    growth = problem.growth(state.masses, strength)
    assert growth.rate / strength == pytest.approx({2: -0.33, 3: -0.75}[d], abs=0.02)
    # It is symmetric about the axis of the state, as nothing that turns it is.
    mean = state.masses @ problem.mean
    across = growth.shape @ problem.mean
    along = across @ mean / np.linalg.norm(mean)
    assert np.linalg.norm(across) == pytest.approx(abs(along), rel=0.05)


def test_a_stopped_transition_is_resumed(write_case, tmp_path, monkeypatch):
    """States that were found are not followed again, and the next begins with the last of them."""
    case = read_case(write_case(CASE, ("cells = 60", "cells = 20")))
    followed = []

    def follow(self, masses, strength, settled):
        if len(followed) == 3:
            raise StoppedError("by a signal")
        followed.append((round(masses[0] / self.problem.uniform[0]), settled))
        step = self.problem.uniform * (strength + len(followed))
        state = StationaryState(step, strength, strength, 0.0)
        return Found(state, Growth(-1.0, step, False))

    following, table = Continuation(case, MPI.COMM_WORLD), tmp_path / "transition.csv"
    following._start = following.problem.uniform
    monkeypatch.setattr(Continuation, "_follow", follow)
    with pytest.raises(StoppedError):
        following.there_and_back((2.0, 4.0), table)
    assert followed == [(1.0, False), (3.0, True), (6.0, True)]
    followed = []
    rows, _ = following.there_and_back((2.0, 4.0), table)
    assert followed == [(7.0, True)]
    legs = [("up", 2.0), ("up", 4.0), ("down", 4.0), ("down", 2.0)]
    assert [(row["way"], row["strength"]) for row in rows] == legs
    assert rows == read_table(table)
    followed = []
    assert following.there_and_back((2.0, 4.0), table) == (rows, [])
    assert followed == []
    with pytest.raises(StoppedError):  # another way begins anew
        following.there_and_back((2.0, 5.0), table)
    assert followed[0] == (1.0, False)


def test_states_that_turn(json_of, write_case, tmp_path):
    """V = R(phi): ordered states turn for ever.

    By Jacobi and Anger a first moment grows at cos(phi) I_1(beta) / (beta I_0(beta)) - sigma.
    """
    turned = "value = [[0.8, -0.6], [0.6, 0.8]]"
    case = write_case(
        CASE,
        ("value = [[1.0, 0.0], [0.0, 1.0]]", turned),
        ("normalise = false", ""),
        ("beta  = 4.0", "beta = 2.0"),
        ("cells = 60", "cells = 40"),
    )
    summary = json_of("transition", case, "--strength", 0.2, 0.3, "--output", tmp_path / "out")
    exact = 0.8 * iv(1, 2.0) / (2.0 * iv(0, 2.0))
    assert summary["threshold"] == pytest.approx(exact, rel=5e-3)
    assert summary["transition"] == "continuous"
    rows = read_table(tmp_path / "out/transition.csv")
    assert [row["order"] > 0.1 for row in rows] == [True, False, False, True]
    assert [row["turning"] > 0.1 for row in rows] == [True, False, False, True]
    assert all(row["stability"] == "stable" for row in rows)


@pytest.mark.painted
def test_the_command(json_of, write_case, tmp_path):
    """Hysteresis at beta = 4, between the uniform state's threshold and the top of the branch."""
    folder = tmp_path / "transition"
    exact = threshold(2, 4.0)
    strengths = [exact * share for share in (0.9, 1.03, 1.3)]
    summary = json_of(
        "transition",
        write_case(CASE, ("cells = 60", "cells = 40")),
        "--strength",
        *strengths[::-1],
        "--output",
        folder,
    )
    written = json.loads((folder / "summary.json").read_text())
    assert written.pop("versions")
    assert written.pop("sha256")
    assert written == summary
    assert summary["strengths"] == strengths
    assert summary["threshold"] == summary["uniform_stable_from"]
    assert summary["threshold"] == pytest.approx(exact, rel=2e-3)
    assert summary["transition"] == "jumps"
    assert 1.03 < summary["ordered_up_to"] / exact < 1.2
    assert exact < summary["crossing"] < summary["ordered_up_to"]
    assert summary["reasons"] == {}
    assert summary["stability_by"] == "growth and free energy"
    assert summary["hysteresis"] == pytest.approx([strengths[1]] * 2)
    # Both ways in the order of the strengths: ordered below, and above the threshold on the way up.
    assert [order > 0.5 for order in summary["order_up"]] == [True, True, False]
    assert [order > 0.5 for order in summary["order_down"]] == [True, False, False]
    assert summary["stability_up"] == ["stable", "stable", "stable"]
    assert summary["stability_down"] == ["stable", "metastable", "stable"]
    rows = read_table(folder / "transition.csv")
    assert list(rows[0])[:6] == [
        "way", "strength", "order", "free_energy", "growth", "stability",
    ]  # fmt: skip
    assert [row["stability"] for row in rows] == [
        *summary["stability_up"],
        *summary["stability_down"][::-1],
    ]
    free = {(row["way"], row["strength"]): row["free_energy"] for row in rows}
    assert free["up", strengths[0]] == pytest.approx(free["down", strengths[0]], abs=1e-6)
    branch = read_table(folder / "branch.csv")
    top = max(branch, key=lambda row: row["strength"])
    for row in branch:
        if row["order"] < top["order"]:
            assert row["stability"] == "unstable"
        elif row is not top:
            assert row["stability"] in ("stable", "metastable")
    assert branch[-1]["stability"] == "stable"
    assert (folder / "figures" / "transition.png").is_file()


def test_free_energies_cross_where_they_were_published_to(main, drawn, write_case, tmp_path):
    """Sigma = 5.319833 at beta = 5 on the circle (arXiv:2604.16288), in an interval of 1e-4."""
    exact = free_energies_cross(5.0, 5.0, 5.4, 12.0, 2)
    assert exact == pytest.approx(5.319833, abs=5e-7)
    changes = ("beta  = 4.0", "beta  = 5.0"), ("cells = 60", "cells = 50"), ("2*x", "8*x")
    folder = tmp_path / "out"
    code, err = main(
        "transition", write_case(CASE, *changes), "--strength", 5.2, 5.4, "--check",
        "--output", folder,
    )  # fmt: skip
    assert (code, "free energies cross at 5.3198" in err) == (0, True)
    assert "crossing: 5.3198" in err
    summary = json.loads((folder / "summary.json").read_text())
    found = summary["numbers"]["crossing"]
    assert found["low"] < exact < found["high"]
    assert found["high"] - found["low"] < 2e-4
    assert found["values"][-1] == summary["crossing"]
    branch = read_table(folder / "branch.csv")
    assert [row["order"] for row in branch] == sorted(row["order"] for row in branch)
    (row,) = (one for one in branch if one["order"] == summary["order_at_crossing"])
    assert row["strength"] == summary["crossing"]
    assert row["strength_low"] < exact < row["strength_high"]
    assert row["above_uniform"] == pytest.approx(0, abs=1e-6)
    below = [one for one in branch if one["order"] > row["order"]]
    assert len(below) >= 2
    assert {one["above_uniform"] < 0 for one in below} == {True}
    assert {one["stability"] for one in below} == {"stable"}
    for panel, name in enumerate(("order", "free_energy")):
        lines = drawn[-1].axes[panel].get_lines()
        (at,) = (line for line in lines if str(line.get_label()).startswith("free energies cross"))
        assert np.ravel(at.get_data()).tolist() == [row["strength"], row[name]]


SPHERE = CASE.replace("[1.0, 0.0], [0.0, 1.0]", "[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]")
SPHERE = SPHERE.replace("beta  = 4.0", "beta  = 5.0").replace("2*x", "12*x")


@pytest.mark.parametrize(
    ("cells", "strengths", "error"),
    [
        (320, (3.15, 3.24), 0.015),
        pytest.param(1280, (3.0, 3.17, 3.24), 5e-3, marks=pytest.mark.slow),
    ],
)
def test_the_sphere(json_of, write_case, tmp_path, cells, strengths, error):
    """Ordered states against quadrature; they have the lower free energy up to 3.206711."""
    case = write_case(SPHERE, ("cells = 60", f'kind = "sphere"\ncells = {cells}'))
    summary = json_of("transition", case, "--strength", *strengths, "--output", tmp_path / "out")
    exact = [axisymmetric_state(5.0, strength, 12.0) for strength in strengths]
    uniform = [axisymmetric_state(5.0, strength, 0.0) for strength in strengths]
    for way in ("up", "down"):
        np.testing.assert_allclose(summary[f"order_{way}"], [r for r, _ in exact], atol=error)
        assert summary[f"stability_{way}"] == [
            "stable" if one < other else "metastable"
            for (_, one), (_, other) in zip(exact, uniform, strict=True)
        ]
    assert summary["threshold"] == pytest.approx(threshold(3, 5.0), rel=2e-3)
    assert summary["transition"] == "jumps"
    if cells > 320:  # where the mesh has its sign right
        crossing = free_energies_cross(5.0, 3.0, 3.3, 12.0, 3)
        assert summary["crossing"] == pytest.approx(crossing, abs=error)
    # Just below where quadrature loses the ordered state, between 3.40 and 3.45.
    assert summary["ordered_up_to"] == pytest.approx(3.413, abs=0.02)
    assert summary["reasons"] == {}
    for name in ("transition", "branch"):
        for row in read_table(tmp_path / f"out/{name}.csv"):
            assert row["stability"] in ("stable", "metastable", "unstable")


@pytest.mark.parametrize(("beta", "kind"), [(2.2, "continuous"), (2.7, "jumps")])
def test_kinds_of_transition(json_of, write_case, tmp_path, beta, kind):
    """Also where all strengths are above the threshold."""
    case = write_case(CASE, ("beta  = 4.0", f"beta = {beta}"), ("cells = 60", "cells = 100"))
    summary = json_of("transition", case, "--strength", 3, 4, "--output", tmp_path / "out")
    exact = threshold(2, beta)
    assert summary["threshold"] == pytest.approx(exact, rel=1e-3)
    assert summary["transition"] == kind
    assert (summary["ordered_up_to"] > summary["threshold"]) == (kind == "jumps")
    assert summary["ordered_up_to"] == pytest.approx(exact, rel=4e-3)
    if kind == "jumps":
        assert exact < summary["crossing"] < summary["ordered_up_to"]
    else:
        assert summary["crossing"] is None
        assert "it does not jump" in summary["reasons"]["crossing"]
    # Exchange of stability, also next to the threshold where rates are small.
    branch = read_table(tmp_path / "out/branch.csv")
    first = "unstable" if kind == "jumps" else "stable"
    assert branch[0]["stability"] == first


@pytest.mark.painted
@pytest.mark.parametrize(
    ("changes", "reasons"),
    [
        (
            [("value = [[1.0, 0.0], [0.0, 1.0]]", "value = [[-1.0, 0.0], [0.0, -1.0]]")],
            {
                "threshold": "the uniform density is stable at every strength down to",
                "transition": "there is no threshold: the uniform density is stable",
                "free_energy": "value is not query^T key: growth rates alone decide",
            },
        ),
        (
            [("value = [[1.0, 0.0], [0.0, 1.0]]", "value = [[1.0, 0.0], [0.0, 0.3]]")],
            {"threshold": "the uniform density is not a stationary state"},
        ),
        (
            [("normalise = false", ""), ("beta  = 4.0", 'beta = "inf"')],
            {"threshold": "the uniform density is stable at every strength down to"},
        ),
        (
            [("normalise = false", "")],
            {"free_energy": "the softmax has its denominator"},
        ),
    ],
)
def test_what_is_not_known_has_its_reason(json_of, write_case, tmp_path, changes, reasons):
    case = write_case(CASE, ("cells = 60", "cells = 24"), *changes)
    summary = json_of("transition", case, "--strength", 2, 3, "--output", tmp_path / "out")
    names = ("threshold", "uniform_stable_from", "transition", "ordered_up_to")
    missing = {name for name in names if summary[name] is None}
    assert missing == (set(names) if "threshold" in reasons else set())
    assert summary["crossing"] is None
    assert set(summary["reasons"]) == missing | {"free_energy", "crossing"}
    assert summary["stability_by"] == "growth"
    for name, reason in reasons.items():
        assert reason in summary["reasons"][name]
    stability = [summary[f"stability_{way}"] for way in ("up", "down")]
    assert set(np.ravel(stability)) <= {"stable", "unstable"}
    assert (tmp_path / "out/figures/transition.png").is_file()


@pytest.mark.painted
def test_what_fails_leaves_the_rest(json_of, write_case, tmp_path, monkeypatch):
    """A state, and the branch: each is named with its reason, also when resumed."""
    follow, at_order = Continuation._follow, Stationary.at_order

    def fail_to_follow(self, masses, strength, settled):
        if strength == 3.0:
            raise SolverError("not settled")
        return follow(self, masses, strength, settled)

    def fail_at_order(self, masses, strength, order):
        if order > 0.12:
            raise SolverError("lost")
        return at_order(self, masses, strength, order)

    monkeypatch.setattr(Continuation, "_follow", fail_to_follow)
    monkeypatch.setattr(Stationary, "at_order", fail_at_order)
    case = write_case(CASE, ("cells = 60", "cells = 20"))
    line = ("transition", case, "--strength", 2, 3, 4, "--output", tmp_path / "out")
    summary = json_of(*line)
    assert [order is None for order in summary["order_up"]] == [False, True, False]
    assert summary["stability_down"][1] is None
    assert summary["missing"] == [
        {"way": way, "strength": 3.0, "reason": "not settled"} for way in ("up", "down")
    ]
    assert summary["threshold"] == pytest.approx(threshold(2, 4.0), rel=0.01)
    assert summary["transition"] == "jumps"
    assert summary["ordered_up_to"] is None
    assert "followed up to r = 0.1" in summary["reasons"]["ordered_up_to"]
    assert summary["reasons"]["ordered_up_to"].endswith(": lost")
    assert len(read_table(tmp_path / "out/transition.csv")) == 4
    assert len(read_table(tmp_path / "out/branch.csv")) == 2
    assert (tmp_path / "out/figures/transition.png").is_file()
    assert json_of(*line) == summary


def test_no_state_at_all(main, write_case, tmp_path, monkeypatch):
    """Exit code 1, and a summary that says why."""

    def fail(self, *arguments):
        raise SolverError("not settled")

    monkeypatch.setattr(Continuation, "_follow", fail)
    monkeypatch.setattr(Stationary, "at_order", fail)
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "branch.csv").write_text("order,strength\n")  # of an earlier analysis
    code, error = main(
        "transition", write_case(CASE, ("cells = 60", "cells = 24")), "--strength", 2, 3,
        "--output", folder, "--quiet",
    )  # fmt: skip
    assert code == 1
    assert f"{folder}: no state was found; not settled" in error
    summary = json.loads((folder / "summary.json").read_text())
    assert not (folder / "branch.csv").exists()
    assert summary["order_up"] == [None, None]
    assert summary["transition"] is None
    assert summary["reasons"]["transition"].endswith(": not settled")
    assert summary["threshold"] == pytest.approx(threshold(2, 4.0), rel=0.01)


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
