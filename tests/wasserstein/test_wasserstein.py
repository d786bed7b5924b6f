"""The Wasserstein distance as a user sees it: known values, invariances, limits and errors."""

from __future__ import annotations

import itertools
import math
import warnings

import numpy as np
import pytest

from meanfield_pde.errors import InputError
from meanfield_pde.wasserstein import METHODS, WassersteinResult, wasserstein
from meanfield_pde.wasserstein.measure import Measure

BOTH_COSTS = ["geodesic", "chordal"]


def unit(points: np.ndarray) -> np.ndarray:
    return points / np.linalg.norm(points, axis=1)[:, None]


def random_measure(seed: int, count: int, dimension: int) -> Measure:
    rng = np.random.default_rng(seed)
    return Measure(unit(rng.normal(size=(count, dimension))), rng.random(count))


def circle_points(angles: np.ndarray) -> np.ndarray:
    return np.column_stack([np.cos(angles), np.sin(angles)])


def assert_holds(result: WassersteinResult, truth: float, tolerance: float = 1e-11) -> None:
    assert result.value == pytest.approx(truth, rel=tolerance, abs=1e-15)
    assert result.low <= truth + 4e-16
    assert truth <= result.high + 4e-16
    assert result.low <= result.value <= result.high


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("angle", [0.0, 1e-9, 0.3, 2.0, math.pi - 1e-7, math.pi])
def test_two_points_are_their_distance_apart(method: str, p: int, angle: float) -> None:
    mu = Measure(circle_points(np.array([0.4])), np.array([2.0]))
    nu = Measure(circle_points(np.array([0.4 + angle])), np.array([5.0]))
    chord = float(np.linalg.norm(mu.points - nu.points))
    assert wasserstein(mu, nu, p, "geodesic", method=method).value == pytest.approx(
        angle, rel=1e-13, abs=3e-16
    )
    assert wasserstein(mu, nu, p, "chordal", method=method).value == pytest.approx(chord, rel=1e-14)


@pytest.mark.parametrize("p", [1, 2])
def test_rotated_uniform_measure_on_the_circle(p: int) -> None:
    """On N equal atoms, turned by less than half a cell, every atom moves by that angle."""
    angles = 2 * np.pi * np.arange(500) / 500
    mu = Measure(circle_points(angles), np.ones(500))
    nu = Measure(circle_points(angles + 0.002), np.ones(500))
    result = wasserstein(mu, nu, p)
    assert result.method == "circle"
    assert result.status == "exact"
    assert_holds(result, 0.002)


@pytest.mark.parametrize("cost", BOTH_COSTS)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_equal_masses_against_all_permutations(seed: int, p: int, cost: str) -> None:
    """With equal masses an optimal plan is a permutation: 720 of them, summed exactly."""
    x, y = random_measure(seed, 6, 3).points, random_measure(seed + 100, 6, 3).points
    chord = np.linalg.norm(x[:, None] - y[None], axis=2)
    costs = (2 * np.arcsin(chord / 2) if cost == "geodesic" else chord) ** p
    best = min(
        math.fsum(costs[i, s[i]] for i in range(6)) for s in itertools.permutations(range(6))
    )
    for method, status in (("lp", "optimal"), ("auto", "exact")):
        result = wasserstein(Measure(x, np.ones(6)), Measure(y, np.ones(6)), p, cost, method=method)
        assert_holds(result, (best / 6) ** (1 / p), 1e-13)
        assert result.status == status


@pytest.mark.parametrize("cost", BOTH_COSTS)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("method", METHODS)
def test_a_measure_is_at_distance_zero_from_itself(
    dimension: int, p: int, cost: str, method: str
) -> None:
    mu = random_measure(1, 80, dimension)
    order = np.random.default_rng(2).permutation(80)
    shuffled = Measure(mu.points[order], mu.masses[order])
    for other in (mu, shuffled):
        result = wasserstein(mu, other, p, cost, method=method)
        assert result.value == result.low == result.high == result.gap == 0.0


@pytest.mark.parametrize("kind", ["random", "mesh", "concentrated", "one side", "ties"])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("sizes", [(40, 60), (120, 90), (5, 200)])
def test_circle_closed_form_against_the_linear_program(
    kind: str, p: int, sizes: tuple[int, int]
) -> None:
    n, m = sizes
    rng = np.random.default_rng(n + p)
    x, y, a, b = rng.random(n) * 7, rng.random(m) * 7, rng.random(n), rng.random(m)
    if kind != "random":
        x, y = 2 * np.pi * (np.arange(n) + 0.5) / n, 2 * np.pi * (np.arange(m) + 0.5) / m
        a, b = np.exp(2 * np.cos(x)), np.exp(3 * np.cos(2 * y - 1))
    if kind == "concentrated":
        a, b = np.exp(30 * (np.cos(x - 3) - 1)), np.exp(200 * (np.cos(y + 0.2) - 1))
    if kind == "one side":
        x, y = 0.5 * rng.random(n), 2 + 0.5 * rng.random(m)
    if kind == "ties":
        a, b = np.ones(n), np.ones(m)
    mu, nu = Measure(circle_points(x), a), Measure(circle_points(y), b)
    exact = wasserstein(mu, nu, p)
    program = wasserstein(mu, nu, p, method="lp")
    assert (exact.method, exact.status) == ("circle", "exact")
    assert (program.method, program.status) == ("linear program", "optimal")
    assert exact.value == pytest.approx(program.value, rel=1e-11)
    assert max(exact.low, program.low) <= min(exact.high, program.high)
    assert exact.gap < 1e-10


@pytest.mark.parametrize("cost", BOTH_COSTS)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("atoms", [1, 2])
@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_few_atoms_against_the_linear_program(
    seed: int, dimension: int, atoms: int, p: int, cost: str
) -> None:
    mu = random_measure(seed, 90, dimension)
    nu = random_measure(seed + 50, atoms, dimension)
    program = wasserstein(mu, nu, p, cost, method="lp")
    for first, second in ((mu, nu), (nu, mu)):
        exact = wasserstein(first, second, p, cost)
        assert (exact.method, exact.status) == ("atoms", "exact")
        assert exact.value == pytest.approx(program.value, rel=1e-11)
        assert exact.gap < 1e-11


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cost", BOTH_COSTS)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dimension", [2, 3])
def test_invariances(dimension: int, p: int, cost: str, method: str) -> None:
    """Masses x 1e-6, permuted atoms, split atoms, atoms of mass zero, sides exchanged."""
    mu, nu = random_measure(3, 70, dimension), random_measure(4, 50, dimension)
    expected = wasserstein(mu, nu, p, cost, method=method).value
    rng = np.random.default_rng(5)
    order = rng.permutation(70)
    share = rng.random(70)
    extra = unit(rng.normal(size=(20, dimension)))
    variants = {
        "scaled": Measure(mu.points, 1e-6 * mu.masses),
        "permuted": Measure(mu.points[order], mu.masses[order]),
        "duplicated": Measure(
            np.concatenate([mu.points, mu.points]),
            np.concatenate([share * mu.masses, (1 - share) * mu.masses]),
        ),
        "zeros": Measure(
            np.concatenate([extra, mu.points]), np.concatenate([np.zeros(20), mu.masses])
        ),
        "tiny": Measure(
            np.concatenate([extra, mu.points]), np.concatenate([np.full(20, 1e-300), mu.masses])
        ),
    }
    for name, variant in variants.items():
        result = wasserstein(variant, nu, p, cost, method=method)
        assert result.value == pytest.approx(expected, rel=1e-10), name
        assert result.low <= expected * (1 + 1e-13), name
        assert expected <= result.high * (1 + 1e-13), name
    assert wasserstein(nu, mu, p, cost, method=method).value == pytest.approx(expected, rel=1e-11)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("scale", [1e-4, 1e-8])
@pytest.mark.parametrize("method", ["lp", "scipy"])
def test_costs_scale(method: str, p: int, scale: float) -> None:
    """Chordal W_p of shrunk points is the shrunk W_p; HiGHS alone would call it zero."""
    rng = np.random.default_rng(6)
    x, y, a, b = rng.normal(size=(60, 3)), rng.normal(size=(70, 3)), rng.random(60), rng.random(70)
    expected = wasserstein(Measure(x, a), Measure(y, b), p, "chordal")
    mu, nu = Measure(scale * x, a), Measure(scale * y, b)
    result = wasserstein(mu, nu, p, "chordal", method=method)
    assert result.value == pytest.approx(scale * expected.value, rel=1e-11)
    assert result.gap < 1e-10


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dimension", [2, 3])
def test_tiny_cluster_on_the_sphere(p: int, dimension: int) -> None:
    """At a scale of 1e-8 the sphere is flat: geodesic and chordal distances agree."""
    rng = np.random.default_rng(7)
    pole = np.full(dimension, 0.6)
    x = unit(pole + 1e-8 * rng.normal(size=(40, dimension)))
    y = unit(pole + 1e-8 * rng.normal(size=(40, dimension)))
    mu, nu = Measure(x, rng.random(40)), Measure(y, rng.random(40))
    flat = wasserstein(mu, nu, p, "chordal", method="lp")
    for method in METHODS:
        result = wasserstein(mu, nu, p, method=method)
        assert result.value == pytest.approx(flat.value, rel=1e-8)
        assert result.gap < 1e-7


@pytest.mark.parametrize("p", [1, 2])
def test_general_dimension(p: int) -> None:
    """A translation is optimal, in any dimension."""
    rng = np.random.default_rng(8)
    x, masses, shift = rng.normal(size=(40, 5)), rng.random(40), rng.normal(size=5)
    result = wasserstein(Measure(x, masses), Measure(x + shift, masses), p, "chordal")
    assert_holds(result, float(np.linalg.norm(shift)), 1e-12)
    line = wasserstein(
        Measure(np.array([[0.0], [1.0]]), np.ones(2)),
        Measure(np.array([[0.5], [3.0], [3.0]]), np.array([2.0, 1.0, 1.0])),
        p,
        "chordal",
    )
    assert line.value == pytest.approx(1.25 if p == 1 else math.sqrt((0.25 + 4) / 2), rel=1e-14)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cost", BOTH_COSTS)
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dimension", [2, 3])
def test_duals_are_feasible_and_bound_other_masses(
    dimension: int, p: int, cost: str, method: str
) -> None:
    mu, nu = random_measure(9, 80, dimension), random_measure(10, 60, dimension)
    masses = mu.masses * (np.arange(80) % 3 > 0)
    result = wasserstein(Measure(mu.points, masses), nu, p, cost, method=method)
    u, v = result.duals
    chord = np.linalg.norm(mu.points[:, None] - nu.points[None], axis=2)
    costs = (2 * np.arcsin(chord / 2) if cost == "geodesic" else chord) ** p
    assert (u[:, None] + v[None] <= costs * (1 + 1e-14) + 1e-15).all()
    value = masses @ u / masses.sum() + nu.masses @ v / nu.masses.sum()
    assert value ** (1 / p) == pytest.approx(result.value, rel=1e-10)
    # The same potentials bound the distance of other masses, the full measure mu here.
    other = wasserstein(mu, nu, p, cost, method=method)
    bound = mu.masses @ u / mu.masses.sum() + nu.masses @ v / nu.masses.sum()
    assert bound <= other.high**p
    again = wasserstein(mu, nu, p, cost, method=method, duals=result.duals)
    assert again.value == pytest.approx(other.value, rel=1e-10)


def test_duals_give_a_lower_bound_without_a_solve() -> None:
    mu, nu = random_measure(11, 400, 3), random_measure(12, 400, 3)
    first = wasserstein(mu, nu, 2)
    later = Measure(mu.points, mu.masses * (1 + 1e-3 * mu.points[:, 0]))
    reached = wasserstein(later, nu, 2, duals=first.duals, time_limit=0.0)
    solved = wasserstein(later, nu, 2)
    assert reached.status == "time limit"
    assert reached.low <= solved.high
    assert reached.low == pytest.approx(solved.value, rel=1e-4)
    assert reached.high >= solved.low


@pytest.mark.parametrize("limit", [0.0, 0.05, 0.3])
def test_time_limit_returns_the_interval_reached(limit: float) -> None:
    mu, nu = random_measure(13, 1500, 3), random_measure(14, 1500, 3)
    truth = wasserstein(mu, nu, 1, rtol=1e-6)
    result = wasserstein(mu, nu, 1, time_limit=limit)
    assert result.status in ("time limit", "optimal")
    assert result.low <= truth.high
    assert result.high >= truth.low
    assert result.low <= result.value <= result.high
    if limit == 0.0:
        assert result.status == "time limit"
        assert result.gap > 0


def test_sifting_agrees_with_the_circle() -> None:
    """Several levels and many rounds, against the closed form."""
    x = 2 * np.pi * (np.arange(1000) + 0.5) / 1000
    mu = Measure(circle_points(x), np.exp(2 * np.cos(x)))
    nu = Measure(circle_points(x + 0.001), np.exp(30 * np.cos(2 * x - 1)))
    exact = wasserstein(mu, nu, 2)
    program = wasserstein(mu, nu, 2, method="lp")
    assert program.status == "optimal"
    assert program.value == pytest.approx(exact.value, rel=1e-11)


def test_discretisation_bar() -> None:
    mu, nu = random_measure(15, 30, 3), random_measure(16, 30, 3)
    atoms = wasserstein(mu, nu, 2)
    assert atoms.discretisation == 0.0
    assert atoms.resolved
    assert atoms.continuous == (atoms.low, atoms.high)
    coarse = Measure(mu.points, mu.masses, np.full(30, 0.04))
    other = Measure(nu.points, nu.masses, np.full(30, 0.09))
    result = wasserstein(coarse, other, 2)
    assert result.value == atoms.value
    assert result.discretisation == pytest.approx(0.5)
    assert result.continuous[0] == pytest.approx(max(0.0, atoms.low - 0.5))
    assert result.continuous[1] == pytest.approx(math.sqrt(atoms.high**2 + 0.13))
    assert result.resolved == (atoms.value >= 1.5)
    assert not wasserstein(coarse, Measure(mu.points, mu.masses, coarse.spread), 2).resolved
    first = wasserstein(coarse, other, 1)
    assert first.resolved
    assert first.continuous[1] == pytest.approx(first.high + 0.5)


def sphere_pair() -> tuple[Measure, Measure]:
    return random_measure(17, 5, 3), random_measure(18, 4, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"p": 3}, "p must be 1 or 2, got 3"),
        ({"p": 1.5}, "p must be 1 or 2, got 1.5"),
        ({"cost": "euclidean"}, "cost must be 'geodesic' or 'chordal', got 'euclidean'"),
        ({"method": "simplex"}, "method must be one of 'auto', 'lp', 'scipy', got 'simplex'"),
        ({"rtol": 0.0}, "rtol must lie between 0 and 1"),
        ({"time_limit": -1.0}, "time_limit must be >= 0 seconds or None"),
        ({"duals": (np.zeros(5), np.zeros(3))}, "duals must have the lengths"),
        ({"duals": (np.full(5, np.nan), np.zeros(4))}, "duals must be finite"),
    ],
)
def test_bad_options(arguments: dict, message: str) -> None:
    with pytest.raises(InputError) as caught:
        wasserstein(*sphere_pair(), **{"p": 2, **arguments})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_measures() -> None:
    mu, nu = sphere_pair()
    with pytest.raises(InputError, match="same dimension, got d = 3 and d = 2"):
        wasserstein(mu, random_measure(0, 5, 2), 1)
    outside = nu.points.copy()
    outside[2] *= 1.001
    with pytest.raises(InputError, match=r"point 2 of the second measure has norm 1\.001"):
        wasserstein(mu, Measure(outside, nu.masses), 1)
    assert wasserstein(mu, Measure(outside, nu.masses), 1, cost="chordal").value > 0
    with pytest.raises(InputError, match="dimension 2 or more"):
        wasserstein(*[Measure(np.ones((2, 1)), np.ones(2))] * 2, 1)
    with pytest.raises(InputError, match="masses must be an array of real numbers, got type comp"):
        Measure(nu.points, nu.masses + 0j)
    with pytest.raises(InputError, match="overflows"):
        Measure(nu.points, np.full(len(nu.masses), 1e308))
    slightly = Measure(nu.points * (1 + 1e-10), nu.masses)
    assert wasserstein(mu, slightly, 1).value == pytest.approx(
        wasserstein(mu, nu, 1).value, rel=1e-12
    )


def test_without_p_it_is_w1_and_says_so_once() -> None:
    mu, nu = sphere_pair()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        found = wasserstein(mu, nu)
        assert wasserstein(mu, nu, p=1).value == found.value
        wasserstein(mu, nu, p=2)
    assert [one.category for one in warned] == [FutureWarning]
    assert "p=1 or p=2" in str(warned[0].message)
    assert warned[0].filename == __file__


@pytest.mark.parametrize("p", [1, 2])
def test_densities_on_the_same_cells_are_no_farther_apart_than_what_moves(p: int) -> None:
    """Arcs of length h, each cut into 400 atoms, against the interval for the densities."""
    count, pieces = 12, 400
    h = 2 * math.pi / count
    rng = np.random.default_rng(3)
    middles = h * (np.arange(count) + 0.5)
    fine = (h * (np.arange(count * pieces) + 0.5) / pieces).reshape(count, pieces)

    def places(angle: np.ndarray) -> np.ndarray:
        return np.column_stack([np.cos(angle.ravel()), np.sin(angle.ravel())])

    a = rng.random(count)
    b = a * (1 + 0.05 * rng.random(count))
    spread = np.full(count, h**2 / 12)
    mu, nu = (Measure(places(middles), masses, spread) for masses in (a, b))
    found = wasserstein(mu, nu, p, same_cells=True)
    exact = wasserstein(
        *(Measure(places(fine), np.repeat(masses, pieces)) for masses in (a, b)), p
    ).value
    low, high = found.continuous
    assert low - h / pieces <= exact <= high + h / pieces
    apart = wasserstein(mu, nu, p)
    assert high < 0.6 * apart.continuous[1]
    assert wasserstein(mu, mu, p, same_cells=True).continuous == (0.0, 0.0)
    with pytest.raises(InputError, match="same points and spread"):
        wasserstein(mu, Measure(nu.points[::-1], nu.masses, spread), p, same_cells=True)
