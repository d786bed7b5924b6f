"""Tokens with noise: Brownian motion of the sphere, weak orders, seeds, ranks, resumption."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meanfield_pde import Attention, InputError, sample_tokens, simulate_tokens, solve
from meanfield_pde.tokens.noise import euler_maruyama, splitting, wandered
from tests.problems import MESHES

STILL = {d: Attention(np.eye(d), np.eye(d), np.zeros((d, d)), 1.0) for d in (2, 3, 4)}
COUNT = 400_000


@pytest.mark.parametrize("d", [2, 3, 4])
@pytest.mark.parametrize("spread", [0.05, 0.2])
def test_wandering_is_brownian_to_second_order(d, spread):
    """E <x, y> = exp(-(d - 1) s) with an error of s^3, where a plain geodesic step has s^2."""
    x = np.zeros((COUNT, d))
    x[:, 0] = 1
    xi = np.random.default_rng(1).standard_normal((COUNT, d))
    found = wandered(x, spread, xi)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-14)
    sampling = 4 * found[:, 0].std() / math.sqrt(COUNT)
    error = abs(found[:, 0].mean() - math.exp(-(d - 1) * spread))
    assert error < sampling + 0.5 * ((d - 1) * spread) ** 3


def mean_at_the_end(method, step, strength, seed):
    """E x_1 at t = 1 for x' = 3 P_x (1, 0, 0) with noise; its sampling error is below 1e-3."""
    x = np.zeros((COUNT, 3))
    x[:, 1] = 1.0

    def drift(y):
        return 3 * (np.eye(3)[0] - y[:, :1] * y)

    return list(method(drift, x, 0.0, [1.0], step, strength, seed))[-1][:, 0].mean()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "strength", "steps", "least"),
    [(splitting, 0.4, (1 / 2, 1 / 4), 3.2), (euler_maruyama, 1.0, (1 / 32, 1 / 128), 2.5)],
)
def test_weak_orders(method, strength, steps, least):
    """Halving the step divides the error by four, at order 2; a quarter of it too, at order 1."""
    exact = mean_at_the_end(splitting, 1 / 50, strength, 5)
    errors = [abs(mean_at_the_end(method, h, strength, 6) - exact) for h in steps]
    assert least < errors[0] / errors[1] < 6
    assert errors[1] > 1.5e-3  # above the sampling error


@pytest.mark.parametrize("step", [None, 0.05])
def test_seeds_and_resumption(step):
    attention = Attention(np.eye(3), np.eye(3), np.diag([1.0, 0.3, -0.2]), 3.0)
    x = sample_tokens("1 + 0.5*x", 50, seed=1, dimension=3)

    def run(start, until, tokens=x, seed=4, save_at=()):
        return simulate_tokens(
            tokens, attention, until, start=start, noise=0.2, seed=seed, step=step, save_at=save_at
        )

    whole = run(0.0, 1.0, save_at=[0.5])
    half = run(0.0, 0.5)
    np.testing.assert_array_equal(half.tokens[-1], whole.tokens[1])
    rest = run(0.5, 1.0, half.tokens[-1])
    np.testing.assert_array_equal(rest.tokens[-1], whole.tokens[-1])
    assert np.abs(run(0.0, 0.5, seed=5).tokens[-1] - half.tokens[-1]).max() > 0.1


@pytest.mark.parametrize(("d", "cells"), [(2, 200), (3, 1280)])
def test_tokens_and_density_agree_with_noise(d, cells):
    """First moments of 4,000 tokens against the density, within five standard deviations."""
    attention = Attention(np.eye(d), np.eye(d), np.diag([1.0, 0.5, -0.2][:d]), 2.0)
    density, strength, count = "1 + 0.6*x + 0.3*x*y", 0.25, 4000
    solution = solve(attention, MESHES[d](cells), density, until=1.0, noise=strength)
    x = sample_tokens(density, count, seed=2, dimension=d)
    cloud = simulate_tokens(x, attention, 1.0, noise=strength, seed=3)
    found = cloud.tokens[-1]
    mean = [solution.history[f"mean_{axis}"][-1] for axis in "xyz"[:d]]
    assert (np.abs(found.mean(axis=0) - mean) < 5 * found.std(axis=0) / math.sqrt(count)).all()


@pytest.mark.parallel([1, 2])
def test_the_same_tokens_on_all_ranks():
    attention = Attention(np.eye(2), np.eye(2), np.eye(2), 3.0)
    x = np.column_stack([np.cos(np.arange(9.0)), np.sin(np.arange(9.0))])
    found = simulate_tokens(x, attention, 0.4, noise=0.1, seed=7).tokens[-1]
    # Those of one rank.
    assert found[0] == pytest.approx((0.9996889389041428, -0.02494043770083274), abs=1e-12)


@pytest.mark.parametrize(
    ("choices", "fragment"),
    [
        ({"noise": -0.1}, "strength of the noise"),
        ({"noise": math.nan}, "strength of the noise"),
        ({"noise": 0.1, "seed": -1}, "seed must be a whole number"),
        ({"noise": 0.1, "seed": 1.5}, "seed must be a whole number"),
    ],
)
def test_wrong_choices(choices, fragment):
    with pytest.raises(InputError, match=fragment):
        simulate_tokens(np.eye(2), STILL[2], 1.0, **choices)
