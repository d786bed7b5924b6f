"""Compiled loops of `series`: a block of targets against the groups of sources in its reach.

Compiled functions carry no types here: numba compiles them for the arguments it meets.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.attention.sum.exponential import HIGHEST
from meanfield_pde.attention.sum.series_nodes import MOST
from meanfield_pde.attention.sum.series_reach import groups_in_reach
from meanfield_pde.attention.sum.series_terms import add_series, add_terms
from meanfield_pde.attention.sum.series_weights import fine, weigh_all
from meanfield_pde.attention.sum.tiles import FAST
from meanfield_pde.support.kernels import kernel, part

POWERS = 8  # highest power of the normal part of an exponent
_TERMS = (HIGHEST + 1) * (HIGHEST + 2) // 2 + 2
# Nanoseconds on one core, like those of the cost model: a term of a pair, for a source and for a
# target; what either costs besides; and a pair of points added up directly. For nodes, a product in
# the first direction, and a term of a pair for a node in the second.
SOURCE_TERM, TARGET_TERM, TARGET, PAIR = 0.3, 0.2, 4.0, 0.8
PRODUCT, SUM = 0.1, 0.5
SOURCE, GROUP = 2.0, 200.0  # weighing a source, and looking at a group
# Shares of the tolerance: each of the errors of Z and of the sum of M y exp(<w, y>) is at most
# twice SERIES (once for each part of a maximum) and AT_NODES, and what is skipped at most DROPPED
# of Z, which moves the mean by twice that: 2 (2 x 0.13 + 0.1) + 2 x 0.125 < 1.
SERIES, AT_NODES = 0.13, 0.1
LARGEST_LIFT = 600.0  # of an exponent over the lower bound of log Z, so that nothing overflows


@part
def _orders(rho, half, budget, table, degrees):  # type: ignore[no-untyped-def]
    """Degrees for the powers k = 0, 1, ... of the normal part; the last k, the row of the table.

    With the exponent s = t + n, |t| <= rho_1 + rho_2 and |n| <= rho_0,

        exp(t + n) = sum_k n^k / k! exp(t),

    each exp(t) by its own polynomial. The last k is -1 if nothing is needed, -2 if it is too much.
    """
    reach, error, slope_error = table
    along = rho[1] + rho[2]
    if math.exp(along + rho[0]) <= budget:
        return -1, 0
    row = 0
    while row < reach.size and reach[row] < along:
        row += 1
    if row == reach.size or rho[0] > 1.0:
        return -2, 0
    radius = half[1] + half[2]
    top, factor, degree = math.exp(along), 1.0, HIGHEST
    for k in range(POWERS + 1):
        share = budget / 2 if k == 0 else budget / 2 ** min(k + 2, 5)
        if factor * (error[row, degree] + radius * slope_error[row, degree]) > share:
            return -2, 0
        while degree > 0 and (
            factor * (error[row, degree - 1] + radius * slope_error[row, degree - 1]) <= share
        ):
            degree -= 1
        degrees[k] = degree
        factor *= rho[0] / (k + 1)
        # What is left of the powers, and of their derivative, is less than twice its first term.
        if 2 * top * factor * (1 + half[0] * (k + 1) / max(rho[0], 1e-300)) <= budget / 8:
            return k, row
    return -2, 0


@part
def _spans(block, frame, half, rho):  # type: ignore[no-untyped-def]
    """Bounds rho_i of the parts of <w - w_0, y - y_0> along the axes of a group, and their sum."""
    for i in range(3):
        x, y, z = frame[3 + 3 * i], frame[4 + 3 * i], frame[5 + 3 * i]
        rho[i] = 0.0
        for j in range(3, 12, 3):
            rho[i] += abs(block[j] * x + block[j + 1] * y + block[j + 2] * z)
        rho[i] *= half[i]
    return rho[0] + rho[1] + rho[2]


@part
def _lift(block, centre, mean):  # type: ignore[no-untyped-def]
    """The largest <w - w_0, y_0 - mean> over the box of a block."""
    x, y, z = centre[0] - mean[0], centre[1] - mean[1], centre[2] - mean[2]
    total = 0.0
    for j in range(3, 12, 3):
        total += abs(block[j] * x + block[j + 1] * y + block[j + 2] * z)
    return total


@part
def _workspace(targets, sources):  # type: ignore[no-untyped-def]
    """Arrays for `add_series`, allocated once for a block."""
    return (
        np.empty((3, targets)), np.empty(targets), np.empty(targets), np.empty((4, targets)),
        np.empty(targets), np.empty(targets), np.empty((3, targets)),
        np.empty(sources), np.empty(sources), np.empty((_TERMS, sources // 4)), np.empty(_TERMS),
        np.empty((4, MOST, 32)),
    )  # fmt: skip


@part
def _work(filled, p, q, targets, degrees, last):  # type: ignore[no-untyped-def]
    """Nanoseconds for a pair of a block and a group, term by term and by series."""
    direct = PAIR * filled * targets
    if last == -2:
        return direct, math.inf
    terms, products = 0, 0
    for k in range(last + 1):
        terms += (degrees[k] + 1) * (degrees[k] + 2) // 2
        products += (degrees[k] + 1) * p * q
    by_target = targets * (terms * TARGET_TERM + TARGET)
    if p > 0:
        return direct, products * PRODUCT + terms * q * SUM + by_target
    return direct, filled * terms * SOURCE_TERM + by_target


@part(fastmath=FAST)
def _finish(sums, offset, mean, level, out):  # type: ignore[no-untyped-def]
    """Write rows m and log Z from the sums of a block, which are parts of exp(level + <w, m>)."""
    for t in range(offset.shape[1]):
        along = offset[0, t] * mean[0] + offset[1, t] * mean[1] + offset[2, t] * mean[2]
        for i in range(3):
            out[i, t] = sums[i, t] / sums[3, t]
        out[3, t] = level + along + math.log(sums[3, t])


@part(fastmath=FAST - {"ninf"})
def _block(scores, block, sources, tolerance, table, choose, compute, out):  # type: ignore[no-untyped-def]
    """The sums of one block, rows m and log Z, if wanted; the work in nanoseconds, or -1.

    -1 means that the block has to be left to tiles.
    """
    arrays, starts, tree, groups, size = sources
    points, local = arrays[0], arrays[3]
    box, log_mass, frame, half, nodes = groups
    every = np.empty(log_mass.size, np.int64)
    found = every[: groups_in_reach(block, size, tree, (box, log_mass), tolerance, every)]
    width = 0
    for k in found:
        width = max(width, starts[k + 1] - starts[k])
    weights, share, own = np.empty((found.size, width)), np.empty(found.size), np.empty(found.size)
    mean = np.empty(3)
    level = weigh_all(block, arrays, starts, found, weights, share, own, mean)
    if len(nodes) > 0:
        cells = (frame, half, nodes, found)
        if not fine(scores, block, mean, level, arrays, starts, cells, AT_NODES * tolerance):
            return -1.0
    targets = scores.shape[1]
    offset = np.empty((3, targets))
    for i in range(3):
        for t in range(targets):
            offset[i, t] = scores[i, t] - block[i]
    sums = np.zeros((4, targets))
    work = _workspace(targets if compute else 1, width)
    rho, degrees = np.empty(3), np.empty(POWERS + 1, np.int64)
    cost = log_mass.size * 2.0 + found.size * (GROUP + width * SOURCE)
    for k in range(found.size):
        axes, radii = frame[found[k]], half[found[k]]
        part = slice(starts[found[k]], starts[found[k] + 1])
        row = weights[k, : part.stop - part.start]
        span = _spans(block, axes, radii, rho)
        scale = share[k] - level
        # The weights of a group, without signs, add up to no more than their number.
        lift = scale + math.log(row.size) + _lift(block, axes, mean)
        if lift + span > LARGEST_LIFT:
            return -1.0
        budget = max(own[k] / 2 * math.exp(-span), math.exp(-lift) / found.size)
        budget *= SERIES * tolerance
        last, line = _orders(rho, radii, budget, table, degrees)
        if last == -1:
            continue
        p, q = 0, 0
        if len(nodes) > 0:
            p, q = int(nodes[found[k], 0]), int(nodes[found[k], 1])
        direct, series = _work(row.size, p, q, targets, degrees, last)
        cost += min(direct, series)
        if not compute:
            continue
        if direct <= series:
            add_terms(row, points[:, part], offset, mean, scale, sums)
        else:
            chosen = (degrees, last, choose[line])
            add_series(row, local[:, part], (p, q), axes, offset, mean, scale, chosen, work, sums)
    if compute:
        _finish(sums, offset, mean, level, out)
    return cost


@kernel
def block_sums(part, scores, blocks, boxes, size, sources, tolerance, polynomials, compute, out):  # type: ignore[no-untyped-def]
    """The sums at the targets of a part of the blocks listed, or only what they cost: see `_block`.

    Their places in the results are those of the blocks in the list.
    """
    table, choose = polynomials
    rows, cost = out
    for position in range(part[0], part[1]):
        first = blocks[position] * size
        last = min(first + size, scores.shape[1])
        place = position * size
        cost[position] = _block(
            scores[:, first:last], boxes[blocks[position]], sources, tolerance, table, choose,
            compute, rows[:, place : place + last - first],
        )  # fmt: skip
