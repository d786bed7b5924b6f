"""Layered weights and the flow without the denominator, in the solver and in case files."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import ive, spherical_in

from meanfield_pde import (
    Attention,
    InputError,
    circle_mesh,
    read_case,
    read_result,
    solve,
    sphere_mesh,
)
from meanfield_pde.attention.layers import Layers, acting, from_arrays, pieces
from meanfield_pde.case.text import case_text
from meanfield_pde.solver.settings import CompareCase
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.tokens.code import simulate_tokens
from tests import oracles

FIRST = Attention(
    np.array([[1.0, 0.4], [-0.3, 0.8]]), np.eye(2), np.array([[1.0, 0.5], [-0.3, 0.6]]), 3.0
)
SECOND = Attention(
    np.array([[0.2, 1.0], [-1.0, 0.3]]), np.eye(2), np.array([[-0.5, 0.2], [0.9, 0.4]]), 3.0
)
DENSITY = "1 + 0.5*x + 0.3*x*y"


def density(points):
    return 1 + 0.5 * points[:, 0] + 0.3 * points[:, 0] * points[:, 1]


def test_two_layers_are_two_runs_one_after_the_other():
    mesh = circle_mesh(200)
    both = solve(Layers([FIRST, SECOND], 0.7), mesh, DENSITY, until=1.4, save_at=[0.7, 1.0])
    begin = solve(FIRST, mesh, DENSITY, until=0.7)
    end = solve(SECOND, mesh, begin.masses[-1], until=0.7, save_at=[0.3])
    assert both.times.tolist() == [0, 0.7, 1.0, 1.4]
    np.testing.assert_array_equal(both.masses[1], begin.masses[-1])
    np.testing.assert_allclose(both.masses[2:], end.masses[1:], rtol=2e-4, atol=1e-9)
    unsaved = solve(Layers([FIRST, SECOND], 0.7), mesh, DENSITY, until=1.4)
    # The steps end where the layer does, whether or not that time is saved.
    np.testing.assert_allclose(unsaved.masses[-1], both.masses[-1], rtol=2e-4, atol=1e-9)


def test_solver_and_tokens_agree_about_layers():
    """The moments of the density against those of quadrature nodes that follow the flow."""
    layers = Layers([FIRST, SECOND, FIRST.with_beta(3.0)], 0.6)
    solution = solve(layers, circle_mesh(800), DENSITY, until=1.8, save_every=0.6)
    x, weights = oracles.circle_nodes(400)
    cloud = simulate_tokens(
        x, layers, 1.8, save_at=solution.times, masses=weights * density(x), tolerance=1e-9
    )
    for k in range(len(solution.times)):
        mean = np.average(cloud.tokens[k], axis=0, weights=cloud.masses)
        found = [solution.history["mean_x"][k], solution.history["mean_y"][k]]
        np.testing.assert_allclose(found, mean, atol=2e-4)


def test_layers_compared_with_zero_temperature():
    layers = Layers([FIRST, SECOND], 0.5)
    compare = CompareCase(zero_temperature=True)
    solution = solve(layers, circle_mesh(60), DENSITY, until=1.0, compare=compare)
    cold = solve(layers.with_beta(math.inf), circle_mesh(60), DENSITY, until=1.0)
    np.testing.assert_allclose(solution.zero_masses[-1], cold.masses[-1], atol=1e-12)


def test_layers_have_no_limit():
    layers = Layers([FIRST, SECOND], 0.5)
    limit = ProjectionLimit(layers)
    assert limit.reason == limit.terminal.reason == "the matrices change with time, in 2 layers"
    with pytest.raises(InputError, match="there is no limit: the matrices change with time"):
        solve(layers, circle_mesh(20), until=1.0, compare=CompareCase(limit=True))
    with pytest.raises(InputError, match=r"beyond the last of the 2 layers, which ends at t = 1"):
        solve(layers, circle_mesh(20), until=1.5)


def test_diagnostics_at_the_end_of_a_layer_are_those_of_that_layer():
    solution = solve(Layers([*[FIRST] * 3, SECOND], 2.3), circle_mesh(30), until=7.0, save_at=[6.9])
    alone = solve(FIRST, circle_mesh(30), until=6.9, save_at=[])
    assert solution.history["log_energy"][1] == pytest.approx(
        alone.history["log_energy"][1], rel=1e-3
    )


def test_pieces():
    layers = Layers([FIRST, SECOND, FIRST], 0.5)
    found = [(head is FIRST, begin, end) for head, begin, end in pieces(layers, 0.25, 1.25)]
    assert found == [(True, 0.25, 0.5), (False, 0.5, 1.0), (True, 1.0, 1.25)]
    # Where nothing is left to do, it is the layer that has led here.
    assert pieces(layers, 0.5, 0.5) == [(FIRST, 0.5, 0.5)]
    assert pieces(layers, 1.5, 1.5) == [(FIRST, 1.5, 1.5)]
    # The sum of layer lengths may miss the end by rounding.
    tenth = Layers([FIRST, SECOND, FIRST], 0.1)
    assert pieces(tenth, 0.0, 0.3)[-1][1:] == (0.2, 0.3)
    # 7 * 0.7 is less than 4.9.
    seven = Layers([*[FIRST] * 7, SECOND], 0.7)
    assert [head for head, _, _ in pieces(seven, 4.3, 4.9)] == [FIRST]
    assert [head for head, _, _ in pieces(seven, 4.9, 5.0)] == [SECOND]
    assert [acting(seven, time) for time in (0.0, 4.9, 5.0)] == [FIRST, FIRST, SECOND]
    with pytest.raises(InputError, match="layers act from t = 0 on"):
        pieces(layers, -0.5, 0.5)
    assert pieces(FIRST, 0.0, 2.0) == [(FIRST, 0.0, 2.0)]


@pytest.mark.parametrize(
    ("arrays", "options", "fragment"),
    [
        ({"query": np.zeros((2, 2, 2))}, {}, "layer_duration is missing: for how long does each"),
        ({}, {"layer_duration": 1.0}, "applies to matrices with a leading layer axis only"),
        (
            {"query": np.zeros((2, 2, 2)), "key": np.zeros((3, 2, 2))},
            {"layer_duration": 1.0},
            "the numbers of layers differ: query 2, key 3",
        ),
        ({"key": np.zeros((1, 1, 1, 2, 2))}, {}, "must be a matrix, or one for each layer"),
        ({"key": [[1.0, 2.0], [3.0]]}, {}, "whose rows have equal length"),
        (
            {"value": np.full((2, 2, 2), np.nan)},
            {"layer_duration": 1.0},
            "layer 0: attention.value must have finite entries",
        ),
    ],
)
def test_arrays_refused(arrays, options, fragment):
    given = dict.fromkeys(("query", "key", "value"), np.eye(2)) | arrays
    with pytest.raises(InputError) as caught:
        from_arrays(given, 1.0, **options)
    assert fragment in str(caught.value)


CASE = """
[attention]
weights = "weights.npz"
beta = 3.0
layer_duration = 0.5
[mesh]
cells = 40
[initial]
kind = "expression"
density = "1 + 0.5*x"
[time]
until = 1.0
"""


@pytest.fixture
def weights(tmp_path):
    path = tmp_path / "weights.npz"
    np.savez(path, query=np.array([FIRST.query, SECOND.query]), key=np.eye(2), value=FIRST.value)
    return path


def test_layers_in_a_case_file(weights, write_case, main, tmp_path):
    case = read_case(path := write_case(CASE))
    assert isinstance(case.attention, Layers)
    assert case.attention.duration == 0.5
    np.testing.assert_array_equal(case.attention.attentions[1].query, SECOND.query)
    np.testing.assert_array_equal(case.attention.attentions[1].value, FIRST.value)
    again = read_case(write_case(case_text(case), name="again.toml"))
    assert case_text(again).replace("again", "some-case") == case_text(case)
    out = tmp_path / "out"
    assert main("run", path, "--quiet", "--output", out) == (0, "")
    result = read_result(out)
    np.testing.assert_array_equal(result.attention.layers[1].query, case.attention.layers[1].query)
    assert main("tokens", path, "--count", 20, "--output", tmp_path / "t.npz")[0] == 0
    assert main("compare", out, tmp_path / "t.npz")[0] == 0
    assert main("limit", path)[0] == 0


def test_a_run_of_layers_is_resumed(weights, write_case, main, tmp_path):
    path = write_case(CASE)
    for out, untils in (("once", [1.0]), ("twice", [0.75, 1.0])):
        for until in untils:
            resume = ["--resume"] if until > untils[0] else []
            directory = tmp_path / out
            done = main("run", path, "--quiet", "--output", directory, "--until", until, *resume)
            assert done == (0, "")
    once, twice = read_result(tmp_path / "once"), read_result(tmp_path / "twice")
    np.testing.assert_allclose(once.masses[-1], twice.masses[-1], rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        (("layer_duration = 0.5\n", ""), "attention.layer_duration is missing"),
        (("layer_duration = 0.5", "layer_duration = -1"), "layer_duration must be a number > 0"),
        (("until = 1.0", "until = 1.1"), "time.until = 1.1 is beyond the last of the 2 layers"),
        (("beta = 3.0", 'beta = "inf"\nnormalise = false'), "no meaning at zero temperature"),
        (("beta = 3.0", "beta = 3.0\nnormalise = 1"), "normalise must be true or false, got 1"),
    ],
)
def test_case_files_refused(weights, write_case, change, fragment):
    with pytest.raises(InputError) as caught:
        read_case(write_case(CASE, change))
    assert fragment in str(caught.value)


def test_the_denominator_is_kept_in_the_case(write_case, main, tmp_path):
    text = CASE.replace(
        'weights = "weights.npz"', "query = [[1, 0], [0, 1]]\nkey = [[1, 0], [0, 1]]"
    )
    text = text.replace("layer_duration = 0.5", "value = [[1, 0], [0, 0.5]]\nnormalise = false")
    path = write_case(text)
    assert not read_case(path).attention.normalise
    assert main("run", path, "--quiet", "--output", tmp_path / "out") == (0, "")
    assert not read_result(tmp_path / "out").attention.normalise


def plain(d, beta, sign=1.0):
    return Attention(np.eye(d), np.eye(d), sign * np.eye(d), beta, normalise=False)


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_growth_about_the_uniform_density_on_the_circle(k, sign):
    """Mode k grows at k^2 I_k(beta)/beta: v = grad (1/beta) ∫ exp(beta <x, y>) dmu."""
    beta, size, until = 3.0, 1e-4, 0.5
    cosine = {1: "x", 2: "(x*x - y*y)", 3: "(x**3 - 3*x*y*y)"}[k]
    solution = solve(plain(2, beta, sign), circle_mesh(800), f"1 + {size}*{cosine}", until=until)
    angle = np.arctan2(solution.cells.points[:, 1], solution.cells.points[:, 0])
    mode = solution.masses @ np.cos(k * angle)
    rate = math.log(mode[-1] / mode[0]) / until
    exact = sign * k**2 * ive(k, beta) * math.exp(beta) / beta
    assert rate == pytest.approx(exact, rel=5e-3)


@pytest.mark.parametrize("degree", [1, 2])
def test_growth_about_the_uniform_density_on_the_sphere(degree):
    """Degree l grows at l (l + 1) i_l(beta)/beta."""
    beta, size, until = 2.0, 1e-3, 0.4
    harmonic = {1: "z", 2: "(3*z*z - 1)"}[degree]
    solution = solve(plain(3, beta), sphere_mesh(5120), f"1 + {size}*{harmonic}", until=until)
    z = solution.cells.points[:, 2]
    mode = solution.masses @ (z if degree == 1 else 3 * z * z - 1)
    if degree == 2:  # what the centres of the cells make of the uniform density
        mode = mode - (3 * z * z - 1) @ solution.cells.volumes / solution.cells.volumes.sum()
    rate = math.log(mode[-1] / mode[0]) / until
    exact = degree * (degree + 1) * spherical_in(degree, beta) / beta
    assert rate == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize(("d", "make", "cells"), [(2, circle_mesh, 200), (3, sphere_mesh, 320)])
def test_energy_never_decreases_without_the_denominator(d, make, cells):
    """V = B = B^T: v is the gradient of the energy."""
    matrix = np.diag([1.0, -0.4, 0.2][:d])
    attention = Attention(matrix, np.eye(d), matrix, 3.0, normalise=False)
    solution = solve(attention, make(cells), "1 + 0.5*x + 0.3*y", until=2.0, save_every=0.1)
    energy = solution.history["energy"]
    assert (np.diff(energy) > 0).all()
    assert energy[-1] > 1.5 * energy[0]


def test_the_flow_without_the_denominator_is_that_of_characteristics():
    attention = Attention(FIRST.query, FIRST.key, FIRST.value, 2.0, normalise=False)
    solution = solve(attention, circle_mesh(800), DENSITY, until=0.8)
    x, weights = oracles.circle_nodes(400)
    cloud = simulate_tokens(x, attention, 0.8, masses=weights * density(x), tolerance=1e-9)
    mean = np.average(cloud.tokens[-1], axis=0, weights=cloud.masses)
    found = [solution.history["mean_x"][-1], solution.history["mean_y"][-1]]
    np.testing.assert_allclose(found, mean, atol=2e-4)
