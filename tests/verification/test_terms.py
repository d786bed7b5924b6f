"""Codes with layers, without the denominator, with heads, a perceptron and noise, verified.

The codes are plain numpy, written from the equation.
"""

from __future__ import annotations

import json
from dataclasses import replace

from mpi4py import MPI

import numpy as np
import pytest

from meanfield_pde import Attention, Layers, circle_mesh, solve, sphere_mesh
from meanfield_pde.attention.heads import Heads
from meanfield_pde.attention.perceptron import Perceptron
from meanfield_pde.cli import main as cli
from meanfield_pde.initial.sampling import sample_tokens
from meanfield_pde.tokens.cloud import WEIGHTS, TokenCloud, write_tokens
from meanfield_pde.tokens.code import simulate_tokens
from meanfield_pde.verification.comparison import compare_tokens
from meanfield_pde.verification.diagnosis import diagnose
from meanfield_pde.verification.samples import densities_at, follow_samples, sampling_band
from meanfield_pde.verification.statistic import features

DENSITY = "1 + 0.4*x + 0.6*x*y"
TIMES = np.array([0.0, 0.5, 1.0])
COUNT, STEP = 60, 0.05
FIRST = Attention([[1.0, 0.4], [-0.3, 0.8]], np.eye(2), [[1.5, 1.0], [-0.6, 1.0]], 1.5)
SECOND = Attention([[0.3, -0.8], [0.9, 0.2]], np.eye(2), [[0.2, -0.7], [0.9, 0.4]], 3.0)
PERCEPTRON = Perceptron(
    [[1.0, -0.5], [0.3, 0.9]], [[0.6, 0.2], [-0.4, 0.8]], [0.1, -0.2], [0.3, 0.0]
)


def push(x, head, *, normalise=True):
    """V m at all tokens."""
    weight = np.exp(head.beta * (x @ head.query.T) @ (x @ head.key.T).T)
    total = weight.sum(axis=1, keepdims=True) if normalise else len(x)
    return (weight @ x / total) @ head.value.T


def drift(x, sign=1.0):
    """The perceptron's g."""
    inner = x @ PERCEPTRON.weights_in.T + PERCEPTRON.bias_in
    return sign * (np.maximum(inner, 0) @ PERCEPTRON.weights_out.T + PERCEPTRON.bias_out)


def euler(x, rate, noise=0.0):
    """Tokens at all times, whose drift at a time is rate(x, time)."""
    saved, time, generator = [x], 0.0, np.random.default_rng(0)
    for _ in range(2):
        for _ in range(round(0.5 / STEP)):
            moving = rate(x, time)
            moved = STEP * moving + np.sqrt(2 * noise * STEP) * generator.normal(size=x.shape)
            x = x + moved - (moved * x).sum(axis=1, keepdims=True) * x
            x /= np.linalg.norm(x, axis=1, keepdims=True)
            time += STEP
        saved.append(x)
    return TokenCloud(TIMES, np.array(saved))


def verified(attention, rate):
    solution = solve(attention, circle_mesh(100), DENSITY, until=1.0, save_at=[0.5])
    cloud = euler(sample_tokens(DENSITY, COUNT, 0, 2), rate)
    return compare_tokens(solution, cloud, samples=99, level=0.02)


LAYERS = Layers([FIRST, replace(SECOND, beta=1.5)], 0.5)
UNNORMALISED = replace(FIRST, normalise=False)
HEADS = Heads([FIRST, SECOND], PERCEPTRON)
RIGHT = {
    "layers": (LAYERS, lambda x, t: push(x, LAYERS.attentions[t > 0.499])),
    "no denominator": (UNNORMALISED, lambda x, _: push(x, FIRST, normalise=False)),
    "heads": (HEADS, lambda x, _: push(x, FIRST) + push(x, SECOND) + drift(x)),
}
WRONG = {
    "layers swapped": (LAYERS, lambda x, t: push(x, LAYERS.attentions[t < 0.499]), None),
    "denominator": (UNNORMALISED, lambda x, _: push(x, FIRST), "a softmax with its denominator"),
    "no second head": (
        HEADS,
        lambda x, _: push(x, FIRST) + drift(x),
        "head 1 (from 0) that is left out",
    ),
    "no perceptron": (
        HEADS,
        lambda x, _: push(x, FIRST) + push(x, SECOND),
        "the perceptron that is left out",
    ),
    "other sign": (HEADS, lambda x, _: push(x, FIRST) + push(x, SECOND) + drift(x, -1.0), None),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_codes_agree(name):
    found = verified(*RIGHT[name])
    assert found.agrees, found.verdict
    assert "Euler steps of 0.05 explain" in found.verdict


QUICK = ("layers swapped", "denominator")


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in WRONG],
)
def test_wrong_codes_deviate(name):
    attention, rate, cause = WRONG[name]
    found = verified(attention, rate)
    assert not found.agrees
    assert (found.cause.name if found.cause else None) == cause, found.verdict
    no_numbers = "with several heads, or terms beside them, no matrix and no beta is fitted"
    assert (no_numbers in found.notes) == (attention is HEADS)


CASE = """
[attention]
{attention}
[mesh]
kind = "circle"
cells = 60
[initial]
kind = "expression"
density = "1 + 0.4*x + 0.6*x*y"
[time]
until = 1.0
save_at = [0.5]
[output]
fields = "none"
{sections}
"""


def head_text(head):
    names = ("query", "key", "value")
    return [f"{name} = {getattr(head, name).tolist()}" for name in names] + [f"beta = {head.beta}"]


def perceptron_text():
    names = ("weights_in", "bias_in", "weights_out", "bias_out")
    lines = [f"{name} = {getattr(PERCEPTRON, name).tolist()}" for name in names]
    return "\n".join(["[perceptron]", *lines, 'activation = "relu"'])


ONE = "\n".join(head_text(FIRST))
TWO = f"heads = [{', '.join('{' + ', '.join(head_text(head)) + '}' for head in (FIRST, SECOND))}]"
LATER = LAYERS.attentions[1]
# The case, the noise of the codes, a right code, a wrong one, and what is said of the latter.
COMMANDS = {
    "noise": (
        (ONE, "[noise]\nstrength = 0.1"),
        0.1,
        lambda x, _: push(x, FIRST),
        lambda x, _: -2 * push(x, FIRST),
        "deviates from the density",
    ),
    "two heads": (
        (TWO, ""),
        0.0,
        lambda x, _: push(x, FIRST) + push(x, SECOND),
        lambda x, _: push(x, FIRST),
        "deviates: head 1 (from 0) that is left out (",
    ),
    "perceptron": (
        (ONE, perceptron_text()),
        0.0,
        lambda x, _: push(x, FIRST) + drift(x),
        lambda x, _: push(x, FIRST),
        "deviates: the perceptron that is left out (",
    ),
    "layers": (
        ('weights = "weights.npz"\nlayer_duration = 0.5\nbeta = 1.5', ""),
        0.0,
        lambda x, t: push(x, FIRST if t < 0.499 else LATER),
        lambda x, _: push(x, FIRST),
        "deviates, cause unknown: ",
    ),
}


@pytest.mark.parametrize(
    "name",
    [
        name if name in ("noise", "two heads") else pytest.param(name, marks=pytest.mark.slow)
        for name in COMMANDS
    ],
)
def test_the_command_finds_what_the_library_finds(name, main, write_case, tmp_path, capfd):
    (attention, sections), noise, right, wrong, said = COMMANDS[name]
    stacks = {part: [getattr(one, part) for one in LAYERS.attentions] for part in WEIGHTS}
    np.savez(tmp_path / "weights.npz", **stacks)
    case, out = write_case(CASE.format(attention=attention, sections=sections)), tmp_path / "out"
    assert main("run", case, "--quiet", "--output", out) == (0, "")
    start = sample_tokens(DENSITY, 20, 0, 2)
    for rate, code in ((right, 0), (wrong, 3)):
        write_tokens(tmp_path / "tokens.npz", euler(start, rate, noise))
        with pytest.raises(SystemExit) as ended:
            cli.main(["compare", str(out), str(tmp_path / "tokens.npz"), "--json"])
        found = json.loads(capfd.readouterr().out)
        assert ended.value.code == code, found["verdict"]
        assert found["agrees"] is (code == 0)
        assert ("half of the noise" in found["power"]) == bool(noise and not code)
    assert found["verdict"].startswith(said)
    if not noise:
        assert found["since"] == (1.0 if name == "layers" else 0.5)


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_samples_move_as_the_reference_code_does(activation):
    heads = Heads([FIRST, SECOND], replace(PERCEPTRON, activation=activation))
    x = sample_tokens(DENSITY, 40, 1, 2)
    masses = 1 + np.random.default_rng(0).random(40)
    ours = follow_samples(x[None], heads, TIMES, masses)[0]
    theirs = simulate_tokens(x, heads, 1.0, save_at=[0.5], masses=masses, comm=MPI.COMM_SELF)
    apart = np.linalg.norm(ours - theirs.tokens, axis=2)
    assert np.sqrt((apart**2).mean(axis=1)).max() < 2e-3


@pytest.mark.parametrize("d", [2, 3])
def test_noise_of_samples_has_the_law_of_brownian_motion(d):
    """With V = 0 the mean of x decays like exp(-(d - 1) sigma t)."""
    still = Attention(np.eye(d), np.eye(d), np.zeros((d, d)), 1.0)
    start = np.zeros((1000, 20, d))
    start[..., 0] = 1.0
    paths = follow_samples(start, still, np.array([0.0, 0.5, 1.0]), noise=0.4)
    means = paths[..., 0].mean(axis=(0, 2))
    np.testing.assert_allclose(means, np.exp(-(d - 1) * 0.4 * np.array([0, 0.5, 1])), atol=0.015)
    first, again, other = (
        follow_samples(start[:20], still, np.array([0.0, 0.5, 1.0]), noise=0.4, seed=seed)
        for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(again, first)
    assert np.abs(other[:, 1:] - first[:, 1:]).min(axis=-1).max() > 0.1


def test_with_noise_the_p_value_decides():
    solution = solve(FIRST, circle_mesh(100), DENSITY, until=1.0, save_at=[0.5], noise=0.3)
    x = sample_tokens(DENSITY, 40, 3, 2)
    right = simulate_tokens(x, FIRST, 1.0, save_at=[0.5], noise=0.3, seed=5)
    found = compare_tokens(solution, right, samples=99, level=0.02)
    assert found.agrees, found.verdict
    assert found.diagnosis is None
    assert "with noise no trajectories to decide" in found.verdict
    other = replace(FIRST, value=-2 * FIRST.value)
    wrong = simulate_tokens(x, other, 1.0, save_at=[0.5], noise=0.3)
    assert not compare_tokens(solution, wrong, band=found.band, level=0.02).agrees


def test_noise_that_is_left_out_is_named():
    solution = solve(FIRST, circle_mesh(100), DENSITY, until=1.0, save_at=[0.5], noise=0.01)
    x = sample_tokens(DENSITY, COUNT, 3, 2)
    right = simulate_tokens(x, FIRST, 1.0, save_at=[0.5], noise=0.01, seed=5)
    assert diagnose(right, FIRST, noise=0.01) is None
    without = simulate_tokens(x, FIRST, 1.0, save_at=[0.5], step=STEP)
    # Trajectories decide, and no p-value of samples can be below the level.
    found = compare_tokens(solution, without, samples=9, level=0.02)
    assert found.verdict.startswith("deviates: the noise that is left out (mean distance ")


@pytest.mark.slow
def test_p_values_with_noise_are_uniform():
    solution = solve(FIRST, circle_mesh(200), DENSITY, until=1.0, save_at=[0.5], noise=0.3)
    band = sampling_band(solution, np.arange(3), COUNT, samples=499)
    quantiles, found = densities_at(solution, np.arange(3)), []
    for seed in range(40):
        x = sample_tokens(DENSITY, COUNT, seed, 2)
        cloud = simulate_tokens(x, FIRST, 1.0, save_at=[0.5], noise=0.3, seed=seed)
        found.append(band.p_value(features(cloud.tokens, None, quantiles)))
    # Largest distance from the uniform law, beyond which 1% of 40 are (Kolmogorov).
    assert np.abs(np.sort(found) - (np.arange(40) + 0.5) / 40).max() < 0.26


def test_a_perceptron_on_the_sphere():
    head = Attention(np.eye(3), np.eye(3), np.diag([1.0, 0.5, -0.2]), 2.0)
    bias = Perceptron(np.eye(3), 0.5 * np.eye(3), [0.1, 0.2, 0.3], activation="tanh")
    layer = Heads([head], bias)
    solution = solve(layer, sphere_mesh(320), "1 + 0.5*z", until=0.5)
    cloud = simulate_tokens(sample_tokens("1 + 0.5*z", 60, 0, 3), layer, 0.5)
    found = compare_tokens(solution, cloud, samples=99, level=0.02)
    assert found.agrees, found.verdict
