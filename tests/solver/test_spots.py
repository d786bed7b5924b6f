"""Clusters narrower than the kernel: cells that move with the flow, off the mesh and back."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg

from meanfield_pde import Attention, InputError, circle_mesh, solve
from meanfield_pde.case.file import read_case
from meanfield_pde.history.store import MASSES
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.forest import Forest
from meanfield_pde.mesh.geometry import normalised, tangential
from meanfield_pde.mesh.surface import circle_surface, sphere_surface
from meanfield_pde.solver import gathering, spots
from meanfield_pde.solver.build import start_evolution
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.evolution import Evolution
from meanfield_pde.solver.mesh_error import Leaves
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.solver.spots import Spot
from tests.problems import metastable

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


def spot_of(dimension: int, width: float) -> Spot:
    leaves, masses = leaves_around(dimension, width)
    (spot,) = gathering.clusters(leaves, masses, 1.2 * width)[1]
    return spot


@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("width", [1e-2, 1e-3])
def test_cells_move_with_the_flow(dimension: int, width: float) -> None:
    """At zero temperature with Q = K = I: x -> exp(V t) x / |exp(V t) x|, to the 5th order."""
    matrix, spot = MATRIX[dimension], spot_of(dimension, width)
    moved = spot
    for _ in range(20):
        moved = moved.moved(lambda x: tangential(x, x @ matrix.T), 0.1, 1.0)
    flow = scipy.linalg.expm(2.0 * matrix)
    np.testing.assert_allclose(moved.vertices, normalised(spot.vertices @ flow.T), atol=1e-6)
    assert moved.masses is spot.masses
    # However narrow: relative to its own width.
    exact = Spot.of(normalised(spot.vertices @ flow.T), spot.cells, spot.masses)
    np.testing.assert_allclose(moved.widths, exact.widths, rtol=1e-4)


@pytest.mark.parametrize("dimension", [2, 3])
def test_no_spot_is_too_narrow(dimension: int) -> None:
    """Contracted at the rate 2 to 1e-22 of itself, far below rounding, and stretched again."""
    spot = spot_of(dimension, 1e-2)
    place = spot.centre

    def towards(x: np.ndarray) -> np.ndarray:
        return tangential(x, np.broadcast_to(2 * place, x.shape))

    narrow = spot
    for _ in range(500):
        narrow = narrow.moved(towards, 0.05, 1.0)
    np.testing.assert_allclose(narrow.widths, np.exp(-50.0) * spot.widths, rtol=1e-3)
    for _ in range(500):
        narrow = narrow.moved(lambda x: -towards(x), 0.05, 1.0)
    np.testing.assert_allclose(narrow.widths, spot.widths, rtol=1e-4)


@pytest.mark.parametrize("dimension", [2, 3])
def test_sources_have_its_mean_and_covariance(dimension: int) -> None:
    spot = spot_of(dimension, 1e-3)
    points, logs = spot.sources
    weights = np.exp(logs)
    assert weights.sum() == pytest.approx(spot.mass, rel=1e-14)
    np.testing.assert_allclose(normalised(weights @ points), spot.centre, atol=1e-9)
    for axis, width in zip(spot.axes.T, spot.widths, strict=True):
        along = (points - spot.centre) @ axis
        assert weights @ along**2 / spot.mass == pytest.approx(width**2, rel=1e-5)
        assert width == pytest.approx(1e-3, rel=0.1)


@pytest.mark.parametrize("dimension", [2, 3])
def test_taken_and_given_back(dimension: int) -> None:
    """All the mass to rounding, each cell's to a part of a cell, and nothing becomes zero."""
    leaves, masses = leaves_around(dimension, 1e-3)
    left, (spot,) = gathering.clusters(leaves, masses, 1.2e-3)
    rest = left * masses
    assert (rest > 0).all()
    assert rest.sum() + spot.mass == pytest.approx(1.0, abs=1e-15)
    assert rest.sum() < 0.15
    back = rest + gathering.in_leaves(leaves.forest, (spot,))
    assert back.sum() == pytest.approx(1.0, abs=1e-14)
    assert np.abs(back - masses).sum() < 0.01
    # Pieces share out the mass of each cell by the slope of log rho.
    middles, shares = spot.pieces(4)
    assert len(middles) == 16 * len(spot.masses)
    np.testing.assert_allclose(shares.reshape(-1, 16).sum(axis=1), spot.masses, rtol=1e-13)


def test_what_is_wide_or_not_alone_is_left_to_the_cells() -> None:
    for beside, width, count in ((0.0, 1.2e-3, 1), (0.0, 0.8e-3, 0), (0.2, 1.2e-3, 0)):
        leaves, masses = leaves_around(2, 1e-3, beside)
        assert len(gathering.clusters(leaves, masses, width)[1]) == count


def test_spots_that_have_come_together_are_one() -> None:
    spot = spot_of(2, 1e-3)
    (both,) = gathering.joined((spot,), (spot,), 2e-3)
    assert both.mass == pytest.approx(2 * spot.mass)
    assert len(gathering.joined((spot,), (spot,), 0.5e-3)) == 2


def test_arrays_of_a_checkpoint() -> None:
    given = (spot_of(3, 1e-3), spot_of(3, 2e-3))
    for one, other in zip(given, spots.recorded(spots.record(given)), strict=True):
        np.testing.assert_array_equal(one.offsets, other.offsets)
        np.testing.assert_array_equal(one.masses, other.masses)
        np.testing.assert_array_equal(one.cells, other.cells)
    assert spots.recorded(spots.record(spots.NONE)) == spots.NONE


@pytest.mark.parametrize(("name", "value"), [("sizes", 0), ("cells", 10**6), ("cells", -1)])
def test_arrays_that_are_no_spots(name: str, value: int) -> None:
    arrays = spots.record((spot_of(2, 1e-3),))
    arrays[f"spot_{name}"][0, 0] = value
    with pytest.raises(InputError, match="the spots in the checkpoint"):
        spots.recorded(arrays)


def evolution_of(beta: float, log_masses: str = "off") -> Evolution:
    settings = SolverCase(log_masses=log_masses)
    equation = Equation(metastable(beta), FiniteVolumes(circle_mesh(60)), settings)
    return start_evolution(equation, DEMO.initial, 1e-2)


@pytest.mark.parametrize("log_masses", ["off", "on"])
def test_an_evolution_with_spots_goes_on_where_it_was(log_masses: str) -> None:
    """Bit for bit from what a checkpoint holds; the mass stays one, with and without logarithms."""
    whole = evolution_of(80.0, log_masses)
    whole.advance(8.0)
    assert whole.spots
    assert whole.mass == pytest.approx(1.0, abs=1e-13)
    record, step = whole.record(), whole.step
    again = evolution_of(80.0, log_masses)
    again.restore(record, time=8.0, step=step)
    for one in (whole, again):
        one.advance(8.5)
        one.close()
    np.testing.assert_array_equal(whole.masses, again.masses)
    for one, other in zip(whole.spots, again.spots, strict=True):
        np.testing.assert_array_equal(one.offsets, other.offsets)
    shown = whole.shown(whole.state.gather([MASSES])[MASSES])
    assert shown.sum() == pytest.approx(1.0, abs=1e-13)


def test_attention_to_a_spot_is_attention_to_its_cells() -> None:
    """The same velocities as from all of the mass in cells, to the fourth order in the width."""
    evolution = evolution_of(80.0)
    evolution.advance(8.0)
    field = evolution.terms.field(evolution.log_masses, evolution.spots)
    places = [np.array([[math.cos(a), math.sin(a)] for a in np.linspace(0, 6, 50)])]
    cells = [(s.middles, s.masses) for s in evolution.spots]
    terms = evolution.terms.transport.volumes
    points = np.concatenate([terms.centre[: terms.owned], *(c[0] for c in cells)])
    masses = np.concatenate([evolution.masses, *(c[1] for c in cells)])
    attention = evolution.terms.layer
    assert isinstance(attention, Attention)
    score = attention.scores(places[0]) @ points.T
    weight = masses * np.exp(score - score.max(axis=1, keepdims=True))
    mean = weight @ points / weight.sum(axis=1)[:, None]
    exact = tangential(places[0], mean @ attention.value.T)
    np.testing.assert_allclose(field(places[0]), exact, atol=3e-3)
    evolution.close()


def test_saved_densities_hold_the_spots() -> None:
    """Nothing is missing from what is saved, and the spots are where the mass is."""
    found = solve(
        DEMO.attention, circle_mesh(60), DEMO.initial, until=9.0, save_every=0.05, resolution=1e-2
    )
    assert found.history["spot_mass"][-1] > 0.5
    for index in range(len(found.times)):
        assert found.store.read(index).sum() == pytest.approx(1.0, abs=1e-13)
    # Moments are those of the spots themselves, and so do not jump from cell to cell.
    axis = np.arctan2(
        2 * found.history["second_xy"], found.history["second_xx"] - found.history["second_yy"]
    )
    assert np.abs(np.diff(axis, 3)[-30:]).max() < 3e-5
    points, last = found.cells_at(-1).points, found.store.read(len(found.times) - 1)
    assert np.linalg.eigvalsh((points * last[:, None]).T @ points)[-1] > 0.98
