"""Compiled loops of `series`: what sources weigh at the centre of a block, and what that bounds.

Compiled functions carry no types here: numba compiles them for the arguments it meets.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.attention.sum.series_nodes import node_error
from meanfield_pde.attention.sum.tiles import FAST, LOG2_E, NO_MASS, power_of_two
from meanfield_pde.support.kernels import part

_PARTS = (4, 16)  # of a block


@part(fastmath=FAST)
def _sum_of(values):  # type: ignore[no-untyped-def]
    """The sum of some numbers, which are overwritten: folded in halves, in vectors."""
    count = values.size
    while count > 1:
        half = (count + 1) // 2
        upper = values[half:count]
        for j in range(upper.size):
            values[j] += upper[j]
        count = half
    return values[0]


@part(fastmath=FAST)
def _largest_of(values):  # type: ignore[no-untyped-def]
    """The largest of some numbers, in the same way."""
    count = values.size
    while count > 1:
        half = (count + 1) // 2
        upper = values[half:count]
        for j in range(upper.size):
            values[j] = max(values[j], upper[j])
        count = half
    return values[0]


@part(fastmath=FAST)
def _weigh(block, sources, part, weights, work, total):  # type: ignore[no-untyped-def]
    """Weights M exp(<w_0, y>) of a group, as parts of their largest, whose logarithm is returned.

    Their sums, times y, plain and without their signs, go to `total`.
    """
    x, y, z = sources[0][0, part], sources[0][1, part], sources[0][2, part]
    log_masses, signs = sources[1][part], sources[2][part]
    a, b, c = block[0], block[1], block[2]
    for j in range(x.size):
        weights[j] = a * x[j] + b * y[j] + c * z[j] + log_masses[j]
        work[j] = weights[j]
    largest = _largest_of(work)
    for j in range(x.size):
        weights[j] = power_of_two((weights[j] - largest) * LOG2_E)
        work[j] = weights[j]
    total[4] = _sum_of(work)
    for j in range(signs.size):
        weights[j] *= signs[j]
    for i in range(3):
        along = sources[0][i, part]
        for j in range(x.size):
            work[j] = weights[j] * along[j]
        total[i] = _sum_of(work)
    for j in range(x.size):
        work[j] = weights[j]
    total[3] = _sum_of(work)
    return largest


@part(fastmath=FAST)
def weigh_all(block, sources, starts, found, weights, share, own, mean):  # type: ignore[no-untyped-def]
    """Weights of all groups found; the softmax mean at the block's centre, and log Z there.

    Both are those of the groups found, a lower bound of log Z(w) by the convexity of log Z. The sum
    of the weights of each, as a part of that of their absolute values, is written to `own`. If the
    sum of all is not above zero, as may be where nodes are too coarse, log Z is nowhere near.
    """
    total, work = np.empty(5), np.empty(weights.shape[1])
    level, z = 4 * NO_MASS, 0.0
    for i in range(3):
        mean[i] = 0.0
    for k in range(found.size):
        part = slice(starts[found[k]], starts[found[k] + 1])
        size = part.stop - part.start
        share[k] = _weigh(block, sources, part, weights[k, :size], work[:size], total)
        own[k] = total[3] / total[4] if total[4] > 0 else 1.0
        if share[k] > level:
            shrink = math.exp(level - share[k])
            z *= shrink
            for i in range(3):
                mean[i] *= shrink
            level = share[k]
        factor = math.exp(share[k] - level)
        z += factor * total[3]
        for i in range(3):
            mean[i] += factor * total[i]
    if z <= 0:
        return 8 * NO_MASS
    for i in range(3):
        mean[i] /= z
    return level + math.log(z)


@part
def _errors(block, mean, level, cells):  # type: ignore[no-untyped-def]
    """The part of Z(w) that nodes may be wrong by, for all w of a block; see `node_error`."""
    frame, half, nodes, found = cells
    error, corners = 0.0, np.empty((8, 4))
    for k in found:
        error += node_error(block, mean, level, frame[k], half[k], nodes[k], corners)
    return error


@part
def _part_of(scores, block, part):  # type: ignore[no-untyped-def]
    """Write a box with the axes of a block's around some of its targets."""
    for j in range(3):
        part[j] = block[j]
    for i in range(3):
        low, high, square = np.inf, -np.inf, 0.0
        for j in range(3):
            square += block[3 + 3 * i + j] ** 2
        for t in range(scores.shape[1]):
            along = 0.0
            for j in range(3):
                along += (scores[j, t] - block[j]) * block[3 + 3 * i + j]
            low, high = min(low, along / square), max(high, along / square)
        for j in range(3):
            part[j] += (low + high) / 2 * block[3 + 3 * i + j]
            part[3 + 3 * i + j] = (high - low) / 2 * block[3 + 3 * i + j]


@part
def fine(scores, block, mean, level, arrays, starts, cells, allowed):  # type: ignore[no-untyped-def]
    """Whether nodes are wrong by no more than a part of Z(w), for all targets of a block.

    If not for the block at once, then for each of its parts: the bound of Z(w) by convexity is the
    better the nearer w is to where m is known.
    """
    if _errors(block, mean, level, cells) <= allowed:
        return True
    found, width, targets = cells[3], 0, scores.shape[1]
    for k in found:
        width = max(width, starts[k + 1] - starts[k])
    weights, share, own = np.empty((found.size, width)), np.empty(found.size), np.empty(found.size)
    centre, part = np.empty(3), np.empty(12)
    for parts in _PARTS:
        step, good = -(-targets // parts), True
        for first in range(0, targets, step):
            _part_of(scores[:, first : min(first + step, targets)], block, part)
            log_z = weigh_all(part, arrays, starts, found, weights, share, own, centre)
            good = _errors(part, centre, log_z, cells) <= allowed
            if not good:
                break
        if good:
            return True
    return False
