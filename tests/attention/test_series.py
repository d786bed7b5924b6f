"""Series between blocks and groups against the plain sum, and the bounds they rely on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from meanfield_pde.attention.sum import AttentionSum
from meanfield_pde.attention.sum.cost_model import estimate
from meanfield_pde.attention.sum.exponential import HIGHEST, Exponentials
from meanfield_pde.attention.sum.series import SIZES, Series
from meanfield_pde.attention.sum.series_reach import lowest_kept
from meanfield_pde.attention.sum.sources import Sources, Targets
from meanfield_pde.attention.sum.tree import TILE

TOLERANCE = 1e-10
Measure = tuple[np.ndarray, np.ndarray]  # points, log masses


def spiral(count: int) -> np.ndarray:
    """Nearly uniform points on the sphere."""
    k = np.arange(count) + 0.5
    z = 1 - 2 * k / count
    longitude = np.pi * (1 + 5**0.5) * k
    across = np.sqrt(1 - z * z)
    return np.column_stack([across * np.cos(longitude), across * np.sin(longitude), z])


def uniform(count: int) -> Measure:
    points = spiral(count)
    return points, np.log1p(0.3 * points[:, 0])


def tails_of_1e_minus_300(count: int) -> Measure:
    """Two clusters, and between them log masses down to -690, of which the sums there are made."""
    points = spiral(count)
    return points, 690.0 * (np.abs(points @ [0.6, 0.0, 0.8]) - 1)


def below_all_doubles(count: int) -> Measure:
    """As for a run with log masses: a steep density down to e^-3000."""
    points = spiral(count)
    return points, 1500.0 * (points @ [0.6, 0.0, 0.8] - 1)


def rough_and_half_empty(count: int) -> Measure:
    points = spiral(count)
    rough = np.random.default_rng(5).uniform(-40, 0, count)
    return points, np.where(points[:, 2] > 0, rough, -np.inf)


MEASURES = [uniform, tails_of_1e_minus_300, below_all_doubles, rough_and_half_empty]


def naive(w: np.ndarray, y: np.ndarray, log_m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and log Z as in the definition, in extended precision."""
    w, y, log_m = (array.astype(np.longdouble) for array in (w, y, log_m))
    exponent = w @ y.T + log_m
    largest = exponent.max(axis=1)
    weight = np.exp(exponent - largest[:, None])
    total = weight.sum(axis=1)
    return weight @ y / total[:, None], largest + np.log(total)


def series_of(
    points: np.ndarray,
    scores: np.ndarray,
    log_masses: np.ndarray,
    tolerance: float = TOLERANCE,
    *,
    nodes: bool = False,
) -> tuple[Series, Targets]:
    sources, targets = Sources(points), Targets(scores, scores)
    series = Series(sources, targets, tolerance, nodes=nodes)
    sources.load(log_masses)
    series.load()
    return series, targets


@pytest.mark.parametrize("rho", [0.01, 0.3, 1.0, 4.9])
def test_polynomials_are_within_their_bounds(rho: float) -> None:
    table = Exponentials.tabulate()
    row = int(np.searchsorted(table.reach, rho))
    s = rho * np.cos(np.linspace(0, np.pi, 101)).astype(np.longdouble)
    for degree in range(HIGHEST + 1):
        polynomial = np.polynomial.Polynomial(table.coefficients[row, degree].astype(np.longdouble))
        error = np.abs(polynomial(s) - np.exp(s)).max()
        slope_error = np.abs(polynomial.deriv()(s) - np.exp(s)).max()
        assert error <= table.error[row, degree]
        assert slope_error <= table.slope_error[row, degree]
        # Nor are the bounds idle: that of the row's own rho is within a digit of the error.
        if degree < 4:
            assert table.error[row, degree] < 40 * error * 1.12 ** (degree + 1)


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("beta", [pytest.param(3.0, marks=pytest.mark.slow), 20.0, 100.0])
def test_within_the_tolerance_for_every_target(
    measure: Callable[[int], Measure], beta: float
) -> None:
    """Also where Z is smaller by hundreds of decades than elsewhere."""
    points, log_masses = measure(9000)
    skew = np.array([[0.9, -0.1, 0.0], [-0.1, 0.5, 0.05], [-0.4, 0.0, 0.3]])
    scores = beta * spiral(3001) @ skew
    series, targets = series_of(points, scores, log_masses)
    found, done = series.sums(np.arange(targets.tiles))
    assert done.all()
    sample = np.arange(0, targets.tiles * TILE, 11)
    means, logs = naive(scores[targets.order[sample]], points, log_masses)
    error = np.linalg.norm((found[:3, sample].T - means).astype(float), axis=1)
    assert error.max() <= TOLERANCE
    assert np.abs(found[3, sample] - logs).max() <= TOLERANCE


def around(points: np.ndarray, centre: list[float], angle: float) -> np.ndarray:
    """Those within an angle of a centre."""
    return points[points @ centre > np.cos(angle)]


def check_nodes(points: np.ndarray, log_masses: np.ndarray, scores: np.ndarray) -> None:
    """Nodes stand for the sources: all blocks are done, all errors within the tolerance."""
    series, targets = series_of(points, scores, log_masses, nodes=True)
    found, done = series.sums(np.arange(targets.tiles))
    assert done.all()
    sample = np.arange(0, targets.tiles * TILE, 29)
    means, logs = naive(scores[targets.order[sample]], points, log_masses)
    error = np.linalg.norm((found[: points.shape[1], sample].T - means).astype(float), axis=1)
    assert error.max() <= TOLERANCE
    assert np.abs(found[3, sample] - logs).max() <= TOLERANCE


def clusters(count: int) -> Measure:
    """Two clusters, and a kink between them."""
    points = spiral(count)
    return points, 200.0 * (np.abs(points @ [0.6, 0.0, 0.8]) - 1)


@pytest.mark.parametrize("measure", [uniform, clusters, rough_and_half_empty])
def test_nodes_are_within_the_tolerance(measure: Callable[[int], Measure]) -> None:
    points, log_masses = measure(20_000)
    skew = np.array([[0.9, -0.1, 0.0], [-0.1, 0.8, 0.05], [-0.2, 0.0, 1.0]])
    scores = 60 * around(spiral(120_000), [0.6, 0.0, 0.8], 0.28) @ skew
    check_nodes(points, log_masses, scores)


def test_nodes_where_the_masses_are_1e_minus_300() -> None:
    """A cap whose mass falls by 1e-300 from one end to the other; targets at that end."""
    points = around(spiral(400_000), [0.0, 0.0, 1.0], 0.5)
    log_masses = -690 * np.arccos(points @ [np.sin(0.5), 0.0, np.cos(0.5)])
    targets = around(spiral(800_000), [-np.sin(0.4), 0.0, np.cos(0.4)], 0.1)
    check_nodes(points, log_masses, 2000 * targets)


def test_nodes_made_in_parts_by_ranks_are_the_same() -> None:
    points, log_masses = clusters(20_000)
    scores = 60 * around(spiral(120_000), [0.6, 0.0, 0.8], 0.28)
    series, targets = series_of(points, scores, log_masses, nodes=True)
    whole, done = series.sums(np.arange(targets.tiles))
    assert done.all()

    def dealt(work: Callable[[np.ndarray], np.ndarray], items: np.ndarray) -> np.ndarray:
        parts = [work(items[rank::3]) for rank in range(3)]
        rows = np.empty((len(items), parts[0].shape[1]))
        for rank, part in enumerate(parts):
            rows[rank::3] = part
        return rows

    series.load(dealt)
    assert series.sums(np.arange(targets.tiles))[0].tobytes() == whole.tobytes()


def test_nodes_on_the_circle() -> None:
    angle = 2 * np.pi * (np.arange(9000) + 0.5) / 9000
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    log_masses = 200.0 * (np.abs(points[:, 0]) - 1)
    check_nodes(points, log_masses, 200 * points)


def test_what_nodes_are_too_coarse_for_is_left_to_tiles() -> None:
    points, log_masses = below_all_doubles(20_000)
    series, targets = series_of(points, 5 * spiral(3001), log_masses, nodes=True)
    _, done = series.sums(np.arange(targets.tiles))
    assert not done.any()


def test_on_the_circle() -> None:
    angle = 2 * np.pi * (np.arange(9000) + 0.5) / 9000
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    log_masses = 690.0 * (np.abs(points[:, 0]) - 1)
    scores = 200 * points[::3]
    series, targets = series_of(points, scores, log_masses)
    found, done = series.sums(np.arange(targets.tiles))
    assert done.all()
    means, logs = naive(scores[targets.order], points, log_masses)
    error = np.linalg.norm((found[:2].T - means).astype(float), axis=1)
    assert error.max() <= TOLERANCE
    assert np.abs(found[3] - logs).max() <= TOLERANCE


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_a_looser_tolerance_is_a_bound_and_costs_less(tolerance: float) -> None:
    points, log_masses = tails_of_1e_minus_300(9000)
    scores = 5 * spiral(3001)
    costs = []
    for asked in (TOLERANCE, tolerance):
        series, targets = series_of(points, scores, log_masses, asked)
        found, done = series.sums(np.arange(targets.tiles))
        assert done.all()
        sample = np.arange(0, targets.tiles * TILE, 23)
        means, _ = naive(scores[targets.order[sample]], points, log_masses)
        error = np.linalg.norm((found[:3, sample].T - means).astype(float), axis=1).max()
        assert error <= asked
        costs.append(series.costs(np.arange(series.blocks)).sum())
    assert costs[1] < 0.9 * costs[0]


def test_blocks_with_exponents_out_of_range_are_left_to_tiles() -> None:
    points, log_masses = uniform(9000)
    scores = 1e5 * spiral(3001)
    sources, targets = Sources(points), Targets(scores, scores)
    series = Series(sources, targets, TOLERANCE, nodes=False)
    sources.load(log_masses)
    _, done = series.sums(np.arange(targets.tiles))
    assert not done.all()


def test_neither_threads_nor_parts_of_the_work_change_a_bit() -> None:
    points, log_masses = tails_of_1e_minus_300(9000)
    series, targets = series_of(points, 20 * spiral(3001), log_masses)
    whole, _ = series.sums(np.arange(targets.tiles))
    again, _ = series.sums(np.arange(targets.tiles), threads=2)
    assert again.tobytes() == whole.tobytes()
    blocks = np.arange(targets.tiles) // series.tiles
    for rank in range(3):
        tiles = np.flatnonzero(blocks % 3 == rank)
        part, _ = series.sums(tiles)
        expected = whole.reshape(4, -1, TILE)[:, tiles].reshape(4, -1)
        assert part.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_chosen_where_a_kernel_holds_thousands_of_sources() -> None:
    points, where = spiral(160_000), spiral(40_000)
    log_masses = 200.0 * (np.abs(points @ [0.6, 0.0, 0.8]) - 1)
    chosen = []
    for beta in (30.0, 3000.0):
        sums = AttentionSum(points, where, beta * where, TOLERANCE)
        sums.load(log_masses)
        chosen.append(sums.estimate.use_series)
        tiles = np.arange(sums.tiles_at_once)
        found = sums.sums(tiles, None)
        targets = sums.targets.order[: found.shape[1] : 9]
        means, logs = naive(beta * where[targets], points, log_masses)
        error = np.linalg.norm((found[:3, ::9].T - means).astype(float), axis=1)
        assert error.max() <= TOLERANCE
        assert np.abs(found[3, ::9] - logs).max() <= TOLERANCE
    assert chosen == [True, False]


def test_groups_widen_with_the_kernel() -> None:
    points, scores = spiral(20_000), spiral(10_000)
    sizes = [series_of(points, beta * scores, np.zeros(20_000))[0].size for beta in (3.0, 1000.0)]
    assert sizes[0] > sizes[1] == SIZES[0]


def test_what_is_out_of_reach_is_left_out_together() -> None:
    """Groups left out hold no more than is allowed, and fewer are kept than one by one."""
    generator = np.random.default_rng(4)
    high = generator.uniform(-60, 0, 5000)
    allowed = 1e-11
    least = lowest_kept(high, allowed)
    left_out = high[high < least]
    assert 0 < np.exp(left_out).sum() <= allowed
    assert len(left_out) > np.count_nonzero(high < np.log(allowed / len(high)))
    assert np.exp(high[high < least + 1.0]).sum() > allowed
    assert lowest_kept(np.zeros(10), allowed) < 0


def test_the_estimate_takes_the_cheapest() -> None:
    case = {
        "sources": 20_000, "leaves": 1250, "tops": 20, "tiles": 625, "targets": 10_000,
        "visits": 1250.0, "looked_at": 157.0, "terms": 500, "degree": 30, "untrusted": 0.0,
    }  # fmt: skip
    assert not estimate(**case).use_series
    assert estimate(**case).use_low_rank
    quick = estimate(**case, series=1.0)
    assert quick.use_series
    assert not quick.use_low_rank
    assert quick.chosen == 1.0
    assert str(quick).startswith("series")
    assert str(estimate(**case | {"terms": None, "degree": None}, series=1.0)).startswith("series")
