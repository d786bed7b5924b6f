"""Groups of sources for `series`: the sources themselves, or nodes that stand for them."""

from __future__ import annotations

from typing import Any

import numpy as np

from meanfield_pde.attention.sum.series_gather import (
    FITTED,
    GATHERED,
    fit,
    gather,
    node_tables,
    place_nodes,
)
from meanfield_pde.attention.sum.series_nodes import nodes_needed
from meanfield_pde.attention.sum.sources import Share, Sources, alone
from meanfield_pde.attention.sum.tree import LEAF


class SourceGroups:
    """Groups of so many sources that follow one another in the tree.

    Attributes:
        boxes: around them.
    """

    def __init__(self, sources: Sources, size: int, boxes: np.ndarray) -> None:
        self._sources, self._size, self.boxes = sources, size, boxes
        points = np.ascontiguousarray(sources.points.T)
        axes = boxes[:, 3:].reshape(-1, 3, 3)
        self._half = np.linalg.norm(axes, axis=2)
        unit = axes / self._half[:, :, None]
        self._frame = np.concatenate([boxes[:, :3], unit.reshape(-1, 9)], axis=1)
        self._local = np.empty_like(sources.points)
        self._starts = np.minimum(np.arange(len(unit) + 1) * size, len(points))
        for group, frame in enumerate(unit):
            part = slice(self._starts[group], self._starts[group + 1])
            self._local[:, part] = frame @ (points[part] - boxes[group, :3]).T

    def load(self, share: Share = alone) -> None:
        """Nothing to do: the masses are those of the sources."""

    def arrays(self) -> tuple[Any, ...]:
        """What the compiled loops take."""
        tree = self._sources.tree()
        leaves = tree[4][0]
        log_mass = np.logaddexp.reduceat(leaves, np.arange(0, len(leaves), self._size // LEAF))
        upper = (tree[2][1], tree[4][1], tree[3][2], tree[4][2])
        groups = (self.boxes, log_mass, self._frame, self._half, np.empty((0, FITTED + 1)))
        arrays = (self._sources.points, self._sources.log_masses(), np.empty(0), self._local)
        return arrays, self._starts, upper, groups, self._size


class NodeGroups:
    """The cells of rings of latitude, and the nodes that stand for their sources.

    Attributes:
        boxes: around them.
        expected: about how many nodes there will be.
    """

    def __init__(self, sources: Sources, width: float, longest: float, wanted: float) -> None:
        """Lay them out.

        Args:
            sources: of the sum, on the sphere.
            width: of a cell.
            longest: the length of the scores that nodes are to serve.
            wanted: minus the logarithm of the error of the nodes.
        """
        self._sources, self._wanted = sources, (longest, wanted)
        order_of_tree = sources.tree()[1][1]
        points = sources.points[:, : sources.count]
        cell = _cells_of_rings(points, width)
        order = np.argsort(cell, kind="stable")
        _, first = np.unique(cell[order], return_index=True)
        self._starts = np.append(first, len(order))
        self._order = order_of_tree[order]
        self._local = np.empty((3, len(order)))
        self._frame = np.empty((len(first), 12))
        self._half = np.empty((len(first), 3))
        for group in range(len(first)):
            part = slice(self._starts[group], self._starts[group + 1])
            own = points[:, order[part]]
            axes = _axes(own.mean(axis=1))
            along = axes @ own
            low, high = along.min(axis=1), along.max(axis=1)
            middle = (low + high) / 2
            self._frame[group] = np.concatenate([middle @ axes, axes.ravel()])
            self._half[group] = (high - low) / 2 + 8 * np.finfo(float).eps
            self._local[:, part] = along - middle[:, None]
        unit = self._frame[:, 3:].reshape(-1, 3, 3)
        scaled = unit * self._half[:, :, None]
        self.boxes = np.concatenate([self._frame[:, :3], scaled.reshape(-1, 9)], axis=1)
        self._tables = node_tables()
        needed = [[nodes_needed(half, longest, wanted) for half in row[1:]] for row in self._half]
        self.expected = int(np.prod(needed, axis=1).sum())

    def load(self, share: Share = alone) -> None:
        """Take in the masses that the sources have."""
        every = np.arange(len(self.boxes))
        fitted = self._fitted = share(self._fit, every)
        counts = (fitted[:, 0] * fitted[:, 1]).astype(np.int64)
        self._width = GATHERED + int(counts.max())
        rows = share(self._gather, every)
        starts = np.concatenate([[0], np.cumsum(-(-counts // LEAF) * LEAF)])
        total = int(starts[-1])
        arrays = np.empty((3, total)), np.empty(total), np.empty(total), np.empty((3, total))
        place_nodes(self._frame, self._half, fitted, self._tables, rows, starts, arrays)
        half = self._half.copy()
        half[:, 0] = np.maximum.reduceat(np.abs(arrays[3][0]), starts[:-1])
        nodes = np.column_stack([fitted, rows[:, 0]])
        groups = (self.boxes, np.ascontiguousarray(rows[:, 1]), self._frame, half, nodes)
        self._loaded = arrays, starts, groups

    def _fit(self, groups: np.ndarray) -> np.ndarray:
        rows = np.empty((len(groups), FITTED))
        fit(groups, self._given(), self._frame, self._half, self._wanted, rows)
        return rows

    def _gather(self, groups: np.ndarray) -> np.ndarray:
        rows = np.zeros((len(groups), self._width))
        given = self._given()
        gather(groups, given, self._frame, self._half, self._fitted, self._tables, rows)
        return rows

    def _given(self) -> tuple[np.ndarray, ...]:
        return self._starts, self._sources.tree()[1][0], self._order, self._local

    def arrays(self) -> tuple[Any, ...]:
        """What the compiled loops take."""
        tree = self._sources.tree()
        arrays, starts, groups = self._loaded
        return arrays, starts, (tree[2][1], tree[4][1], tree[3][2], tree[4][2]), groups, 0


def _cells_of_rings(points: np.ndarray, width: float) -> np.ndarray:
    """The number of every point's cell; rings are about as high as wide, the ends are caps."""
    rings = int(np.ceil(np.pi / width))
    height = np.pi / rings
    across = np.hypot(points[0], points[1])
    ring = np.minimum((np.arctan2(across, points[2]) / height + 0.5).astype(np.int64), rings)
    middle = np.arange(rings + 1) * height
    widest = np.sin(np.minimum(middle, np.pi - middle) + 0.25 * height)
    count = np.maximum(1, np.round(2 * np.pi * np.minimum(widest, 1.0) / height)).astype(np.int64)
    count[[0, -1]] = 1
    turn = np.arctan2(points[1], points[0]) / (2 * np.pi) + 0.5
    place = np.minimum((turn * count[ring]).astype(np.int64), count[ring] - 1)
    return np.concatenate([[0], np.cumsum(count)])[ring] + place


def _axes(centre: np.ndarray) -> np.ndarray:
    """Axes up, east and north at a point."""
    up = centre / np.linalg.norm(centre)
    longitude = np.arctan2(up[1], up[0])
    east = np.array([-np.sin(longitude), np.cos(longitude), 0.0])
    return np.stack([up, east, np.cross(up, east)])
