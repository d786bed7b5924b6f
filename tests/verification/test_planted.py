"""Trajectories of codes with one fault each: what is said of them."""

from __future__ import annotations

import numpy as np
import pytest

from meanfield_pde import Attention, Layers, sample_tokens
from meanfield_pde.tokens.cloud import TokenCloud
from meanfield_pde.tokens.code import simulate_tokens
from meanfield_pde.verification.diagnosis import diagnose
from meanfield_pde.verification.numbering import keep_numbers
from meanfield_pde.verification.trajectories import DiagnosisSettings
from tests.benchmarks.planted import CAUSES, DENSITY, Faulty, faulty, matrices, stepped

COUNT = 100
# Sphere: one of these tokens comes close to a parting of ways, and is linear in nothing.
QUICK = (
    (3, "one sign of V", 1),
    (3, "stale mean", 0),
    (2, "unnormalised softmax", 0),
    (2, "shifted softmax", 0),
    (2, "K transposed", 0),
    (3, "Q transposed", 0),
    (2, "V too large", 0),
)
SLOW = tuple(
    (d, fault, 2, 200)
    for d in (2, 3)
    for fault, cause in CAUSES.items()
    if cause is not None and fault != "uniform start"
)


def diagnosed(d, fault, seed, count=COUNT):
    return diagnose(faulty(d, fault, count, seed), Attention(*matrices(d), 5.0))


@pytest.mark.parametrize(
    ("d", "fault", "seed", "count"),
    [
        *((*one, COUNT) for one in QUICK),
        *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW),
    ],
)
def test_causes(d, fault, seed, count):
    found = diagnosed(d, fault, seed, count)
    assert not found.right
    assert CAUSES[fault] in found.cause.name


@pytest.mark.parametrize("d", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_half_precision_is_no_fault_of_a_number(d):
    found = diagnosed(d, "float16", 0)
    assert not found.right
    assert found.cause is None
    assert "Euler steps of 0.02 explain all but" in found.how


def test_jumps_keep_neighbours():
    """A softmax without its denominator takes tokens far, and neighbours with them."""
    head, cloud = Attention(*matrices(3), 5.0), faulty(3, "unnormalised softmax", COUNT, 5)
    assert keep_numbers(cloud, head)
    generator = np.random.default_rng(0)
    cloud.tokens[1:] = [generator.permutation(x) for x in cloud.tokens[1:]]
    assert not keep_numbers(cloud, head)


def test_tokens_that_have_come_together_give_no_number():
    """Any clock that is much too fast takes them to the same places: "time runs 9.09 ± 0.1"."""
    code = Faulty(2, "shifted softmax")
    code.query = np.array([[1.671, 0.305], [-0.03, 0.522]])
    code.key = np.array([[0.866, 0.547], [0.405, 1.014]])
    code.value, code.beta = np.array([[1.058, 0.226], [0.66, 0.333]]), 4.0
    cloud = stepped(code, sample_tokens(DENSITY, 200, 1, 2))
    found = diagnose(cloud, Attention(code.query, code.key, code.value, code.beta))
    assert not found.right
    assert found.cause.name == "a softmax without its denominator in some of the steps"


def test_only_the_entries_that_differ_are_named():
    """Of K^T Q, too: one row of Q changes a row of it, and where K is a unit matrix one entry."""
    query, _, value = matrices(2)
    head = Attention(query, np.eye(2), value, 5.0)
    wrong = Attention(query * [[1, -1], [1, 1]], np.eye(2), value, 5.0)
    x = sample_tokens(DENSITY, COUNT, 1, 2)
    found = diagnose(simulate_tokens(x, wrong, 1.0, save_at=[0.5], step=0.02), head)
    (number,) = found.cause.fitted
    assert number["name"] == "(key^T query)[0][1]"
    assert number["value"] == pytest.approx(-query[0, 1], abs=1e-8)
    assert number["case"] == query[0, 1]


def test_settings_bound_what_is_tried():
    cloud, head = faulty(2, "stale mean", COUNT, 0), Attention(*matrices(2), 5.0)
    assert diagnose(cloud, head).cause is not None
    assert diagnose(cloud, head, settings=DiagnosisSettings(budget=0.0)).cause is None


def test_a_large_beta_has_no_softmax_without_denominator():
    """Its exponential would overflow: that hypothesis is left out, and nothing else."""
    head = Attention(*matrices(2), 2000.0)
    x = sample_tokens(DENSITY, 30, 0, 2)
    cloud = simulate_tokens(x, head, 0.2, save_at=[0.1], tolerance=1e-6)
    turned = cloud.tokens[1:] + 1e-3 * np.roll(cloud.tokens[1:], 1, axis=2) ** 3
    turned /= np.linalg.norm(turned, axis=2, keepdims=True)
    found = diagnose(TokenCloud(cloud.times, np.array([x, *turned])), head)
    assert not found.right
    assert found.cause is None


def test_one_time_within_the_layers_has_no_trajectories():
    head = Attention(*matrices(2), 5.0)
    x = sample_tokens(DENSITY, 30, 0, 2)
    assert diagnose(TokenCloud([0.0, 5.0], np.array([x, x])), Layers([head], 1.0)) is None


@pytest.mark.parametrize("seed", [0, 1])
def test_steps_are_found_where_the_velocity_jumps(seed):
    """Numbers of steps are then estimated to a few percent only."""
    head = Attention(*matrices(2), np.inf)
    x = sample_tokens(DENSITY, COUNT, 500 + seed, 2)
    found = diagnose(simulate_tokens(x, head, 2.0, save_at=[1.0], step=0.01), head)
    assert found.right
    assert found.how.startswith("Euler steps of 0.01 explain")
    warm = diagnose(simulate_tokens(x, head, 2.0, save_at=[1.0], step=0.01), head.with_beta(5.0))
    assert warm.cause.name == "zero temperature"
