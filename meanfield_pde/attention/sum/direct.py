"""The pruned direct sum (dual tree): tiles of targets against the leaves of the tree of sources.

For a tile of targets w_i, a lower bound log Z_i >= r_i, the reference, is found first. A group
whose upper bound (`tree`) is below r_i + log(tolerance / (2 x leaves)) for every target of the tile
is skipped with all groups below it. There are at most as many skipped groups as leaves, so that
together they hold less than tolerance / 2 of each Z_i; m_i, a convex combination of the y_j, moves
by at most twice that share times the largest |y_j|, and log Z_i by less than the tolerance. What is
not skipped is added up term by term, as exp(<w_i, y_j> + log M_j - r_i): only log masses enter, and
masses of 1e-300, or below all doubles, are as exact as any.

Loops are written out where numpy would have slices, because numba takes seconds to compile the
checks of their shapes; functions carry no types, because numba compiles them for the arguments it
meets.
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.attention.sum.exponential import FAST, LOG2_E, NO_MASS, power_of_two
from meanfield_pde.attention.sum.tree import BRANCH, LEAF, NODE, TILE, Sources
from meanfield_pde.support.kernels import kernel, part
from meanfield_pde.support.threads import in_parts

# Exponents above the reference by more take the path that raises the reference first: exp(709) is
# the largest double, and 1e17 terms below exp(600) add up to less.
SAFE_EXPONENT = 600.0


def direct_sums(
    sources: Sources,
    scores: np.ndarray,
    tiles: np.ndarray,
    tolerance: float,
    threads: int = 1,
) -> np.ndarray:
    """Return rows m_x, m_y, m_z, log Z for the targets of the tiles listed.

    Args:
        sources: with masses loaded.
        scores: of all targets, 3 x N.
        tiles: numbers of the tiles.
        tolerance: bound of the errors, see above.
        threads: how many share the tiles; the result does not depend on it.
    """
    out = np.empty((4, len(tiles) * TILE))
    visits = np.empty((len(tiles), 2))
    tree, log_masses, slack = sources.tree(), sources.log_masses(), _slack(sources, tolerance)

    def do(part: tuple[int, int]) -> None:
        tile_sums(part, scores, tiles, tree, log_masses, slack, True, out, visits)

    in_parts(do, len(tiles), threads)
    return out


def plain_sums(scores: np.ndarray, points: np.ndarray, log_masses: np.ndarray) -> np.ndarray:
    """Return rows (m, log Z) by all terms, without a tree: for few targets on circle or sphere."""
    nothing = np.zeros((len(scores), points.shape[1] + 1))
    nothing[:, -1] = NO_MASS
    return with_points(nothing, *map(np.ascontiguousarray, (scores, points, log_masses)))


def survey(
    sources: Sources,
    scores: np.ndarray,
    tiles: np.ndarray,
    tolerance: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return rows (leaves visited, nodes bounded) and lower bounds of log Z, tiles x TILE."""
    out, visits = np.empty((4, len(tiles) * TILE)), np.empty((len(tiles), 2))
    tree, slack = sources.tree(), _slack(sources, tolerance)
    unsorted = tree[1][0]  # nothing is added up, and sorting the log masses would cost more
    tile_sums((0, len(tiles)), scores, tiles, tree, unsorted, slack, False, out, visits)
    return visits, out[3].reshape(-1, TILE)


def _slack(sources: Sources, tolerance: float) -> float:
    return math.log(tolerance / (2 * sources.leaves))


@kernel(fastmath=FAST)
def tile_sums(part, scores, tiles, tree, log_masses, slack, compute, out, visits):
    """Write columns (m, log Z) of `out` for a range of the tiles listed, and rows of `visits`.

    The latter are the leaves visited and the nodes bounded for a reference. Unless `compute`, these
    are all, and log Z is its lower bound. `log_masses` are in the order of the tree.
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
            ):  # a term could overflow, which only |w| of thousands can do: move the reference
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


@kernel(fastmath=FAST)
def with_points(sums, scores, points, log_masses):
    """Rows (m, log Z) of targets, with some points added to what they sum up, by all terms."""
    count, d = scores.shape
    found, room = np.empty((count, d + 1)), np.empty((8, TILE))
    a, b, c, top = room[0], room[1], room[2], room[3]
    total, sum_x, sum_y, sum_z = room[4], room[5], room[6], room[7]
    for start in range(0, count, TILE):
        width = min(TILE, count - start)
        for i in range(width):
            a[i], b[i] = scores[start + i, 0], scores[start + i, 1]
            c[i] = scores[start + i, 2] if d == 3 else 0.0
            top[i] = max(sums[start + i, d], NO_MASS)
        for k in range(log_masses.size):
            z = points[k, 2] if d == 3 else 0.0
            x, y, mass = points[k, 0], points[k, 1], max(log_masses[k], NO_MASS)
            for i in range(width):
                top[i] = max(top[i], a[i] * x + b[i] * y + c[i] * z + mass)
        for i in range(width):
            weight = power_of_two((max(sums[start + i, d], NO_MASS) - top[i]) * LOG2_E)
            total[i], sum_x[i] = weight, weight * sums[start + i, 0]
            sum_y[i] = weight * sums[start + i, 1]
            sum_z[i] = weight * sums[start + i, 2] if d == 3 else 0.0
        for k in range(log_masses.size):
            z = points[k, 2] if d == 3 else 0.0
            x, y, mass = points[k, 0], points[k, 1], max(log_masses[k], NO_MASS)
            for i in range(width):
                term = a[i] * x + b[i] * y + c[i] * z + mass - top[i]
                weight = power_of_two(term * LOG2_E)
                total[i] += weight
                sum_x[i] += weight * x
                sum_y[i] += weight * y
                sum_z[i] += weight * z
        for i in range(width):
            found[start + i, 0] = sum_x[i] / total[i]
            found[start + i, 1] = sum_y[i] / total[i]
            if d == 3:
                found[start + i, 2] = sum_z[i] / total[i]
            found[start + i, d] = top[i] + math.log(total[i])
    return found


@part(fastmath=FAST)
def _references(a, b, c, points, given, groups, reference):
    """Write a lower bound of log Z for each target, and return the number of nodes bounded for it.

    It is Jensen's bound of the best node, raised to the largest term of that node. Only nodes of
    tops whose upper bound exceeds the best lower bound of a top can be better.
    """
    node_mean, top_mean, top_box, node_log_mass, top_log_mass = groups
    best, before = np.empty(TILE, np.int64), np.empty(TILE)
    for i in range(TILE):
        best[i], reference[i] = -1, 2 * NO_MASS
    tops = top_log_mass.size
    _raise_to_best_mean(a, b, c, top_mean, top_log_mass, tops, tops, best, reference)
    bounded = 0
    for i in range(TILE):
        before[i], best[i] = reference[i], -1
    for top in range(top_log_mass.size):
        if not _reaches(a, b, c, before, top_box[top], top_log_mass[top], 0.0):
            continue
        start, stop = top * BRANCH, min((top + 1) * BRANCH, node_log_mass.size)
        bounded += stop - start
        _raise_to_best_mean(a, b, c, node_mean, node_log_mass, stop - start, stop, best, reference)
    _raise_to_terms(a, b, c, points, given, best, reference)
    return bounded


@part(fastmath=FAST)
def _raise_to_best_mean(a, b, c, mean, log_mass, count, stop, best, reference):
    """Raise the reference of each target to the best of Jensen's bounds of some groups.

    They are the last `count` before `stop`: a first of 0 would be compiled separately.
    """
    for k in range(stop - count, stop):
        x, y, z, mass = mean[0, k], mean[1, k], mean[2, k], log_mass[k]
        for i in range(TILE):
            low = a[i] * x + b[i] * y + c[i] * z + mass
            best[i] = k if low > reference[i] else best[i]
            reference[i] = max(reference[i], low)


@part(fastmath=FAST)
def _raise_to_terms(a, b, c, points, given, best, reference):
    """Raise the references to the largest term of each target's best node, if there is one.

    Jensen's bound is loose by up to |w| times the size of the node; a term is exact. Targets of one
    tile mostly share their best node, whose terms are then computed once.
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
def _leaves_in_reach(a, b, c, reference, boxes, group_log_masses, slack, leaves):
    """Write the leaves that cannot be skipped for a tile to `leaves`, and return their number."""
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


@part(fastmath=FAST)
def _reaches(a, b, c, reference, box, log_mass, least):
    """Whether a group's upper bound exceeds the reference + `least` for a target of the tile.

    Targets are counted, because a maximum over them would not be compiled to vector code.
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
def _raise_to_largest_term(a, b, c, points, given, start, stop, reference):
    """Raise the reference of each target to the largest of some terms log M_j + <w, y_j>.

    The number of targets is that of `reference`: a constant would be unrolled, and not vectorised.
    """
    log_masses, order = given
    for j in range(start, stop):
        x, y, z, mass = points[0, j], points[1, j], points[2, j], log_masses[order[j]]
        for i in range(reference.size):
            term = a[i] * x + b[i] * y + c[i] * z + mass
            reference[i] = term if term > reference[i] else reference[i]
