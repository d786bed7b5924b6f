"""Tokens that keep their numbers, and tokens whose numbers are dealt out anew."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meanfield_pde import Attention
from meanfield_pde.initial.sampling import sample_tokens
from meanfield_pde.tokens.code import simulate_tokens
from meanfield_pde.verification.numbering import keep_numbers

DENSITY = "1 + 0.5*x*y + 0.4*y - 0.3*x"


@pytest.mark.parametrize("until", [1.0, 3.0, 8.0])
@pytest.mark.parametrize("count", [5, 10, 50])
@pytest.mark.parametrize("d", [2, 3])
def test_one_interval(d, count, until):
    head = Attention(*(np.eye(d) + 0.4 * np.random.default_rng(d).normal(size=(3, d, d))), 5.0)
    x = sample_tokens(DENSITY, count, 0, d)
    cloud = simulate_tokens(x, head, until, tolerance=1e-6)
    assert keep_numbers(cloud, head)
    # Later a few tokens stand in one place, nearer to each other than steps are right.
    if until < 8:
        assert keep_numbers(simulate_tokens(x, head, until, step=0.02), head)
    other = np.random.default_rng(1).permutation(count)
    assert (other != np.arange(count)).any()
    dealt_out = replace(cloud, tokens=np.array([cloud.tokens[0], cloud.tokens[1][other]]))
    assert not keep_numbers(dealt_out, head)
