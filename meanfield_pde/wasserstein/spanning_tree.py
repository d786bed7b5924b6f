"""A rooted spanning tree that is cut and regrafted, as lists that go through it node by node.

`behind` threads all nodes in preorder, so that a subtree is a run of the thread, from its top to
its `last`; with its `size` known, what changes for all nodes of a subtree, or of the rest, visits
the smaller of the two (Barr, Glover, Klingman 1979). The nodes from the new top of a subtree to the
old one change parents; everything else is spliced.

    parent  -1 for the root           behind  next node in preorder, the root after the last
    arc     of the node to its parent before  the node whose `behind` this is
    size    nodes of the subtree      last    last node of the subtree in preorder
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.support.kernels import kernel, part


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
