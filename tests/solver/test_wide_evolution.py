"""Evolution of mantissas and exponents: against doubles, and where doubles have run out."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import h5py
import numpy as np
import pytest

from meanfield_pde import Attention, InputError, ProjectionLimit, circle_mesh, solve
from meanfield_pde.cli.petsc_options import petsc_options
from meanfield_pde.initial.masses import cell_masses
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.build import build_evolution
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.evolution import Evolution
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.transport import SCHEMES
from meanfield_pde.solver.wide_evolution import LogEvolution, doubles_run_out, log_of, split
from tests.conftest import Command, Main, Write
from tests.problems import CIRCLE, KEY_QUERY, MESHES, MIXTURE, SPHERE, VALUE

VALUES = {2: np.array([[1.0, 0.2], [0.0, 0.3]]), 3: np.diag([1.0, 0.4, 0.2]) + 0.1}


def evolutions(d: int, cells: int, beta: float, scheme: str) -> list[Evolution]:
    volumes = FiniteVolumes(MESHES[d](cells))
    attention = Attention(np.eye(d), np.eye(d), VALUES[d], beta)
    masses = cell_masses("1 + 0.5*x + 0.3*x*y", volumes)
    return [
        build_evolution(Equation(attention, volumes, SolverCase(scheme, 1e-12, wide)), masses)
        for wide in ("off", "on")
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
        np.testing.assert_allclose(np.exp(logs.log_masses), doubles.masses, rtol=1e-11)


@pytest.mark.slow
def test_tails_decay_at_the_right_rate_far_below_the_smallest_double() -> None:
    """Q = K = I, V = diag(1, 0.2): at (0, 1) the density falls as exp(-0.8 t), to 1e-700."""
    volumes = FiniteVolumes(circle_mesh(200))
    attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.2]), math.inf)
    masses = cell_masses("1 + 0*x", volumes)
    evolution = LogEvolution(Equation(attention, volumes, SolverCase()), masses)
    at_repeller = np.argmin(np.abs(volumes.centre[:, 0]))
    evolution.advance(1000.0)
    before = evolution.log_masses[at_repeller]
    evolution.advance(2100.0)
    after = evolution.log_masses[at_repeller]
    assert after < -700 * math.log(10)
    assert (after - before) / 1100 == pytest.approx(-0.8, rel=1e-3)
    assert evolution.mass == pytest.approx(1, abs=1e-12)
    assert evolution.masses[at_repeller] == 0
    assert (evolution.masses >= 0).all()


def test_a_step_that_is_too_long_is_taken_back() -> None:
    doubles, logs = evolutions(2, 200, 30.0, "muscl")
    for evolution in (doubles, logs):
        before = evolution.state.gather()
        assert not evolution._attempt(50.0)
        if evolution is logs:
            for name, values in evolution.state.gather().items():
                np.testing.assert_array_equal(values, before[name])


def test_a_state_is_restored_bit_for_bit() -> None:
    _, logs = evolutions(2, 100, math.inf, "muscl")
    logs.advance(3.0)
    state, step = logs.state.gather(), logs.step
    assert set(state) == {"masses", "mantissa", "exponent"}
    logs.advance(5.0)
    expected = logs.state.gather()
    logs.restore(state, time=3.0, step=step)
    logs.advance(5.0)
    for name, values in expected.items():
        np.testing.assert_array_equal(logs.state.gather([name])[name], values)
    with pytest.raises(InputError, match="the state needs exponent, mantissa, masses, got masses"):
        logs.restore({"masses": np.full(100, 0.01)}, time=0.0, step=0)


def test_mantissas_and_exponents() -> None:
    values = np.array([0.0, 5e-324, 1e-300, 1.0, 3.0])
    mantissa, exponent = split(values)
    assert log_of(mantissa, exponent)[0] == -math.inf
    np.testing.assert_allclose(np.exp(log_of(mantissa, exponent)[2:]), values[2:], rtol=1e-13)
    assert log_of(mantissa, exponent)[1] == pytest.approx(-1074 * math.log(2))


def test_it_is_chosen_where_the_tail_is_predicted_to_run_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The tail at the switch is exp(-0.152 beta) for these matrices."""
    caplog.set_level(logging.INFO, "meanfield_pde")
    for beta, expected in ((0.0, False), (4000.0, False), (4500.0, True), (math.inf, False)):
        attention = Attention(KEY_QUERY, np.eye(2), VALUE, beta)
        assert doubles_run_out(ProjectionLimit(attention)) is expected
        caplog.clear()
        solve(attention, circle_mesh(50), MIXTURE, until=0.01)
        assert ("log masses" in caplog.text) is expected
    rotation = np.array([[0.0, -1.0], [1.0, 0.0]])
    turning = Attention(np.eye(2), np.eye(2), rotation, 1e5)
    assert not doubles_run_out(ProjectionLimit(turning))


def test_it_needs_the_default_method() -> None:
    attention = Attention(np.eye(2), np.eye(2), VALUES[2], 10.0)
    with (
        petsc_options(["-ts_ssp_type", "rks3"]),
        pytest.raises(InputError, match="rks2 only"),
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
                masses.append(log_of(state["mantissa"][()], state["exponent"][()]))
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
