"""The triangles of `python -m tests.benchmarks.moving_triangles` are right themselves."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from tests import oracles
from tests.benchmarks.cubic_triangles import in_the_middle, on_sphere
from tests.benchmarks.moving_triangles import Triangles
from tests.benchmarks.softmax_moments import Sources, rates, softmax, zero_temperature
from tests.benchmarks.triangle_mesh import edges, halved, icosphere

VALUE = np.array([[0.9, 0.1, 0.3], [-0.1, 0.5, 0.0], [0.2, 0.0, 0.4]])
SCORE = 20 * np.array([[0.9, -0.1, 0.0], [0.2, 0.5, 0.1], [-0.4, 0.0, 0.3]])
DRIFT = np.array([[0.6, 0.1, 0.0], [0.0, 0.1, 0.2], [-0.1, 0.0, -0.3]])
RULE = oracles.sphere_nodes(24)


def density(x: np.ndarray) -> np.ndarray:
    return 1 + 0.5 * x[:, 0] * x[:, 1] + 0.4 * x[:, 2] - 0.3 * x[:, 0]


def smooth(x: np.ndarray) -> np.ndarray:
    """A function that is constant along rays."""
    y = on_sphere(x)
    return np.asarray(np.sin(3 * y[:, 0]) * np.cos(2 * y[:, 1]) + y[:, 2] ** 2)


def gradient(f, x: np.ndarray, h: float = 1e-5) -> np.ndarray:
    """Central differences of f (N x 3 -> N or N x k) in space."""
    return np.stack([(f(x + h * one) - f(x - h * one)) / (2 * h) for one in np.eye(3)], axis=-1)


@pytest.mark.parametrize("cold", [False, True])
def test_divergence_and_its_gradient_against_differences(cold: bool) -> None:
    sources: Sources = (RULE[0], np.log(RULE[1] * density(RULE[0])))

    def found(x: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if cold:
            return rates(x, g, zero_temperature(x, sources, SCORE, VALUE), SCORE, VALUE)
        return rates(x, g, softmax(x, sources, SCORE, VALUE), SCORE, VALUE)

    def velocity(x: np.ndarray) -> np.ndarray:
        """Of length |x|, so that its divergence is that on the sphere."""
        z = on_sphere(x) @ SCORE.T
        share = np.exp(z @ sources[0].T + sources[1])
        mean = on_sphere(z) if cold else share @ sources[0] / share.sum(axis=1)[:, None]
        w = mean @ VALUE.T
        w -= (w * on_sphere(x)).sum(axis=1)[:, None] * on_sphere(x)
        return w * np.linalg.norm(x, axis=1)[:, None]

    def divergence(x: np.ndarray) -> np.ndarray:
        y = on_sphere(x)
        return np.trace(gradient(velocity, y), axis1=1, axis2=2)

    x = on_sphere(np.random.default_rng(0).normal(size=(20, 3)))
    g = np.random.default_rng(1).normal(size=(20, 3))
    g -= (g * x).sum(axis=1)[:, None] * x
    speed, level, slope = found(x, g)
    np.testing.assert_allclose(speed, velocity(x), rtol=0, atol=1e-6)
    np.testing.assert_allclose(level, -divergence(x), rtol=0, atol=1e-5)
    expected = -gradient(divergence, x, 1e-3) - np.einsum("nij,ni->nj", gradient(velocity, x), g)
    slope -= ((slope - expected) * x).sum(axis=1)[:, None] * x
    np.testing.assert_allclose(slope, expected, rtol=0, atol=1e-3)


def test_zero_temperature_against_the_closed_form() -> None:
    """Q = K = I: x -> M x / |M x|, M = exp(V t), and rho is rho_0 |det M^-1| / |M^-1 y|^3."""
    mesh = Triangles(DRIFT, 100 * np.eye(3), density, 0.5, zero_temperature)
    while mesh.time < 3:
        mesh.step()
    source = mesh.x @ scipy.linalg.expm(-mesh.time * DRIFT).T
    length = np.linalg.norm(source, axis=1)
    rho = density(source / length[:, None]) / length**3 * np.exp(-mesh.time * np.trace(DRIFT))
    mass = density(RULE[0]) @ RULE[1] / RULE[1].sum() * 4 * np.pi
    error = np.abs(mesh.level - np.log(rho / mass))
    assert np.ptp(mesh.level) > 8
    assert np.quantile(error, 0.8) < 5e-4
    assert error.max() < 0.1
    assert np.exp(mesh.log_mass).sum() == pytest.approx(1.0, abs=2e-3)
    assert (mesh.areas() > 0).all()


def test_changes_of_the_mesh_keep_the_surface_and_the_mass() -> None:
    mesh = Triangles(np.eye(3), 30 * np.eye(3), lambda x: 0.1 + np.exp(4 * x[:, 0]))
    counts = [len(mesh.triangles)]
    for factor in (1.5, 1.5, 1 / 2.25):
        mesh.width *= factor
        mesh.change *= factor**3
        for _ in range(2):
            mesh.step()
            ends, of_triangle = edges(mesh.triangles)
            assert (np.bincount(of_triangle.ravel()) == 2).all()
            assert len(mesh.x) - len(ends) + len(mesh.triangles) == 2
            assert (mesh.areas() > 0).all()
            assert np.exp(mesh.log_mass).sum() == pytest.approx(1.0, abs=1e-3)
        counts.append(len(mesh.triangles))
    assert counts[2] < 0.9 * counts[0]
    assert counts[3] > 1.2 * counts[2]


def test_points_in_the_middle_of_edges_are_of_fourth_and_second_order() -> None:
    errors = []
    for halvings in (3, 4):
        x, triangles = icosphere(halvings)
        assert (len(x), len(triangles)) == (10 * 4**halvings + 2, 20 * 4**halvings)
        nodes = halved(triangles, len(x), lambda ends: 4 + np.sin(ends).sum(axis=1))[2]
        middle, value, slope = in_the_middle(x[nodes], smooth(x)[nodes], gradient(smooth, x)[nodes])
        difference = np.abs(slope - gradient(smooth, middle)).max()
        errors.append((np.abs(value - smooth(middle)).max(), difference))
    values, gradients = np.divide(*errors)
    assert values > 12
    assert gradients > 3


def test_moments_at_small_beta_against_characteristics() -> None:
    beta, until = 5.0, 0.8
    x, weights = oracles.sphere_nodes(16)  # 16 and 20 differ by 1.3e-5
    masses = weights * density(x) / (weights @ density(x))
    nodes = oracles.characteristics(x, masses, SCORE / 20, np.eye(3), VALUE, beta, until, 10)
    mesh = Triangles(VALUE, beta * SCORE / 20, density, 1.0)
    while mesh.time < until - 1e-9:
        mesh.step()
    expected = np.einsum("n,ni,nj->ij", masses, nodes, nodes)
    np.testing.assert_allclose(mesh.second_moments(), expected, rtol=0, atol=1e-4)
