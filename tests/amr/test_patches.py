"""Clusters narrower than the kernel: cells that move with the flow, off the mesh and back."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

from meanfield_pde import Attention, InputError, circle_mesh, simulate_tokens, solve
from meanfield_pde.amr.extraction import deposit, extract, joined, refined_for
from meanfield_pde.amr.forest import DEEPEST, Forest
from meanfield_pde.amr.indicators import Leaves
from meanfield_pde.amr.patch_arrays import record, recorded
from meanfield_pde.amr.patches import NONE, Patch, moved
from meanfield_pde.amr.settings import AdaptSettings, PatchSettings
from meanfield_pde.case.file import read_case
from meanfield_pde.initial.tokens import Tokens
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.geometry import normalised, tangential
from meanfield_pde.mesh.surface import circle_surface, sphere_surface
from meanfield_pde.solver.controller import Controller
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.state import Clocks
from tests.problems import MESHES, metastable

SETTINGS = AdaptSettings(1e-2)
DEMO = read_case(Path(__file__).parents[2] / "demos" / "circle.toml")
MATRIX = {2: np.array([[0.9, 0.3], [-0.2, 0.4]]), 3: np.diag([1.0, 0.5, 0.1]) + 0.1}


def leaves_around(dimension: int, width: float, beside: float = 0.0) -> tuple[Leaves, np.ndarray]:
    """A mesh that is fine about a place, and masses of a Gaussian there."""
    surface = circle_surface(40) if dimension == 2 else sphere_surface(320)
    place = normalised(np.array([0.6, 0.7, 0.4])[:dimension])
    forest = Forest.of(surface)
    for _ in range(30):
        leaves = Leaves(forest)
        away = np.linalg.norm(leaves.centre - place, axis=1)
        split = leaves.width > np.maximum(width / 4, away / 8)
        if not split.any():
            break
        forest = forest.refined(split)
    leaves = Leaves(forest)
    square = ((leaves.centre - place) ** 2).sum(axis=1)
    masses = leaves.volume * (np.exp(-square / (2 * width**2)) + 1e-9 + beside)
    return leaves, masses / masses.sum()


def patch_of(dimension: int, width: float) -> Patch:
    leaves, masses = leaves_around(dimension, width)
    (patch,) = extract(leaves, masses, 1.2 * width, SETTINGS)[1]
    return patch


@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("width", [1e-2, 1e-3])
def test_cells_move_with_the_flow(dimension: int, width: float) -> None:
    """At zero temperature with Q = K = I: x -> exp(V t) x / |exp(V t) x|, to the 5th order."""
    matrix, patch = MATRIX[dimension], patch_of(dimension, width)
    after = patch
    for _ in range(20):
        (after,) = moved((after,), lambda x: tangential(x, x @ matrix.T), 0.1, 1.0)
    flow = scipy.linalg.expm(2.0 * matrix)
    np.testing.assert_allclose(after.vertices, normalised(patch.vertices @ flow.T), atol=1e-6)
    assert after.masses is patch.masses
    # However narrow: relative to its own width.
    exact = Patch.of(normalised(patch.vertices @ flow.T), patch.cells, patch.masses)
    np.testing.assert_allclose(after.widths, exact.widths, rtol=1e-4)


@pytest.mark.parametrize("dimension", [2, 3])
def test_no_patch_is_too_narrow(dimension: int) -> None:
    """Contracted at the rate 2 to 1e-22 of itself, far below rounding, and stretched again."""
    patch = patch_of(dimension, 1e-2)
    place = patch.centre

    def towards(x: np.ndarray) -> np.ndarray:
        return tangential(x, np.broadcast_to(2 * place, x.shape))

    narrow = patch
    for _ in range(500):
        (narrow,) = moved((narrow,), towards, 0.05, 1.0)
    np.testing.assert_allclose(narrow.widths, np.exp(-50.0) * patch.widths, rtol=1e-3)
    for _ in range(500):
        (narrow,) = moved((narrow,), lambda x: -towards(x), 0.05, 1.0)
    np.testing.assert_allclose(narrow.widths, patch.widths, rtol=1e-4)


@pytest.mark.parametrize("dimension", [2, 3])
def test_sources_have_its_mean_and_covariance(dimension: int) -> None:
    patch = patch_of(dimension, 1e-3)
    points, logs = patch.sources
    weights = np.exp(logs)
    assert weights.sum() == pytest.approx(patch.mass, rel=1e-14)
    np.testing.assert_allclose(normalised(weights @ points), patch.centre, atol=1e-9)
    for axis, width in zip(patch.axes.T, patch.widths, strict=True):
        along = (points - patch.centre) @ axis
        assert weights @ along**2 / patch.mass == pytest.approx(width**2, rel=1e-5)
        assert width == pytest.approx(1e-3, rel=0.1)


@pytest.mark.parametrize("dimension", [2, 3])
def test_extracted_and_deposited(dimension: int) -> None:
    """All the mass to rounding, each cell's to a part of a cell, and nothing becomes zero."""
    leaves, masses = leaves_around(dimension, 1e-3)
    left, (patch,) = extract(leaves, masses, 1.2e-3, SETTINGS)
    rest = left * masses
    assert (rest > 0).all()
    assert rest.sum() + patch.mass == pytest.approx(1.0, abs=1e-15)
    assert rest.sum() < 0.15
    back = rest + deposit(leaves.forest, (patch,), SETTINGS.patches)
    assert back.sum() == pytest.approx(1.0, abs=1e-14)
    assert np.abs(back - masses).sum() < 0.01
    # Pieces share out the mass of each cell by the slope of log rho.
    middles, shares = patch.pieces(4)
    assert len(middles) == 16 * len(patch.masses)
    np.testing.assert_allclose(shares.reshape(-1, 16).sum(axis=1), patch.masses, rtol=1e-13)


def test_what_is_wide_or_not_alone_is_left_to_the_cells() -> None:
    for beside, width, count in ((0.0, 1.2e-3, 1), (0.0, 0.8e-3, 0), (0.2, 1.2e-3, 0)):
        leaves, masses = leaves_around(2, 1e-3, beside)
        assert len(extract(leaves, masses, width, SETTINGS)[1]) == count


def test_patches_that_have_come_together_are_one() -> None:
    patch = patch_of(2, 1e-3)
    (both,) = joined((patch,), (patch,), 2e-3)
    assert both.mass == pytest.approx(2 * patch.mass)
    assert len(joined((patch,), (patch,), 0.5e-3)) == 2


def test_arrays_of_a_checkpoint() -> None:
    given = (patch_of(3, 1e-3), patch_of(3, 2e-3))
    for one, other in zip(given, recorded(record(given)), strict=True):
        np.testing.assert_array_equal(one.offsets, other.offsets)
        np.testing.assert_array_equal(one.masses, other.masses)
        np.testing.assert_array_equal(one.cells, other.cells)
    assert recorded(record(NONE)) == NONE


@pytest.mark.parametrize(("name", "value"), [("sizes", 0), ("cells", 10**6), ("cells", -1)])
def test_arrays_that_are_no_patches(name: str, value: int) -> None:
    arrays = record((patch_of(2, 1e-3),))
    arrays[f"patch_{name}"][0, 0] = value
    with pytest.raises(InputError, match="the patches in the checkpoint"):
        recorded(arrays)


def evolution_of(beta: float, log_masses: str = "off") -> Controller:
    settings = SolverCase(log_masses=log_masses)
    equation = Equation(metastable(beta), FiniteVolumes(circle_mesh(60)), settings)
    return Controller.start(equation, DEMO.initial, adapt=SETTINGS)


@pytest.mark.parametrize("log_masses", ["off", "on"])
def test_an_evolution_with_patches_goes_on_where_it_was(log_masses: str) -> None:
    """Bit for bit from what a checkpoint holds; the mass stays one, with and without logarithms."""
    whole = evolution_of(80.0, log_masses)
    whole.advance(8.0)
    assert whole.state.patches
    assert whole.mass == pytest.approx(1.0, abs=1e-13)
    arrays, clocks = whole.state.record()
    again = evolution_of(80.0, log_masses)
    again.restore(arrays, Clocks.of(clocks))
    for one in (whole, again):
        one.advance(8.5)
        one.close()
    np.testing.assert_array_equal(whole.masses, again.masses)
    for one, other in zip(whole.state.patches, again.state.patches, strict=True):
        np.testing.assert_array_equal(one.offsets, other.offsets)
    assert whole.shown().sum() == pytest.approx(1.0, abs=1e-13)


def test_attention_to_a_patch_is_attention_to_its_cells() -> None:
    """The same velocities as from all of the mass in cells, to the fourth order in the width."""
    evolution = evolution_of(80.0)
    evolution.advance(8.0)
    state = evolution.state
    field = evolution.rhs.field(state.masses.log, state.patches)
    places = [np.array([[math.cos(a), math.sin(a)] for a in np.linspace(0, 6, 50)])]
    cells = [(s.middles, s.masses) for s in state.patches]
    volumes = state.volumes
    points = np.concatenate([volumes.centre[: volumes.owned], *(c[0] for c in cells)])
    masses = np.concatenate([evolution.masses, *(c[1] for c in cells)])
    attention = evolution.rhs.layer
    assert isinstance(attention, Attention)
    score = attention.scores(places[0]) @ points.T
    weight = masses * np.exp(score - score.max(axis=1, keepdims=True))
    mean = weight @ points / weight.sum(axis=1)[:, None]
    exact = tangential(places[0], mean @ attention.value.T)
    np.testing.assert_allclose(field(places[0]), exact, atol=3e-3)
    evolution.close()


def test_saved_densities_hold_the_patches() -> None:
    """Nothing is missing from what is saved, and the patches are where the mass is."""
    often = [*range(1, 7), *np.arange(140, 180) / 20]
    found = solve(
        DEMO.attention, circle_mesh(60), DEMO.initial, until=9.0, save_at=often, adapt=1e-2
    )
    assert found.history["patch_mass"][-1] > 0.5
    for index in range(len(found.times)):
        assert found.store.read(index).sum() == pytest.approx(1.0, abs=1e-13)
    # Moments are those of the patches themselves, and so do not jump from cell to cell.
    axis = np.arctan2(
        2 * found.history["second_xy"], found.history["second_xx"] - found.history["second_yy"]
    )
    assert np.abs(np.diff(axis, 3)[-30:]).max() < 3e-5
    points, last = found.cells_at(-1).points, found.store.read(len(found.times) - 1)
    assert np.linalg.eigvalsh((points * last[:, None]).T @ points)[-1] > 0.98


@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("beta", [0.0, 6.0, math.inf])
def test_a_few_tokens_are_carried_as_points(dimension: int, beta: float) -> None:
    """A density that starts from five tokens goes where they go, with nothing in the cells."""
    rng = np.random.default_rng(4)
    start = normalised(rng.normal(size=(5, dimension)))
    matrix = MATRIX[dimension]
    attention = Attention(matrix, np.eye(dimension), matrix @ matrix.T, beta)
    found = solve(
        attention, MESHES[dimension](60), Tokens(start), until=1.0, save_at=[0.5], adapt=3e-2
    )
    if beta < math.inf:
        tokens = simulate_tokens(start, attention, 1.0, save_at=[0.5]).tokens
    else:  # where each goes by itself: a density attends to the best place, not the best token
        x = start
        path = [start]
        for step in range(200):
            middle = normalised(x + 0.0025 * attention.velocity(x))
            x = normalised(x + 0.005 * attention.velocity(middle))
            if step in (99, 199):
                path.append(x)
        tokens = np.array(path)
    assert found.history["patch_mass"] == pytest.approx(1.0, abs=1e-15)
    for index in range(len(found.times)):
        mean = [found.history[f"mean_{axis}"][index] for axis in "xyz"[:dimension]]
        np.testing.assert_allclose(mean, tokens[-3 + index].mean(axis=0), atol=3e-4)
        assert found.store.read(index).sum() == pytest.approx(1.0, abs=1e-14)


@pytest.mark.parametrize(("count", "noise"), [(PatchSettings().max_points + 1, 0.0), (5, 0.1)])
def test_many_tokens_and_noise_are_left_to_the_cells(count: int, noise: float) -> None:
    angle = 2 * math.pi * np.arange(count) / count
    tokens = Tokens(np.column_stack([np.cos(angle), np.sin(angle)]))
    attention = Attention(np.eye(2), np.eye(2), np.eye(2), 2.0)
    found = solve(attention, circle_mesh(60), tokens, until=0.01, noise=noise, adapt=3e-2)
    assert found.history["patch_mass"][0] == 0


@pytest.mark.timeout(20)
def test_refinement_for_a_patch_ends_at_the_deepest_level() -> None:
    """Where the patch is narrower than any leaf can be; it went on without end."""
    patch = Patch.point(normalised(np.array([0.6, 0.7])), 0.1)
    forest = refined_for(Forest.of(circle_surface(7)), patch, 0.0, PatchSettings())
    assert forest.levels.max() == DEEPEST
