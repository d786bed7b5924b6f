"""Points in an order that keeps neighbours together, in blocks with bounding balls.

The order is that of a left-balanced kd tree: every aligned run of 2^k points is one cell of the
tree. Blocks for pricing and groups for coarsening are then mere index ranges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meanfield_pde.support.kernels import kernel, part

# Points of a block: 1.5 KB of coordinates, which stay in the L1 cache, and one bound for all of
# them (chosen, not tuned).
BLOCK = 64


def kd_order(points: np.ndarray) -> np.ndarray:
    """Permutation that sorts N x d points by recursive bisection of the widest coordinate."""
    order = np.arange(len(points))
    _put_in_order(points, order)
    return order


@kernel
def _put_in_order(points: np.ndarray, order: np.ndarray) -> None:
    size, dimension = points.shape
    room, keys = np.empty(size, np.int64), np.empty(size)
    starts, stops = np.empty(64, np.int64), np.empty(64, np.int64)
    starts[0], stops[0], waiting = 0, size, 1
    while waiting > 0:
        waiting -= 1
        start, stop = starts[waiting], stops[waiting]
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
        for t in range(start, stop):
            keys[order[t]] = points[order[t], axis]
        _sort(order, keys, start, stop, room)
        starts[waiting], stops[waiting] = start, start + half
        starts[waiting + 1], stops[waiting + 1] = start + half, stop
        waiting += 2


@part
def _sort(order: np.ndarray, keys: np.ndarray, start: int, stop: int, room: np.ndarray) -> None:
    """Merge sort, stable, of order[start:stop] by keys; numpy's takes seconds to compile."""
    for first in range(start, stop, 8):
        for t in range(first + 1, min(first + 8, stop)):
            x, place = order[t], t
            while place > first and keys[order[place - 1]] > keys[x]:
                order[place] = order[place - 1]
                place -= 1
            order[place] = x
    width = 8
    while width < stop - start:
        for left in range(start, stop - width, 2 * width):
            middle, end = left + width, min(left + 2 * width, stop)
            for t in range(left, middle):
                room[t] = order[t]
            i, j = left, middle
            for t in range(left, end):
                if i < middle and (j == end or keys[room[i]] <= keys[order[j]]):
                    order[t] = room[i]
                    i += 1
                else:
                    order[t] = order[j]
                    j += 1
        width *= 2


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
