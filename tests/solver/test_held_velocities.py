"""Velocities that are held while mass moves among cells far narrower than the kernel."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from meanfield_pde import Attention, circle_mesh
from meanfield_pde.initial.masses import cell_masses
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver import flow, step_length
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.evolution import Evolution
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.transport import SCHEMES
from meanfield_pde.solver.wide_evolution import LogEvolution

ATTENTION = Attention(np.eye(2), np.eye(2), np.array([[1.0, 0.2], [0.0, 0.3]]), 10.0)


class _Still:
    """A follower that never changes the mesh."""

    def follow(self, evolution: Evolution) -> None:
        pass


def evolved(kind: type[Evolution] = Evolution, cells: int = 400) -> Evolution:
    volumes = FiniteVolumes(circle_mesh(cells))
    masses = cell_masses("1 + 0.5*x + 0.3*x*y", volumes)
    evolution = kind(Equation(ATTENTION, volumes, SolverCase()), masses, _Still())
    evolution.advance(2.0)
    evolution.close()
    return evolution


def test_second_order_in_time(monkeypatch) -> None:
    monkeypatch.setattr(flow, "HELD_FROM", 0.0)
    # Steps of transport short enough for their own error not to count.
    monkeypatch.setitem(SCHEMES, "muscl", replace(SCHEMES["muscl"], accurate=0.02))
    found = []
    for change in (0.3, 0.15, 0.02):
        monkeypatch.setattr(step_length, "CHANGE", change)
        found.append(evolved(cells=100).masses)
    errors = [np.abs(masses - found[-1]).sum() for masses in found[:-1]]
    assert 1.7 < math.log2(errors[0] / errors[1]) < 2.5
    assert errors[1] < 1e-4


def test_few_velocities_and_the_same_masses(monkeypatch) -> None:
    held = evolved()
    monkeypatch.setattr(flow, "HELD_FROM", np.inf)
    plain = evolved()
    assert held.step < plain.step / 2
    assert np.abs(held.masses - plain.masses).sum() < 1e-3
    assert held.mass == pytest.approx(1.0, abs=1e-14)


def test_log_masses() -> None:
    one, other = evolved(), evolved(LogEvolution)
    assert other.step == one.step
    assert other.log_masses == pytest.approx(one.log_masses, rel=1e-9)
