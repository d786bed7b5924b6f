"""Runs that end where the density is steady, and those that do not, because it will leave."""

from __future__ import annotations

import json
import math
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from meanfield_pde import (
    Attention,
    Heads,
    InputError,
    Layers,
    ProjectionLimit,
    circle_mesh,
    read_case,
    read_result,
    solve,
)
from meanfield_pde.solver.steadiness import CHANGING, METASTABLE, STEADY
from meanfield_pde.theory.phases import phases_of_history
from tests.conftest import Main, Write
from tests.problems import CIRCLE

DEMO = read_case(Path(__file__).parents[2] / "demos/circle.toml")
METASTABLE_HEAD = DEMO.attention.with_beta(320.0)
FEW = 100
START = "1 + 0.1*x + 0.1*y"


def demo(attention, **options):
    return solve(attention, circle_mesh(FEW), DEMO.initial, until=100.0, **options)


def halves(attention):
    """The same velocity by two heads, for which there is no theorem."""
    half = Attention(attention.query, attention.key, attention.value / 2, attention.beta)
    return Heads([half, half])


@pytest.fixture(scope="module")
def lifetime():
    """That of a run which nothing ends."""
    history = demo(METASTABLE_HEAD, save_every=0.5).history
    return phases_of_history(history, ProjectionLimit(METASTABLE_HEAD)).lifetime


@pytest.mark.parametrize("steady", [1e-6, 1e-3])
@pytest.mark.parametrize("attention", [METASTABLE_HEAD, halves(METASTABLE_HEAD)])
def test_a_metastable_state_does_not_end_a_run(attention, steady, lifetime):
    """Though on the plateau the density changes by 1e-7 per unit of time."""
    solution = demo(attention, save_every=0.5, steady=steady)
    phases = phases_of_history(solution.history, ProjectionLimit(METASTABLE_HEAD))
    assert phases.lifetime == pytest.approx(lifetime, rel=1e-4)
    assert phases.terminal.reached
    found = solution.steadiness
    assert (found.state, found.stopped) == (STEADY, True)
    assert phases.terminal.begin < found.since < solution.times[-1] < 100
    assert found.change < steady


@pytest.mark.parametrize(
    ("attention", "reason"),
    [
        (METASTABLE_HEAD, "it is predicted to leave at t = 36.11"),
        (halves(METASTABLE_HEAD), "a tail of it still grows or decays, until its clusters leave"),
    ],
)
def test_but_does_if_that_is_wanted(attention, reason):
    solution = demo(attention, steady=1e-3, steady_metastable=True)
    found = solution.steadiness
    assert (found.state, found.stopped, found.reason) == (METASTABLE, True, reason)
    assert 10 < found.since < solution.times[-1] < 36
    assert "metastable: nearly constant since t = " in str(found)


@pytest.mark.parametrize(
    ("attention", "noise"),
    [
        (Attention(np.eye(2), np.eye(2), np.eye(2), 4.0), 1.0),
        (Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), math.inf), 0.0),
        (Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), 0.0), 0.0),
    ],
)
def test_what_is_steady_ends_a_run(attention, noise):
    mesh = circle_mesh(FEW)
    solution = solve(attention, mesh, "1 + 0.1*x", until=200.0, noise=noise, steady=1e-8)
    found = solution.steadiness
    assert (found.state, found.stopped) == (STEADY, True)
    assert len(solution.times) == 2
    assert found.since < solution.times[-1] < 60
    # It is what it says: less mass moves in two more units of time.
    later = solve(attention, mesh, solution.masses[-1], until=2.0, noise=noise, step_tolerance=1e-5)
    assert np.abs(later.masses[-1] - solution.masses[-1]).sum() < 2 * 3e-8


def test_the_change_is_that_of_a_mode_that_decays():
    """Noise alone: 1 + e x decays at the rate sigma, and changes by 2 e sigma / pi."""
    attention = Attention(np.eye(2), np.eye(2), np.zeros((2, 2)), 1.0)
    mesh = circle_mesh(400)
    solution = solve(
        attention, mesh, "1 + 0.1*x", until=30.0, noise=1.0, save_every=0.25, steady=1e-6
    )
    end = math.log(0.1 * 2 / math.pi / 1e-6)
    assert solution.steadiness.since == pytest.approx(end, abs=0.3)
    assert 0.3e-6 < solution.steadiness.change < 1e-6


def test_an_unstable_state_that_has_never_changed_is_not_called_steady():
    attention = Attention(np.eye(2), np.eye(2), np.eye(2), 4.0)
    solution = solve(attention, circle_mesh(FEW), until=2.0, steady=1e-8)
    found = solution.steadiness
    assert (solution.times[-1], found.state, found.since) == (2.0, METASTABLE, 0.0)
    assert found.reason == "it has not changed since the beginning, and may be unstable"


def test_a_layer_that_follows_moves_what_is_steady_in_one():
    first = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.2]), 2.0)
    second = Attention(np.eye(2), np.eye(2), np.diag([0.2, 1.0]), 2.0)
    layers = Layers([first, second], duration=100.0)
    solution = solve(layers, circle_mesh(FEW), START, until=200.0, steady=1e-5)
    assert solve(first, circle_mesh(FEW), START, until=100.0, steady=1e-5).times[-1] < 100
    assert 100 < solution.times[-1] < 200
    assert solution.steadiness.state == STEADY


def test_the_last_state_is_judged_in_any_case():
    cold = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), math.inf)
    found = solve(cold, circle_mesh(FEW), START, until=40.0).steadiness
    assert (found.state, found.tolerance, found.stopped) == (STEADY, 1e-8, False)
    found = solve(METASTABLE_HEAD, circle_mesh(FEW), until=1.0).steadiness
    assert (found.state, found.since, found.stopped) == (CHANGING, None, False)
    assert solve(METASTABLE_HEAD, circle_mesh(FEW), until=0.0).steadiness is None


def test_patches_are_steady_where_they_stand():
    attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), 40.0)
    solution = solve(attention, circle_mesh(60), "1 + 0.5*x", until=80.0, adapt=1e-2, steady=1e-6)
    assert solution.history["patch_mass"][-1] > 0.9
    assert (solution.steadiness.state, solution.steadiness.stopped) == (STEADY, True)


STEADY_CASE = (
    ("value = [[1.0, 0.2], [0.0, 0.3]]", "value = [[1.0, 0.0], [0.0, 0.3]]"),
    ("until = 5.0\nsave_every = 0.5", "until = 90.0\nsteady = 1e-6"),
    ("cells = 200", "cells = 60"),
)


def test_the_command_says_when_and_a_run_that_has_ended_stays_so(
    main: Main, write_case: Write, tmp_path: Path
) -> None:
    case, out = write_case(CIRCLE, *STEADY_CASE), tmp_path / "out"
    code, err = main("run", case, "--output", out)
    assert code == 0
    (line,) = [one for one in err.splitlines() if "the last state is" in one]
    assert line.startswith("the last state is steady since t = ")
    assert "which ended the run" in line
    summary = json.loads((out / "summary.json").read_text())
    found = summary["steadiness"]
    assert (found["state"], found["stopped"], found["tolerance"]) == ("steady", True, 1e-6)
    times = read_result(out).times
    assert found["since"] < times[-1] == summary["time"] < 90
    assert "steady = 1e-06\nsteady_metastable = false" in (out / "case.toml").read_text()
    # Nothing is left to do, whoever asks.
    assert "holds the finished results" in main("run", case, "--output", out)[1]
    assert main("run", case, "--output", out, "--resume")[0] == 0
    np.testing.assert_array_equal(read_result(out).times, times)
    assert json.loads((out / "summary.json").read_text())["steadiness"]["state"] == "steady"
    # But with another tolerance there is.
    further = write_case(CIRCLE, *STEADY_CASE, ("steady = 1e-6", "steady = 1e-7"), name="b.toml")
    assert main("run", further, "--output", out, "--resume")[0] == 0
    after = read_result(out).times
    assert len(after) == len(times) + 1
    assert after[-1] > times[-1]


@pytest.mark.parallel([2])
def test_ranks_end_at_the_same_step() -> None:
    attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), 40.0)
    density = "1 + 0.5*x + 0.3*x*y"
    one, two = (
        solve(attention, circle_mesh(60, comm=comm), density, until=90.0, steady=1e-3)
        for comm in (MPI.COMM_SELF, MPI.COMM_WORLD)
    )
    assert one.times[-1] < 90.0
    np.testing.assert_array_equal(one.times, two.times)
    np.testing.assert_allclose(one.masses, two.masses, rtol=1e-10)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ("steady = 0", "time.steady must be a number from 1e-13 to 1, got 0"),
        ("steady = true", "time.steady must be a number from 1e-13 to 1, got True"),
        ("steady_metastable = true", "time.steady_metastable = true needs time.steady"),
        ("steady = 1e-8\nsteady_metastable = 1", "must be true or false, got 1"),
        ("stedy = 1e-8", "did you mean 'steady'?"),
    ],
)
def test_wrong_settings_are_one_line(
    keys: str, message: str, main: Main, write_case: Write, tmp_path: Path
) -> None:
    case = write_case(CIRCLE, ("until = 5.0", f"until = 5.0\n{keys}"))
    code, err = main("run", case, "--output", tmp_path / "out")
    assert (code, err.count("\n"), message in err) == (2, 1, True), err
    assert not (tmp_path / "out").exists()


def test_in_python_too():
    with pytest.raises(InputError, match=r"time\.steady must be a number from 1e-13 to 1"):
        solve(METASTABLE_HEAD, circle_mesh(FEW), until=1.0, steady=-1.0)
