"""The transport problem on a given set of arcs, by the network simplex method.

    min sum_e c_e x_e,   sum_{e from i} x_e = a_i,   sum_{e to j} x_e = b_j,   x >= 0

The basis is a spanning tree: arcs off the tree are empty, and potentials make all of its arcs
tight. An arc that violates u_i + v_j <= c_ij enters, takes as much flow as its cycle in the tree
allows, and the arc that has run empty leaves. Ties are broken so that trees stay strongly feasible
(Cunningham 1976: from every node flow can still be sent to the root), and no tree comes back.

Node i < n is source i, node n + j target j, and the last is the root, to which every node is tied
by an arc that costs more than any of the problem: where the arcs given cannot carry all, it does.
So there is always a solution, and the potentials say where arcs are missing.

The tree is lists that go through it node by node. `behind` threads all nodes in preorder, so that a
subtree is a run of the thread, from its top to its `last`; with its `size` known, what changes for
all nodes of a subtree, or of the rest, visits the smaller of the two (Barr, Glover, Klingman 1979).
The nodes from the new top of a subtree to the old one change parents; everything else is spliced.

    parent  -1 for the root           behind  next node in preorder, the root after the last
    arc     of the node to its parent before  the node whose `behind` this is
    size    nodes of the subtree      last    last node of the subtree in preorder
"""

from __future__ import annotations

import math
import time

import numpy as np

from meanfield_pde.support.kernels import kernel, part
from meanfield_pde.wasserstein.restricted import Solution, Tree

_EPS = float(np.finfo(float).eps)
# Pivots between two looks at the clock, after which potentials and flows are computed anew: a small
# part of the cost of the pivots.
_PIVOTS = 20_000
# Rounding to allow for in potentials, relative to the largest; and how often to look again, with
# potentials computed anew, when no arc is left that violates by more.
_NOISE = 16 * _EPS
_LOOKS = 4  # the last ones as a rule find nothing: a bound on the cost


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
    ends = np.stack([rows, columns + n]).astype(np.int32)
    parent, arc, size, last, behind, before = np.empty((6, n + m + 1), np.int32)
    if start is None:
        parent[:], arc[:] = n + m, -1
    else:
        parent[:], arc[:] = start.parent, start.arc
    parent[-1] = arc[-1] = -1
    thread(parent, size, last, behind, before)
    flow, potential = np.empty((2, n + m + 1))
    tree = (parent, arc, flow, size, last, behind, before)
    lists = (parent, arc, behind, before, flow, potential)
    largest = _balance(masses, n, cost, tie, *lists)
    position, looks = 0, _LOOKS
    while looks > 0 and time.monotonic() < deadline:
        noise = _NOISE * largest
        position, pivots = _pivots(*ends, cost, n, position, _PIVOTS, noise, potential, *tree)
        largest = _balance(masses, n, cost, tie, *lists)
        if pivots < _PIVOTS:
            looks = looks - 1 if pivots else 0
    on_arcs = np.zeros(len(cost))
    real = np.flatnonzero(arc >= 0)
    on_arcs[arc[real]] = flow[real]
    found = Tree(parent.astype(np.int64), arc.astype(np.int64))
    return Solution(on_arcs, potential[:n], -potential[n : n + m], found, looks == 0)


# What follows is compiled, and carries no types: numba compiles it for the arguments it meets.
@kernel
def _balance(masses, n, cost, tie, parent, arc, behind, before, flow, potential):
    """Potentials that make all arcs of the tree tight, and the flows that the masses ask for.

    Returns the largest potential. It is small once all hangs on one tie: its node has the zero.
    """
    root = masses.size
    flow[:root] = masses
    flow[root] = 0.0
    potential[root] = -tie if behind[root] < n else tie
    largest = 0.0
    x = behind[root]
    while x != root:
        length = cost[arc[x]] if arc[x] >= 0 else tie
        potential[x] = potential[parent[x]] + (length if x < n else -length)
        largest = max(largest, abs(potential[x]))
        x = behind[x]
    # Of what a node gives (or gets), all that its children do not take goes by its parent.
    x = before[root]
    while x != root:
        flow[x] = max(flow[x], 0.0)
        flow[parent[x]] -= flow[x]
        x = before[x]
    return largest


@part
def _entering(sources, targets, cost, start, block, noise, potential):
    """The arc of the next block that violates most, and where to go on; -1 if there is none."""
    arcs = sources.size
    best, worst = -1, -noise
    position, left = start, block
    for _ in range(arcs):
        excess = cost[position] - potential[sources[position]] + potential[targets[position]]
        if excess < worst:
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


@kernel
def _pivots(
    sources, targets, cost, n, position, most, noise,
    potential, parent, arc, flow, size, last, behind, before,
):  # fmt: skip
    """At most n pivots; where the search for arcs stands, and how many there were."""
    block = max(10, int(math.sqrt(sources.size)))
    for pivot in range(most):
        e, position = _entering(sources, targets, cost, position, block, noise, potential)
        if e < 0:
            return position, pivot
        source, target = sources[e], targets[e]
        # Flow goes around: down to the source from where both paths to the root meet, and up from
        # the target. What decreases are arcs of sources on the first and of targets on the second.
        meet = meeting(source, target, parent, size)
        least, leaving, from_source = np.inf, -1, True
        x = source
        while x != meet:
            if x < n and flow[x] < least:
                least, leaving = flow[x], x
            x = parent[x]
        x = target
        while x != meet:
            if x >= n and flow[x] <= least:
                least, leaving, from_source = flow[x], x, False
            x = parent[x]
        x = source
        while x != meet:
            flow[x] = max(flow[x] - least, 0.0) if x < n else flow[x] + least
            x = parent[x]
        x = target
        while x != meet:
            flow[x] = max(flow[x] - least, 0.0) if x >= n else flow[x] + least
            x = parent[x]
        # The part of the tree that hangs on the leaving arc is hung on the entering one.
        excess = cost[e] - potential[source] + potential[target]
        if from_source:
            top, host, by = source, target, excess
        else:
            top, host, by = target, source, -excess
        regraft(top, leaving, host, e, least, meet, parent, arc, flow, size, last, behind, before)
        shift(top, by, potential, size, last, behind)
    return position, most


# Carries no types: numba compiles it for the arguments it meets.
@kernel
def thread(parent, size, last, behind, before):
    """All lists of the tree that `parent` describes; the root is its last node."""
    nodes = parent.size
    root = nodes - 1
    first = np.full(nodes, -1, np.int32)
    sibling = np.full(nodes, -1, np.int32)
    for x in range(root - 1, -1, -1):
        sibling[x] = first[parent[x]]
        first[parent[x]] = x
    size[:] = 1
    x, previous = root, root
    while True:
        if first[x] >= 0:
            x = first[x]
        else:
            last[x] = x
            while x != root and sibling[x] < 0:
                size[parent[x]] += size[x]
                last[parent[x]] = last[x]
                x = parent[x]
            if x == root:
                break
            size[parent[x]] += size[x]
            x = sibling[x]
        behind[previous], before[x] = x, previous
        previous = x
    behind[previous], before[root] = root, previous


@kernel
def meeting(x, y, parent, size):
    """Where the paths of two nodes to the root meet."""
    while x != y:
        if size[x] < size[y]:
            x = parent[x]
        else:
            y = parent[y]
    return x


@part
def _tell_above(x, meet, ended, ends, by, parent, size, last):
    """From x up to `meet`, without it, subtrees have `by` nodes more; `ended` was their last."""
    above = x
    while above >= 0 and last[above] == ended:
        last[above] = ends
        above = parent[above]
    while x != meet:
        size[x] += by
        x = parent[x]


@kernel
def regraft(top, leaving, host, via, amount, meet, parent, arc, flow, size, last, behind, before):
    """Cut the subtree of `leaving` off, and hang it by its node `top` on `host`.

    The new arc is `via`, with flow `amount`; `meet` is where the old and the new place meet.
    """
    whole, old_last, old_before, old_host = (
        size[leaving], last[leaving], before[leaving], parent[leaving],
    )  # fmt: skip
    after = behind[old_last]
    behind[old_before], before[after] = after, old_before
    _tell_above(old_host, meet, old_last, old_before, -whole, parent, size, last)

    # In its new preorder, the subtree of the top comes first, then for each node above it in turn
    # the node and what it has besides.
    x, above, tail = top, host, last[top]
    x_size, x_last, x_before, x_behind = 0, last[top], before[top], behind[last[top]]
    while True:
        up, old_arc, old_flow, old_size = parent[x], arc[x], flow[x], size[x]
        parent[x], arc[x], flow[x], size[x] = above, via, amount, whole - x_size
        if x == leaving:
            break
        up_last, up_before = last[up], before[up]
        up_behind = x_behind if up_last == x_last else behind[up_last]
        behind[tail], before[up] = up, tail
        tail = x_before
        if up_last != x_last:
            behind[x_before], before[x_behind] = x_behind, x_before
            tail = up_last
        above, via, amount, x_size = x, old_arc, old_flow, old_size
        x, x_last, x_before, x_behind = up, up_last, up_before, up_behind
    while True:
        last[x] = tail
        if x == top:
            break
        x = parent[x]

    after = behind[host]
    behind[host], before[top] = top, host
    behind[tail], before[after] = after, tail
    _tell_above(host, meet, host, tail, whole, parent, size, last)


@kernel
def shift(top, by, potential, size, last, behind):
    """Raise the potentials of a subtree above those of the rest, at whichever is smaller."""
    if 2 * size[top] <= size.size:
        x, end = top, behind[last[top]]
    else:
        x, end, by = behind[last[top]], top, -by
    while x != end:
        potential[x] += by
        x = behind[x]
