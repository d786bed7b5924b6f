"""The transport problem on a given set of arcs, by the network simplex method.

    min sum_e c_e x_e,   sum_{e from i} x_e = a_i,   sum_{e to j} x_e = b_j,   x >= 0

The basis is a spanning tree: arcs off the tree are empty, and potentials make all of its arcs
tight. An arc that violates u_i + v_j <= c_ij enters, takes as much flow as its cycle in the tree
allows, and the arc that has run empty leaves. Ties are broken so that trees stay strongly feasible
(Cunningham 1976: from every node flow can still be sent to the root), and no tree comes back.

Node i < n is source i, node n + j target j, and the last is the root, to which every node is tied
by an arc that costs more than any of the problem: where the arcs given cannot carry all, it does.
So there is always a solution, and the potentials say where arcs are missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
from numba import njit

from meanfield_pde.wasserstein.restricted import Solution, Tree

_EPS = float(np.finfo(float).eps)
# Pivots between two looks at the clock.
_PIVOTS = 20_000

# Carries no types: numba compiles it for the arguments it meets.
_jit: Callable = njit(cache=True, error_model="numpy")


def solve_on_arcs(
    rows: np.ndarray,
    columns: np.ndarray,
    cost: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    tie: float,
    deadline: float = math.inf,
    start: Tree | None = None,
) -> Solution:
    """A `Solver` that always has something to give; `tie` is the cost of the arcs to the root."""
    n, m = len(a), len(b)
    masses = np.concatenate([a, b])
    state = np.zeros((6, n + m + 1), np.int64)
    parent, arc, first, after, before, depth = state
    if start is None:
        parent[:], arc[:] = n + m, -1
        parent[-1] = -1
    else:
        parent[:], arc[:] = start.parent, start.arc
    flow, potential = np.empty((2, n + m + 1))
    arrays = (parent, arc, first, after, before, depth, flow, potential)
    _plant(masses, n, cost, tie, *arrays)
    position, finished = 0, False
    while not finished and time.monotonic() < deadline:
        position, finished = _pivots(rows, columns, cost, n, tie, position, _PIVOTS, *arrays)
    _plant(masses, n, cost, tie, *arrays)
    on_arcs = np.zeros(len(cost))
    real = np.flatnonzero(arc >= 0)
    on_arcs[arc[real]] = flow[real]
    tree = Tree(parent.copy(), arc.copy())
    return Solution(on_arcs, potential[:n], potential[n : n + m], tree, bool(finished))


@_jit
def _adopt(child, parent, first, after, before):  # type: ignore[no-untyped-def]
    """Put a node at the head of the children of its parent."""
    p = parent[child]
    head = first[p]
    after[child], before[child] = head, -1
    if head >= 0:
        before[head] = child
    first[p] = child


@_jit
def _leave(child, parent, first, after, before):  # type: ignore[no-untyped-def]
    """Take a node from the children of its parent."""
    left, right = before[child], after[child]
    if left >= 0:
        after[left] = right
    else:
        first[parent[child]] = right
    if right >= 0:
        before[right] = left


@_jit
def _descend(top, cost, tie, parent, arc, first, after, depth, potential):  # type: ignore[no-untyped-def]
    """Depths and potentials of a node and all below it."""
    x = top
    while True:
        p = parent[x]
        depth[x] = depth[p] + 1
        potential[x] = (cost[arc[x]] if arc[x] >= 0 else tie) - potential[p]
        if first[x] >= 0:
            x = first[x]
            continue
        while x != top and after[x] < 0:
            x = parent[x]
        if x == top:
            return
        x = after[x]


@_jit
def _plant(  # type: ignore[no-untyped-def]
    masses, n, cost, tie, parent, arc, first, after, before, depth, flow, potential
):
    """Lists of children, depths, potentials and flows of the tree that `parent` describes."""
    root = masses.size
    first[:] = -1
    potential[root], depth[root] = 0.0, 0
    for x in range(root):
        _adopt(x, parent, first, after, before)
    order = np.empty(root, np.int64)
    used = 0
    x = first[root]
    while x >= 0:
        order[used] = x
        used += 1
        x = after[x]
    place = 0
    while place < used:
        x = order[place]
        place += 1
        p = parent[x]
        depth[x] = depth[p] + 1
        potential[x] = (cost[arc[x]] if arc[x] >= 0 else tie) - potential[p]
        child = first[x]
        while child >= 0:
            order[used] = child
            used += 1
            child = after[child]
    # Of what a node gives (or gets), all that its children do not take goes by its parent.
    flow[:root] = masses
    flow[root] = 0.0
    for place in range(root - 1, -1, -1):
        x = order[place]
        flow[x] = max(flow[x], 0.0)
        flow[parent[x]] -= flow[x]


@_jit
def _entering(rows, columns, cost, n, start, block, potential):  # type: ignore[no-untyped-def]
    """The arc of the next block that violates most, and where to go on; -1 if there is none."""
    arcs = rows.size
    best, worst = -1, 0.0
    position, left = start, block
    for _ in range(arcs):
        u, v = potential[rows[position]], potential[n + columns[position]]
        excess = cost[position] - u - v
        if excess < worst and excess < -4.0 * _EPS * (abs(u) + abs(v)):
            best, worst = position, excess
        position += 1
        if position == arcs:
            position = 0
        left -= 1
        if left == 0:
            if best >= 0:
                return best, position
            left = block
    return best, position


@_jit
def _pivots(  # type: ignore[no-untyped-def]
    rows, columns, cost, n, tie, position, most,
    parent, arc, first, after, before, depth, flow, potential,
):  # fmt: skip
    """At most so many pivots; where the search for arcs stands, and whether there is none left."""
    block = max(10, int(math.sqrt(rows.size)))
    for _ in range(most):
        e, position = _entering(rows, columns, cost, n, position, block, potential)
        if e < 0:
            return position, True
        source, target = rows[e], n + columns[e]
        # Flow goes around: down to the source from where both paths to the root meet, and up from
        # the target. What decreases are arcs of sources on the first and of targets on the second.
        x, y = source, target
        least, leaving, from_source = np.inf, -1, True
        while x != y:
            if depth[x] >= depth[y]:
                if x < n and flow[x] < least:
                    least, leaving, from_source = flow[x], x, True
                x = parent[x]
            else:
                if y >= n and flow[y] <= least:
                    least, leaving, from_source = flow[y], y, False
                y = parent[y]
        meet = x
        x = source
        while x != meet:
            flow[x] = max(flow[x] - least, 0.0) if x < n else flow[x] + least
            x = parent[x]
        y = target
        while y != meet:
            flow[y] = max(flow[y] - least, 0.0) if y >= n else flow[y] + least
            y = parent[y]
        # The part of the tree that hangs on the leaving arc is hung on the entering one.
        x, p = (source, target) if from_source else (target, source)
        top, via, amount = x, e, least
        while True:
            up, old_arc, old_flow = parent[x], arc[x], flow[x]
            _leave(x, parent, first, after, before)
            parent[x], arc[x], flow[x] = p, via, amount
            _adopt(x, parent, first, after, before)
            if x == leaving:
                break
            p, x, via, amount = x, up, old_arc, old_flow
        _descend(top, cost, tie, parent, arc, first, after, depth, potential)
    return position, False
