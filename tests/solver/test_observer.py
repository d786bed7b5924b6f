"""Observers: what they are called for, in which order, and what they see."""

from __future__ import annotations

import reprlib
from functools import partial

import numpy as np
import pytest

from meanfield_pde import Attention, InputError, Observer, circle_mesh, solve

ATTENTION = Attention(np.eye(2), np.eye(2), np.array([[1.0, 0.2], [0.0, 0.3]]), 10.0)


class Recorder(Observer):
    """Writes down each call, with the time and the step at which it comes."""

    def __init__(self, fails_at=None):
        self.calls = []
        self.fails_at = fails_at
        for name in ("started", "stepped", "saved", "finished"):
            setattr(self, name, partial(self.note, name))

    def note(self, name, simulation):
        """One call."""
        self.calls.append((name, simulation.evolution.time, simulation.evolution.step))
        if len(self.calls) == self.fails_at:
            raise RuntimeError("an observer that fails")


def run(*observers):
    return solve(
        ATTENTION,
        circle_mesh(60),
        "1 + 0.5*x",
        until=1.0,
        save_at=[0.5],
        observers=observers,
    )


def test_an_observer_is_called_at_the_start_each_step_each_saved_time_and_the_end():
    recorder = Recorder()
    solution = run(recorder)
    names = [name for name, _, _ in recorder.calls]
    assert names[0] == "started"
    assert names[-1] == "finished"
    assert names.count("started") == names.count("finished") == 1
    steps = [step for name, _, step in recorder.calls if name == "stepped"]
    assert steps == list(range(1, solution.steps + 1))
    saved = [(time, step) for name, time, step in recorder.calls if name == "saved"]
    assert [time for time, _ in saved] == solution.times.tolist() == [0.0, 0.5, 1.0]
    assert [step for _, step in saved] == solution.history["step"].tolist()
    times = [time for _, time, _ in recorder.calls]
    assert times == sorted(times)
    assert recorder.calls[0][1:] == (0.0, 0)
    assert recorder.calls[-1][1:] == (1.0, solution.steps)


def test_the_first_and_the_last_time_may_be_asked_for_and_are_saved_once():
    given = solve(ATTENTION, circle_mesh(24), "1 + 0.5*x", until=0.2, save_at=[0.0, 0.1, 0.2])
    assert given.times.tolist() == [0.0, 0.1, 0.2]


def test_observers_change_nothing_and_are_called_one_after_the_other():
    order = []

    class Named(Observer):
        def __init__(self, name):
            self.name = name

        def saved(self, simulation):
            order.append(self.name)

    watched = run(Named("first"), Observer(), Named("second"))
    assert order == ["first", "second"] * 3
    np.testing.assert_array_equal(watched.masses, run().masses)


@pytest.mark.parametrize("call", [2, 5])
def test_observers_hear_of_the_end_of_a_run_that_fails(call):
    failing, other = Recorder(fails_at=call), Recorder()
    with pytest.raises(RuntimeError, match="an observer that fails"):
        run(failing, other)
    assert failing.calls[-1][0] == other.calls[-1][0] == "finished"
    assert other.calls[-1][1] < 1.0


class Older(Observer):
    """Leaves out a column of the first row, as a version did that had none."""

    def saved(self, simulation):
        """Take the column away."""
        simulation.rows[0].pop("unresolved_mass", None)


def test_rows_keep_the_columns_that_the_first_has():
    history = run(Older()).history
    assert "unresolved_mass" not in history
    assert {len(column) for column in history.values()} == {3}


def test_a_column_that_is_not_there_is_named_with_those_that_are():
    history = run().history
    for wrong, said in (
        ("order", "; did you mean 'mean_norm'?"),
        ("men_x", "; did you mean 'mean_x'?"),
        ("Q", "."),
    ):
        with pytest.raises(KeyError) as caught:
            history[wrong]
        assert caught.value.args == (f"no column '{wrong}'{said} There are {', '.join(history)}",)


def test_arguments_of_another_type_are_named():
    mesh = circle_mesh(20)
    for wrong, message in (
        ({"attention": None}, "attention must be an Attention or a Heads or a Layers, got None"),
        (
            {"mesh": 800},
            "mesh must be a dolfinx.Mesh, such as circle_mesh(800) or sphere_mesh(5120), got 800",
        ),
        ({"until": "1"}, "until must be a number, got '1'"),
        ({"log_masses": "on"}, "log_masses must be True or False or None, got 'on'"),
        ({"observers": 3}, "observers must be a list, got 3"),
        ({"noise": 10**400}, f"noise must be a number, got {reprlib.repr(10**400)}"),
    ):
        given = {"attention": ATTENTION, "mesh": mesh, "until": 1.0} | wrong
        with pytest.raises(InputError) as caught:
            solve(**given)
        assert str(caught.value) == f"solve: {message}"
    with pytest.raises(InputError, match="observers must have the methods started, stepped"):
        solve(ATTENTION, mesh, until=1.0, observers=[3])


def test_an_observer_cannot_run_the_simulation_that_calls_it():
    """It would go beyond the end, and save times twice."""

    class Runner(Observer):
        def stepped(self, simulation):
            simulation.run((0.0, 1.0))

    with pytest.raises(InputError, match="a simulation that runs cannot be run"):
        solve(ATTENTION, circle_mesh(20), until=0.1, observers=[Runner()])
