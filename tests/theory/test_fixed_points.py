"""Fixed points at zero temperature against what is known of one head, and by their indices."""

from __future__ import annotations

import math

import numpy as np
import pytest

from meanfield_pde import Attention, Heads, InputError, Perceptron
from meanfield_pde.theory.fixed_points import fixed_points
from tests.problems import rotation


def test_of_one_head_they_are_the_eigenvectors():
    """V B^T = diag(3, 2, 1) with B = 1: attracting at ±e_1, unstable at the others."""
    value = np.diag([3.0, 2.0, 1.0])
    found = fixed_points(Heads([Attention(np.eye(3), np.eye(3), value, 5.0)]))
    assert len(found.points) == 6
    assert found.complete
    attracting = [one for one in found.points if one.attracts]
    np.testing.assert_allclose(
        np.abs([one.point for one in attracting]), [[1, 0, 0]] * 2, atol=1e-7
    )
    for one in attracting:
        np.testing.assert_allclose(np.sort(one.eigenvalues.real), [-2, -1], atol=1e-6)
        assert one.share == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("seed", range(2))
def test_the_velocity_vanishes_there_and_indices_add_up(d, seed):
    random = np.random.default_rng(seed)
    heads = Heads(
        [Attention(*random.standard_normal((3, d, d)), 2.0) for _ in range(3)],
        Perceptron(
            random.standard_normal((4, d)), random.standard_normal((d, 4)), activation="tanh"
        ),
    )
    found = fixed_points(heads)
    assert found.complete
    cold = heads.with_beta(math.inf)
    for one in found.points:
        np.testing.assert_allclose(cold.velocity(one.point), 0, atol=1e-7)
    shares = sum(one.share for one in found.points) + found.unsettled
    assert shares == pytest.approx(1)


def test_a_rotation_comes_to_no_fixed_point():
    turn = Attention(np.eye(2), np.eye(2), rotation(math.pi / 2), 1.0)
    found = fixed_points(Heads([turn, turn]))
    assert found.points == []
    assert found.complete  # on the circle they add up to nothing
    assert found.unsettled == 1
    assert "no theorem" in found.report()


def test_a_singular_head_is_refused():
    flat = Attention(np.diag([1.0, 0.0]), np.eye(2), np.eye(2), 1.0)
    with pytest.raises(InputError, match="head 1: B = query"):
        fixed_points(Heads([Attention(np.eye(2), np.eye(2), np.eye(2), 1.0), flat]))
