"""Regridding as a function: marks in, a change of the mesh out, and masses of any format follow."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np
import pytest

from meanfield_pde import Attention, InputError, SolverError
from meanfield_pde.amr import indicators as indicators_module
from meanfield_pde.amr.forest import Forest
from meanfield_pde.amr.indicators import INDICATORS, Indicators, Leaves, WidestCells
from meanfield_pde.amr.patches import NONE, Patch
from meanfield_pde.amr.regrid import mark, regrid, with_buffer
from meanfield_pde.amr.settings import AdaptSettings
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.solver.masses import Doubles, ExtendedRange
from tests.problems import SURFACES

SETTINGS = AdaptSettings(1e-2)


def indicators_of(d: int, cells: int, width: float, settings: AdaptSettings) -> Indicators:
    """Those of a Gaussian of this width, which flows at the speed 1, at zero temperature."""
    leaves = Leaves(Forest.of(SURFACES[d](cells)))
    place = normalised(np.ones(d))
    log_masses = np.log(leaves.volume) - ((leaves.centre - place) ** 2).sum(axis=1) / width**2 / 2
    attention = Attention(np.eye(d), np.eye(d), np.diag([1.0, 0.5, 0.2])[:d, :d], np.inf)
    return Indicators(leaves, log_masses, np.ones(len(log_masses)), attention, settings)


@pytest.mark.parametrize("d", [2, 3])
def test_what_is_smooth_stays_as_it_is(d: int) -> None:
    indicators = indicators_of(d, 5120, 10.0, SETTINGS)
    marks = mark(indicators)
    assert not any(one.any() for one in marks)
    assert regrid(indicators, marks, NONE, NONE, SETTINGS) is None


@pytest.mark.parametrize("d", [2, 3])
def test_a_cluster_is_refined_and_masses_of_both_formats_follow(d: int) -> None:
    cells = {2: 40, 3: 320}[d]
    indicators = indicators_of(d, cells, 0.2, SETTINGS)
    refine, coarsen = mark(indicators)
    near = np.linalg.norm(indicators.leaves.centre - normalised(np.ones(d)), axis=1)
    assert refine.any()
    assert near[refine].max() < near[~refine].max()
    assert not coarsen.any()  # roots have no parents
    change = regrid(indicators, (refine, coarsen), NONE, NONE, SETTINGS)
    assert change is not None
    assert change.forest.count > cells
    masses = np.random.default_rng(d).uniform(size=cells)
    doubles = change.apply(Doubles(masses)).doubles
    assert doubles.sum() == pytest.approx(masses.sum(), rel=1e-14)
    np.testing.assert_allclose(change.apply(ExtendedRange.of(masses)).doubles, doubles, rtol=1e-14)
    # When the cluster has gone its cells are coarsened, and there is no more mass than there was.
    leaves = Leaves(change.forest)
    flat = Indicators(
        leaves,
        np.log(leaves.volume) + leaves.centre[:, 0],
        np.ones(len(leaves.volume)),
        Attention(np.eye(d), np.eye(d), np.eye(d), np.inf),
        replace(SETTINGS, tolerance=0.9),
    )
    nothing = np.zeros(len(leaves.volume), dtype=bool)
    one = nothing.copy()
    one[0] = True
    alone = replace(SETTINGS, buffer={2: 0, 3: 0})
    back = regrid(flat, (one, leaves.forest.levels > 0), NONE, NONE, alone)
    assert back is not None
    assert back.forest.count < change.forest.count
    assert back.apply(Doubles(doubles)).doubles.sum() == pytest.approx(masses.sum(), rel=1e-14)


def test_a_light_patch_is_deposited_in_the_cells_that_are_there() -> None:
    indicators = indicators_of(2, 40, 10.0, SETTINGS)
    surface = indicators.leaves.forest.surface
    patch = Patch.of(surface.points, surface.cells[3:5], np.array([1e-5, 2e-5]))
    nothing = np.zeros(40, dtype=bool)
    change = regrid(indicators, (nothing, nothing), NONE, (patch,), SETTINGS)
    assert change is not None
    assert change.forest is indicators.leaves.forest
    found = change.apply(Doubles(np.zeros(40))).doubles
    np.testing.assert_allclose(found[3:5], [1e-5, 2e-5], rtol=1e-12)
    heavy = Patch.of(surface.points, surface.cells[3:5], np.array([0.1, 0.2]))
    finer = regrid(indicators, (nothing, nothing), NONE, (heavy,), SETTINGS)
    assert finer is not None
    assert finer.forest.count > 40
    assert finer.apply(Doubles(np.zeros(40))).doubles.sum() == pytest.approx(0.3, rel=1e-12)


def test_buffer_cells_lie_around_the_marked() -> None:
    forest = Forest.of(SURFACES[2](40))
    marked = np.zeros(40, dtype=bool)
    marked[[7, 20]] = True
    found = np.flatnonzero(with_buffer(forest, marked, 2))
    assert found.tolist() == [5, 6, 7, 8, 9, 18, 19, 20, 21, 22]


def test_settings_are_checked_and_bound_the_mesh() -> None:
    settings = replace(SETTINGS, max_cells=321)
    indicators = indicators_of(3, 320, 0.2, settings)
    marks = mark(indicators)
    with pytest.raises(SolverError, match=r"more than adapt\.max_cells = 321"):
        regrid(indicators, marks, NONE, NONE, settings)
    for wrong in (0.0, 1.0, np.nan, "fine"):
        with pytest.raises(InputError):
            AdaptSettings(wrong)  # type: ignore[arg-type]  # text in place of a number
    with pytest.raises(InputError, match="max_cells"):
        AdaptSettings(1e-2, max_cells=0)


def test_an_indicator_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that says how wide cells may be: it changes the mesh, refines, and keeps cells."""

    class NearPoles(WidestCells):
        @cached_property
        def widest(self) -> np.ndarray:
            x = self.state.leaves.centre[:, 0]
            return np.where(x < -0.99, 0.03, np.where(x > 0.9, 0.05, np.inf))

    def look(forest: Forest) -> Indicators:
        leaves = Leaves(forest)
        attention = Attention(np.eye(2), np.eye(2), np.eye(2), np.inf)
        speed = np.zeros(forest.count)
        return Indicators(leaves, np.log(leaves.volume), speed, attention, SETTINGS)

    forest = Forest.of(SURFACES[2](80))  # 0.079 wide
    forest = forest.refined(np.ones(80, dtype=bool))
    assert not any(marked.any() for marked in mark(look(forest)))
    monkeypatch.setattr(indicators_module, "INDICATORS", (*INDICATORS, NearPoles))
    state = look(forest)
    refine, coarsen = mark(state)
    x = state.leaves.centre[:, 0]
    np.testing.assert_array_equal(refine, x < -0.99)
    assert not coarsen[x > 0.9].any()
    assert coarsen[np.abs(x) < 0.9].any()
    forest = forest.refined(refine)
    assert not any(marked.any() for marked in mark(look(forest)))
