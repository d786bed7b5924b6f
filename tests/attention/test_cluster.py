"""The cluster expansion against the plain sum, and the bounds that it relies on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from meanfield_pde.attention.sum import AttentionSum
from meanfield_pde.attention.sum.cluster import ClusterExpansion, ClusterSettings
from meanfield_pde.attention.sum.cost import Costs, estimate
from meanfield_pde.attention.sum.exponential import HIGHEST, Exponentials
from meanfield_pde.attention.sum.tree import TILE, Sources, Targets
from tests.problems import fibonacci_sphere

TOLERANCE = 1e-10
SETTINGS = ClusterSettings()
Measure = tuple[np.ndarray, np.ndarray]  # points, log masses


def uniform(count: int) -> Measure:
    points = fibonacci_sphere(count)
    return points, np.log1p(0.3 * points[:, 0])


def tails_of_1e_minus_300(count: int) -> Measure:
    """Two clusters, and between them log masses down to -690, of which the sums there are made."""
    points = fibonacci_sphere(count)
    return points, 690.0 * (np.abs(points @ [0.6, 0.0, 0.8]) - 1)


def below_all_doubles(count: int) -> Measure:
    """As for a run with log masses: a steep density down to e^-3000."""
    points = fibonacci_sphere(count)
    return points, 1500.0 * (points @ [0.6, 0.0, 0.8] - 1)


def rough_and_half_empty(count: int) -> Measure:
    points = fibonacci_sphere(count)
    rough = np.random.default_rng(5).uniform(-40, 0, count)
    return points, np.where(points[:, 2] > 0, rough, -np.inf)


MEASURES = [uniform, tails_of_1e_minus_300, below_all_doubles, rough_and_half_empty]


def naive(
    w: np.ndarray, y: np.ndarray, log_m: np.ndarray, kind: type = np.longdouble
) -> tuple[np.ndarray, np.ndarray]:
    """Means and log Z as in the definition, in extended precision unless it is said otherwise."""
    w, y, log_m = (array.astype(kind) for array in (w, y, log_m))
    exponent = w @ y.T + log_m
    largest = exponent.max(axis=1)
    weight = np.exp(exponent - largest[:, None])
    total = weight.sum(axis=1)
    return weight @ y / total[:, None], largest + np.log(total)


def expansion_of(
    points: np.ndarray,
    scores: np.ndarray,
    log_masses: np.ndarray,
    tolerance: float = TOLERANCE,
    *,
    proxies: bool = False,
    settings: ClusterSettings = SETTINGS,
) -> tuple[ClusterExpansion, Targets]:
    sources, targets = (
        Sources(points),
        Targets(scores, scores, nested=len(scores) >= settings.fewest_points),
    )
    expansion = ClusterExpansion(sources, targets, tolerance, settings, Costs(), by_proxies=proxies)
    sources.load(log_masses)
    expansion.load()
    return expansion, targets


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
    scores = beta * fibonacci_sphere(3001) @ skew
    expansion, targets = expansion_of(points, scores, log_masses)
    found, done = expansion.sums(np.arange(targets.tiles))
    assert done.all()
    sample = np.arange(0, targets.tiles * TILE, 11)
    means, logs = naive(scores[targets.order[sample]], points, log_masses)
    error = np.linalg.norm((found[:3, sample].T - means).astype(float), axis=1)
    assert error.max() <= TOLERANCE
    assert np.abs(found[3, sample] - logs).max() <= TOLERANCE


def around(points: np.ndarray, centre: list[float], angle: float) -> np.ndarray:
    """Those within an angle of a centre."""
    return points[points @ centre > np.cos(angle)]


def check_proxies(points: np.ndarray, log_masses: np.ndarray, scores: np.ndarray) -> None:
    """Nearly all blocks are done by proxy points, and all errors are within the tolerance."""
    expansion, targets = expansion_of(points, scores, log_masses, proxies=True)
    found, done = expansion.sums(np.arange(targets.tiles))
    assert done.mean() > 0.93
    sample = np.arange(0, targets.tiles * TILE, 29)
    sample = sample[done[sample // TILE]]
    means, logs = naive(scores[targets.order[sample]], points, log_masses)
    error = np.linalg.norm((found[: points.shape[1], sample].T - means).astype(float), axis=1)
    assert error.max() <= TOLERANCE
    assert np.abs(found[3, sample] - logs).max() <= TOLERANCE


def clusters(count: int) -> Measure:
    """Two clusters, and a kink between them."""
    points = fibonacci_sphere(count)
    return points, 200.0 * (np.abs(points @ [0.6, 0.0, 0.8]) - 1)


@pytest.mark.parametrize("measure", [uniform, clusters, rough_and_half_empty])
def test_proxies_are_within_the_tolerance(measure: Callable[[int], Measure]) -> None:
    points, log_masses = measure(20_000)
    skew = np.array([[0.9, -0.1, 0.0], [-0.1, 0.8, 0.05], [-0.2, 0.0, 1.0]])
    scores = 60 * around(fibonacci_sphere(120_000), [0.6, 0.0, 0.8], 0.28) @ skew
    check_proxies(points, log_masses, scores)


def test_proxies_where_the_masses_are_1e_minus_300() -> None:
    """A cap whose mass falls by 1e-300 from one end to the other; targets at that end."""
    points = around(fibonacci_sphere(400_000), [0.0, 0.0, 1.0], 0.5)
    log_masses = -690 * np.arccos(points @ [np.sin(0.5), 0.0, np.cos(0.5)])
    targets = around(fibonacci_sphere(800_000), [-np.sin(0.4), 0.0, np.cos(0.4)], 0.1)
    check_proxies(points, log_masses, 2000 * targets)


def test_proxies_for_a_source_that_is_alone_in_its_cell() -> None:
    points = np.vstack([around(fibonacci_sphere(40_000), [0.0, 0.0, 1.0], 1.0), [[0.0, 0.6, -0.8]]])
    scores = 60 * around(fibonacci_sphere(120_000), [0.0, 0.0, 1.0], 0.28)
    check_proxies(points, np.zeros(len(points)), scores)


def test_proxies_made_in_parts_by_ranks_are_the_same() -> None:
    points, log_masses = clusters(20_000)
    scores = 60 * around(fibonacci_sphere(120_000), [0.6, 0.0, 0.8], 0.28)
    expansion, targets = expansion_of(points, scores, log_masses, proxies=True)
    whole, done = expansion.sums(np.arange(targets.tiles))
    assert done.all()

    def dealt(work: Callable[[np.ndarray], np.ndarray], items: np.ndarray) -> np.ndarray:
        # Contiguous, as `SharedSum` gives them: compiled loops would be compiled again for others.
        parts = [work(np.ascontiguousarray(items[rank::3])) for rank in range(3)]
        rows = np.empty((len(items), parts[0].shape[1]))
        for rank, part in enumerate(parts):
            rows[rank::3] = part
        return rows

    expansion.load(dealt)
    assert expansion.sums(np.arange(targets.tiles))[0].tobytes() == whole.tobytes()


def test_proxies_on_the_circle() -> None:
    angle = 2 * np.pi * (np.arange(9000) + 0.5) / 9000
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    log_masses = 200.0 * (np.abs(points[:, 0]) - 1)
    check_proxies(points, log_masses, 200 * points)


def test_what_proxies_are_too_coarse_for_is_left_to_the_direct_sum() -> None:
    points, log_masses = below_all_doubles(20_000)
    expansion, targets = expansion_of(points, 5 * fibonacci_sphere(3001), log_masses, proxies=True)
    _, done = expansion.sums(np.arange(targets.tiles))
    assert not done.any()


def test_on_the_circle() -> None:
    angle = 2 * np.pi * (np.arange(9000) + 0.5) / 9000
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    log_masses = 690.0 * (np.abs(points[:, 0]) - 1)
    scores = 200 * points[::3]
    expansion, targets = expansion_of(points, scores, log_masses)
    found, done = expansion.sums(np.arange(targets.tiles))
    assert done.all()
    sample = np.arange(0, targets.tiles * TILE, 7)
    # Four million terms, whose exponents of less than 900 are rounded by 1e-13 in doubles.
    means, logs = naive(scores[targets.order[sample]], points, log_masses, float)
    error = np.linalg.norm((found[:2, sample].T - means).astype(float), axis=1)
    assert error.max() <= TOLERANCE
    assert np.abs(found[3, sample] - logs).max() <= TOLERANCE


@pytest.mark.parametrize("tolerance", [1e-3, 1e-6])
def test_a_looser_tolerance_is_a_bound_and_costs_less(tolerance: float) -> None:
    points, log_masses = tails_of_1e_minus_300(9000)
    scores = 5 * fibonacci_sphere(3001)
    costs = []
    for asked in (TOLERANCE, tolerance):
        expansion, targets = expansion_of(points, scores, log_masses, asked)
        found, done = expansion.sums(np.arange(targets.tiles))
        assert done.all()
        sample = np.arange(0, targets.tiles * TILE, 23)
        means, _ = naive(scores[targets.order[sample]], points, log_masses)
        error = np.linalg.norm((found[:3, sample].T - means).astype(float), axis=1).max()
        assert error <= asked
        costs.append(expansion.costs(np.arange(expansion.blocks)).sum())
    assert costs[1] < 0.9 * costs[0]


def test_blocks_with_exponents_out_of_range_are_left_to_the_direct_sum() -> None:
    points, log_masses = uniform(9000)
    scores = 1e5 * fibonacci_sphere(3001)
    sources, targets = Sources(points), Targets(scores, scores)
    expansion = ClusterExpansion(sources, targets, TOLERANCE, SETTINGS, Costs(), by_proxies=False)
    sources.load(log_masses)
    _, done = expansion.sums(np.arange(targets.tiles))
    assert not done.all()


def test_neither_threads_nor_parts_of_the_work_change_a_bit() -> None:
    points, log_masses = tails_of_1e_minus_300(9000)
    expansion, targets = expansion_of(points, 20 * fibonacci_sphere(3001), log_masses)
    whole, _ = expansion.sums(np.arange(targets.tiles))
    again, _ = expansion.sums(np.arange(targets.tiles), threads=2)
    assert again.tobytes() == whole.tobytes()
    blocks = np.arange(targets.tiles) // expansion.tiles
    for rank in range(3):
        tiles = np.flatnonzero(blocks % 3 == rank)
        part, _ = expansion.sums(tiles)
        expected = whole.reshape(4, -1, TILE)[:, tiles].reshape(4, -1)
        assert part.tobytes() == np.ascontiguousarray(expected).tobytes()


def test_chosen_where_a_kernel_holds_thousands_of_sources() -> None:
    points, where = fibonacci_sphere(160_000), fibonacci_sphere(40_000)
    log_masses = 200.0 * (np.abs(points @ [0.6, 0.0, 0.8]) - 1)
    chosen = []
    for beta in (30.0, 3000.0):
        sums = AttentionSum(points, where, beta * where, TOLERANCE)
        sums.load(log_masses)
        chosen.append(sums.estimate.use_clusters)
        tiles = np.arange(sums.tiles_at_once)
        found = sums.sums(tiles, None)
        targets = sums.targets.order[: found.shape[1] : 29]
        means, logs = naive(beta * where[targets], points, log_masses)
        error = np.linalg.norm((found[:3, ::29].T - means).astype(float), axis=1)
        assert error.max() <= TOLERANCE
        assert np.abs(found[3, ::29] - logs).max() <= TOLERANCE
    assert chosen == [True, False]


def test_shares_of_the_tolerance_are_settings_that_add_up() -> None:
    points, log_masses = uniform(9000)
    loose = ClusterSettings(truncation=0.01, proxy_error=0.01, skipped=0.01)
    costs = []
    for settings in (SETTINGS, loose):
        expansion, _ = expansion_of(
            points, 20 * fibonacci_sphere(3001), log_masses, settings=settings
        )
        costs.append(expansion.costs(np.arange(expansion.blocks)).sum())
    assert costs[1] > costs[0]
    with pytest.raises(ValueError, match="shares of the tolerance"):
        ClusterSettings(truncation=0.3)


@pytest.mark.parametrize("proxies", [False, True])
def test_the_least_cost_is_below_the_cost_and_not_idle(proxies: bool) -> None:
    """It is asked before masses are moved to proxy points, which takes a third of a sum."""
    points, log_masses = uniform(80_000)
    expansion, _ = expansion_of(points, 10 * fibonacci_sphere(40_000), log_masses, proxies=proxies)
    whole = expansion.costs(np.arange(expansion.blocks)).sum()
    assert 0.05 * whole < expansion.least_cost(80_000 / 16) < whole


def test_not_chosen_where_most_blocks_would_be_left_to_the_direct_sum() -> None:
    """Kernels much narrower than a cell, on a mesh that is too coarse: exponents out of range."""
    points, where = fibonacci_sphere(20_480), fibonacci_sphere(10_242)
    sums = AttentionSum(points, where, 1e4 * where, TOLERANCE)
    sums.load(uniform(20_480)[1])
    assert not sums.estimate.use_clusters


def test_clusters_widen_with_the_kernel() -> None:
    points, scores = fibonacci_sphere(20_000), fibonacci_sphere(10_000)
    sizes = [
        expansion_of(points, beta * scores, np.zeros(20_000))[0].size for beta in (3.0, 1000.0)
    ]
    assert sizes[0] > sizes[1] == SETTINGS.sizes[0]


def test_the_estimate_takes_the_cheapest() -> None:
    case = {
        "sources": 20_000, "leaves": 1250, "tops": 20, "tiles": 625, "targets": 10_000,
        "visits": 1250.0, "bounded": 157.0, "terms": 500, "degree": 30, "untrusted": 0.0,
    }  # fmt: skip
    assert not estimate(Costs(), **case).use_clusters
    assert estimate(Costs(), **case).use_harmonics
    quick = estimate(Costs(), **case, clusters=1.0)
    assert quick.use_clusters
    assert not quick.use_harmonics
    assert quick.chosen == 1.0
    assert str(quick).startswith("cluster expansion (direct ")
    assert str(
        estimate(Costs(), **case | {"terms": None, "degree": None}, clusters=1.0)
    ).startswith("cluster expansion (direct ")


def test_the_estimate_is_in_units_of_the_costs() -> None:
    """Every part of it is a number of operations times the cost of one."""
    case = {
        "sources": 20_000, "leaves": 1250, "tops": 20, "tiles": 625, "targets": 10_000,
        "visits": 125.0, "bounded": 157.0, "terms": 500, "degree": 30, "untrusted": 0.1,
    }  # fmt: skip
    costs = Costs()
    longer = {name: 2 * cost for name, cost in vars(costs).items() if isinstance(cost, float)}
    once, twice = estimate(costs, **case), estimate(replace(costs, **longer), **case)
    assert twice.direct == pytest.approx(2 * once.direct)
    assert once.harmonics is not None
    assert twice.harmonics == pytest.approx(2 * once.harmonics)
