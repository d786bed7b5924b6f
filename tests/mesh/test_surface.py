"""Meshes made in memory: numbers of cells, topology, symmetry, grading, and the ghost layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from mpi4py import MPI

import numpy as np
import pytest

from meanfield_pde.errors import InputError
from meanfield_pde.mesh.checks import check_surface
from meanfield_pde.mesh.files import read_mesh
from meanfield_pde.mesh.geometry import cell_mean, cell_volume, rough_integrals
from meanfield_pde.mesh.surface import (
    Surface,
    circle_mesh,
    circle_surface,
    sphere_mesh,
    sphere_surface,
)

MESHES = Path(__file__).parents[2] / "meshes"


def volumes(surface: Surface) -> np.ndarray:
    return cell_volume(surface.points[surface.cells])


def centres(surface: Surface) -> np.ndarray:
    middle = surface.points[surface.cells].mean(axis=1)
    return middle / np.linalg.norm(middle, axis=1, keepdims=True)


@pytest.mark.parametrize("cells", [3, 4, 7, 800])
def test_the_circle_has_equal_arcs(cells: int) -> None:
    surface = circle_surface(cells)
    assert surface.dimension == 2
    assert surface.points.shape == surface.cells.shape == (cells, 2)
    check_surface(surface, "circle")
    np.testing.assert_allclose(volumes(surface), 2 * np.pi / cells, rtol=1e-12)


def test_means_of_the_position_over_a_quarter_of_the_circle_and_an_octant_of_the_sphere() -> None:
    """∫ x over them is (1, 1), and a quarter of pi (1, 1, 1)."""
    assert cell_mean(np.eye(2)[None]) == pytest.approx(2 / np.pi)
    assert cell_mean(np.eye(3)[None]) == pytest.approx(1 / 2)


@pytest.mark.parametrize("make", [circle_surface, sphere_surface])
def test_integrals_over_a_cell_are_the_same_to_the_last_bit_whatever_the_others(
    make: Callable[[int], Surface],
) -> None:
    """Ranks have other cells, and the same results."""
    surface = make(320)
    cells = surface.points[surface.cells]
    for values in (lambda x: np.exp(x[:, 0]), np.exp):
        together = rough_integrals(values, cells)
        for part in (slice(0, 1), slice(5, 12), slice(17, 320)):
            for every, own in zip(together, rough_integrals(values, cells[part]), strict=True):
                np.testing.assert_array_equal(own, every[part])


@pytest.mark.parametrize(
    ("asked", "expected"), [(1, 20), (20, 20), (21, 80), (180, 180), (5000, 5120), (5120, 5120)]
)
def test_the_sphere_is_the_smallest_icosphere_with_enough_cells(asked: int, expected: int) -> None:
    surface = sphere_surface(asked)
    edges = np.unique(np.sort(surface.cells[:, [[0, 1], [1, 2], [2, 0]]].reshape(-1, 2)), axis=0)
    assert surface.dimension == 3
    assert len(surface.cells) == expected
    assert len(surface.points) - len(edges) + len(surface.cells) == 2  # Euler's characteristic
    assert set(np.bincount(surface.cells.ravel())) <= {5, 6}
    check_surface(surface, "sphere")


def test_the_sphere_is_divided_evenly() -> None:
    # Projecting the flat split of an icosahedron's face makes the middle cells twice the corner's.
    sizes = volumes(sphere_surface(5120))
    assert sizes.max() / sizes.min() < 2.1


@pytest.mark.parametrize(
    "surface",
    [
        circle_surface(400),
        circle_surface(401, grade=5.0, axis=np.array([1.0, 2.0])),
        sphere_surface(1280),
        sphere_surface(1280, grade=5.0, axis=np.array([1.0, 2.0, -3.0])),
    ],
)
def test_vertices_are_on_the_sphere_and_cells_cover_it_once(surface: Surface) -> None:
    np.testing.assert_allclose(np.linalg.norm(surface.points, axis=1), 1, rtol=0, atol=4e-16)
    check_surface(surface, "mesh")


@pytest.mark.parametrize(
    "surface",
    [
        circle_surface(400),
        sphere_surface(1280),
        sphere_surface(1280, grade=4, axis=np.array([0, 0, 1])),
    ],
)
def test_meshes_are_symmetric_about_the_origin(surface: Surface) -> None:
    """The map x -> -x takes vertices to vertices, so that an even density stays even."""
    distance = np.linalg.norm(surface.points[:, None] + surface.points[None], axis=2).min(axis=1)
    assert distance.max() < 1e-14


def test_a_graded_circle_is_g_squared_times_finer_at_the_axis_than_across() -> None:
    grade, axis = 4.0, np.array([0.6, 0.8])
    surface = circle_surface(8000, grade=grade, axis=axis)
    sizes = volumes(surface)
    assert sizes.max() / sizes.min() == pytest.approx(grade**2, rel=1e-4)
    order = np.argsort(-np.abs(centres(surface) @ axis))
    assert np.all(np.diff(sizes[order]) > -1e-12)  # ever larger away from the axis


def test_a_graded_sphere_is_finer_toward_the_axis() -> None:
    grade, axis = 3.0, np.array([2.0, -1.0, 2.0]) / 3
    uniform = sphere_surface(20480)
    graded = sphere_surface(20480, grade=grade, axis=axis)
    # The map x -> G x / |G x| changes areas by det G / |G x|^3 = g / |G x|^3.
    x = centres(uniform)
    stretched = np.linalg.norm(x + (grade - 1) * (x @ axis)[:, None] * axis, axis=1)
    ratio = volumes(graded) / volumes(uniform)
    np.testing.assert_allclose(ratio, grade / stretched**3, rtol=0.01)
    order = np.argsort(-np.abs(x @ axis))
    rings = [part.mean() for part in np.array_split(ratio[order], 40)]
    assert np.all(np.diff(rings) > 0)


def test_grade_one_is_the_uniform_mesh() -> None:
    graded = sphere_surface(80, grade=1.0, axis=np.array([0.0, 0.0, 1.0]))
    np.testing.assert_array_equal(graded.points, sphere_surface(80).points)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: circle_mesh("40"), "circle_mesh: cells must be a whole number, got '40'"),
        (lambda: sphere_mesh(np.nan), "sphere_mesh: cells must be a whole number, got nan"),
        (lambda: circle_surface(2), "whole number >= 3, got 2"),
        (lambda: sphere_surface(0), "whole number >= 1, got 0"),
        (lambda: circle_surface(9, grade=0.5, axis=np.array([1.0, 0.0])), "mesh.grade must be"),
        (lambda: circle_surface(9, grade=np.nan, axis=np.array([1.0, 0.0])), "mesh.grade must be"),
        (lambda: circle_surface(9, grade=1e300, axis=np.array([1.0, 0.0])), "and <= 10000, got"),
        (lambda: circle_surface(9, grade=2), "needs the axis"),
        (lambda: circle_surface(9, grade=2, axis=np.zeros(2)), "not all zero"),
        (lambda: sphere_surface(9, grade=2, axis=np.array([1.0, 0.0])), "must be 3 finite"),
    ],
)
def test_wrong_arguments_are_named(make: Callable[[], Surface], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


@pytest.mark.parallel([1, 2])
def test_meshes_on_several_ranks() -> None:
    """Every facet of an owned cell has both its cells on the rank; errors reach every rank.

    One test for all of it, since each costs a start of mpiexec.
    """
    comm = MPI.COMM_WORLD
    meshes = [
        (circle_mesh(40, comm=comm), circle_surface(40)),
        (sphere_mesh(80, grade=2, axis=np.array([0.0, 0, 1]), comm=comm), sphere_surface(80)),
        (read_mesh(MESHES / "circle-400.xdmf", comm), circle_surface(400)),
    ]
    for mesh, surface in meshes:
        dimension = mesh.topology.dim
        assert mesh.geometry.dim == dimension + 1
        cells = mesh.topology.index_map(dimension)
        assert cells.size_global == len(surface.cells)
        owned = mesh.topology.original_cell_index[: cells.size_local]
        everywhere = np.concatenate(comm.allgather(owned))
        np.testing.assert_array_equal(np.sort(everywhere), np.arange(cells.size_global))
        mesh.topology.create_connectivity(dimension, dimension - 1)
        mesh.topology.create_connectivity(dimension - 1, dimension)
        facets_of = mesh.topology.connectivity(dimension, dimension - 1)
        cells_of = mesh.topology.connectivity(dimension - 1, dimension)
        for cell in range(cells.size_local):
            assert all(len(cells_of.links(facet)) == 2 for facet in facets_of.links(cell))
    with pytest.raises(InputError, match=r"no such mesh file; did you mean .*circle-400\.xdmf"):
        read_mesh(MESHES / "circle-40.xdmf", comm)
