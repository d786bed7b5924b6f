"""Sources and targets in compact groups: a kd bisection, and boxes around the groups.

Sources form a tree of three levels, each node made of `BRANCH` nodes of the level below; its leaves
hold `LEAF` sources. Targets are grouped in tiles of `TILE`.
"""

from __future__ import annotations

import numpy as np

LEAF = 16
BRANCH = 8
NODE = BRANCH * LEAF  # sources in a node of the middle level
TOP = BRANCH * NODE  # sources in a node of the top level
TILE = 16


def bisect(points: np.ndarray, sizes: tuple[int, ...]) -> list[np.ndarray]:
    """Split points into compact groups of exactly sizes[0], the last one smaller, and so on.

    The groups of the later sizes, which must divide one another, are nested in those before.
    """
    groups = [np.arange(len(points))]
    for size in sizes:
        groups = [part for group in groups for part in _split(points, group, size)]
    return groups


def _split(points: np.ndarray, group: np.ndarray, size: int) -> list[np.ndarray]:
    parts: list[np.ndarray] = []
    waiting = [(group, -(-len(group) // size))]
    while waiting:
        index, count = waiting.pop()
        if count == 1:
            parts.append(index)
            continue
        axis = int(np.argmax(np.ptp(points[index], axis=0)))
        left = count // 2
        order = index[np.argsort(points[index, axis], kind="stable")]
        waiting.append((order[left * size :], count - left))
        waiting.append((order[: left * size], left))
    return parts


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
