"""Several heads and a perceptron: the sum of velocities, in the solver, tokens and case files."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.special import erf

from meanfield_pde import (
    Attention,
    Heads,
    InputError,
    Layers,
    Perceptron,
    read_case,
    read_result,
    run_case,
    simulate_tokens,
    solve,
)
from meanfield_pde.attention.layers import from_arrays, stack
from meanfield_pde.case.text import case_text, same_case
from tests import oracles
from tests.problems import CIRCLE, MESHES

RANDOM = np.random.default_rng(3)
DENSITY = "1 + 0.5*x + 0.3*x*y"


def head(d, beta, rows=None):
    rows = rows or d
    return Attention(
        RANDOM.standard_normal((rows, d)),
        RANDOM.standard_normal((rows, d)),
        RANDOM.standard_normal((d, d)) / 2,
        beta,
    )


def perceptron(d, activation="gelu"):
    draw = RANDOM.standard_normal
    return Perceptron(draw((4, d)), draw((d, 4)) / 3, draw(4), draw(d) / 4, activation)


HEADS = {d: Heads([head(d, 2.0), head(d, 5.0, 1), head(d, 0.0)], perceptron(d)) for d in (2, 3)}


def velocity(x, masses, heads):
    """The sum of the velocities of points that are also the measure, from the equations."""
    total = sum(
        oracles.velocity(x, masses, one.query, one.key, one.value, one.beta) for one in heads.heads
    )
    net = heads.perceptron
    inside = x @ net.weights_in.T + net.bias_in
    gelu = inside * (1 + erf(inside / math.sqrt(2))) / 2
    drift = gelu @ net.weights_out.T + net.bias_out
    return total + drift - (drift * x).sum(axis=1, keepdims=True) * x


@pytest.mark.parametrize("d", [2, 3])
def test_velocities_add_up(d):
    x = RANDOM.standard_normal((30, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    masses = RANDOM.uniform(size=30)
    found = HEADS[d].velocity(x, x, masses)
    np.testing.assert_allclose(found, velocity(x, masses, HEADS[d]), atol=1e-12)


@pytest.mark.parametrize(("d", "cells"), [(2, 100), (3, 320)])
def test_equal_heads_are_one_head(d, cells):
    """Three heads with V / 3 each."""
    one = head(d, 4.0)
    third = Attention(one.query, one.key, one.value / 3, 4.0)
    mesh = MESHES[d](cells)
    single = solve(one, mesh, DENSITY, until=1.0)
    several = solve(Heads([third] * 3), mesh, DENSITY, until=1.0)
    np.testing.assert_allclose(several.masses[-1], single.masses[-1], rtol=1e-12, atol=1e-18)
    np.testing.assert_allclose(
        several.history["energy"], 3 * single.history["energy"], rtol=1e-12
    )  # that of each head


@pytest.mark.parametrize(
    ("d", "cells", "bound"), [(2, 400, 2e-4), pytest.param(3, 5120, 4e-3, marks=pytest.mark.slow)]
)
def test_solver_and_tokens_agree_about_heads(d, cells, bound):
    """The moments of the density against those of quadrature nodes that follow the flow."""
    solution = solve(HEADS[d], MESHES[d](cells), DENSITY, until=0.8)
    x, weights = oracles.circle_nodes(300) if d == 2 else oracles.sphere_nodes(24)
    masses = weights * (1 + 0.5 * x[:, 0] + 0.3 * x[:, 0] * x[:, 1]) / weights.sum()
    cloud = simulate_tokens(x, HEADS[d], 0.8, masses=masses, tolerance=1e-9)
    mean = masses @ cloud.tokens[-1]
    found = [solution.history[f"mean_{axis}"][-1] for axis in "xyz"[:d]]
    np.testing.assert_allclose(found, mean, atol=bound)


@pytest.mark.parametrize(
    "activation",
    ["relu", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gelu", "tanh"))],
)
def test_a_perceptron_alone_moves_points_independently(activation):
    """A density without attention against points that follow x' = P_x g(x)."""
    still = Attention(np.eye(2), np.eye(2), np.zeros((2, 2)), 1.0)
    layer = Heads([still], perceptron(2, activation))
    solution = solve(layer, MESHES[2](400), DENSITY, until=1.0)
    x, weights = oracles.circle_nodes(400)
    masses = weights * (1 + 0.5 * x[:, 0] + 0.3 * x[:, 0] * x[:, 1]) / math.tau
    for _ in range(100):
        middle = x + 0.005 * layer.velocity(x, x, masses)
        x = x + 0.01 * layer.velocity(middle / np.linalg.norm(middle, axis=1)[:, None], x, masses)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    found = [solution.history[f"mean_{axis}"][-1] for axis in "xy"]
    np.testing.assert_allclose(found, masses @ x, atol=2e-4)


def test_residual_steps_add_the_unprojected_drift():
    layer = HEADS[2]
    x = oracles.circle_nodes(7)[0]
    cloud = simulate_tokens(x, layer, 0.1, step=0.1, residual=True)
    push = sum(one.mean(x, x, np.full(7, 1 / 7)) @ one.value.T for one in layer.heads)
    moved = x + 0.1 * (push + layer.beside[0].push(x))
    np.testing.assert_allclose(
        cloud.tokens[-1], moved / np.linalg.norm(moved, axis=1)[:, None], atol=1e-12
    )


def test_heads_of_layers_from_arrays():
    layers = Layers([Heads([head(3, 2.0), head(3, 7.0, 2)]) for _ in range(3)], 0.5)
    arrays = {name: stack(layers, name) for name in ("query", "key", "value")}
    assert arrays["query"].shape == (3, 2, 3, 3)
    again = from_arrays(arrays, [2.0, 7.0], layer_duration=0.5)
    for one, other in zip(layers.attentions, again.attentions, strict=True):
        for ours, theirs in zip(one.heads, other.heads, strict=True):
            np.testing.assert_array_equal(ours.key_query, theirs.key_query)
            assert ours.beta == theirs.beta
    alone = from_arrays({name: array[:1] for name, array in arrays.items()}, [2.0, 7.0])
    assert isinstance(alone, Heads)
    assert len(alone.heads) == 2


# An inline table of TOML stands on one line.
SEVERAL = """
[attention]
heads = [
  { query = [[1, 0], [0, 1]], key = [[1.0, 0.2], [0, 1]], value = [[1, 0], [0, 0.3]], beta = 4.0 },
  { query = [[0.0, 1.0]], key = [[1.0, 0.2]], value = [[0.1, 0], [0.4, 0.3]], beta = 2.0 } ]
[perceptron]
weights_in = [[1.0, 0.5]]
weights_out = [[0.2], [-0.1]]
bias_in = [0.1]
activation = "tanh"
[noise]
strength = 0.05
[mesh]
cells = 40
[time]
until = 0.2
[output]
fields = "none"
"""


@pytest.mark.usefixtures("undrawn")
def test_case_round_trip(write_case, tmp_path):
    path = write_case(SEVERAL, ("beta = 2.0", "beta = 9.0"))
    case = read_case(path, output=tmp_path / "out")
    text = case_text(case)
    again = tmp_path / "again.toml"
    again.write_text(text, encoding="utf-8")
    assert same_case(text, case_text(read_case(again)))
    run_case(case, quiet=True)
    result = read_result(tmp_path / "out")
    assert [one.beta for one in result.attention.heads] == [4.0, 9.0]
    assert result.attention.perceptron.activation == "tanh"
    assert "free_energy" in result.history


LAYERED = """
[attention]
query = [[[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.1], [0.0, 1.0]]],
         [[[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.2], [0.0, 1.0]]]]
key   = [[1.0, 0.0], [0.0, 1.0]]
value = [[1.0, 0.0], [0.0, 0.3]]
beta  = [3.0, 5.0]
layer_duration = 0.1
[mesh]
cells = 40
[time]
until = 0.2
"""


def test_layers_of_heads_round_trip(write_case, tmp_path):
    case = read_case(write_case(LAYERED))
    assert [len(layer.heads) for layer in case.attention.attentions] == [2, 2]
    text = case_text(case)
    (tmp_path / "again.toml").write_text(text, encoding="utf-8")
    again = read_case(tmp_path / "again.toml")
    assert same_case(text, case_text(again))


@pytest.mark.parametrize(
    ("change", "fragment"),
    [
        (("beta = 2.0", "beta = -1.0"), "attention.heads[1].beta must be a number >= 0"),
        (("beta = 2.0", "beta = 2.0, gain = 1"), "attention.heads[1]"),
        ((", beta = 4.0 }", "}"), "attention.heads[0].beta is missing"),
        (("key = [[1.0, 0.2]],", "key = [[1.0]],"), "attention.heads[1].key must have as many"),
        (("beta = 2.0", 'beta = "inf"'), "zero temperature (attention.heads[1].beta = inf) needs"),
        (("[mesh]", "weights = 1\n[mesh]"), "weights"),
        (('"tanh"', '"tan"'), "perceptron.activation must be one of"),
        (("bias_in = [0.1]", "bias_in = [0.1, 2.0]"), "perceptron.bias_in must be 1 numbers"),
        (("[[0.2], [-0.1]]", "[[0.2]]"), "perceptron.weights_out must be d x k"),
        (("[[1.0, 0.5]]", "[[1.0, 0.5, 2.0]]"), "perceptron.weights_out must be d x k"),
        (("strength = 0.05", "strength = -1"), "noise.strength must be a number >= 0"),
        (("strength = 0.05", "strength = true"), "noise.strength must be a number >= 0"),
        (("strength = 0.05", ""), "noise.strength is missing"),
        (("[time]", "[compare]\nlimit = true\n[time]"), "compare.limit = true: the projection"),
        (("[time]", "[solver]\nlog_masses = 'on'\n[time]"), "solver.log_masses = 'on'"),
    ],
)
def test_wrong_sections(write_case, change, fragment):
    path = write_case(SEVERAL.replace(*change))
    with pytest.raises(InputError) as error:
        read_case(path)
    assert fragment in str(error.value)


def test_wrong_heads():
    with pytest.raises(InputError, match="at least one head"):
        Heads([])
    with pytest.raises(InputError, match="same dimension"):
        Heads([head(2, 1.0), head(3, 1.0)])
    with pytest.raises(InputError, match="same dimension"):
        Heads([head(2, 1.0)], perceptron(3))
    with pytest.raises(InputError, match="same number of heads"):
        Layers([Heads([head(2, 1.0)] * 2), head(2, 1.0)], 1.0)
    with pytest.raises(InputError, match="one for each of the 2 heads"):
        from_arrays({name: np.ones((1, 2, 2, 2)) for name in ("query", "key", "value")}, [1.0])


def test_commands_that_need_one_head_say_so(main, write_case):
    several = CIRCLE.replace(
        "[attention]", "[perceptron]\nweights_in = [[1, 0]]\nweights_out = [[1], [0]]\n[attention]"
    )
    path = write_case(several)
    for command in ("sweep", "lifetime"):
        code, error = main(command, path, "--beta", 10, 20)
        assert code == 2
        assert "needs one head alone, got a perceptron" in error
