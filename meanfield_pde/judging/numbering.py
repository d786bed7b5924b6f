"""Whether the tokens of a file keep their numbers from time to time.

Numbers dealt out anew at each time leave the mean distance between where a number is expected and
where it is found what it is for any other pairing. A token is expected where it was, or, after a
long time, where the reference code takes it; few tokens have few pairings, and then the numbers as
they are must be about the best of all.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linear_sum_assignment

from meanfield_pde.attention.layers import AttentionLike, Layers
from meanfield_pde.errors import SolverError
from meanfield_pde.judging.codes import Code, TooCostlyError
from meanfield_pde.tokens.cloud import TokenCloud

_PAIRINGS = 40
# The mean distance is so many deviations below that of other pairings.
_DEVIATIONS = 3.5
# Or it is this part of it at most, and at most so many times that of the best pairing.
_CLOSE, _NEAR_BEST = 0.3, 1.5
# Intervals on which the reference code is run.
_FOLLOWED = 3


def keep_numbers(cloud: TokenCloud, attention: AttentionLike) -> bool:
    """Whether each token keeps its number, as far as the tokens can tell."""
    pairs = list(zip(cloud.tokens[:-1], cloud.tokens[1:], strict=True))
    if any(_paired(before, after) for before, after in pairs):
        return True
    code, last = Code(attention, cloud.masses), np.inf
    if isinstance(attention, Layers):
        last = attention.end * (1 + 1e-9)
    shortest = np.argsort(np.diff(cloud.times), kind="stable")[:_FOLLOWED]
    for k in shortest:
        begin, end = float(cloud.times[k]), float(cloud.times[k + 1])
        if end > last:
            continue
        try:
            expected = code.advance(cloud.tokens[k], begin, end)
        except (TooCostlyError, SolverError):
            continue
        if _paired(expected, cloud.tokens[k + 1]):
            return True
    return False


def _paired(expected: np.ndarray, found: np.ndarray) -> bool:
    """Whether what is expected and what is found go together number by number."""
    generator = np.random.default_rng(0)
    own = float(np.linalg.norm(found - expected, axis=1).mean())
    others = [
        np.linalg.norm(found[generator.permutation(len(found))] - expected, axis=1).mean()
        for _ in range(_PAIRINGS)
    ]
    mean, spread = float(np.mean(others)), max(float(np.std(others)), 1e-12)
    if (mean - own) / spread > _DEVIATIONS:
        return True
    if own > _CLOSE * mean:
        return False
    apart = np.linalg.norm(found[:, None] - expected, axis=2)
    rows, columns = linear_sum_assignment(apart)
    return own <= _NEAR_BEST * float(apart[rows, columns].mean()) + 1e-12
