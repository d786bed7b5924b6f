"""Masses in the extended range: against doubles, and where doubles have run out."""

from __future__ import annotations

import json
import math
from pathlib import Path

import h5py
import numpy as np
import pytest

from meanfield_pde import Attention, InputError, circle_mesh, solve
from meanfield_pde.cli.petsc_options import petsc_options
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.controller import Controller
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.masses import ExtendedRange, of_arrays
from meanfield_pde.solver.schemes import SCHEMES
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.state import Clocks
from tests.conftest import Command, Main, Write
from tests.problems import CIRCLE, MESHES, SPHERE

INITIAL = "1 + 0.5*x + 0.3*x*y"
VALUES = {2: np.array([[1.0, 0.2], [0.0, 0.3]]), 3: np.diag([1.0, 0.4, 0.2]) + 0.1}


def evolutions(d: int, cells: int, beta: float, scheme: str) -> list[Controller]:
    volumes = FiniteVolumes(MESHES[d](cells))
    attention = Attention(np.eye(d), np.eye(d), VALUES[d], beta)
    return [
        Controller.start(Equation(attention, volumes, SolverCase(scheme, 1e-12, extended)), INITIAL)
        for extended in ("off", "on")
    ]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("beta", [math.inf, 30.0])
@pytest.mark.parametrize(("d", "cells"), [(2, 200), (3, 320)])
def test_the_same_as_doubles_where_both_work(d: int, cells: int, beta: float, scheme: str) -> None:
    doubles, logs = evolutions(d, cells, beta, scheme)
    for until in (1.0, 6.0):
        for evolution in (doubles, logs):
            evolution.advance(until)
        assert logs.step == doubles.step
        assert logs.time == doubles.time == until
        np.testing.assert_allclose(logs.masses, doubles.masses, rtol=1e-12)
        np.testing.assert_allclose(np.exp(logs.state.masses.log), doubles.masses, rtol=1e-11)


@pytest.mark.slow
def test_tails_decay_at_the_right_rate_far_below_the_smallest_double() -> None:
    """Q = K = I, V = diag(1, 0.2): at (0, 1) the density falls as exp(-0.8 t), to 1e-700."""
    volumes = FiniteVolumes(circle_mesh(200))
    attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.2]), math.inf)
    equation = Equation(attention, volumes, SolverCase(log_masses="on"))
    evolution = Controller.start(equation, "1 + 0*x")
    at_repeller = np.argmin(np.abs(volumes.centre[:, 0]))
    evolution.advance(1000.0)
    before = evolution.state.masses.log[at_repeller]
    evolution.advance(2100.0)
    after = evolution.state.masses.log[at_repeller]
    assert after < -700 * math.log(10)
    assert (after - before) / 1100 == pytest.approx(-0.8, rel=1e-3)
    assert evolution.mass == pytest.approx(1, abs=1e-12)
    assert evolution.masses[at_repeller] == 0
    assert (evolution.masses >= 0).all()


def test_a_state_is_restored_bit_for_bit() -> None:
    _, logs = evolutions(2, 100, math.inf, "muscl")
    logs.advance(3.0)
    arrays, clocks = logs.state.record()
    assert set(arrays) == {"masses", "mantissa", "exponent"}
    logs.advance(5.0)
    expected, _ = logs.state.record()
    logs.restore(arrays, Clocks.of(clocks))
    logs.advance(5.0)
    for name, values in logs.state.record()[0].items():
        np.testing.assert_array_equal(values, expected[name])
    with pytest.raises(InputError, match="the state needs masses"):
        logs.restore({"mantissa": np.full(100, 0.01)}, Clocks())


def test_mantissas_and_exponents() -> None:
    values = np.array([0.0, 5e-324, 1e-300, 1.0, 3.0])
    found = ExtendedRange.of(values)
    assert found.log[0] == -math.inf
    np.testing.assert_allclose(np.exp(found.log[2:]), values[2:], rtol=1e-13)
    assert found.log[1] == pytest.approx(-1074 * math.log(2))


def test_it_is_chosen_once_the_smallest_mass_comes_near_the_end_of_doubles() -> None:
    """The valley about the repeller falls by a factor of ten, and velocities see it."""
    volumes = FiniteVolumes(circle_mesh(100))
    for beta, log_masses, expected in (
        (40.0, "auto", True),
        (40.0, "off", False),
        (math.inf, "auto", False),  # no velocity hangs on the tail
    ):
        attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.2]), beta)
        equation = Equation(attention, volumes, SolverCase(log_masses=log_masses))
        valley = np.exp(-655.5 * np.exp(-((volumes.centre[:, 0] / 0.2) ** 2)))
        run = Controller.start(equation, valley / valley.sum())
        assert not run.extended
        run.advance(2.0)
        assert run.extended is expected
        run.close()


def test_what_doubles_have_lost_is_not_waited_for() -> None:
    """Empty cells are no tail: masses of exactly zero do not ask for the extended range."""
    volumes = FiniteVolumes(circle_mesh(100))
    attention = Attention(np.eye(2), np.eye(2), np.eye(2), 1.0)
    masses = np.zeros(100)
    masses[3] = 1.0
    run = Controller.start(Equation(attention, volumes, SolverCase()), masses)
    assert not run.extended
    run.close()


def test_it_needs_the_default_method() -> None:
    attention = Attention(np.eye(2), np.eye(2), VALUES[2], 10.0)
    with (
        petsc_options(["-ts_ssp_type", "rks3"]),
        pytest.raises(InputError, match="the compiled rks3"),
    ):
        solve(attention, circle_mesh(50), until=0.1, log_masses=True)


RUN_ALL = """
import sys
from meanfield_pde.cli.main import main
folder, *cases = sys.argv[1:]
for case in cases:
    try:
        main(["run", case, "--quiet", "--output", folder + "/" + case.split("/")[-1]])
    except SystemExit as ended:
        if ended.code:
            raise
"""
ON = ("[time]", '[solver]\nlog_masses = "on"\n[time]')


@pytest.mark.slow
def test_one_and_two_ranks_agree_and_resume(
    command: Command, write_case: Write, main: Main, tmp_path: Path
) -> None:
    cases = [
        write_case(CIRCLE, ON, name="circle.toml"),
        write_case(SPHERE, ON, name="sphere.toml"),
    ]
    script = tmp_path / "run_all.py"
    script.write_text(RUN_ALL, encoding="utf-8")
    for ranks in (1, 2):
        ended = command(f"ranks{ranks}", *cases, ranks=ranks, script=script)
        assert (ended.returncode, ended.stderr) == (0, "")
    for case in cases:
        masses = []
        for ranks in (1, 2):
            folder = tmp_path / f"ranks{ranks}" / case.name
            assert json.loads((folder / "summary.json").read_text())["log_masses"] is True
            with h5py.File(folder / "checkpoint.h5") as file:
                state = file["state"]
                masses.append(of_arrays({name: state[name][()] for name in state}).log)
        np.testing.assert_allclose(masses[1], masses[0], rtol=0, atol=1e-12)
    whole, parts = tmp_path / "ranks1/circle.toml", tmp_path / "parts"
    assert main("run", cases[0], "--until", 2, "--quiet", "--output", parts) == (0, "")
    assert main("run", cases[0], "--resume", "--quiet", "--output", parts) == (0, "")
    with h5py.File(whole / "checkpoint.h5") as one, h5py.File(parts / "checkpoint.h5") as other:
        for name in ("masses", "mantissa", "exponent"):
            np.testing.assert_array_equal(other["state"][name][()], one["state"][name][()])


def test_wrong_option(main: Main, write_case: Write) -> None:
    case = write_case(CIRCLE, ("[time]", '[solver]\nlog_masses = "yes"\n[time]'))
    code, err = main("run", case)
    assert code == 2
    assert "solver.log_masses must be one of 'auto', 'on', 'off'" in err


def test_masses_of_any_size_are_added() -> None:
    """Also to those that are smaller by more than a double has digits, and to none."""
    one, other = np.array([[3e-200, 0.7, 0.0, 2e-9], [0.4, 3e-30, 5.0, 0.0]])
    found = ExtendedRange.of(one).plus(other)
    assert found.doubles.tolist() == (one + other).tolist()
    far = found.each(np.copy)
    far.exponent[:] -= 5000  # where there are no doubles
    assert far.plus(np.zeros(4)).log == pytest.approx(found.log - 5000 * math.log(2))
