"""The attention sum against the plain sum in extended precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mpi4py import MPI

import numpy as np
import pytest

from meanfield_pde.attention.sum import SumSettings, softmax
from meanfield_pde.attention.sum.direct import survey, with_points
from meanfield_pde.attention.sum.exponential import NO_MASS
from meanfield_pde.attention.sum.tree import LEAF, NODE, TILE, TOP, Sources, Targets, bisect, boxes
from meanfield_pde.support.threads import allowed_threads, set_threads
from tests import oracles
from tests.problems import (
    MEASURES,
    WeightedPoints,
    clusters,
    half_of_the_sphere_empty,
    inside_the_ball,
    masses_over_300_decades,
    on_sphere,
)

TOLERANCE = 1e-10
# The plain sum, which does the smallest elsewhere, is what they are compared with here.
SETTINGS = SumSettings(few_terms=0)
# One more and one less than the targets of a tile and the sources of a leaf, a node, and the top.
SIZES = [1, TILE - 1, TILE, TILE + 1, NODE - 1, NODE + 1, TOP + 1]
SCALES = [0.0, 1e-8, 1.0, 30.0, 1e3, 1e5]
DIMENSIONS = [2, 3, 4]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """One thread unless a test asks for more: to start others takes longer than these sums."""
    before = allowed_threads()
    set_threads(MPI.COMM_SELF, 1)
    yield
    set_threads(MPI.COMM_SELF, before)


def random_scores(rng: np.random.Generator, count: int, d: int, scale: float) -> np.ndarray:
    """Scores of one length, as at the cells of a mesh, or of all lengths up to it."""
    lengths = rng.choice([1.0, 0.0], count, p=[0.9, 0.1]) if rng.integers(2) else rng.random(count)
    return scale * lengths[:, None] * on_sphere(rng, count, d)


def check(scores: np.ndarray, points: np.ndarray, log_masses: np.ndarray) -> None:
    means, logs = oracles.softmax_sums(scores, points, log_masses)
    mean, log_sum = softmax(scores, points, log_masses, tolerance=TOLERANCE, settings=SETTINGS)
    assert mean.shape == scores.shape
    assert np.linalg.norm((mean - means).astype(float), axis=1).max() <= TOLERANCE
    assert log_sum.shape == (len(scores),)
    assert np.abs(log_sum - logs).max() <= TOLERANCE


def test_log_z_is_bounded_from_below_by_the_means_of_groups() -> None:
    """And is close where groups are small beside the kernel."""
    rng = np.random.default_rng(14)
    points, log_masses = on_sphere(rng, 2 * TOP + 5, 3), rng.normal(size=2 * TOP + 5)
    sources = Sources(points)
    sources.load(log_masses)
    for scale, close in ((0.05, 1e-2), (20.0, np.inf)):
        scores = random_scores(rng, 3 * TILE, 3, scale)
        targets = Targets(scores, scores)
        found = sources.log_z_from_below(targets.scores, np.array([0, 2])).ravel()
        wanted = targets.order.reshape(-1, TILE)[[0, 2]].ravel()
        log_z = np.logaddexp.reduce(scores[wanted] @ points.T + log_masses, axis=1)
        assert (found <= log_z + 1e-12).all()
        assert (found >= log_z - close).all()


@pytest.mark.parametrize("d", [2, 3])
def test_points_are_added_to_sums_of_any_size(d: int) -> None:
    """Log Z from far below that of the points to far above, from target to target, and of none."""
    rng = np.random.default_rng(13)
    count, points = 2 * TILE + 3, on_sphere(rng, 5, d)
    scores, log_masses = random_scores(rng, count, d, 2e3), rng.normal(size=5)
    logs = rng.uniform(-4e3, 4e3, count)
    logs[::7] = NO_MASS
    sums = np.column_stack([inside_the_ball(rng, count, d)[0], logs])
    found = with_points(sums, scores, points, log_masses)
    exponents = np.column_stack([logs, scores @ points.T + log_masses])
    weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    mean = weights[:, :1] * sums[:, :d] + weights[:, 1:] @ points
    assert found[:, :d] == pytest.approx(mean / weights.sum(axis=1, keepdims=True), abs=1e-11)
    assert found[:, d] == pytest.approx(np.logaddexp.reduce(exponents, axis=1), rel=1e-14)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("measure", MEASURES)
def test_against_the_plain_sum(
    measure: Callable[[np.random.Generator, int, int], WeightedPoints], size: int, d: int
) -> None:
    rng = np.random.default_rng([size, d, MEASURES.index(measure)])
    for scale in SCALES:
        points, log_masses = measure(rng, size, d)
        # Numbers of targets that do not fill a tile, either.
        check(random_scores(rng, rng.choice(SIZES[:-1]), d, scale), points, log_masses)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("scale", SCALES)
def test_many_targets_and_scores_of_all_lengths(scale: float, d: int) -> None:
    rng = np.random.default_rng(7)
    points, log_masses = masses_over_300_decades(rng, 200, d)
    scores = scale * 10.0 ** rng.uniform(-6, 0, (497, 1)) * on_sphere(rng, 497, d)
    check(scores, points, log_masses)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_targets_at_the_sources(d: int) -> None:
    """As in the solver: x runs over the points themselves, and the mean is near x."""
    rng = np.random.default_rng(8)
    points, log_masses = clusters(rng, 150, d)
    for scale in SCALES:
        check(scale * points, points, log_masses)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_a_common_factor_of_the_masses_does_not_matter(d: int) -> None:
    rng = np.random.default_rng(9)
    points, log_masses = inside_the_ball(rng, 200, d)
    scores = random_scores(rng, 100, d, 1e3)
    mean, log_sum = softmax(scores, points, log_masses, tolerance=TOLERANCE, settings=SETTINGS)
    for shift in (-690.0, 650.0):
        same, shifted = softmax(
            scores, points, log_masses + shift, tolerance=TOLERANCE, settings=SETTINGS
        )
        np.testing.assert_allclose(same, mean, rtol=0, atol=2 * TOLERANCE)
        np.testing.assert_allclose(shifted, log_sum + shift, rtol=0, atol=2 * TOLERANCE)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-6, 1e-14])
@pytest.mark.parametrize("d", DIMENSIONS)
def test_the_tolerance_is_a_bound(d: int, tolerance: float) -> None:
    rng = np.random.default_rng(10)
    for scale in (1.0, 30.0, 1e3):
        points, log_masses = masses_over_300_decades(rng, 1000, d)
        scores = random_scores(rng, 70, d, scale)
        means, logs = oracles.softmax_sums(scores, points, log_masses)
        rounding = 1e-14 * (1 + scale) + 1e-12  # the logs of the masses go down to -690
        mean, log_sum = softmax(scores, points, log_masses, tolerance=tolerance, settings=SETTINGS)
        error = np.linalg.norm((mean - means).astype(float), axis=1).max()
        assert error <= tolerance + rounding
        assert np.abs(log_sum - logs).max() <= tolerance + rounding


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("d", [2, 3])
def test_three_levels_of_pruning(
    measure: Callable[[np.random.Generator, int, int], WeightedPoints], d: int
) -> None:
    """Thousands of sources, so that whole nodes and tops are skipped, or none is."""
    rng = np.random.default_rng([13, d, MEASURES.index(measure)])
    points, log_masses = measure(rng, 3 * TOP + 100, d)
    for scale in (3.0, 300.0, 3e4):
        check(random_scores(rng, 50, d, scale), points, log_masses)


def test_leaves_are_skipped_where_the_scores_are_long() -> None:
    rng = np.random.default_rng(14)
    points = on_sphere(rng, 5 * TOP, 3)
    sources = Sources(points)
    sources.load(np.zeros(len(points)))
    visited = []
    for scale in (1.0, 100.0, 1e4):
        near = points[0] + 0.02 * rng.normal(size=(TILE, 3))
        scores = scale * near / np.linalg.norm(near, axis=1, keepdims=True)
        visits, _ = survey(sources, np.ascontiguousarray(scores.T), np.array([0]), TOLERANCE)
        visited.append(visits[0, 0] / sources.leaves)
    assert visited[0] == 1.0
    assert visited[1] < 0.25
    assert visited[2] < 0.02


@pytest.mark.parametrize("size", [LEAF, NODE])
def test_boxes_contain_their_points(size: int) -> None:
    rng = np.random.default_rng(15)
    for points in (on_sphere(rng, 1000, 3), clusters(rng, 1000, 3)[0], rng.normal(size=(1000, 3))):
        ordered = points[bisect(points, (TOP, NODE, LEAF))]
        box = boxes(ordered, size).reshape(-1, 4, 3)
        for k, start in enumerate(range(0, 1000, size)):
            offset = ordered[start : start + size] - box[k, 0]
            for axis in box[k, 1:]:
                assert np.abs(offset @ axis).max() <= axis @ axis * (1 + 1e-12) + 1e-30


def test_the_tree_is_nested() -> None:
    points = on_sphere(np.random.default_rng(16), 2 * TOP + 5, 3)
    order, tops = bisect(points, (TOP, NODE, LEAF)), bisect(points, (TOP,))
    assert np.array_equal(np.sort(order), np.arange(len(points)))
    for start in range(0, len(points), TOP):
        assert set(order[start : start + TOP]) == set(tops[start : start + TOP])


def test_groups_are_halves_along_the_longest_side() -> None:
    """As sorting has them; points in a row are ordered by their numbers."""
    points = on_sphere(np.random.default_rng(17), 200, 3).round(1) + 0.0
    expected, size = [np.arange(200)], 13
    while len(expected[0]) > size:
        halves = []
        for group in expected:
            count = -(-len(group) // size)
            axis = np.ptp(points[group], axis=0).argmax()
            order = group[np.lexsort((group, points[group, axis]))]
            middle = count // 2 * size if count > 1 else len(group)
            halves += [order[:middle], order[middle:]] if count > 1 else [order]
        expected = halves
    order = bisect(points, (size,))
    for number, group in enumerate(expected):
        assert set(order[number * size : (number + 1) * size]) == set(group)


def test_arguments_are_left_alone() -> None:
    rng = np.random.default_rng(11)
    points, log_masses = half_of_the_sphere_empty(rng, 100, 3)
    given = random_scores(rng, 50, 3, 10.0), points, log_masses
    copies = [array.copy() for array in given]
    softmax(*given, settings=SETTINGS)
    for array, copy in zip(given, copies, strict=True):
        np.testing.assert_array_equal(array, copy)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("measure", [masses_over_300_decades, half_of_the_sphere_empty])
def test_the_number_of_threads_changes_no_bit(
    measure: Callable[[np.random.Generator, int, int], WeightedPoints],
    d: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = SumSettings(few_terms=0, work_per_thread=1.0)
    rng = np.random.default_rng(12)
    for scale in (1.0, 1e3, 1e5):
        points, log_masses = measure(rng, 500, d)
        scores = random_scores(rng, 500, d, scale)
        results = []
        for count in (1, 2, 3):
            monkeypatch.setattr("meanfield_pde.support.threads._allowed", [count])
            found = softmax(scores, points, log_masses, tolerance=TOLERANCE, settings=settings)
            results.append([array.tobytes() for array in found])
        assert results[0] == results[1] == results[2]
