"""The reference at finite beta of `python -m tests.benchmarks.adaptivity` is right itself."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg

from tests import oracles
from tests.benchmarks.characteristics import Flow, Origins, gathered, on_sphere
from tests.benchmarks.exact_distance import DRIFT, density, exact_masses, traced_masses

BETA = 10.0


@pytest.mark.parametrize("dimension", [2, 3])
def test_nodes_move_as_characteristics_and_points_come_back(dimension: int) -> None:
    one, value = np.eye(dimension), DRIFT[:dimension, :dimension]
    rule = oracles.circle_nodes(60) if dimension == 2 else oracles.sphere_nodes(16)
    start, masses = gathered(*rule, lambda x: 1 + 0.5 * x[:, 0], one + 0.2 * value)
    flow = Flow.of((start, masses), value, BETA, until=1.0, steps=16)
    end = oracles.characteristics(start, masses, one, one, value, BETA, 1.0, 40)
    np.testing.assert_allclose(flow.positions[-1], end, rtol=0, atol=1e-6)
    np.testing.assert_allclose(flow.origin(end, 1.0), start, rtol=0, atol=1e-6)
    if dimension == 3:
        origins = Origins(flow, 24)
        np.testing.assert_allclose(origins.origin(end, 1.0), start, rtol=0, atol=1e-6)
        found = origins.origin(flow.positions[16], 0.5)
        np.testing.assert_allclose(found, flow.origin(flow.positions[16], 0.5), rtol=0, atol=1e-7)


def octants() -> np.ndarray:
    """Eight triangles that cover the sphere, with edges off the axes."""
    turn = scipy.linalg.expm(np.array([[0.0, -0.3, 0.5], [0.3, 0.0, -0.7], [-0.5, 0.7, 0.0]]))
    signs = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)])
    return (signs[:, :, None] * np.eye(3)) @ turn.T


def by_quadrature(triangles: np.ndarray) -> np.ndarray:
    """The initial mass of geodesic triangles: Gauss's rule in the flat triangles below them."""
    node, weight = np.polynomial.legendre.leggauss(30)
    u, v = np.repeat((node + 1) / 2, 30), np.tile((node + 1) / 2, 30)
    barycentric = np.column_stack([1 - u, u * (1 - v), u * v])
    p = barycentric @ triangles
    length = np.linalg.norm(p, axis=2)
    values = density((p / length[..., None]).reshape(-1, 3)).reshape(length.shape)
    cone = np.abs(np.linalg.det(triangles))[:, None] / length**3
    return (values * cone) @ (u * np.outer(weight, weight).ravel() / 4) / (4 * np.pi)


def test_traced_masses_where_edges_stay_straight() -> None:
    back = scipy.linalg.expm(-DRIFT)
    expected = by_quadrature(on_sphere(octants() @ back.T))
    assert expected.sum() == pytest.approx(1.0, abs=1e-12)
    np.testing.assert_allclose(exact_masses(1.0)(octants()), expected, rtol=0, atol=1e-12)
    found = traced_masses(lambda x: on_sphere(x @ back.T), 4)(octants())
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_traced_masses_of_bent_edges_are_of_fourth_order() -> None:
    """A twist, which turns each circle of latitude by an angle of its own."""

    def origin(x: np.ndarray) -> np.ndarray:
        angle = np.arctan2(x[:, 1], x[:, 0]) - 2 * x[:, 2]
        radius = np.hypot(x[:, 0], x[:, 1])
        return np.column_stack([radius * np.cos(angle), radius * np.sin(angle), x[:, 2]])

    fine, middle, coarse = (traced_masses(origin, parts)(octants()) for parts in (256, 32, 16))
    assert fine.sum() == pytest.approx(1.0, abs=1e-12)
    assert 12 < np.abs(coarse - fine).sum() / np.abs(middle - fine).sum() < 20
    assert np.abs(middle - fine).max() < 1e-5
