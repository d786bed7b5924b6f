"""Tests that shuffle tokens, corrected for the number of layers by the largest score of any.

Units are shuffled: the sequences, or the tokens where these are not known to be of several; a
unit keeps its label, or its sign, in all layers. The p-value of a layer is the share of the
shuffled clouds, the true one among them, in which *some* layer has a score at least as large
(Westfall and Young); the chance that any layer of a clean encoder is flagged at the level P is P.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse

# So that of 20 clean encoders none is flagged, in 98 cases of 100: (1 - LEVEL)^20.
LEVEL = 1e-3
# So that the least p-value, 1 / (SHUFFLES + 1), is half of LEVEL.
SHUFFLES = 1999
# Shuffles taken together: 2 MB for each thousand units.
_BLOCK = 250
_ROUNDING = 1e-13  # of an energy distance, relative to the largest of the distances in it


def corrected(scores: np.ndarray) -> np.ndarray:
    """The p-values of the first row of statistics, shuffles x layers, corrected."""
    deviation = scores.std(axis=0)
    moving = deviation > 1e-12 * np.abs(scores).max(axis=0, initial=0.0)
    centred = np.zeros_like(scores)
    centred[:, moving] = (scores - scores.mean(axis=0))[:, moving] / deviation[moving]
    largest = centred.max(axis=1)
    return (largest[:, None] >= centred[0] - 1e-9).mean(axis=0)


def quadratic(weights: np.ndarray, matrix: np.ndarray, units: np.ndarray) -> np.ndarray:
    """w^T M w for each row of weights w_i = u_(unit of i), in blocks that bound the memory.

    Args:
        weights: u, of each unit.
        matrix: M, of the tokens, symmetric.
        units: the unit of each token.
    """
    # Summed over the tokens of each unit first, once for all shuffles: two clouds of 40 sequences
    # of 10 tokens take 10 ms a layer of `two_sample`, where the tokens by themselves take 60.
    tokens = scipy.sparse.csr_array((np.ones(len(units)), (units, np.arange(len(units)))))
    matrix = tokens @ (tokens @ matrix).T
    blocks = range(0, len(weights), _BLOCK)
    parts = [weights[i : i + _BLOCK] for i in blocks]
    return np.concatenate([((part @ matrix) * part).sum(axis=1) for part in parts])


def two_sample(
    first: list[np.ndarray],
    second: list[np.ndarray],
    units: tuple[np.ndarray, np.ndarray],
    *,
    paired: bool,
    seed: int = 0,
) -> np.ndarray:
    """Do two sets of vectors differ? One p-value a layer, by their energy distance.

        2 E|X - Y| - E|X - X'| - E|Y - Y'|

    Args:
        first: for each layer N x d vectors.
        second: for each layer M x d vectors.
        units: the unit of each token, 0, 1, ..., of the first and of the second.
        paired: the units of both are the same, and are swapped pair by pair.
        seed: of the shuffles.
    """
    generator = np.random.default_rng(seed)
    ours, theirs = int(units[0].max()) + 1, int(units[1].max()) + 1
    labels = np.tile(np.repeat([True, False], [ours, theirs]), (SHUFFLES + 1, 1))
    if paired:
        swapped = generator.random((SHUFFLES, ours)) < 0.5
        labels[1:] ^= np.hstack([swapped, swapped])
    else:
        labels[1:] = generator.permuted(labels[1:], axis=1)
    unit = np.concatenate([units[0], ours + units[1]])
    count = np.maximum(labels @ np.bincount(unit), 1)[:, None]
    others = np.maximum(len(unit) - count, 1)
    weights = np.where(labels, 1 / count, -1 / others)
    columns = []
    for x, y in zip(first, second, strict=True):
        points = np.vstack([x, y])
        squares = (points**2).sum(axis=1)
        squared = squares[:, None] + squares - 2 * points @ points.T
        # What rounding makes of equal points would be a distance of 1e-8.
        distance = np.sqrt(np.where(squared < 1e-14 * squares.max(), 0, squared))
        score = -quadratic(weights, distance, unit)
        # Between equal clouds nothing is left but rounding, whose shuffles would count as a layer.
        score[np.abs(score) < _ROUNDING * distance.max(initial=0.0)] = 0.0
        columns.append(score)
    return corrected(np.stack(columns, axis=1))


def symmetric(
    residuals: list[np.ndarray], points: list[np.ndarray], units: np.ndarray, *, seed: int = 0
) -> np.ndarray:
    """Are residuals more than noise? One p-value a layer, by flipping the signs of units.

    Noise has no preferred direction, near a point or anywhere; the statistic is

        sum_ij <r_i, r_j> ((1 + <x_i, x_j>) / 2)^2.

    Args:
        residuals: for each layer N x d vectors.
        points: for each layer where they are, on the unit sphere.
        units: the unit of each token, 0, 1, ...
        seed: of the flips.
    """
    generator = np.random.default_rng(seed)
    signs = generator.choice([-1.0, 1.0], (SHUFFLES + 1, int(units.max()) + 1))
    signs[0] = 1.0
    columns = []
    for residual, x in zip(residuals, points, strict=True):
        # Divided by their size: only directions count, and nothing underflows.
        r = residual / max(float(np.abs(residual).max(initial=0.0)), 1e-300)
        kernel = (r @ r.T) * ((1 + x @ x.T) / 2) ** 2
        columns.append(quadratic(signs, kernel, units))
    return corrected(np.stack(columns, axis=1))
