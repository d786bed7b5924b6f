"""Short forms of `tests.benchmarks`: fuzzed input, kills, and a run of many steps."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from meanfield_pde import Attention, Observer, circle_mesh, read_result
from meanfield_pde.solver.simulation import Simulation
from tests.benchmarks.fuzz import fuzz
from tests.benchmarks.hostile import COUNTS, hostile
from tests.benchmarks.kills import CASE, killed_rounds, run


@pytest.mark.slow
def test_fuzzed_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEANFIELD_PDE_THREADS", "1")
    assert fuzz(67) == {"cases": [], "command lines": [], "files": []}


@pytest.mark.slow
def test_hostile_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEANFIELD_PDE_THREADS", "1")
    counts = {name: max(2, count // 10) for name, count in COUNTS.items()}
    assert hostile(counts, seed=2) == {name: [] for name in counts}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_killed_again_and_again(ranks: int, tmp_path: Path) -> None:
    case = tmp_path / "case.toml"
    case.write_text(CASE)
    assert run(case, tmp_path / "whole", 1).wait(120) == 0
    hits = killed_rounds(case, tmp_path / "out", ranks, 5)
    assert hits >= 2
    whole, found = read_result(tmp_path / "whole"), read_result(tmp_path / "out")
    np.testing.assert_array_equal(found.times, whole.times)
    if ranks == 1:
        np.testing.assert_array_equal(found.masses, whole.masses)
    np.testing.assert_allclose(found.masses, whole.masses, rtol=1e-11)


class Meter(Observer):
    """Resident memory and open descriptors now and then."""

    def __init__(self) -> None:
        self.memory: list[int] = []
        self.descriptors: list[int] = []

    def stepped(self, simulation: Simulation) -> None:
        """Every thousand steps."""
        if simulation.evolution.step % 1000 == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.memory.append(pages * os.sysconf("SC_PAGE_SIZE"))
            self.descriptors.append(len(os.listdir("/proc/self/fd")))


@pytest.mark.slow
def test_a_hundred_thousand_steps() -> None:
    one, meter = np.eye(2), Meter()
    simulation = Simulation(
        Attention(one, one, np.array([[1.0, 0.2], [0.0, 0.3]]), 1.0),
        circle_mesh(12),
        "1 + 0.5*x",
        threads=1,
    )
    try:
        for step in range(1, 100_001):
            simulation.evolution.advance(0.01 * step)
            meter.stepped(simulation)
    finally:
        simulation.close()
    assert simulation.evolution.step == 100_000
    assert meter.memory[-1] - meter.memory[4] < 2e6
    assert len(set(meter.descriptors)) == 1
    assert abs(simulation.evolution.mass - 1) <= 1e-12
