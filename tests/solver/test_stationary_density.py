"""The stationary density that an initial one comes to, with noise and without."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import iv

from meanfield_pde import Attention, InputError, Layers, SolverError, circle_mesh, stationary

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
