"""The density and the velocity at points: order against exact ones, means over cells, totals."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.special import logsumexp

from meanfield_pde import (
    Attention,
    CompareCase,
    Component,
    InputError,
    Solution,
    VonMises,
    circle_mesh,
    read_case,
    read_result,
    run_case,
    solve,
    sphere_mesh,
)
from meanfield_pde.amr.patches import NONE
from meanfield_pde.mesh import geometry
from meanfield_pde.solver.simulation import Simulation
from tests.benchmarks.tails import AWAY, attention, drift, log_density, mesh_of
from tests.benchmarks.tails import density as start
from tests.conftest import Write
from tests.problems import CIRCLE, MESHES, on_sphere

ROOT = Path(__file__).parents[2]


def cell_means(solution: Solution, index: int, **options: bool) -> np.ndarray:
    """Means of the logarithm's exponential over the quadrature points of all cells, in logs."""
    points, weights = geometry.quadrature(solution.cells_at(index, **options).vertices)
    logs = solution.log_at(points.reshape(-1, solution.dimension), index, **options)
    shares = weights / weights.sum(axis=1, keepdims=True)
    return np.asarray(logsumexp(logs.reshape(weights.shape), axis=1, b=shares))


def orders(cells: list[int], errors: list[float], d: int) -> np.ndarray:
    return -np.diff(np.log(errors)) / np.diff(np.log(cells)) * (d - 1)


@pytest.mark.parametrize("d", [2, 3])
def test_at_is_of_third_order_for_a_density_of_the_start(d: int) -> None:
    axis = np.array([0.6, 0.0, 0.8])[-d:] / np.linalg.norm(np.array([0.6, 0.0, 0.8])[-d:])
    still = Attention(np.eye(d), np.eye(d), np.zeros((d, d)), 1.0)
    points = on_sphere(np.random.default_rng(1), 2000, d)
    cells = {2: [100, 200, 400], 3: [320, 1280, 5120]}[d]

    def density(x: np.ndarray) -> np.ndarray:
        return np.exp(3 * x @ axis)

    errors = []
    for count in cells:
        solution = solve(still, MESHES[d](count), density, until=0.0)
        logs = solution.log_at(points, 0) - 3 * points @ axis
        errors.append(float(np.abs(logs - np.median(logs)).mean()))
    assert orders(cells, errors, d).min() > 2.7, errors
    assert errors[-1] < {2: 2e-6, 3: 3e-5}[d]


def test_at_follows_sixty_decades_in_relative_terms() -> None:
    peak = VonMises((Component(1.0, 70.0, (0.6, 0.8)),))
    points = on_sphere(np.random.default_rng(3), 2000, 2)
    exact = 70 * points @ [0.6, 0.8]
    assert np.ptp(exact) > 60 * math.log(10)
    errors = []
    for count in (200, 400, 800):
        solution = solve(Attention(*[np.eye(2)] * 3, 0.0), circle_mesh(count), peak, until=0.0)
        logs = solution.log_at(points, 0) - exact
        errors.append(float(np.abs(logs - np.median(logs)).max()))
    assert errors[0] < 1e-3
    assert orders([200, 400, 800], errors, 2).min() > 2.7, errors


def test_at_is_the_poisson_kernel_of_kuramoto() -> None:
    """At beta = 0 and V = I, rho is (1 - r^2) / (2 pi |x - r e|^2) with r' = r (1 - r^2) / 2."""

    def poisson(r: float, points: np.ndarray) -> np.ndarray:
        return (1 - r * r) / (2 * np.pi * ((points - r * np.array([0.6, 0.8])) ** 2).sum(axis=1))

    one = np.eye(2)
    points = on_sphere(np.random.default_rng(2), 2000, 2)
    times = (0.0, 2.0)
    radii = solve_ivp(
        lambda t, r: r * (1 - r * r) / 2, (0, 2), [0.4], t_eval=times, rtol=1e-12, atol=1e-14
    ).y[0]
    cells = [50, 100, 200]
    errors = []
    for count in cells:
        solution = solve(
            Attention(one, one, one, 0.0),
            circle_mesh(count),
            lambda x: poisson(0.4, x),
            until=2.0,
            step_tolerance=1e-5,
        )
        errors.append(
            [
                float(np.abs(solution.at(points, i) / poisson(r, points) - 1).max())
                for i, r in enumerate(radii)
            ]
        )
    for found in np.transpose(errors):
        assert orders(cells, list(found), 2).min() > 2.4, errors
    assert errors[-1][1] < 1e-3


@pytest.mark.parametrize(("d", "cells", "time"), [(2, [200, 400], 165.0), (3, [1280, 5120], 60.0)])
def test_tails_at_zero_temperature_are_accurate_in_relative_terms(
    d: int, cells: list[int], time: float
) -> None:
    """Down to 1e-60 on the circle, away from the clusters, which these cells do not resolve."""
    a, left = drift(0, d)
    points = on_sphere(np.random.default_rng(0), 2000, d)
    points = points[np.abs(points @ left) > AWAY]
    exact = log_density(points, a, time)
    assert exact.min() / math.log(10) < {2: -60, 3: -26}[d]
    errors = []
    for count in cells:
        surface = {2: "circle", 3: "sphere"}[d]
        mesh = mesh_of(surface, count)
        solution = solve(attention(0, a), mesh, start, until=time)
        errors.append(float(np.median(np.abs(solution.log_at(points) - exact))))
    assert orders(cells, errors, d).min() > {2: 2.4, 3: 2.0}[d], errors
    assert errors[-1] < {2: 1.5e-4, 3: 2e-3}[d], errors


def test_means_over_cells_with_patches_and_far_tails() -> None:
    case = read_case(ROOT / "demos" / "circle-lopsided.toml")
    head = case.attention.layers[0].with_beta(20.0)
    solution = solve(
        head,
        circle_mesh(100),
        case.initial,
        until=7.0,
        save_at=[6.0],
        adapt=1e-3,
        compare=CompareCase(zero_temperature=True, p=(1,)),
    )
    assert solution.history["patch_mass"][1] > 0.5
    for index in range(3):
        expected = np.log(solution.density_at(index))
        np.testing.assert_allclose(cell_means(solution, index), expected, rtol=0, atol=1e-10)
        cells = solution.cells_at(index, zero_temperature=True)
        masses = solution.store.read(index, "zero_temperature/masses")
        means = cell_means(solution, index, zero_temperature=True)
        np.testing.assert_allclose(means, np.log(masses / cells.volumes), rtol=0, atol=1e-10)


def test_the_logarithm_is_followed_below_the_range_of_doubles() -> None:
    case = read_case(ROOT / "demos" / "circle-lopsided.toml")
    head = case.attention.layers[0].with_beta(80.0)
    solution = solve(head, circle_mesh(200), case.initial, until=60.0, log_masses=True)
    logs = solution.log_at(solution.points)
    assert logs.min() < -800
    assert solution.at(solution.points).min() == 0
    saved = solution.store.read(1, "log_masses") - np.log(solution.volumes)
    np.testing.assert_allclose(cell_means(solution, 1), saved, rtol=0, atol=1e-10)


def test_on_a_grid_of_one_degree_a_smooth_density_has_mass_one() -> None:
    mixture = VonMises((Component(0.7, 4.0, (0.6, 0.8, 0)), Component(0.3, 2.0, (-0.8, 0.6, 0))))
    head = Attention(np.eye(3), np.eye(3), np.diag([1.0, 0.5, 0.3]), 30.0)
    solution = solve(head, sphere_mesh(1280), mixture, until=1.0)
    latitude, longitude = np.radians(np.mgrid[-89.5:90, 0.5:360].reshape(2, -1))
    across = np.cos(latitude)
    points = np.column_stack(
        [across * np.cos(longitude), across * np.sin(longitude), np.sin(latitude)]
    )
    half = np.radians(0.5)
    area = 2 * half * (np.sin(latitude + half) - np.sin(latitude - half))
    for index in range(2):
        assert area @ solution.at(points, index) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("adapt", ["", "[adapt]\ntolerance = 1e-2\n"])
def test_a_folder_gives_what_the_solution_gives(
    adapt: str, write_case: Write, tmp_path: Path, undrawn: None
) -> None:
    path = write_case(CIRCLE.replace("cells = 200", "cells = 60") + adapt)
    case = read_case(path, output=tmp_path / "out")
    solution = run_case(case, quiet=True)
    result = read_result(tmp_path / "out")
    points = on_sphere(np.random.default_rng(3), 50, 2)
    for index in (0, 3, -1):
        np.testing.assert_array_equal(result.at(points, index), solution.at(points, index))
        velocity = result.velocity_at(points, index)
        np.testing.assert_array_equal(velocity, solution.velocity_at(points, index))
        function = solution.velocity(index)
        nodes = function.function_space.tabulate_dof_coordinates()[:, :2]
        at_nodes = solution.velocity_at(nodes, index)
        np.testing.assert_allclose(at_nodes, function.x.array.reshape(-1, 2), atol=1e-9)
    assert np.abs((velocity * points).sum(axis=1)).max() < 1e-14


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_velocity_has_the_sources_that_were_integrated(noise: float) -> None:
    """With noise others are taken (`attention.cell_sources`)."""
    head = Attention(np.eye(2), np.eye(2), np.diag([1.0, 0.3]), 5.0)
    simulation = Simulation(head, circle_mesh(40), "1 + 0.5*x*y", noise=noise)
    simulation.run([0.0, 0.5])
    evolution, points = simulation.evolution, on_sphere(np.random.default_rng(4), 20, 2)
    field = evolution.rhs.field(evolution.state.masses.log, NONE)
    found = simulation.solution().velocity_at(points)
    np.testing.assert_allclose(found, field(points), rtol=0, atol=1e-12)
    simulation.close()


@pytest.mark.parametrize(
    ("points", "index", "says"),
    [
        ([[2.0, 0.0]], 0, r"point 0 is not on the unit sphere: \[2.0, 0.0\] has length 2"),
        ([[1.0, 0.0, 0.0]], 0, "points must be rows of 2 coordinates"),
        ([["a", "b"]], 0, "points must be an array of real numbers"),
        ([[1.0, 0.0]], 7, "there is no saved time 7: there are 2"),
    ],
)
def test_points_and_times_that_are_refused(points: object, index: int, says: str) -> None:
    solution = solve(Attention(*[np.eye(2)] * 3, 1.0), circle_mesh(20), until=0.1)
    for of in (solution.at, solution.log_at, solution.velocity_at):
        with pytest.raises(InputError, match=says):
            of(points, index)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(InputError, match="no density at zero temperature"):
        solution.at([[1.0, 0.0]], zero_temperature=True)  # type: ignore[arg-type]  # a list
