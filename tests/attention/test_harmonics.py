"""The expansion in harmonics against the plain sum, and the choice of it."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.special import ive, spherical_in

from meanfield_pde.attention.sum import AttentionSum, SumSettings
from meanfield_pde.attention.sum.cost import Costs, estimate
from meanfield_pde.attention.sum.harmonics import (
    HarmonicExpansion,
    HarmonicSettings,
    _beyond,
    all_groups,
    degree_for,
)
from tests import oracles
from tests.problems import (
    MEASURES,
    WeightedPoints,
    equal_masses,
    masses_over_300_decades,
    on_sphere,
)

TOLERANCE = 1e-10
SETTINGS = HarmonicSettings()
# Up to the longest scores that an expansion is made for.
LENGTHS = [0.0, 1e-9, 0.5, 5.0, 30.0, 100.0]


def scores_of_all_lengths(
    rng: np.random.Generator, count: int, d: int, longest: float
) -> np.ndarray:
    lengths = longest * rng.uniform(size=(count, 1)) ** 3
    lengths[0] = longest
    lengths[-1] = 0.0
    return lengths * on_sphere(rng, count, d)


def by_harmonics(sums: AttentionSum, log_masses: np.ndarray) -> np.ndarray:
    """Rows (m, log Z) in the order of the targets, whatever the cost model says."""
    sums.load(log_masses)
    total = sums.moments(all_groups()).sum(axis=0)
    found = np.empty((4, sums.targets.count))
    found[:, sums.targets.order] = sums.sums(np.arange(sums.targets.tiles), total)
    return found.T


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("longest", LENGTHS)
@pytest.mark.parametrize("measure", MEASURES[:-1])  # the last has points inside the ball
def test_within_the_tolerance_for_every_target(
    measure: Callable[[np.random.Generator, int, int], WeightedPoints], longest: float, d: int
) -> None:
    rng = np.random.default_rng([d, MEASURES.index(measure), int(longest)])
    for count in (1, 70, 700):
        points, log_masses = measure(rng, count, d)
        points /= np.linalg.norm(points, axis=1, keepdims=True)
        scores = scores_of_all_lengths(rng, 150, d, longest)
        found = by_harmonics(AttentionSum(points, scores, scores, TOLERANCE), log_masses)
        means, logs = oracles.softmax_sums(scores, points, log_masses)
        error = np.linalg.norm((found[:, :d] - means).astype(float), axis=1)
        assert error.max() <= TOLERANCE
        assert np.abs(found[:, 3] - logs).max() <= TOLERANCE


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("longest", LENGTHS)
def test_the_bound_on_the_sums_holds_with_room(longest: float, d: int) -> None:
    """Relative to e^r times the mass; this is what the acceptance of a mean relies on."""
    rng = np.random.default_rng([d, int(longest)])
    degree = degree_for(longest, TOLERANCE, d, SETTINGS)
    assert degree is not None
    expansion = HarmonicExpansion(d, degree, longest, SETTINGS)
    points, log_masses = equal_masses(rng, 3000, d)
    masses = np.exp(log_masses)
    padded = np.zeros((3, len(points)))
    padded[:d] = points.T
    scores = np.zeros((3, 128))
    scores[:d] = scores_of_all_lengths(rng, 128, d, longest).T
    total = expansion.moments(padded, masses, all_groups()).sum(axis=0)
    found = expansion.sums(scores, np.arange(128 // 16), total)
    w, y = scores[:d].T.astype(np.longdouble), points.astype(np.longdouble)
    weight = np.exp(w @ y.T - np.linalg.norm(w, axis=1)[:, None]) * masses
    assert np.abs(found[3] - weight.sum(axis=1)).max() < expansion.error
    assert np.abs(found[:d].T - weight @ y).max() < expansion.error


@pytest.mark.parametrize("r", [1e-6, 0.3, 4.0, 50.0])
def test_truncation_is_the_sum_of_the_terms_left_out(r: float) -> None:
    k = np.arange(200)
    circle = np.where(k > 0, 2.0, 1.0) * ive(k, r)
    sphere = (2 * k + 1) * spherical_in(k, r) * math.exp(-r)
    for dimension, terms in ((2, circle), (3, sphere)):
        beyond = _beyond(r, dimension, SETTINGS)
        for degree in (0, 3, 10):
            expected = np.nan_to_num(terms[degree + 1 :]).sum()
            assert beyond[degree] == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_scores_too_long_have_no_harmonics() -> None:
    assert degree_for(1e6, TOLERANCE, 3, SETTINGS) is None
    degree = degree_for(200.0, TOLERANCE, 3, SETTINGS)
    assert degree is not None
    assert degree <= SETTINGS.highest_degree
    rng = np.random.default_rng(0)
    points, log_masses = equal_masses(rng, 100, 3)
    sums = AttentionSum(points, points, 1e6 * points, TOLERANCE)
    sums.load(log_masses)
    assert sums.estimate.harmonics is None
    assert not sums.estimate.use_harmonics
    assert "no harmonics" in str(sums.estimate)


def test_the_highest_degree_is_a_setting() -> None:
    rng = np.random.default_rng(0)
    points, log_masses = equal_masses(rng, 4000, 3)
    few = SumSettings(harmonics=HarmonicSettings(highest_degree=5))
    for settings, taken in ((SumSettings(), True), (few, False)):
        sums = AttentionSum(points, points, points, TOLERANCE, settings)
        sums.load(log_masses)
        assert sums.estimate.use_harmonics == taken


def test_points_off_the_sphere_have_no_harmonics() -> None:
    rng = np.random.default_rng(1)
    points = 0.9 * on_sphere(rng, 5000, 3)
    sums = AttentionSum(points, points, points, TOLERANCE)
    sums.load(np.zeros(len(points)))
    assert sums.estimate.harmonics is None


def test_targets_for_which_harmonics_are_too_coarse_are_left_to_the_direct_sum() -> None:
    """All mass in a cap: opposite to it Z is e^(-2 r) of what rounding is measured against."""
    rng = np.random.default_rng(2)
    points = on_sphere(rng, 2000, 3)
    log_masses = np.where(points[:, 2] > 0.9, 0.0, -np.inf)
    scores = 8 * points[:400]
    sums = AttentionSum(points, scores, scores, TOLERANCE)
    found = by_harmonics(sums, log_masses)
    assert 0.1 < sums.estimate.untrusted < 1
    means, logs = oracles.softmax_sums(scores, points, log_masses)
    assert np.linalg.norm((found[:, :3] - means).astype(float), axis=1).max() <= TOLERANCE
    assert np.abs(found[:, 3] - logs).max() <= TOLERANCE


def test_parts_of_the_work_give_the_same_bits() -> None:
    """What a rank computes does not depend on what others do."""
    rng = np.random.default_rng(3)
    points, log_masses = equal_masses(rng, 1500, 3)
    scores = 5 * on_sphere(rng, 1000, 3)
    sums = AttentionSum(points, scores, scores, TOLERANCE)
    sums.load(log_masses)
    moments = sums.moments(all_groups())
    halves = [sums.moments(part) for part in np.array_split(all_groups(), 3)]
    assert np.concatenate(halves).tobytes() == moments.tobytes()
    total = moments.sum(axis=0)
    whole = sums.sums(np.arange(sums.targets.tiles), total).reshape(4, -1, 16)
    for rank in range(3):
        tiles = np.arange(rank, sums.targets.tiles, 3)
        part = sums.sums(tiles, total).reshape(4, -1, 16)
        assert part.tobytes() == np.ascontiguousarray(whole[:, tiles]).tobytes()


def chosen(count: int, scale: float, measure: Callable[..., WeightedPoints] = equal_masses) -> bool:
    rng = np.random.default_rng(4)
    points, log_masses = measure(rng, count, 3)
    sums = AttentionSum(points, points, scale * points, TOLERANCE)
    sums.load(log_masses)
    return sums.estimate.use_harmonics


def test_the_cheaper_way_is_chosen() -> None:
    assert chosen(4000, 1.0)  # all pairs count, and few harmonics do
    assert not chosen(4000, 120.0)  # most leaves are skipped, and thousands of harmonics count
    assert not chosen(40, 1.0)  # few pairs
    # Masses so far apart that a few sources decide every sum.
    assert not chosen(4000, 50.0, masses_over_300_decades)


def test_the_cost_grows_with_the_work() -> None:
    case = {
        "sources": 20_000, "leaves": 1250, "tops": 20, "tiles": 625, "targets": 10_000,
        "visits": 1250.0, "bounded": 157.0, "terms": 500, "degree": 30, "untrusted": 0.0,
    }  # fmt: skip
    one = estimate(Costs(), **case)
    assert one.use_harmonics
    assert one.visited == 1.0
    assert estimate(Costs(), **case | {"visits": 12.5}).direct < one.direct / 10
    untrusted = estimate(Costs(), **case | {"untrusted": 1.0})
    assert untrusted.harmonics is not None
    assert not untrusted.use_harmonics  # everything would be computed twice
    assert not estimate(Costs(), **case | {"terms": None, "degree": None}).use_harmonics
    assert str(one).startswith("harmonics of degree 30 (direct ")
