"""The Wasserstein distance against POT's network simplex, an independent exact solver."""

from __future__ import annotations

import numpy as np
import ot
import pytest

from meanfield_pde.wasserstein import METHODS, wasserstein
from meanfield_pde.wasserstein.measure import Measure
from tests.problems import sphere_densities

KINDS = ["random", "concentrated", "near-equal", "clustered", "token cloud"]


def draw(
    kind: str, dimension: int, rng: np.random.Generator, sizes: tuple[int, int]
) -> tuple[Measure, Measure]:
    """A pair of measures of the kind asked for, of n and m atoms."""
    n, m = (int(size) for size in rng.integers(*sizes, 2))
    x, y = rng.normal(size=(n, dimension)), rng.normal(size=(m, dimension))
    a, b = rng.random(n), rng.random(m)
    if kind == "concentrated":
        a, b = np.exp(-690 * rng.random(n)), np.exp(-690 * rng.random(m))
    if kind == "near-equal":
        y, b = x, a * (1 + 10.0 ** rng.integers(-5, 0) * rng.random(n))
    if kind == "clustered":
        centres = rng.normal(size=(3, dimension))
        x = centres[rng.integers(0, 3, n)] + 1e-3 * rng.normal(size=(n, dimension))
        y = centres[rng.integers(0, 3, m)] + 1e-3 * rng.normal(size=(m, dimension))
    if kind == "token cloud":
        a, b = np.ones(n), np.ones(m)
    if rng.random() < 0.3:
        a[0] = max(a[0], 0.1) if n == 1 else 0.0
        b[-1] = max(b[-1], 0.1)
        a[-1] = max(a[-1], 0.1)
    x, y = (points / np.linalg.norm(points, axis=1)[:, None] for points in (x, y))
    return Measure(x, a), Measure(y, b)


def network_simplex(mu: Measure, nu: Measure, p: int, cost: str) -> tuple[float, float]:
    """POT's value of W_p^p, and what the rounding of its masses may do to it."""
    chord = np.linalg.norm(mu.points[:, None] - nu.points[None], axis=2)
    opposite = np.linalg.norm(mu.points[:, None] + nu.points[None], axis=2)
    costs = (2 * np.arctan2(chord, opposite) if cost == "geodesic" else chord) ** p
    a, b = mu.masses / mu.masses.sum(), nu.masses / nu.masses.sum()
    value = ot.emd2(a, b, np.ascontiguousarray(costs), numItermax=10**7)
    return float(value), 2e-15 * float(costs.max())


@pytest.mark.parametrize("cost", ["geodesic", "chordal"])
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("dimension", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_fuzz(kind: str, dimension: int, p: int, cost: str) -> None:
    """20 pairs each, 800 in all, by every method; scipy, the slowest, on the last of each."""
    for seed in range(20):
        rng = np.random.default_rng([seed, dimension, KINDS.index(kind)])
        mu, nu = draw(kind, dimension, rng, (1, 60) if seed < 19 else (30, 300))
        truth, error = network_simplex(mu, nu, p, cost)
        low, high = 0.0, np.inf
        for method in METHODS if seed == 19 else ("auto", "lp"):
            result = wasserstein(mu, nu, p, cost, method=method)
            where = f"seed {seed}, method {method}: {result.value} against {truth ** (1 / p)}"
            assert result.low**p <= truth + error, where
            assert truth - error <= result.high**p, where
            assert abs(result.value**p - truth) <= 1e-8 * truth + error, where
            assert result.status in ("optimal", "exact", "rounding limit"), where
            low, high = max(low, result.low), min(high, result.high)
            assert low <= high, where
            # The interval is closed, or open by the rounding of the masses only.
            assert result.high**p - result.low**p <= 2e-10 * result.high**p + 20 * error, where


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("cost", ["geodesic", "chordal"])
@pytest.mark.parametrize("sharpness", [0, 300])
@pytest.mark.parametrize("method", ["lp", "scipy"])
def test_several_levels(method: str, sharpness: float, cost: str, p: int) -> None:
    """Densities on the sphere, the sharp ones with masses down to 1e-260."""
    mu, nu = sphere_densities(700)
    mu = Measure(mu.points, mu.masses * np.exp(sharpness * (mu.points[:, 0] - 1)))
    truth, error = network_simplex(mu, nu, p, cost)
    result = wasserstein(mu, nu, p, cost, method=method)
    assert result.status == "optimal"
    assert result.value**p == pytest.approx(truth, rel=1e-9)
    assert result.low**p <= truth + error
    assert truth - error <= result.high**p
    assert result.gap <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("p", [1, 2])
def test_large(p: int) -> None:
    """2,500 x 2,500 on the sphere."""
    mu, nu = sphere_densities(2500)
    truth, error = network_simplex(mu, nu, p, "geodesic")
    result = wasserstein(mu, nu, p, rtol=1e-8)
    assert result.status == "optimal"
    assert result.value**p == pytest.approx(truth, rel=1e-8)
    assert result.low**p <= truth + error
    assert truth - error <= result.high**p
    assert result.gap <= 1e-8
