"""Velocities that are frozen while mass moves among cells far narrower than the kernel."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meanfield_pde import Attention, circle_mesh
from meanfield_pde.amr.settings import AdaptSettings, IndicatorSettings
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.controller import Controller
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.step_control import StepSettings

ATTENTION = Attention(np.eye(2), np.eye(2), np.array([[1.0, 0.2], [0.0, 0.3]]), 10.0)
# Nothing is ever refined: what is measured are the steps.
STILL = AdaptSettings(
    0.9,
    indicators=IndicatorSettings(
        profile=1e9, flux_share=0.0, kernels={2: 1e9}, velocity_lengths=1e9
    ),
)


def evolved(steps: StepSettings, log_masses: str = "off", cells: int = 400) -> Controller:
    volumes = FiniteVolumes(circle_mesh(cells))
    equation = Equation(ATTENTION, volumes, SolverCase(log_masses=log_masses))
    found = Controller.start(equation, "1 + 0.5*x + 0.3*x*y", steps=steps, adapt=STILL)
    found.advance(2.0)
    found.close()
    assert found.state.volumes.global_cells == cells
    return found


def test_second_order_in_time() -> None:
    # Steps of transport short enough for their own error not to count.
    found = [
        evolved(StepSettings(frozen_from=0.0, courant=0.02, change=change), cells=100).masses
        for change in (0.3, 0.15, 0.02)
    ]
    errors = [np.abs(masses - found[-1]).sum() for masses in found[:-1]]
    assert 1.7 < math.log2(errors[0] / errors[1]) < 2.5
    assert errors[1] < 1e-4


def test_few_velocities_and_the_same_masses() -> None:
    frozen, plain = evolved(StepSettings()), evolved(StepSettings(frozen_from=np.inf))
    assert frozen.frozen
    assert not plain.frozen
    assert frozen.step < plain.step / 2
    assert np.abs(frozen.masses - plain.masses).sum() < 1e-3
    assert frozen.mass == pytest.approx(1.0, abs=1e-14)


def test_extended_range() -> None:
    one, other = (evolved(StepSettings(), log_masses) for log_masses in ("off", "on"))
    assert other.extended
    assert other.step == one.step
    assert other.state.masses.log == pytest.approx(one.state.masses.log, rel=1e-9)
