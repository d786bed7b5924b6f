"""Conforming triangulations of the sphere that are refined, flipped and coarsened in place.

A mesh is an array of triangles, each of three nodes in positive order. What decides is the size of
an edge relative to what it should be, from the nodes at its ends: above 1 it is halved, and a node
is taken away where all edges that would replace its own are below `COARSE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numba
import numpy as np

# Second differences of log rho beside change^(2/3), that is below 0.3 for change = 0.03: a valley
# that an edge crosses has no third difference.
CURVE = 3.0
COARSE = 0.7  # below 1, so that what was taken away does not come back at once
# Least quality 2 sqrt(3) times area over the squared longest edge (1 for an equilateral triangle)
# that a coarsening may leave.
_QUALITY = 0.15

Sizes = Callable[[np.ndarray], np.ndarray]  # of edges, given as pairs of nodes
_PASSES = 10  # of flips at once, of which each has its four nodes for itself
_BETTER = 1.05  # quality after a flip over that before it, so that none is flipped to and fro


def icosphere(halvings: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and triangles of an icosahedron whose edges are halved a number of times."""
    golden = (1 + math.sqrt(5)) / 2
    x = np.array([[s, t * golden, 0] for s in (-1, 1) for t in (-1, 1)])
    x = np.concatenate([np.roll(x, k, axis=1) for k in range(3)])
    near = [set(np.flatnonzero(np.abs(np.linalg.norm(x - p, axis=1) - 2) < 0.1)) for p in x]
    triangles = np.array(
        [[a, b, c] for a in range(12) for b in near[a] for c in near[a] & near[b] if a < b < c]
    )
    backward = np.linalg.det(x[triangles]) < 0
    triangles[backward] = triangles[backward][:, ::-1]
    x /= np.linalg.norm(x, axis=1)[:, None]
    for _ in range(halvings):
        ends, of_triangle = edges(triangles)
        middle = len(x) + of_triangle
        x = np.concatenate([x, x[ends].sum(axis=1)])
        x[-len(ends) :] /= np.linalg.norm(x[-len(ends) :], axis=1)[:, None]
        a, b, c = triangles.T
        ab, bc, ca = middle.T
        triangles = np.concatenate(
            [np.column_stack(one) for one in ((a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca))]
        )
    return x, triangles


def edges(triangles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges as pairs of nodes, and of each triangle the edges that begin at its corners."""
    pairs = np.stack([triangles, np.roll(triangles, -1, axis=1)], axis=2).reshape(-1, 2)
    pairs = np.sort(pairs, axis=1).astype(np.int64)
    code, index = np.unique(pairs[:, 0] << 32 | pairs[:, 1], return_inverse=True)
    ends = np.column_stack([code >> 32, code & 0xFFFFFFFF])
    return ends, index.reshape(-1, 3)


def halved(triangles: np.ndarray, nodes: int, size: Sizes) -> tuple[np.ndarray, ...]:
    """Triangles, the one each is part of, and ends and opposite corners of halved edges: one pass.

    Of the edges that are too large those are halved that are the largest of both their triangles;
    the k-th gets node `nodes + k` in its middle. Repeat until no edge is halved.
    """
    ends, of_triangle = edges(triangles)
    sizes = size(ends)
    largest = np.argmax(sizes[of_triangle], axis=1)
    rows = np.arange(len(triangles))
    chosen = of_triangle[rows, largest]
    count = np.bincount(chosen, minlength=len(ends))
    split = (count == 2) & (sizes > 1)
    number = np.cumsum(split) - 1
    parts = split[chosen]
    turn = (largest[:, None] + np.arange(3)) % 3
    a, b, c = np.take_along_axis(triangles, turn, axis=1)[parts].T
    edge = number[chosen[parts]]
    found = triangles.copy()
    found[parts] = np.column_stack([a, nodes + edge, c])
    found = np.concatenate([found, np.column_stack([nodes + edge, b, c])])
    opposite = c[np.argsort(edge, kind="stable")].reshape(-1, 2)
    return found, np.concatenate([rows, rows[parts]]), np.column_stack([ends[split], opposite])


@numba.njit(cache=True)
def _quality(p, q, r):
    """2 sqrt(3) times the signed area seen from outside over the squared longest edge."""
    a, b, c = q - p, r - p, r - q
    area = (
        p[0] * (a[1] * b[2] - a[2] * b[1])
        + p[1] * (a[2] * b[0] - a[0] * b[2])
        + p[2] * (a[0] * b[1] - a[1] * b[0])
    ) / 2
    longest = max((a * a).sum(), (b * b).sum(), (c * c).sum())
    return 4 / math.sqrt(3) * area / longest


@numba.njit(cache=True)
def _edge_size(i, j, x, level, gradient, floor, width, change):
    """Size of the edge between two nodes relative to what it should be.

    That is the largest of length / width, (d / change)^(1/3) and (c / (CURVE change^(2/3)))^(1/2),

        d = |f(b) - f(a) - (f'(a) + f'(b)) / 2|,    c = |f'(b) - f'(a)|,

    a twelfth of the third difference of f = log rho along the edge, and its second one. Both count
    less for an edge that is shorter than `floor`, by length / floor.
    """
    squared = fall = turn = 0.0
    for k in range(3):
        step = x[j, k] - x[i, k]
        squared += step * step
        fall += (gradient[i, k] + gradient[j, k]) / 2 * step
        turn += (gradient[j, k] - gradient[i, k]) * step
    length = math.sqrt(squared)
    bent = (abs(level[j] - level[i] - fall) / change) ** (1 / 3)
    bent = max(bent, math.sqrt(abs(turn) / (CURVE * change ** (2 / 3))))
    return max(length / width, bent * min(1.0, length / min(floor[i], floor[j])))


@numba.njit(cache=True)
def edge_sizes(ends, x, level, gradient, floor, width, change):
    """`_edge_size` of each edge."""
    found = np.empty(len(ends))
    for k in range(len(ends)):
        i, j = ends[k]
        found[k] = _edge_size(i, j, x, level, gradient, floor, width, change)
    return found


@numba.njit(cache=True)
def _around(triangles, nodes):
    """Triangles at each node, as offsets and a list."""
    first = np.zeros(nodes + 1, dtype=np.int64)
    for t in range(len(triangles)):
        for k in range(3):
            first[triangles[t, k] + 1] += 1
    first = np.cumsum(first)
    place = first[:-1].copy()
    found = np.empty(3 * len(triangles), dtype=np.int64)
    for t in range(len(triangles)):
        for k in range(3):
            node = triangles[t, k]
            found[place[node]] = t
            place[node] += 1
    return first, found


@numba.njit(cache=True)
def coarsened(triangles, order, x, level, gradient, floor, width, change):
    """Take nodes away, in the given order, each at most once among its neighbours.

    Args:
        triangles: changed in place.
        order: nodes to be tried.
        x: nodes.
        level: log rho there.
        gradient: of it.
        floor: see `_edge_size`, as are the next.
        width: the longest edge.
        change: what d is compared with.

    Returns:
        Whether a triangle is left.
    """
    first, around = _around(triangles, len(x))
    locked = np.zeros(len(x), dtype=np.bool_)
    kept = np.ones(len(triangles), dtype=np.bool_)
    marked = np.full(len(x), -1)
    for b in order:
        ring = around[first[b] : first[b + 1]]
        free = not locked[b]
        for t in ring:
            for k in range(3):
                free = free and not locked[triangles[t, k]]
        if not free:
            continue
        best, goal = COARSE, -1
        # What is left may be no worse than this, or than what there was.
        least = _QUALITY
        for t in ring:
            i, j, k = triangles[t]
            least = min(least, _quality(x[i], x[j], x[k]))
        least = max(least, 1e-3)
        for t in ring:
            for k in range(3):
                if triangles[t, k] == b:
                    a = triangles[t, (k + 1) % 3]
            for s in ring:
                for k in range(3):
                    marked[triangles[s, k]] = b
            # Both ends of an edge have two neighbours in common, or it must not vanish.
            common = 0
            for s in around[first[a] : first[a + 1]]:
                for k in range(3):
                    n = triangles[s, k]
                    if n != a and n != b and marked[n] == b:
                        common += 1
                        marked[n] = -1
            if common != 2:
                continue
            worst = 0.0
            for s in ring:
                if a in triangles[s]:
                    continue
                for k in range(3):
                    if triangles[s, k] == b:
                        p, q = triangles[s, (k + 1) % 3], triangles[s, (k + 2) % 3]
                quality = _quality(x[a], x[p], x[q])
                if quality < least:
                    worst = np.inf
                    break
                worst = max(worst, _edge_size(a, p, x, level, gradient, floor, width, change))
                worst = max(worst, _edge_size(a, q, x, level, gradient, floor, width, change))
            if worst < best:
                best, goal = worst, a
        if goal < 0:
            continue
        for t in ring:
            for k in range(3):
                locked[triangles[t, k]] = True
        for t in ring:
            if goal in triangles[t]:
                kept[t] = False
            for k in range(3):
                if triangles[t, k] == b:
                    triangles[t, k] = goal
    return kept


@numba.njit(cache=True)
def _flip(triangles, ends, sides, codes, x):
    """Change edges of two triangles for the other diagonal where their least quality grows.

    Args:
        triangles: changed in place.
        ends: edges as pairs of nodes.
        sides: the triangles of each edge.
        codes: of the edges, increasing.
        x: nodes.

    Returns:
        How many edges were flipped.
    """
    locked = np.zeros(len(x), dtype=np.bool_)
    count = 0
    for i in range(len(ends)):
        s, t = sides[i]
        a, b = ends[i]
        c = d = a
        forward = False
        for k in range(3):
            if triangles[s, k] != a and triangles[s, k] != b:
                c = triangles[s, k]
                forward = triangles[s, (k + 1) % 3] == a
            if triangles[t, k] != a and triangles[t, k] != b:
                d = triangles[t, k]
        if locked[a] or locked[b] or locked[c] or locked[d]:
            continue
        if not forward:
            a, b = b, a
        # (a, b, c) and (b, a, d) become (a, d, c) and (d, b, c).
        old = min(_quality(x[a], x[b], x[c]), _quality(x[b], x[a], x[d]))
        new = min(_quality(x[a], x[d], x[c]), _quality(x[d], x[b], x[c]))
        if new <= _BETTER * old + 1e-3:
            continue
        code = min(c, d) << 32 | max(c, d)
        place = np.searchsorted(codes, code)
        if place < len(codes) and codes[place] == code:
            continue
        triangles[s] = a, d, c
        triangles[t] = d, b, c
        locked[a] = locked[b] = locked[c] = locked[d] = True
        count += 1
    return count


def flip(triangles: np.ndarray, x: np.ndarray) -> None:
    """Flip edges until no triangle becomes better, or `_PASSES` times."""
    for _ in range(_PASSES):
        ends, of_triangle = edges(triangles)
        sides = np.argsort(of_triangle.ravel(), kind="stable").reshape(-1, 2) // 3
        if not _flip(triangles, ends, sides, ends[:, 0] << 32 | ends[:, 1], x):
            break
