"""Functions of DOLFINx in and out, meshes that others have made, and parts of the world."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

import basix.ufl
import numpy as np
import pytest
import ufl
from dolfinx import fem
from dolfinx import mesh as dolfinx_mesh
from scipy.spatial import cKDTree

from meanfield_pde import (
    AdaptSettings,
    Attention,
    CompareCase,
    InputError,
    Observer,
    Solution,
    circle_mesh,
    sample_tokens,
    solve,
    sphere_mesh,
)
from meanfield_pde.case.case import MeshCase
from meanfield_pde.case.file import read_case
from meanfield_pde.experiments.run import run_case
from meanfield_pde.initial.given import FieldDensity
from meanfield_pde.mesh.surface import Surface
from meanfield_pde.solver.settings import SolverCase, TimeCase
from meanfield_pde.solver.simulation import Simulation
from tests.problems import MESHES, SURFACES

FORMULA = "1 + 0.5*x + 0.3*x*y"
CELLS = {2: 60, 3: 80}
DEMO = Path(__file__).parents[2] / "demos" / "circle.toml"


def head(d: int, beta: float = 8.0) -> Attention:
    generator = np.random.default_rng(d)
    return Attention(*generator.normal(size=(3, d, d)) / d, beta=beta)


def solved(d: int, mesh: dolfinx_mesh.Mesh, initial: Any = FORMULA) -> Solution:
    return solve(head(d), mesh, initial, until=0.3)


@functools.cache
def solved_by_itself(d: int, cells: int) -> Solution:
    """On a mesh of the package, on one rank."""
    return solved(d, MESHES[d](cells, comm=MPI.COMM_SELF))


def distributed(
    surface: Surface, *, degree: int = 1, width: int | None = None, radius: float = 1.0
) -> dolfinx_mesh.Mesh:
    """A mesh as a user would make it, without the ghosts that finite volumes need."""
    d = surface.dimension
    name = {2: "interval", 3: "triangle"}[d]
    points = np.zeros((len(surface.points), width or d))
    points[:, :d] = radius * surface.points
    cells = surface.cells
    if degree == 2:  # the middles of the edges, in the order of DOLFINx
        sides = cells[:, [[0, 1]] if d == 2 else [[1, 2], [0, 2], [0, 1]]]
        edges, place = np.unique(np.sort(sides.reshape(-1, 2), axis=1), axis=0, return_inverse=True)
        middles = points[edges].mean(axis=1)
        middles /= np.linalg.norm(middles, axis=1, keepdims=True)
        cells = np.hstack([cells, len(points) + place.reshape(len(cells), -1)])
        points = np.vstack([points, middles])
    element = basix.ufl.element("Lagrange", name, degree, shape=(points.shape[1],))
    return dolfinx_mesh.create_mesh(MPI.COMM_SELF, cells, ufl.Mesh(element), points)


@pytest.mark.parametrize("d", [2, 3])
def test_a_density_goes_out_and_comes_back(d: int) -> None:
    mesh = MESHES[d](CELLS[d])
    solution = solved(d, mesh)
    density = solution.function(1)
    places = mesh.topology.original_cell_index
    np.testing.assert_array_equal(density.x.array, solution.density[1][places])
    again = solved(d, mesh, density)
    np.testing.assert_allclose(again.masses[0], solution.masses[1], rtol=1e-13)


@pytest.mark.parametrize("d", [2, 3])
def test_a_smooth_function_is_integrated_over_the_cells_of_the_sphere(d: int) -> None:
    """Linear in the straight cells is linear on the sphere but for the second power of widths."""
    errors = []
    for cells in (CELLS[d], 4 * CELLS[d]):
        mesh = MESHES[d](cells)
        linear = fem.Function(fem.functionspace(mesh, ("Lagrange", 1)))
        linear.interpolate(lambda x: 2 + x[0])
        found = solved(d, mesh, linear).density[0]
        expected = solved(d, mesh, "2 + x").density[0]
        errors.append(np.abs(found - expected).max())
    assert errors[1] < 0.3 * errors[0] < 3e-3


class Watch(Observer):
    """The velocity across each facet at the saved times, as the solver integrates it."""

    def __init__(self) -> None:
        self.seen: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []

    def saved(self, simulation: Simulation) -> None:
        """Take the fluxes of this time."""
        evolution = simulation.evolution
        volumes = evolution.equation.volumes
        across = evolution.velocity().flux.sum(axis=1) / volumes.facet_length
        self.seen.append((volumes.facet_points[:, 0].copy(), volumes.facet_conormal, across))


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("log_masses", [False, True])
def test_the_velocity_after_an_adaptive_run_is_the_one_integrated(
    log_masses: bool, tmp_path: Path
) -> None:
    """In a folder, too, with clusters off the mesh, and masses below the range of doubles."""
    case = replace(
        read_case(DEMO, until=9.0, output=tmp_path),
        mesh=MeshCase("circle", 60),
        adapt=AdaptSettings(1e-2),
        compare=None,
        time=TimeCase(9.0, (0.5,)),
        solver=SolverCase(log_masses="on" if log_masses else "off"),
    )
    watch = Watch()
    solution = solve(
        case.attention,
        circle_mesh(60),
        case.initial,
        until=9.0,
        save_at=[0.5],
        adapt=1e-2,
        log_masses=log_masses,
        observers=[watch],
    )
    assert solution.history["patch_mass"][-1] > 0.5
    run_case(case, quiet=True)
    for one in (solution, run_case(case)):
        for index, (points, conormal, across) in enumerate(watch.seen):
            velocity = one.velocity(index)
            nodes = velocity.function_space.tabulate_dof_coordinates()[:, :2]
            away, node = cKDTree(nodes).query(points)
            assert away.max() < 1e-14
            found = (velocity.x.array.reshape(-1, 2)[node] * conormal).sum(axis=1)
            np.testing.assert_allclose(found, across, atol=1e-8)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("beta", [0.0, np.inf])
def test_the_velocity_is_tangent_and_has_its_values_at_the_vertices(d: int, beta: float) -> None:
    """At beta = 0 every token moves with P_x V times the mean; at zero temperature as one alone."""
    mesh = MESHES[d](CELLS[d])
    attention = head(d, beta)
    solution = solve(attention, mesh, FORMULA, until=0.1)
    velocity = solution.velocity(0)
    nodes = velocity.function_space.tabulate_dof_coordinates()[:, :d]
    mean = nodes @ attention.query.T @ attention.key
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    if beta == 0:
        mean = np.tile(solution.masses[0] @ solution.points, (len(nodes), 1))
    moved = mean @ attention.value.T
    expected = moved - (moved * nodes).sum(axis=1, keepdims=True) * nodes
    found = velocity.x.array.reshape(-1, d)
    # Masses stand at the centres of cells, whose mean is a little inside of the circle or sphere.
    np.testing.assert_allclose(found, expected, atol=1e-12 if beta else 5e-3)


@pytest.mark.parametrize("d", [2, 3])
def test_where_the_mesh_follows_the_mass_each_time_has_its_own(d: int) -> None:
    attention = Attention(np.eye(d), np.eye(d), np.diag([1.0, 0.3, 0.2][:d]), beta=30.0)
    mesh = MESHES[d](CELLS[d], comm=MPI.COMM_SELF)
    solution = solve(attention, mesh, FORMULA, until=1.0, adapt={2: 5e-4, 3: 3e-2}[d])
    density, velocity = solution.function(), solution.velocity()
    assert len(density.x.array) > CELLS[d]
    places = density.function_space.mesh.topology.original_cell_index
    np.testing.assert_array_equal(density.x.array, solution.density_at(1)[places])
    mass = fem.assemble_scalar(fem.form(density * ufl.dx))
    assert mass == pytest.approx(1, abs=0.1)
    # Tokens move towards ±(1, 0[, 0]).
    x = ufl.SpatialCoordinate(velocity.function_space.mesh)
    assert fem.assemble_scalar(fem.form(density * x[0] * velocity[0] * ufl.dx)) > 0
    again = solve(attention, density.function_space.mesh, density, until=0.0)
    np.testing.assert_allclose(again.masses[0], solution.store.read(1), rtol=1e-12)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("kind", ["plain", "curved", "in more dimensions", "off by rounding"])
def test_meshes_of_others_give_the_same_density(d: int, kind: str) -> None:
    options: dict[str, dict[str, Any]] = {
        "plain": {},
        "curved": {"degree": 2},
        "in more dimensions": {"width": 3},
        "off by rounding": {"radius": 1 + 3e-8},
    }
    surface = SURFACES[d](CELLS[d])
    mesh = distributed(surface, **options[kind])
    expected = solved_by_itself(d, CELLS[d])
    solution = solved(d, mesh)
    assert solution.mesh is mesh
    np.testing.assert_allclose(solution.masses, expected.masses, rtol=1e-12)
    density, velocity = solution.function(), solution.velocity()
    np.testing.assert_allclose(np.sort(density.x.array), np.sort(solution.density[-1]))
    position = ufl.SpatialCoordinate(mesh)
    flux = fem.assemble_scalar(fem.form(density * ufl.inner(velocity, velocity) * ufl.dx))
    radial = fem.assemble_scalar(fem.form(density * ufl.inner(velocity, position) ** 2 * ufl.dx))
    assert flux > 0.01
    assert radial < 0.02 * flux
    again = solved(d, mesh, density)
    np.testing.assert_allclose(again.masses[0], solution.masses[-1], rtol=1e-12)


def test_a_refined_mesh_is_taken_once_its_vertices_are_on_the_sphere() -> None:
    mesh = MESHES[3](80, comm=MPI.COMM_SELF)
    mesh.topology.create_entities(1)
    finer = dolfinx_mesh.refine(mesh)[0]
    with pytest.raises(InputError, match=r"the mesh: vertex .* is at distance"):
        solved(3, finer)
    finer.geometry.x[:] /= np.linalg.norm(finer.geometry.x, axis=1, keepdims=True)
    solution = solved(3, finer)
    expected = solved_by_itself(3, 320)
    assert solution.history["mean_x"] == pytest.approx(expected.history["mean_x"], abs=1e-3)
    coordinates = dolfinx_mesh.compute_midpoints(finer, 2, np.arange(320, dtype=np.int32))
    centres = solution.points[finer.topology.original_cell_index]
    np.testing.assert_allclose(
        coordinates / np.linalg.norm(coordinates, axis=1, keepdims=True), centres, atol=2e-3
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dolfinx_mesh.create_unit_square(MPI.COMM_SELF, 2, 2), "the mesh: expected arcs"),
        (
            lambda: dolfinx_mesh.create_unit_cube(MPI.COMM_SELF, 1, 1, 1),
            "arcs or of triangles, got cells of type tetrahedron",
        ),
        (
            lambda: distributed(Surface(SURFACES[3](80).points, SURFACES[3](80).cells[1:])),
            "the mesh has a boundary",
        ),
    ],
)
def test_other_meshes_are_refused(make: Callable[[], dolfinx_mesh.Mesh], message: str) -> None:
    with pytest.raises(InputError, match=message):
        solve(head(3), make(), until=1.0)


def test_functions_that_are_no_density_are_refused() -> None:
    mesh = MESHES[2](60)
    vector = fem.Function(fem.functionspace(mesh, ("Lagrange", 1, (2,))))
    with pytest.raises(InputError, match=r"scalar fem.Function, got one of shape \(2,\)"):
        solved(2, mesh, vector)
    other = fem.Function(fem.functionspace(MESHES[2](61), ("DG", 0)))
    other.x.array[:] = 1.0
    with pytest.raises(InputError, match="a function on another mesh"):
        solved(2, mesh, other)
    negative = fem.Function(fem.functionspace(mesh, ("DG", 0)))
    negative.x.array[:] = -1.0
    with pytest.raises(InputError, match="finite and >= 0"):
        solved(2, mesh, negative)


def numbers_on(comm: MPI.Comm) -> tuple[list[float], list[float]]:
    """Integrals as a user would take them, and ends of runs on one half of the ranks each.

    The mesh is distributed without ghosts.
    """
    attention = Attention(np.eye(3), np.eye(3), np.diag([1.0, 0.4, 0.2]), beta=8.0)
    surface = SURFACES[3](320)
    mesh = dolfinx_mesh.create_mesh(
        comm,
        surface.cells if comm.rank == 0 else surface.cells[:0],
        ufl.Mesh(basix.ufl.element("Lagrange", "triangle", 1, shape=(3,))),
        surface.points if comm.rank == 0 else surface.points[:0],
        dolfinx_mesh.create_cell_partitioner(dolfinx_mesh.GhostMode.none, 2),
    )
    u = fem.Function(fem.functionspace(mesh, ("Lagrange", 1)))
    u.interpolate(lambda x: 1 + 0.5 * x[0] * x[1] - 0.3 * x[0])
    solution = solve(attention, mesh, u, until=1.0)
    rho, v = solution.function(), solution.velocity()
    x = ufl.SpatialCoordinate(mesh)

    def integral(expression: Any) -> float:
        return float(comm.allreduce(fem.assemble_scalar(fem.form(expression * ufl.dx))))

    numbers = [integral(rho), integral(rho * x[0] ** 2), integral(rho * ufl.inner(v, v))]
    part = comm.Split(comm.rank % 2, comm.rank)
    own = solve(attention, sphere_mesh(80, comm=part), until=1.0 + comm.rank % 2)
    numbers.append(comm.bcast(float(own.masses[1].max())))
    return numbers, comm.allgather(float(own.history["time"][-1]))


@pytest.mark.parallel([2])
def test_the_same_numbers_on_one_and_two_ranks() -> None:
    (alone, end), (shared, ends) = (numbers_on(one) for one in (MPI.COMM_SELF, MPI.COMM_WORLD))
    assert end == [1.0]
    assert ends == [1.0, 2.0]
    assert alone[0] == pytest.approx(1, abs=0.03)
    np.testing.assert_allclose(shared, alone, rtol=1e-12)


def test_a_function_has_a_limit_but_no_file_and_no_samples() -> None:
    mesh = MESHES[2](400)
    attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), beta=np.inf)
    linear = fem.Function(fem.functionspace(mesh, ("Lagrange", 1)))
    linear.interpolate(lambda x: 2 + x[0])
    solution = solve(attention, mesh, linear, until=0.0, compare=CompareCase(limit=True))
    assert solution.limit is not None
    limit = solution.limit
    right = limit.masses[limit.points[:, 0] > 0].sum() / limit.masses.sum()
    # 1/2 + ∫ cos over the right half, over 4 pi.
    assert right == pytest.approx(0.5 + 2 / (4 * np.pi), abs=1e-5)
    density = FieldDensity.of(linear)
    with pytest.raises(InputError, match="case file cannot hold"):
        density.to_table()
    with pytest.raises(InputError, match="cannot be drawn"):
        sample_tokens(density, 10, 0, 2)
