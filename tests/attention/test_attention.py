"""Attention: what is refused, the mean value against its definition, and the limit beta -> inf."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import i0e, i1e

from meanfield_pde.attention.head import Attention, read_weights
from meanfield_pde.case.file import read_case
from meanfield_pde.errors import InputError
from tests.problems import on_sphere

EYE = np.eye(2)


def random_attention(rng: np.random.Generator, d: int, beta: float, rows: int = 0) -> Attention:
    """An attention without any symmetry."""
    query, key = rng.normal(size=(2, rows or d, d)) / math.sqrt(d)
    return Attention(query, key, rng.normal(size=(d, d)), beta)


def naive_mean(
    attention: Attention, x: np.ndarray, points: np.ndarray, masses: np.ndarray
) -> np.ndarray:
    """The definition, with log-sum-exp, in extended precision."""
    query, key, x, y, m = (
        np.asarray(array, dtype=np.longdouble)
        for array in (attention.query, attention.key, x, points, masses)
    )
    with np.errstate(divide="ignore"):
        exponent = attention.beta * ((x @ query.T) @ (y @ key.T).T) + np.log(m)
    weights = np.exp(exponent - exponent.max(axis=1, keepdims=True))
    return ((weights @ y) / weights.sum(axis=1, keepdims=True)).astype(float)


# What is accepted and what is refused.


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_query_and_key_may_be_rectangular(rows: int) -> None:
    rng = np.random.default_rng(1)
    attention = random_attention(rng, 3, 2.0, rows)
    assert attention.dimension == 3
    np.testing.assert_array_equal(attention.B, attention.query.T @ attention.key)
    np.testing.assert_allclose(attention.drift, attention.value @ attention.B.T, atol=1e-15)
    x = on_sphere(rng, 5, 3)
    np.testing.assert_allclose(attention.scores(x), 2.0 * x @ attention.B, atol=1e-14)


def test_matrices_are_copied_and_read_only() -> None:
    given = np.eye(2)
    attention = Attention(given, EYE, EYE, 1)
    given[0, 0] = 7
    assert attention.query[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        attention.query[0, 0] = 7
    assert attention.with_beta(3).beta == 3
    assert attention.beta == 1


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        ({"query": [[1, 2], [3]]}, "attention.query must be a matrix of numbers whose rows have"),
        ({"key": "a"}, "attention.key must be a matrix of real numbers, got type <U1"),
        ({"key": [["a", "b"]]}, "attention.key must be a matrix of real numbers, got type"),
        ({"value": None}, "attention.value must be a matrix"),
        ({"value": 3.0}, "attention.value must be a matrix, got an array of shape ()"),
        ({"value": [1, 2]}, "attention.value must be a matrix, got an array of shape (2,)"),
        ({"query": np.ones((1, 2, 2))}, "attention.query must be a matrix, got an array of shape"),
        ({"query": np.ones((0, 2))}, "attention.query must be a matrix, got an array of shape"),
        ({"query": [[1, math.nan]]}, "attention.query must have finite entries, got"),
        ({"key": [[math.inf, 0], [0, 1]]}, "attention.key must have finite entries, got"),
        ({"query": 1e200 * EYE}, "attention.query must have its largest entry from 1e-70 to 1e+70"),
        ({"key": 5e-324 * EYE}, "in magnitude, or zero, got 4.94066e-324; scale it"),
        ({"value": [[1e308, 1e308], [1e308, 1e308]]}, "attention.value must have its largest"),
        ({"value": np.ma.masked_less(EYE, 0.5)}, "attention.value is a masked array with 2"),
        ({"value": EYE + 0j}, "attention.value must be a matrix of real numbers, got type"),
        ({"query": 1j * EYE}, "attention.query must be a matrix of real numbers, got type"),
        (
            {"key": [[1j, 0], [0, 1]]},
            "attention.key must be a matrix of real numbers, got type complex",
        ),
        ({"value": np.ones((2, 3))}, "attention.value must be square (d x d), got 2 x 3"),
        ({"value": [[1.0]]}, "attention.value must be at least 2 x 2"),
        ({"query": np.eye(3)}, "attention.query must have as many columns as value (2), got 3 x 3"),
        ({"key": np.ones((2, 1))}, "attention.key must have as many columns as value (2), got 2"),
        ({"key": np.ones((3, 2))}, "the same number of rows, got 2 x 2 and 3 x 2"),
        ({"beta": math.nan}, "attention.beta must be >= 0 or infinite, got nan"),
        ({"beta": -1e-300}, "attention.beta must be >= 0 or infinite, got -1e-300"),
        ({"beta": -math.inf}, "attention.beta must be >= 0 or infinite, got -inf"),
        ({"beta": "hot"}, "attention.beta must be a number, got 'hot'"),
        ({"beta": None}, "attention.beta must be a number, got None"),
        ({"beta": True}, "attention.beta must be a number, got True"),
        ({"beta": 1j}, "attention.beta must be a number, got 1j"),
        ({"beta": math.inf, "query": np.diag([1, 0])}, "needs B = query^T key to be invertible"),
        ({"beta": math.inf, "query": np.diag([1, 1e-13])}, "needs B = query^T key to be"),
        ({"beta": math.inf, "query": 0 * EYE}, "needs B = query^T key to be invertible"),
        ({"beta": math.inf, "query": [[1, 0]], "key": [[1, 0]]}, "needs B = query^T key to be"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_refused(change: dict[str, Any], fragment: str) -> None:
    given: dict[str, Any] = {"query": EYE, "key": EYE, "value": EYE, "beta": 1.0} | change
    with pytest.raises(InputError) as caught:
        Attention(**given)
    assert fragment in str(caught.value)


def test_a_singular_matrix_is_fine_at_finite_beta() -> None:
    attention = Attention([[1, 0]], [[1, 0]], EYE, 1e4)
    with pytest.raises(InputError, match="invertible"):
        attention.with_beta(math.inf)
    assert Attention(np.diag([1, 1e-11]), EYE, EYE, math.inf).zero_temperature


def test_finite_beta_needs_a_measure() -> None:
    with pytest.raises(InputError, match="needs the points and masses"):
        Attention(EYE, EYE, EYE, 1.0).mean(EYE)


def test_read(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    query, key, value = rng.normal(size=(3, 3, 3))
    path = tmp_path / "weights.npz"
    np.savez(path, query=query, key=key, value=value, extra=1)
    assert sorted(read_weights(path)) == ["key", "query", "value"]
    attention = Attention.read(str(path), 4.0)
    np.testing.assert_array_equal(attention.query, query)
    np.testing.assert_array_equal(attention.key, key)
    np.testing.assert_array_equal(attention.value, value)
    assert attention.beta == 4.0
    np.savez(path, query=query, value=value)
    with pytest.raises(InputError, match="the array 'key' is missing; found") as caught:
        Attention.read(path, 4.0)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize("damage", ["empty", "truncated", "npy", "no key"])
def test_a_case_names_damaged_weights_once(tmp_path: Path, damage: str) -> None:
    weights, case = tmp_path / "weights.npz", tmp_path / "case.toml"
    arrays = {"query": EYE, "value": EYE} | ({} if damage == "no key" else {"key": EYE})
    np.savez(weights, **arrays)
    if damage == "npy":
        with weights.open("wb") as file:
            np.save(file, EYE)
    elif damage != "no key":
        kept = 0 if damage == "empty" else weights.stat().st_size // 2
        weights.write_bytes(weights.read_bytes()[:kept])
    case.write_text('[attention]\nweights = "weights.npz"\nbeta = 1\n[time]\nuntil = 1\n')
    with pytest.raises(InputError) as caught:
        read_case(case)
    message = str(caught.value)
    assert message.startswith(f"{case}: {weights}: ")
    assert message.count("weights.npz") == message.count("case.toml") == 1
    assert "\n" not in message


# The mean value.


@pytest.mark.parametrize("rows", [1, 3, 6])
@pytest.mark.parametrize("d", [2, 3, 5])
def test_mean_is_its_definition(d: int, rows: int) -> None:
    """No log-sum-exp and no B: exp(beta <Q x, K y>) as it stands, all matrices non-symmetric."""
    rng = np.random.default_rng([3, d, rows])
    attention = random_attention(rng, d, 1.7, rows)
    x, y, masses = on_sphere(rng, 20, d), on_sphere(rng, 90, d), rng.uniform(size=90)
    for i, mean in enumerate(attention.mean(x, y, masses)):
        weights = masses * [
            math.exp(attention.beta * (attention.query @ x[i]) @ (attention.key @ one)) for one in y
        ]
        np.testing.assert_allclose(mean, weights @ y / weights.sum(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("beta", [1e-3, 1.0, 40.0, 1e3, 1e4])
@pytest.mark.parametrize("d", [2, 3, 5])
def test_mean_against_extended_precision(d: int, beta: float) -> None:
    rng = np.random.default_rng([4, d])
    attention = random_attention(rng, d, beta)
    x, y = on_sphere(rng, 100, d), on_sphere(rng, 700, d)
    masses = 10.0 ** rng.uniform(-300, 0, len(y))
    expected = naive_mean(attention, x, y, masses)
    np.testing.assert_allclose(attention.mean(x, y, masses), expected, rtol=0, atol=1e-10)
    masses[y[:, 0] < 0.5] = 0
    expected = naive_mean(attention, x, y, masses)
    np.testing.assert_allclose(attention.mean(x, y, masses), expected, rtol=0, atol=1e-10)
    # All masses tiny: only their ratios count.
    masses = 1e-300 * rng.uniform(size=len(y))
    expected = naive_mean(attention, x, y, masses)
    np.testing.assert_allclose(attention.mean(x, y, masses), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_beta_zero_is_the_plain_mean(d: int) -> None:
    rng = np.random.default_rng([5, d])
    attention = random_attention(rng, d, 0.0)
    x, y, masses = on_sphere(rng, 40, d), on_sphere(rng, 150, d), rng.uniform(size=150)
    plain = masses @ y / masses.sum()
    np.testing.assert_allclose(attention.mean(x, y, masses), np.tile(plain, (40, 1)), atol=1e-13)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_mean_of_one_atom_is_the_atom(d: int) -> None:
    rng = np.random.default_rng([6, d])
    y = on_sphere(rng, 1, d)
    mean = random_attention(rng, d, 1e4).mean(on_sphere(rng, 9, d), y, np.array([5e-324]))
    np.testing.assert_allclose(mean, np.tile(y, (9, 1)), rtol=0, atol=1e-14)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_zero_temperature_is_the_closed_form(d: int) -> None:
    rng = np.random.default_rng([7, d])
    attention = random_attention(rng, d, math.inf, d + 2)
    x = on_sphere(rng, 30, d)
    z = np.array([attention.key.T @ (attention.query @ one) for one in x])
    expected = z / np.linalg.norm(z, axis=1, keepdims=True)
    np.testing.assert_allclose(attention.mean(x), expected, rtol=0, atol=1e-14)
    with_measure = attention.mean(x, on_sphere(rng, 8, d), np.ones(8))
    np.testing.assert_array_equal(with_measure, attention.mean(x))


def dense_points(d: int) -> np.ndarray:
    """Points of equal weight all over the circle or the sphere (Fibonacci lattice)."""
    if d == 2:
        angle = 2 * math.pi / 4000 * np.arange(4000)
        return np.column_stack([np.cos(angle), np.sin(angle)])
    i = np.arange(0.5, 60_000)
    z, angle = 1 - i / 30_000, i * math.pi * (3 - math.sqrt(5))
    radius = np.sqrt(1 - z * z)
    return np.column_stack([radius * np.cos(angle), radius * np.sin(angle), z])


@pytest.mark.parametrize("d", [2, 3])
def test_zero_temperature_is_the_limit_of_large_beta(d: int) -> None:
    rng = np.random.default_rng([8, d])
    query, key = np.eye(d) + 0.3 * rng.normal(size=(2, d, d))
    x, y = on_sphere(rng, 20, d), dense_points(d)
    limit = Attention(query, key, np.eye(d), math.inf)
    smallest = np.linalg.norm(x @ limit.B, axis=1)  # |B^T x|
    errors = []
    for beta in (10.0, 100.0, 1000.0):
        mean = limit.with_beta(beta).mean(x, y, np.ones(len(y)))
        error = np.linalg.norm(mean - limit.mean(x), axis=1)
        # For the uniform measure 1 - |m| = (d - 1) / (2 beta |B^T x|) + O(1 / beta^2).
        assert (error <= (d - 1) / (2 * beta * smallest) * (1 + 2 / (beta * smallest))).all()
        errors.append(error.max())
    assert errors[2] < errors[1] / 5 < errors[0] / 10


@pytest.mark.parametrize("beta", [0.5, 20.0, 1000.0])
def test_mean_of_the_uniform_measure_on_the_circle(beta: float) -> None:
    """m(x) = I_1(k) / I_0(k) z / |z| with z = B^T x and k = beta |z|; equal angles are exact."""
    rng = np.random.default_rng(9)
    attention = random_attention(rng, 2, beta)
    x, y = on_sphere(rng, 25, 2), dense_points(2)
    z = x @ attention.B
    length = np.linalg.norm(z, axis=1, keepdims=True)
    expected = i1e(beta * length) / i0e(beta * length) * z / length
    mean = attention.mean(x, y, np.ones(len(y)))
    np.testing.assert_allclose(mean, expected, rtol=0, atol=1e-11)


# The velocity.


@pytest.mark.parametrize("beta", [0.0, 3.0, 1e4, math.inf])
@pytest.mark.parametrize("d", [2, 3, 5])
def test_velocity_is_the_projected_value_of_the_mean(d: int, beta: float) -> None:
    rng = np.random.default_rng([10, d])
    attention = random_attention(rng, d, beta)
    x, y, masses = on_sphere(rng, 50, d), on_sphere(rng, 200, d), rng.uniform(size=200)
    velocity = attention.velocity(x, y, masses)
    np.testing.assert_allclose((velocity * x).sum(axis=1), 0, atol=1e-14)
    for one, v, m in zip(x, velocity, attention.mean(x, y, masses), strict=True):
        expected = (np.eye(d) - np.outer(one, one)) @ attention.value @ m
        np.testing.assert_allclose(v, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("beta", [2.0, math.inf])
def test_a_token_at_a_fixed_point_does_not_move(beta: float) -> None:
    attention = Attention(EYE, EYE, np.diag([1.0, 0.3]), beta)
    at = np.array([[1.0, 0.0]])
    np.testing.assert_allclose(attention.velocity(at, at, np.ones(1)), 0, atol=1e-15)
