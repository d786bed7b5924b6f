"""Steps of order three, whose length follows an estimate of their error."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from typing import Any

import numpy as np
import pytest

from meanfield_pde import Attention, circle_mesh, solve
from meanfield_pde.amr.patches import NONE
from meanfield_pde.amr.settings import AdaptSettings, IndicatorSettings
from meanfield_pde.errors import InputError
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.controller import Controller
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.integrator import Velocity
from meanfield_pde.solver.schemes import SCHEMES
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.step_control import Estimate, StepSettings, estimate

ATTENTION = Attention(np.eye(2), np.eye(2), np.array([[1.0, 0.2], [0.0, 0.3]]), 10.0)
INITIAL = "1 + 0.5*x + 0.3*x*y"
# Nothing is ever refined: what is measured are the steps.
STILL = AdaptSettings(
    0.9,
    indicators=IndicatorSettings(
        profile=1e9, flux_share=0.0, kernels={2: 1e9}, velocity_lengths={2: 1e9}
    ),
)


def evolved(
    tolerance: float,
    steps: StepSettings | None = None,
    log_masses: str = "off",
    cells: int = 100,
    adapt: AdaptSettings | None = None,
    every: float = 2.0,
) -> Controller:
    volumes = FiniteVolumes(circle_mesh(cells))
    settings = SolverCase(log_masses=log_masses, step_tolerance=tolerance)
    equation = Equation(ATTENTION, volumes, settings)
    found = Controller.start(equation, INITIAL, steps=steps, adapt=adapt)
    for k in range(round(2.0 / every)):
        found.advance((k + 1) * every)
    found.close()
    assert found.state.volumes.global_cells == cells
    return found


DT = 1 / 8, 1 / 16, 1 / 32, 1 / 128


def test_third_order_in_time() -> None:
    # Steps of transport are short enough for their own error not to count.
    found = [evolved(1.0, StepSettings(courant=0.02), every=dt) for dt in DT]
    assert [one.step for one in found] == [round(2 / dt) for dt in DT]
    exact = found.pop()
    errors = np.array([np.abs(one.masses - exact.masses).sum() for one in found])
    tails = np.array(
        [np.abs(one.state.masses.log - exact.state.masses.log).mean() for one in found]
    )
    for wrong in (errors, tails):
        assert (np.log2(wrong[:-1] / wrong[1:]) > 2.6).all(), wrong
    assert errors[0] < 1e-4
    assert exact.mass == pytest.approx(1.0, abs=1e-14)


def test_the_error_is_below_the_tolerance() -> None:
    exact = evolved(1e-6)
    for tolerance in (1e-2, 1e-3, 1e-4):
        found = evolved(tolerance)
        assert np.abs(found.masses - exact.masses).sum() < 2.0 * tolerance  # until t = 2
        assert np.abs(found.state.masses.log - exact.state.masses.log).mean() < 2.0 * tolerance


def test_steps_do_not_know_of_cells() -> None:
    """However many substeps transport takes; on an adaptive mesh they know of clusters."""
    counts = [evolved(1e-3, cells=cells).step for cells in (100, 400, 1600)]
    assert max(counts) < 1.3 * min(counts) < 40
    loose, close = (StepSettings(crossed=crossed) for crossed in (1e9, 1.0))
    assert evolved(1e-3, loose, cells=400, adapt=STILL).step == counts[1]
    assert evolved(1e-3, close, cells=400, adapt=STILL).step > 2 * counts[1]


def test_growth_from_next_to_nothing_is_resolved() -> None:
    """The error of a wave of 1e-4 is small whatever the step; its rate of growth is to be right."""
    one = np.eye(2)
    attention, wave = Attention(one, one, one, 0.0), 1e-4
    solution = solve(attention, circle_mesh(400), f"1 + {wave}*x", until=8.0)
    rate = math.log(solution.history["mean_x"][-1] / solution.history["mean_x"][0]) / 8.0
    assert rate == pytest.approx(0.5, rel=2e-4)
    assert 4 < solution.steps < 60


def test_extended_range() -> None:
    one, other = (evolved(1e-3, log_masses=log_masses) for log_masses in ("off", "on"))
    assert other.extended
    assert other.step == one.step
    assert other.state.masses.log == pytest.approx(one.state.masses.log, rel=1e-9)


@pytest.mark.parametrize("log_masses", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_step_that_is_refused_leaves_no_trace(scheme: str, log_masses: bool) -> None:
    """First steps as long as the run are refused, and the result is that of short ones."""

    def run(**settings: Any) -> Any:
        return solve(
            ATTENTION,
            circle_mesh(100),
            INITIAL,
            until=2.0,
            scheme=scheme,
            log_masses=log_masses,
            **settings,
        )

    reference = run(step_tolerance=1e-5)
    found = run(steps=StepSettings(growth=5.0))
    assert found.rejected > 0
    assert found.masses.min() >= 0
    assert np.abs(found.history["mass"] - 1).max() <= 1e-13
    assert np.abs(found.masses[-1] - reference.masses[-1]).sum() < 1e-3


def test_substeps_keep_to_the_limit_of_the_scheme() -> None:
    """Also where users want them longer: masses stay positive."""
    for courant in (0.1, 0.3, 5.0):
        found = evolved(1e-3, StepSettings(courant=courant))
        assert found.masses.min() > 0
        assert found.mass == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize("given", [0.0, -1.0, 2.0, math.nan])
def test_a_tolerance_that_is_none_is_refused(given: float) -> None:
    with pytest.raises(InputError, match=r"^solver\.step_tolerance must be a number from 1e-9"):
        SolverCase(step_tolerance=given)


TURN, SQUEEZE = np.array([[0.0, -1.0], [1.0, 0.0]]), np.diag([-1.0, 1.0])


@pytest.mark.parametrize(
    ("value", "speed", "divergence"), [(TURN, 1.0, 0.0), (SQUEEZE, 2 / math.pi, 4 / math.pi)]
)
def test_the_estimate_is_that_of_the_equation(
    value: np.ndarray, speed: float, divergence: float
) -> None:
    """For d a velocity of known means of |d| and |div d|, and a kernel of width 1/2."""
    volumes = FiniteVolumes(circle_mesh(400))
    masses = volumes.volume[: volumes.owned] / volumes.volume[: volumes.owned].sum()
    # At zero temperature, with B = 1, tokens attend to themselves: v = P_x V x.
    cold, warm = (
        Equation(attention := Attention(np.eye(2), np.eye(2), value, beta), volumes, SolverCase())
        .right_hand_side(attention.layers[0])
        for beta in (math.inf, 4.0)
    )  # fmt: skip
    first = Velocity(cold.facet_flux(np.log(masses)), 1.0)
    none = Velocity(0.0 * first.flux, 0.0)
    found = estimate(warm, masses, NONE, (first, none, none), 0.1, still=1e-12)
    assert found.error == pytest.approx(3 / 4 * (2 * speed + divergence), rel=2e-2)
    assert found.growth == pytest.approx(3 / 0.1)  # as |d| = |k2 - k1|


@pytest.mark.parametrize(
    "given", [StepSettings(), AdaptSettings(0.1), SolverCase(), Estimate(), SCHEMES["muscl"]]
)
def test_settings_and_estimates_stay_as_they_are(given: Any) -> None:
    """Several steps have the same."""
    name = next(iter(vars(given)))
    with pytest.raises(FrozenInstanceError):
        setattr(given, name, getattr(given, name))
