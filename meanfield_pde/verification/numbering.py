"""Whether the tokens of a file keep their numbers from time to time.

Numbers dealt out anew at each time leave the mean distance between where a number is expected and
where it is found what it is for any other pairing. A token is expected where it was, or, after a
long time, where the reference code takes it; few tokens have few pairings, and then the numbers as
they are must be about the best of all. A wrong code may take tokens anywhere, but takes neighbours
to neighbours.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree

from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.errors import SolverError
from meanfield_pde.tokens.cloud import TokenCloud
from meanfield_pde.verification.codes import Code, TooCostlyError

# Other pairings, drawn at random: a bound on the cost, and a spread to 11 % (1 / sqrt(2 * 40)).
_PAIRINGS = 40
# The mean distance is this many standard deviations below that of other pairings: by chance once
# in 4,000 files.
_DEVIATIONS = 3.5
# Or it is this part of it at most, and at most this many times that of the best pairing
# (chosen, not tuned).
_CLOSE, _NEAR_BEST = 0.3, 1.5
# The mean distance between what were neighbours is k = 5 deviations below that of n = 200 other
# pairings: distances of neighbours depend on each other, hence more than above.
_NEIGHBOURS, _DEALT = 5.0, 200
# Intervals on which the reference code is run: a bound on the cost.
_FOLLOWED = 3


def keep_numbers(cloud: TokenCloud, attention: AttentionLike) -> bool:
    """Whether each token keeps its number, as far as the tokens can tell."""
    pairs = itertools.pairwise(cloud.tokens)
    if any(_paired(before, after) for before, after in pairs) or _neighbours_stay(cloud):
        return True
    code, last = Code(attention, cloud.masses), attention.end * (1 + 1e-9)
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


def _neighbours_stay(cloud: TokenCloud) -> bool:
    """Whether tokens that are neighbours at one time are so at the next, at all times together."""
    generator = np.random.default_rng(0)
    scores = np.zeros(_DEALT + 1)  # of the numbers as they are, and of others
    for before, found in itertools.pairwise(cloud.tokens):
        if len(before) < 3 or np.ptp(before, axis=0).max() == 0:
            continue
        nearest = cKDTree(before).query(before, 2)[1][:, 1]
        apart = [np.linalg.norm(found[nearest] - found, axis=1).mean()]
        for _ in range(_DEALT):
            dealt = found[generator.permutation(len(found))]
            apart.append(np.linalg.norm(dealt[nearest] - dealt, axis=1).mean())
        spread = float(np.std(apart[1:]))
        if spread > 1e-12:
            scores += (np.mean(apart[1:]) - np.array(apart)) / spread
    return bool(
        scores[0] > _NEIGHBOURS * np.sqrt(len(cloud.times) - 1) and scores[0] > scores[1:].max()
    )
