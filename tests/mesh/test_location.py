"""Which cell holds a point: against all cells, on meshes of cells of very different sizes."""

from __future__ import annotations

import numpy as np
import pytest

from meanfield_pde.amr.forest import Forest
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.mesh.location import cells_at
from meanfield_pde.mesh.surface import circle_surface, sphere_surface
from tests.problems import on_sphere


def graded(d: int) -> np.ndarray:
    """The corners of cells, of which one has been refined ten times."""
    forest = Forest.of(circle_surface(20) if d == 2 else sphere_surface(80))
    for _ in range(10 * (d - 1)):
        finest = np.zeros(forest.count, dtype=bool)
        finest[forest.levels.argmax()] = True
        forest = forest.refined(finest)
    return forest.corners


@pytest.mark.parametrize("d", [2, 3])
def test_the_cell_that_holds_a_point(d: int) -> None:
    corners = graded(d)
    middles = normalised(corners.mean(axis=1))
    points = np.concatenate([on_sphere(np.random.default_rng(d), 2000, d), middles, corners[:, 0]])
    cell, inside = cells_at(points, corners)
    coordinates = np.einsum("pd,cdj->pcj", points, np.linalg.inv(corners)).min(axis=2)
    np.testing.assert_array_equal(inside, coordinates.max(axis=1))
    np.testing.assert_array_equal(cell, coordinates.argmax(axis=1))  # the first of those that tie
    assert inside.min() > -1e-12
    np.testing.assert_array_equal(cell[2000:][: len(corners)], np.arange(len(corners)))


def test_no_cell_is_near() -> None:
    corners = graded(3)
    far = -normalised(corners[:1].mean(axis=1))
    for some in (corners[:0], corners[:1]):
        cell, inside = cells_at(far, some)
        assert (cell.tolist(), inside.tolist()) == ([len(some)], [-np.inf])
