"""The sum itself: tiles of targets against the leaves of the tree of sources, with pruning.

Compiled functions carry no types here: numba compiles them for the arguments it meets. They have
loops where numpy would have slices, because numba takes seconds to compile the checks of their
shapes.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.attention.sum.tree import BRANCH, LEAF, NODE, TILE
from meanfield_pde.support.kernels import kernel, part

NO_MASS = -1e290  # log of a mass of zero: finite, so that no inf - inf arises in vector code
# Exponents above this are never handed to the vector exponential: such leaves take the safe path.
SAFE_EXPONENT = 600.0
FEW_TOPS = 40  # with so few groups of the top level all nodes are looked at for a reference
LOG2_E = 1.4426950408889634
# Fused operations are allowed; signs of zero and infinities do not matter here. Reassociation is
# not: what numba compiles in a first run would round otherwise than what it finds in its cache.
FAST = {"contract", "nsz", "nnan", "ninf"}


@part(inline="always")
def power_of_two(x):  # type: ignore[no-untyped-def]
    """2^x to 3e-16 for -1020 <= x < 1023, smaller x taken as -1020; it vectorises.

    x = k + f with |f| <= 1/2; 2^f is a polynomial of degree 10, which interpolates at Chebyshev
    nodes, and k is added to its exponent.
    """
    x = max(x, -1020.0)
    k = np.floor(x + 0.5)
    f = x - k
    p = 7.072585949269224e-09
    p = p * f + 1.0208690299958306e-07
    p = p * f + 1.321544258792169e-06
    p = p * f + 1.5252657260200837e-05
    p = p * f + 0.0001540353044173605
    p = p * f + 0.0013333558230164974
    p = p * f + 0.009618129107606888
    p = p * f + 0.05550410866444772
    p = p * f + 0.24022650695910097
    p = p * f + 0.69314718055995
    p = p * f + 1.0
    return np.int64(np.float64(p).view(np.int64) + (np.int64(k) << 52)).view(np.float64)


@kernel(fastmath=FAST)
def summarise_leaves(points, given, leaves, rows):  # type: ignore[no-untyped-def]
    """Rows of log mass and mass-weighted mean point of the leaves listed.

    `given` are the log masses as they were given, and their order in the tree.
    """
    log_masses, order = given
    own, share = np.empty(LEAF), np.empty(LEAF)
    for k in range(leaves.size):
        start = leaves[k] * LEAF
        largest = NO_MASS
        for j in range(LEAF):
            own[j] = log_masses[order[start + j]]
            largest = max(largest, own[j])
        total, x, y, z = 0.0, 0.0, 0.0, 0.0
        for j in range(LEAF):
            share[j] = power_of_two((own[j] - largest) * LOG2_E)
            total += share[j]
            x += share[j] * points[0, start + j]
            y += share[j] * points[1, start + j]
            z += share[j] * points[2, start + j]
        rows[k, 0] = largest + math.log(total)
        rows[k, 1], rows[k, 2], rows[k, 3] = x / total, y / total, z / total


@kernel
def summarise_nodes(child_log_mass, child_mean, log_mass, mean):  # type: ignore[no-untyped-def]
    """The same for the nodes of the level above."""
    for k in range(log_mass.size):
        start, stop = k * BRANCH, min((k + 1) * BRANCH, child_log_mass.size)
        largest = child_log_mass[start]
        for j in range(start + 1, stop):
            largest = max(largest, child_log_mass[j])
        total = 0.0
        for i in range(3):
            mean[i, k] = 0.0
        for j in range(start, stop):
            share = math.exp(child_log_mass[j] - largest)
            total += share
            for i in range(3):
                mean[i, k] += share * child_mean[i, j]
        for i in range(3):
            mean[i, k] /= total
        log_mass[k] = largest + math.log(total)


@part(fastmath=FAST)
def _raise_to_largest_term(a, b, c, points, given, start, stop, reference):  # type: ignore[no-untyped-def]
    """Raise the reference of each target to the largest of some terms.

    A number of targets known in advance would be unrolled, and then not be computed in vectors.
    """
    log_masses, order = given
    for j in range(start, stop):
        x, y, z, mass = points[0, j], points[1, j], points[2, j], log_masses[order[j]]
        for i in range(reference.size):
            term = a[i] * x + b[i] * y + c[i] * z + mass
            reference[i] = term if term > reference[i] else reference[i]


@part(fastmath=FAST)
def _reaches(a, b, c, reference, box, log_mass, least):  # type: ignore[no-untyped-def]
    """Whether a group's log sum may exceed the reference by `least` for a target of the tile.

    Targets are counted, because a largest value would not be found in vectors.
    """
    count = 0
    for i in range(TILE):
        high = a[i] * box[0] + b[i] * box[1] + c[i] * box[2]
        high += abs(a[i] * box[3] + b[i] * box[4] + c[i] * box[5])
        high += abs(a[i] * box[6] + b[i] * box[7] + c[i] * box[8])
        high += abs(a[i] * box[9] + b[i] * box[10] + c[i] * box[11])
        count += 1 if high + log_mass - reference[i] >= least else 0
    return count > 0


@part(fastmath=FAST)
def _raise_to_best_mean(a, b, c, mean, log_mass, count, stop, best, reference):  # type: ignore[no-untyped-def]
    """Raise the reference of each target to Jensen's bound of the best of some groups.

    They are the last `count` before `stop`: a first of 0 would be compiled separately.
    """
    for k in range(stop - count, stop):
        x, y, z, mass = mean[0, k], mean[1, k], mean[2, k], log_mass[k]
        for i in range(TILE):
            low = a[i] * x + b[i] * y + c[i] * z + mass
            best[i] = k if low > reference[i] else best[i]
            reference[i] = max(reference[i], low)


@part(fastmath=FAST)
def _raise_to_terms(a, b, c, points, given, best, reference):  # type: ignore[no-untyped-def]
    """Raise the references to the largest terms of the best nodes, where there is one.

    Jensen's bound is loose by up to |w| times the size of the node; a term is exact. The targets of
    a tile have few best nodes between them.
    """
    for i in range(TILE):
        node = best[i]
        done = node < 0
        for k in range(i):
            done = done or best[k] == node
        if done:
            continue
        stop = min((node + 1) * NODE, points.shape[1])
        _raise_to_largest_term(a, b, c, points, given, node * NODE, stop, reference)


@part(fastmath=FAST)
def _references(a, b, c, points, given, groups, reference):  # type: ignore[no-untyped-def]
    """A lower bound of log Z for each target: Jensen's for the best node, and its largest term.

    Only nodes of the tops that may hold a better one are looked at. Their number is returned.
    """
    node_mean, top_mean, top_box, node_log_mass, top_log_mass = groups
    best, before = np.empty(TILE, np.int64), np.empty(TILE)
    for i in range(TILE):
        best[i], reference[i] = 0, 2 * NO_MASS
    if top_log_mass.size <= FEW_TOPS:
        looked_at = node_log_mass.size
        _raise_to_best_mean(
            a, b, c, node_mean, node_log_mass, looked_at, looked_at, best, reference
        )
        _raise_to_terms(a, b, c, points, given, best, reference)
        return looked_at
    tops = top_log_mass.size
    _raise_to_best_mean(a, b, c, top_mean, top_log_mass, tops, tops, best, reference)
    looked_at = 0
    for i in range(TILE):
        before[i], best[i] = reference[i], -1
    for top in range(top_log_mass.size):
        if not _reaches(a, b, c, before, top_box[top], top_log_mass[top], 0.0):
            continue
        start, stop = top * BRANCH, min((top + 1) * BRANCH, node_log_mass.size)
        looked_at += stop - start
        _raise_to_best_mean(a, b, c, node_mean, node_log_mass, stop - start, stop, best, reference)
    _raise_to_terms(a, b, c, points, given, best, reference)
    return looked_at


@part(fastmath=FAST)
def _leaves_in_reach(a, b, c, reference, boxes, group_log_masses, slack, leaves):  # type: ignore[no-untyped-def]
    """Write the leaves that may count for a tile to `leaves`, and give their number."""
    leaf_box, node_box, top_box = boxes
    leaf_log_mass, node_log_mass, top_log_mass = group_log_masses
    count = 0
    for top in range(top_log_mass.size):
        if not _reaches(a, b, c, reference, top_box[top], top_log_mass[top], slack):
            continue
        for node in range(top * BRANCH, min((top + 1) * BRANCH, node_log_mass.size)):
            if not _reaches(a, b, c, reference, node_box[node], node_log_mass[node], slack):
                continue
            for leaf in range(node * BRANCH, min((node + 1) * BRANCH, leaf_log_mass.size)):
                if _reaches(a, b, c, reference, leaf_box[leaf], leaf_log_mass[leaf], slack):
                    leaves[count] = leaf
                    count += 1
    return count


@kernel(fastmath=FAST)
def tile_sums(part, scores, tiles, tree, log_masses, slack, compute, out, visits):  # type: ignore[no-untyped-def]
    """For a part of the tiles listed, the means of y and log Z as columns of `out`.

    And what they cost, rows of leaves visited and nodes looked at for a reference. If this is all
    that is wanted, not to `compute`, the last of `out` is a bound of log Z from below.
    `log_masses` are in the order of the tree; those of the tree itself are as they were given.
    """
    points, given, means, boxes, group_log_masses = tree
    leaf_box, leaf_log_mass = boxes[0], group_log_masses[0]
    groups = (means[1], means[2], boxes[2], group_log_masses[1], group_log_masses[2])
    leaves = np.empty(leaf_log_mass.size, np.int64)
    room = np.empty((10, TILE))
    a, b, c, reference, level, before = room[0], room[1], room[2], room[3], room[4], room[5]
    total, sum_x, sum_y, sum_z = room[6], room[7], room[8], room[9]
    for position in range(part[0], part[1]):
        first, place = tiles[position] * TILE, position * TILE
        for i in range(TILE):
            a[i], b[i], c[i] = scores[0, first + i], scores[1, first + i], scores[2, first + i]
        visits[position, 1] = _references(a, b, c, points, given, groups, reference)
        found = _leaves_in_reach(a, b, c, reference, boxes, group_log_masses, slack, leaves)
        visits[position, 0] = found
        for i in range(TILE):
            out[3, place + i], level[i] = reference[i], reference[i] * LOG2_E
            total[i], sum_x[i], sum_y[i], sum_z[i] = 0.0, 0.0, 0.0, 0.0
        if not compute:
            continue
        for k in range(found):
            leaf = leaves[k]
            start = leaf * LEAF
            if _reaches(
                a, b, c, reference, leaf_box[leaf], leaf_log_mass[leaf], SAFE_EXPONENT
            ):  # only for very long w: move the reference
                for i in range(TILE):
                    before[i] = reference[i]
                stop = start + LEAF
                _raise_to_largest_term(a, b, c, points, given, start, stop, reference)
                for i in range(TILE):
                    shrink = math.exp(before[i] - reference[i])
                    total[i] *= shrink
                    sum_x[i] *= shrink
                    sum_y[i] *= shrink
                    sum_z[i] *= shrink
                    level[i] = reference[i] * LOG2_E
            for j in range(start, start + LEAF):
                x, y, z = points[0, j], points[1, j], points[2, j]
                # As powers of two, so that the logarithm of 2 drops out of the exponential.
                u, v, w = x * LOG2_E, y * LOG2_E, z * LOG2_E
                mass = log_masses[j] * LOG2_E
                for i in range(TILE):
                    weight = power_of_two(a[i] * u + b[i] * v + c[i] * w + (mass - level[i]))
                    total[i] += weight
                    sum_x[i] += weight * x
                    sum_y[i] += weight * y
                    sum_z[i] += weight * z
        for i in range(TILE):
            out[0, place + i] = sum_x[i] / total[i]
            out[1, place + i] = sum_y[i] / total[i]
            out[2, place + i] = sum_z[i] / total[i]
            out[3, place + i] = reference[i] + math.log(total[i])
