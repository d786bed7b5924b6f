"""Points in an order that keeps neighbours together, in blocks with bounding balls.

The order is that of a left-balanced kd tree: every aligned run of 2^k points is one cell of the
tree. Blocks for pricing and groups for coarsening are then mere index ranges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

BLOCK = 64


@njit(cache=True)
def kd_order(points: np.ndarray) -> np.ndarray:
    """Permutation that sorts N x d points by recursive bisection of the widest coordinate."""
    size, dimension = points.shape
    order = np.arange(size)
    stack = [(0, size)]
    while len(stack) > 0:
        start, stop = stack.pop()
        if stop - start < 2:
            continue
        half = 1
        while 2 * half < stop - start:
            half *= 2
        widest, axis = -1.0, 0
        for k in range(dimension):
            low = high = points[order[start], k]
            for t in range(start + 1, stop):
                value = points[order[t], k]
                low, high = min(low, value), max(high, value)
            if high - low > widest:
                widest, axis = high - low, k
        part = order[start:stop].copy()
        keys = np.empty(stop - start)
        for t in range(stop - start):
            keys[t] = points[part[t], axis]
        order[start:stop] = part[np.argsort(keys, kind="mergesort")]
        stack.append((start, start + half))
        stack.append((start + half, stop))
    return order


@dataclass(frozen=True, eq=False)
class Cloud:
    """N points in kd order.

    Attributes:
        points: N x d.
        columns: d x N, the same numbers laid out for vectorised loops over the points.
        centres: blocks x d, centre of each run of BLOCK points.
        radii: the ball of this radius about the centre holds the block, rounding included.
    """

    points: np.ndarray
    columns: np.ndarray
    centres: np.ndarray
    radii: np.ndarray

    def __len__(self) -> int:
        return len(self.points)


def make_cloud(points: np.ndarray) -> Cloud:
    """Blocks and bounding balls of points that are in kd order already."""
    starts = np.arange(0, len(points), BLOCK)
    sizes = np.diff(np.append(starts, len(points)))
    centres = np.add.reduceat(points, starts, axis=0) / sizes[:, None]
    distances = np.sqrt(((points - np.repeat(centres, sizes, axis=0)) ** 2).sum(axis=1))
    radii = np.maximum.reduceat(distances, starts) * (1 + 1e-12)
    return Cloud(
        np.ascontiguousarray(points),
        np.ascontiguousarray(points.T),
        np.ascontiguousarray(centres),
        radii,
    )
