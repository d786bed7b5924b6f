"""The stationary density that an initial one comes to, with noise and without."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import iv

from meanfield_pde import (
    Attention,
    ConstantField,
    Heads,
    InputError,
    Layers,
    SolverError,
    circle_mesh,
    stationary,
)
from meanfield_pde.solver.least_energy import repels
from tests.oracles import repelled_density

EYE = np.eye(2)
# Without noise, clusters gather on the first axis.
CONCENTRATING = Attention(EYE, EYE, np.diag([1.0, 0.3]), 4.0)


def test_without_noise_clusters():
    found = stationary(CONCENTRATING, circle_mesh(100), "1 + 0.1*x + 0.1*y")
    assert found.change < 1e-8
    assert found.growth is None
    assert found.stable is None
    on_axis = np.abs(found.measure.points[:, 0]) > np.cos(2 * 2 * np.pi / 100)
    assert found.masses[on_axis].sum() == pytest.approx(1, abs=1e-7)
    assert found.solution.times[-1] < 1000


# 2 pi rho at the angles 0 and pi / 2 of densities of arXiv:2501.03096, to three digits.
KNOWN = {1.3: (1.628, 0.530), 0.9: (0.794, 1.231)}


@pytest.mark.parametrize("d", KNOWN)
def test_without_noise_what_repels_itself(d):
    """V = -K, K = diag(1, d): high modes decay at rates of 1e-6 and less."""
    matrix = np.diag([1.0, d])
    exact = repelled_density(matrix, 1.0, np.array([0.0, np.pi / 2]))
    np.testing.assert_allclose(exact, KNOWN[d], atol=6e-4)
    found = stationary(Attention(EYE, matrix, -matrix, 1.0), circle_mesh(100), "1 + 0.3*x")
    angles = np.arctan2(*found.measure.points.T[::-1])
    density = repelled_density(matrix, 1.0, angles)
    np.testing.assert_allclose(2 * np.pi * found.density, density, atol=5e-4)
    modes = 2 * np.arange(1, 6)
    moments = 2 * np.cos(np.outer(modes, angles)) @ found.masses
    assert 1 + moments.sum() == pytest.approx(KNOWN[d][0], abs=1e-3)
    assert 1 + (-1.0) ** (modes / 2) @ moments == pytest.approx(KNOWN[d][1], abs=1e-3)
    # A stationary state of the scheme, too, which the evolution is far from when it ends.
    assert found.change < 1e-8
    assert found.solution.steadiness.change > 1e-4


def test_what_repels():
    """V = -c B, B = Q^T K symmetric and positive definite, at a beta that is neither 0 nor inf."""
    skew = np.array([[1.0, 0.2], [0.0, 0.3]])
    metric = np.array([[2.0, 0.3], [0.3, 0.5]])
    assert repels(Attention(EYE, metric, -2 * metric, 3.0))
    assert repels(Attention(metric, EYE, -metric, 3.0))
    # Equal but for rounding, whatever their size.
    for size, rounding, equal in ((100.0, 5e-10, True), (0.01, 1e-8, False)):
        value = -size * metric * (1 + rounding * np.array([[1, -1], [-1, 1]]))
        assert repels(Attention(EYE, size * metric, value, 3.0)) is equal
    for key, value, beta in (
        (metric, metric, 3.0),
        (metric, -EYE, 3.0),
        (metric, -metric, 0.0),
        (metric, -metric, math.inf),
        (skew, -skew, 3.0),
        (-metric, metric, 3.0),
        (np.diag([1.0, 0.0]), np.diag([-1.0, 0.0]), 3.0),
        (metric, 0 * metric, 3.0),
    ):
        assert not repels(Attention(EYE, key, value, beta))


def test_where_least_energy_does_not_decide():
    """With zeros, or a field beside, the evolution decides; here it has not ended."""
    attention = Attention(EYE, EYE, -EYE, 1.0)
    half = np.repeat([1.0, 0.0], 50)
    with pytest.raises(SolverError, match="no stationary density by until = 0"):
        stationary(attention, circle_mesh(100), half, until=0.5)
    beside = Heads([attention], others=[ConstantField([0.1, 0.0])])
    with pytest.raises(SolverError, match="no stationary density by until = 0"):
        stationary(beside, circle_mesh(100), until=0.5)


def test_with_noise_that_of_theory():
    """The noisy Kuramoto model: rho ~ exp(r cos / sigma), r = I_1(r / sigma) / I_0(r / sigma)."""
    sigma = 0.3
    attention = Attention(EYE, EYE, EYE, 0.0)
    found = stationary(attention, circle_mesh(200), "1 + 0.3*x", noise=sigma)
    order = float(np.linalg.norm(found.masses @ found.measure.points))
    assert order == pytest.approx(iv(1, order / sigma) / iv(0, order / sigma), rel=2e-3)
    assert order > 0.5
    assert found.change < 1e-8 * sigma
    assert found.stable
    axis = found.masses @ found.measure.points / order
    exact = np.exp(order / sigma * found.measure.points @ axis)
    exact /= exact.sum()
    np.testing.assert_allclose(found.density * 2 * math.pi / 200, exact, rtol=2e-2)


@pytest.mark.parametrize(("sigma", "stable"), [(0.45, False), (0.55, True)])
def test_the_uniform_density_is_stable_above_half(sigma, stable):
    """The threshold of the noisy Kuramoto model; it is stationary on both sides."""
    found = stationary(Attention(EYE, EYE, EYE, 0.0), circle_mesh(100), noise=sigma)
    np.testing.assert_allclose(found.density, 1 / (2 * math.pi), rtol=1e-6)
    assert found.stable is stable
    assert found.growth.rate * (1 if stable else -1) < 0


def test_what_comes_to_none_is_an_error():
    with pytest.raises(SolverError, match="no stationary density by until = 2: the last state is"):
        stationary(CONCENTRATING, circle_mesh(100), "1 + 0.1*x", until=2.0)
    with pytest.raises(InputError, match="an attention that does not change, got 2 layers"):
        stationary(Layers([CONCENTRATING, CONCENTRATING], 1.0), circle_mesh(100))
    with pytest.raises(InputError, match="Newton's method needs a mesh that stays"):
        stationary(CONCENTRATING, circle_mesh(100), noise=0.1, adapt=1e-2)
