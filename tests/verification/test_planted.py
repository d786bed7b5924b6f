"""Trajectories of codes with one fault each: what is said of them."""

from __future__ import annotations

import numpy as np
import pytest

from meanfield_pde import Attention, sample_tokens
from meanfield_pde.verification.diagnosis import diagnose
from meanfield_pde.verification.numbering import keep_numbers
from tests.benchmarks.planted import CAUSES, DENSITY, Faulty, faulty, matrices, stepped

COUNT = 200
# Sphere: one of these tokens comes close to a parting of ways, and is linear in nothing.
QUICK = (
    (3, "one sign of V", 1),
    (3, "stale mean", 0),
    (2, "unnormalised softmax", 0),
    (2, "shifted softmax", 0),
)
SLOW = tuple(
    (d, fault, 2)
    for d in (2, 3)
    for fault, cause in CAUSES.items()
    if cause is not None and fault != "uniform start"
)


def diagnosed(d, fault, seed):
    return diagnose(faulty(d, fault, COUNT, seed), Attention(*matrices(d), 5.0))


@pytest.mark.parametrize(
    ("d", "fault", "seed"), [*QUICK, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW)]
)
def test_causes(d, fault, seed):
    found = diagnosed(d, fault, seed)
    assert not found.right
    assert CAUSES[fault] in found.cause.name


@pytest.mark.parametrize("d", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_half_precision_is_no_fault_of_a_number(d):
    found = diagnosed(d, "float16", 0)
    assert not found.right
    assert found.cause is None
    assert "Euler steps of 0.01 explain all but" in found.how


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
    cloud = stepped(code, sample_tokens(DENSITY, COUNT, 1, 2))
    found = diagnose(cloud, Attention(code.query, code.key, code.value, code.beta))
    assert not found.right
    assert found.cause.name == "a softmax without its denominator in some of the steps"
