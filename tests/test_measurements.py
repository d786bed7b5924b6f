"""What the benchmarks of sums, tails and lifetimes are made of."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.linalg

from meanfield_pde import ProjectionLimit, circle_mesh, solve
from meanfield_pde.amr.forest import DEEPEST, Forest
from meanfield_pde.attention.sum.shared import SharedSum
from meanfield_pde.experiments.cost import BYTES_AT_REST, BYTES_REPEATED, BYTES_SHARED
from meanfield_pde.mesh import geometry
from tests.benchmarks import growth
from tests.benchmarks.adaptivity import GIVEN, SPHERES, sphere_case, sphere_runs, spread
from tests.benchmarks.memory import peak_of
from tests.benchmarks.sums import (
    Counter,
    Problem,
    differences,
    in_given,
    measure,
    run,
    sums_at,
)
from tests.benchmarks.tails import (
    AWAY,
    attention,
    density,
    drift,
    errors_of,
    exact_log_masses,
    order,
)
from tests.problems import MIXTURE, SURFACES, metastable


@pytest.mark.parametrize("d", [2, 3])
def test_exact_log_masses_are_those_of_the_preimage(d: int) -> None:
    """Geodesic cells stay geodesic: M^-1 takes each to one that has its mass initially."""
    a, left = drift(1, d)
    surface = SURFACES[d](1280)
    corners = surface.points[surface.cells]
    found = exact_log_masses(corners, a, left, 1.0)
    known = np.isfinite(found)
    assert known.mean() > 0.3
    preimage = geometry.normalised(corners @ scipy.linalg.expm(-a).T)
    masses = geometry.integrate(density, preimage) / (2 * (d - 1) * math.pi)
    assert masses.sum() == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(found[known], np.log(masses[known]), atol=1e-6)
    middle = geometry.normalised(corners.sum(axis=1))
    assert np.abs(middle[known] @ left).min() > AWAY


@pytest.mark.parametrize("d", [2, 3])
def test_drifts_are_what_the_theorem_asks_for(d: int) -> None:
    for seed in range(5):
        a, left = drift(seed, d)
        head = attention(seed, a)
        np.testing.assert_allclose(head.value @ head.key_query, a, atol=1e-14)
        np.testing.assert_allclose(head.key_query @ head.key_query.T, np.eye(d), atol=1e-14)
        values = np.sort(np.linalg.eigvals(a).real)[::-1]
        assert (values[1:] / values[:-1] <= 0.6 + 1e-12).all()
        np.testing.assert_allclose(left @ a, values[-1] * left, atol=1e-13)


def test_the_order_of_errors_by_the_width_of_cells() -> None:
    cells = (320, 1280, 5120)
    assert order(cells, [1.0, *(n**-2.5 for n in cells[1:])], 2) == pytest.approx(2.5)
    assert order(cells, [1.0, *(n**-1.5 for n in cells[1:])], 3) == pytest.approx(3)
    assert math.isnan(order(cells[:2], [1.0, 0.5], 2))


@pytest.mark.parametrize("kind", ["uniform", "graded", "bisected"])
def test_tails_are_of_third_order_on_the_circle(kind: str) -> None:
    errors = [errors_of("circle", 0, n, "quadratic", (1.0,), kind)[0][0] for n in (320, 640)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(3, abs=0.3)


def test_errors_do_not_grow_on_bisected_triangles() -> None:
    """Slopes by the three neighbours, where the quadratic fit is too steep: 2.3e-2 and 4.3e-3."""
    for cells, bound in ((320, 1.3e-2), (1280, 3e-3)):
        assert errors_of("sphere", 0, cells, "quadratic", (9.0,), "bisected")[0][0] < bound


def test_sums_of_steps_are_counted_without_those_of_diagnostics() -> None:
    whole = SharedSum.__call__
    problem = Problem("circle", 40, 10.0, 0.5)
    solution, counter = run(problem, 1.0, "muscl")
    assert SharedSum.__call__ is whole
    assert solution.steps <= counter.sums <= 5 * solution.steps
    seconds, of_sums = counter.seconds
    assert 0 < of_sums < seconds
    with Counter().counting() as counter:
        solve(metastable(math.inf), circle_mesh(40), MIXTURE, until=0.5, observers=[counter])
    assert counter.sums == 0
    assert counter.seconds[0] > 0


def test_steps_that_are_shorter_leave_less_error() -> None:
    problem = Problem("circle", 40, 10.0, 0.5, fine=16.0)
    first, second = measure(problem, "muscl", None, (1.0, 2.0))
    assert second.sums > 1.5 * first.sums
    assert second.l1 < 0.4 * first.l1
    solution, _ = run(problem, 1.0, "muscl")
    known = solution.density[-1]
    assert differences(solution, known) == (0, 0, 0)
    l1, logs, moments = differences(solution, 2 * known)
    assert (l1, logs) == pytest.approx((1, math.log(2)))
    assert moments <= 1


def test_what_ranks_share_of_a_step_is_timed() -> None:
    cells, _, (step,), (repeated,), (moments,), _ = growth.measure(320, 10.0)
    assert cells == 320
    assert 0 <= moments <= step - repeated < step  # by the direct sum there are none


@pytest.mark.parametrize("d", [2, 3])
def test_masses_of_bisected_cells_in_those_given(d: int) -> None:
    forest = Forest.of(SURFACES[d](80))
    given = forest.corners
    for part in (0.5, 0.0, -0.5):
        forest = forest.refined(forest.corners[:, 0, 0] > part)
    points = geometry.normalised(geometry.cell_mean(forest.corners))
    masses = np.random.default_rng(0).random(forest.count)
    expected = np.bincount(forest.keys >> DEEPEST, masses)
    np.testing.assert_allclose(in_given(points, masses, given), expected, rtol=1e-14)


def test_sums_at_equal_error() -> None:
    rows = [{"l1": error, "sums": 3 * error**-0.5} for error in (1e-2, 1e-4, 1e-6)]
    assert sums_at(1e-3, rows) == pytest.approx(3 * 1e-3**-0.5)
    assert sums_at(1.0, rows) == pytest.approx(30)
    assert sums_at(1e-8, rows) == pytest.approx(3e4)


def test_cases_on_the_sphere_have_a_metastable_phase() -> None:
    for name, betas in SPHERES.items():
        case, _ = sphere_case(name)
        for matrix in (case.value, case.value @ case.key_query):
            assert np.abs(matrix - matrix.T).max() > 0.01
        for beta in betas:
            limit = ProjectionLimit(case.with_beta(beta))
            assert 5 < beta * limit.lifetime_per_beta < 25
    inclined = sphere_case("sphere-inclined")[0]
    for matrix, values in (
        (inclined.value, [0.4, 0.5, 1]),
        (inclined.value @ inclined.key_query, [0.25, 0.3, 1]),
    ):
        np.testing.assert_allclose(np.sort(np.linalg.eigvals(matrix).real), values, atol=1e-4)


def test_meshes_that_lifetimes_are_measured_on() -> None:
    runs = sphere_runs(False, "sphere-skew", None, [2e-3])
    assert [cells for cells, _ in runs] == list(GIVEN)
    assert [len(SURFACES[3](cells).cells) for cells in GIVEN] == list(GIVEN)
    assert (1280, None) in sphere_runs(True, "sphere", None, [2e-3])
    assert sphere_runs(True, "sphere", [320], [1e-3, 2e-3]) == [(320, 1e-3), (320, 2e-3)]
    assert spread([9.0, 10.0, 11.0]) == pytest.approx(0.2)


@pytest.mark.slow
def test_a_mesh_is_refused_by_the_bytes_that_a_cell_takes() -> None:
    """Neither less, or what does not fit would begin, nor far more."""
    peak_of(20_480, 1)  # compiles what is not in the cache, which takes memory, too
    for cells in (20_480, 81_920):
        said = BYTES_AT_REST + (BYTES_REPEATED + BYTES_SHARED) * cells
        assert 0.97 * peak_of(cells, 1)[1] < said < 1.35 * peak_of(cells, 1)[1]
