"""Rotations that commute with the equation, and free energies, against what they are by hand."""

from __future__ import annotations

import numpy as np
import pytest

from meanfield_pde import Attention, Heads, Perceptron
from meanfield_pde.theory.symmetry import commuting_rotations, without_free_energy
from tests.problems import rotation

TILT = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]


def attention(value, key=None, beta=2.0, normalise=True):
    value = np.asarray(value, dtype=float)
    return Attention(np.eye(len(value)), value if key is None else key, value, beta, normalise)


@pytest.mark.parametrize(
    ("layer", "count"),
    [
        (attention(np.eye(2)), 1),
        (attention(2 * rotation(0.3)), 1),
        (attention(np.diag([1.0, 0.9])), 0),
        (attention(np.eye(2), np.diag([1.0, 0.9])), 0),
        (attention(np.eye(2), np.diag([1.0, 0.9]), beta=0.0), 1),
        (attention(np.eye(3)), 3),
        (attention(np.diag([1.0, 1.0, 0.3])), 1),
        (attention(TILT @ np.diag([1.0, 1.0, 0.3]) @ TILT.T), 1),
        (attention(np.diag([1.0, 0.6, 0.3])), 0),
        (Heads([attention(np.eye(3)), attention(np.diag([0.2, 1.0, 1.0]))]), 1),
        (Heads([attention(np.eye(3))], Perceptron([[0, 0, 1.0]], [[0], [0], [2.0]])), 1),
        (Heads([attention(np.eye(3))], Perceptron([[0, 0, 1.0]], [[0.1], [0], [2.0]])), 0),
    ],
)
def test_rotations_that_commute(layer, count):
    """Their number; velocities of a turned density are those of the density, turned."""
    generators = commuting_rotations(layer)
    assert len(generators) == count
    d = layer.dimension
    rng = np.random.default_rng(1)
    points, x = (rng.normal(size=(n, d)) for n in (20, 5))
    points, x = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (points, x))
    for generator in generators:
        np.testing.assert_array_equal(generator, -generator.T)
        values, vectors = np.linalg.eig(generator)
        turn = (vectors * np.exp(0.7 * values) @ np.linalg.inv(vectors)).real
        here = layer.velocity(x, points, np.ones(20))
        there = layer.velocity(x @ turn.T, points @ turn.T, np.ones(20))
        np.testing.assert_allclose(there, here @ turn.T, atol=1e-10)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (attention(np.diag([1.0, 0.3]), normalise=False), ""),
        (attention(np.eye(2)), "denominator"),
        (attention(rotation(0.3), normalise=False), "query^T key is not symmetric"),
        (attention(np.eye(2), 2 * np.eye(2), normalise=False), "value is not query^T key"),
        (attention(np.eye(2), beta=0.0, normalise=False), "beta = 0"),
        (Heads([attention(np.eye(2), normalise=False)] * 2), ""),
        (
            Heads([attention(np.eye(2), normalise=False)], Perceptron([[0, 1.0]], [[0], [1.0]])),
            "perceptron",
        ),
    ],
)
def test_free_energies(layer, reason):
    assert (without_free_energy(layer) == "") == (reason == "")
    assert reason in without_free_energy(layer)
