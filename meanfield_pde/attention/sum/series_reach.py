"""Compiled loops of `series`: the groups of sources that may count for a block of targets.

Compiled functions carry no types here: numba compiles them for the arguments it meets.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.attention.sum.tiles import FAST, NO_MASS
from meanfield_pde.attention.sum.tree import TOP
from meanfield_pde.support.kernels import kernel, part

DROPPED = 0.125  # the part of the tolerance that the groups left out may hold of Z
_BINS = 160  # quarters of an exponent


@part(fastmath=FAST)
def _above(block, box, x, y, z):  # type: ignore[no-untyped-def]
    """Upper bound of <w, y'> - <w, (x, y, z)> for w in the box of a block and y' in that given."""
    a, b, c = box[0] - x, box[1] - y, box[2] - z
    high = block[0] * a + block[1] * b + block[2] * c
    for i in range(3, 12, 3):
        high += abs(block[0] * box[i] + block[1] * box[i + 1] + block[2] * box[i + 2])
        high += abs(block[i] * a + block[i + 1] * b + block[i + 2] * c)
        for j in range(3, 12, 3):
            along = block[j] * box[i] + block[j + 1] * box[i + 1] + block[j + 2] * box[i + 2]
            high += abs(along)
    return high


@part(fastmath=FAST)
def _roughly_above(block, length, radius, box, x, y, z):  # type: ignore[no-untyped-def]
    """A larger bound, from spheres around the boxes, that takes less time."""
    a, b, c = box[0] - x, box[1] - y, box[2] - z
    square = 0.0
    for i in range(3, 12):
        square += box[i] * box[i]
    away = math.sqrt(a * a + b * b + c * c)
    high = block[0] * a + block[1] * b + block[2] * c
    return high + (length + radius) * math.sqrt(square) + radius * away


@part(fastmath=FAST)
def _centre_of_nodes(block, mean, log_mass, low, centre):  # type: ignore[no-untyped-def]
    """A number l and a point c with log Z(w) >= l + <w, c> for every w, sharp at w_0.

    By Jensen's inequality in every node, and by the convexity of the logarithm of a sum of their
    exp(<w, mean> + log mass), whose gradient at w_0 is c.
    """
    highest = 4 * NO_MASS
    for k in range(log_mass.size):
        low[k] = block[0] * mean[0, k] + block[1] * mean[1, k] + block[2] * mean[2, k]
        low[k] += log_mass[k]
    for k in range(log_mass.size):
        highest = max(highest, low[k])
    total = 0.0
    for i in range(3):
        centre[i] = 0.0
    for k in range(log_mass.size):
        if low[k] > highest - 40:
            part = math.exp(low[k] - highest)
            total += part
            for i in range(3):
                centre[i] += part * mean[i, k]
    for i in range(3):
        centre[i] /= total
    along = block[0] * centre[0] + block[1] * centre[1] + block[2] * centre[2]
    return highest + math.log(total) - along


@kernel
def lowest_kept(high, allowed):  # type: ignore[no-untyped-def]
    """A level below which exp(high) adds up to no more than allowed."""
    most = math.log(allowed)
    bins = np.zeros(_BINS)
    for value in high:
        k = int((value - most + 10) * 4)
        if k < _BINS:
            bins[max(k, 0)] += math.exp(value)
    total, k = 0.0, 0
    while k < _BINS and total + bins[k] <= allowed:
        total += bins[k]
        k += 1
    # The first bin has no lower end, and nothing that is in it is left out unless all of it is.
    return most - 10 + k / 4 if k > 0 else 4 * NO_MASS


@part(fastmath=FAST)
def groups_in_reach(block, size, tree, groups, tolerance, found):  # type: ignore[no-untyped-def]
    """Write the groups of sources that may count for a block to `found`, and give their number.

    Those left out hold less than DROPPED times the tolerance of Z(w), for every w of the block.
    Groups of so many sources lie within those of the top level; of others `size` is 0.
    """
    node_mean, node_log_mass, top_box, top_log_mass = tree
    box, log_mass = groups
    centre, low = np.empty(3), np.empty(node_log_mass.size)
    level = _centre_of_nodes(block, node_mean, node_log_mass, low, centre)
    x, y, z = centre[0], centre[1], centre[2]
    allowed = DROPPED * tolerance / 2
    least = math.log(allowed / log_mass.size) + level
    high = np.empty(log_mass.size)
    count, inside = 0, TOP // size if size > 0 else 1
    length = math.sqrt(block[0] ** 2 + block[1] ** 2 + block[2] ** 2)
    radius = math.sqrt((block[3:] ** 2).sum())
    for top in range(-(-log_mass.size // inside)):
        if size > 0:
            if _above(block, top_box[top], x, y, z) + top_log_mass[top] < least:
                continue
        elif _roughly_above(block, length, radius, box[top], x, y, z) + log_mass[top] < least:
            continue
        for group in range(top * inside, min((top + 1) * inside, log_mass.size)):
            above = _above(block, box[group], x, y, z) + log_mass[group]
            if above >= least:
                found[count], high[count] = group, above - level
                count += 1
    least = lowest_kept(high[:count], allowed)
    kept = 0
    for k in range(count):
        if high[k] >= least:
            found[kept] = found[k]
            kept += 1
    return kept
