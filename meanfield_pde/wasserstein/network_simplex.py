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

import numpy as np

from meanfield_pde.support.kernels import kernel, part
from meanfield_pde.wasserstein.restricted import Solution, Tree
from meanfield_pde.wasserstein.spanning_tree import meeting, regraft, shift, thread

_EPS = float(np.finfo(float).eps)
# Pivots between two looks at the clock, after which potentials and flows are computed anew: a
# small part of the cost of the pivots.
_PIVOTS = 20_000
# Rounding to allow for in potentials, relative to the largest; and how often to look again, with
# potentials computed anew, when no arc is left that violates by more.
_NOISE = 16 * _EPS
_LOOKS = 4


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
