"""Sources and targets in compact groups: a kd bisection, and boxes around the groups.

Sources form a tree of three levels, each node made of `BRANCH` nodes of the level below; its leaves
hold `LEAF` sources. Targets are grouped in tiles of `TILE`.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.support.kernels import kernel, part

LEAF = 16
BRANCH = 8
NODE = BRANCH * LEAF  # sources in a node of the middle level
TOP = BRANCH * NODE  # sources in a node of the top level
TILE = 16


def bisect(points: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """An order of the points in which runs of sizes[0] are compact groups, and so on.

    The runs of the later sizes, which must divide one another, are compact within those before.
    Points with the same coordinate are told apart by their numbers.
    """
    points, order = np.ascontiguousarray(points), np.arange(len(points))
    within = len(points)
    for size in sizes:
        _grouped(points, order, within, size)
        within = size
    return order


@kernel
def _grouped(points, order, within, size):  # type: ignore[no-untyped-def]
    """Bisect each run of `within` along its longest side until runs of `size` are left."""
    starts, stops = np.empty(64, np.int64), np.empty(64, np.int64)
    for first in range(0, len(order), max(within, 1)):
        starts[0], stops[0], waiting = first, min(first + within, len(order)), 1
        while waiting > 0:
            waiting -= 1
            start, stop = starts[waiting], stops[waiting]
            count = (stop - start + size - 1) // size
            if count < 2:
                continue
            longest, axis = -1.0, points.shape[1] - 1
            for k in range(points.shape[1]):
                low = high = points[order[start], k]
                for t in range(start + 1, stop):
                    low, high = min(low, points[order[t], k]), max(high, points[order[t], k])
                if high - low > longest:
                    longest, axis = high - low, k
            middle = start + count // 2 * size
            _select(points, axis, order, start, stop - 1, middle)
            starts[waiting], stops[waiting] = start, middle
            starts[waiting + 1], stops[waiting + 1] = middle, stop
            waiting += 2


@part
def _select(points, axis, order, low, high, middle):  # type: ignore[no-untyped-def]
    """Hoare's selection: none of order[low:middle] comes after one of order[middle:high + 1]."""
    while low < high:
        a, b, c = order[low], order[(low + high) // 2], order[high]
        if _before(points, axis, b, a):
            a, b = b, a
        if _before(points, axis, c, b):
            b = a if _before(points, axis, c, a) else c
        i, j = low, high
        while i <= j:
            while _before(points, axis, order[i], b):
                i += 1
            while _before(points, axis, b, order[j]):
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            break


@part
def _before(points, axis, one, other):  # type: ignore[no-untyped-def]
    a, b = points[one, axis], points[other, axis]
    return a < b or (a == b and one < other)


def boxes(points: np.ndarray, size: int) -> np.ndarray:
    """For each group of `size` points the centre and the half axes of a box around it.

    Rows of 12 numbers: c, then a_1, a_2, a_3, such that every point of the group is
    c + sum_i t_i a_i with |t_i| <= 1, and hence <w, y> <= <w, c> + sum_i |<w, a_i>|. The axes are
    the principal ones: a patch of the sphere is flat, and for w along its normal, where the sums
    are largest, the bound is far below that of a ball.
    """
    groups = -(-len(points) // size)
    filled = np.concatenate([points, np.repeat(points[-1:], groups * size - len(points), axis=0)])
    grouped = filled.reshape(groups, size, 3)
    offset = grouped - grouped.mean(axis=1, keepdims=True)
    _, axes = np.linalg.eigh(np.einsum("gpi,gpj->gij", offset, offset))
    along = np.einsum("gpi,gik->gpk", grouped, axes)
    low, high = along.min(axis=1), along.max(axis=1)
    centre = np.einsum("gik,gk->gi", axes, (low + high) / 2)
    # The rounding of the products above must not leave a point outside.
    half = (high - low) / 2 + 8 * np.finfo(float).eps * np.abs(grouped).max(axis=(1, 2))[:, None]
    scaled = np.swapaxes(axes * half[:, None, :], 1, 2)
    return np.concatenate([centre, scaled.reshape(groups, 9)], axis=1)
