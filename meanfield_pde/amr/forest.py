"""A mesh that can be refined and coarsened: the leaves of a forest of bisected cells.

The roots are the cells of a base mesh, arcs or geodesic triangles. A cell (a, b) or (a, b, c) is
cut at m, the midpoint of its first edge from a to b,

    (a, b)     ->  (a, m), (m, b)
    (a, b, c)  ->  (c, a, m), (b, c, m),

which on the sphere is newest-vertex bisection: the edge that is cut next lies opposite the vertex
made last, and the first one is the longest edge of a root, so that angles stay bounded. Both pieces
are geodesic cells and together are the cell exactly. The leaves always form a mesh: on the sphere a
vertex never lies inside the edge of a neighbour, and on the circle neighbours differ by one level.

Everything is plain numpy on arrays that every rank has, in the order of `keys`: the number of the
root followed by the way down to the leaf, bit by bit. Midpoints are the same bit for bit whichever
cell they are computed from, so that a vertex is known by its coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.mesh.geometry import distinct, normalised
from meanfield_pde.mesh.surface import Surface
from meanfield_pde.support.kernels import kernel, part

# Bits of a key that tell the way down: no leaf lies deeper than this below its root. Half as many
# halvings of the width on the sphere: 1e-6 of the base mesh, and 1e-12 on the circle.
DEEPEST = 40


@dataclass(frozen=True, eq=False)
class Forest:
    """The leaves, sorted by key; a new forest is made by `refined` and `coarsened`.

    Attributes:
        keys: root << DEEPEST | way << (DEEPEST - level), one for each leaf.
        levels: number of bisections between root and leaf.
        corners: vertices of each leaf, N x d x d; the first two are the edge that is cut next.
        roots: the forest of the roots alone; None if it is this one.
    """

    keys: np.ndarray
    levels: np.ndarray
    corners: np.ndarray
    roots: Forest | None = None

    @classmethod
    def of(cls, surface: Surface) -> Forest:
        """The roots alone: the cells of a base mesh."""
        cells = surface.cells
        if surface.dimension == 3:
            cells = _longest_edge_first(surface)
        count = len(cells)
        keys = np.arange(count, dtype=np.int64) << DEEPEST
        return cls(keys, np.zeros(count, dtype=np.int64), surface.points[cells] + 0.0)

    def with_leaves(self, keys: np.ndarray, levels: np.ndarray) -> Forest:
        """The forest of the same roots with these leaves, as a checkpoint names them.

        InputError if they are not the leaves of one.
        """
        forest = self.roots or self
        while forest.count < len(keys):
            first = np.minimum(np.searchsorted(keys, forest.keys), len(keys) - 1)
            marked = np.minimum(levels[first], DEEPEST) > forest.levels
            if not marked.any():
                break
            forest = forest._bisected(marked)
        if not (np.array_equal(forest.keys, keys) and np.array_equal(forest.levels, levels)):
            raise InputError(
                "the cells in the checkpoint are not those of an adaptive mesh; start again"
            )
        return forest

    @property
    def dimension(self) -> int:
        """Dimension d of the surrounding space."""
        return int(self.corners.shape[-1])

    @property
    def count(self) -> int:
        """Number of leaves."""
        return len(self.keys)

    @cached_property
    def surface(self) -> Surface:
        """The leaves as a mesh, each vertex once, in an order that only depends on the leaves."""
        points, number = distinct(self.corners.reshape(-1, self.dimension))
        return Surface(points, number.reshape(self.count, -1))

    @property
    def neighbours(self) -> np.ndarray:
        """The leaf across the facet opposite to each vertex, N x d."""
        return self.surface.neighbours

    def refined(self, marked: np.ndarray) -> Forest:
        """Cut the marked leaves, and what has to be cut with them so that the leaves are a mesh."""
        marked = marked & (self.levels < DEEPEST)
        if not marked.any():
            return self
        if self.dimension == 2:
            return self._bisected(self._balanced(marked))
        cut = self._cut_edges(marked)
        once = self._bisected(cut[:, 2])
        # The edge of (c, a, m) that is cut next lies opposite b, that of (b, c, m) opposite a.
        pieces = np.stack([cut[:, 1], cut[:, 0]], axis=1)
        there = np.stack([np.ones(self.count, dtype=bool), cut[:, 2]], axis=1)
        return once._bisected(pieces[there])

    def coarsened(self, marked: np.ndarray) -> Forest:
        """Coarsen by one level: parents take the place of siblings that are all marked.

        On the sphere a vertex can be taken out where all the leaves around it were made with it.
        """
        first = self._removable(marked)
        if not len(first):
            return self
        bit = np.int64(1) << (DEEPEST - self.levels[first])
        one, two = self.corners[first], self.corners[first + 1]
        if self.dimension == 2:
            parents = np.stack([one[:, 0], two[:, 1]], axis=1)
        else:
            parents = np.stack([one[:, 1], two[:, 0], one[:, 0]], axis=1)
        corners, levels, keys = self.corners.copy(), self.levels.copy(), self.keys.copy()
        corners[first], levels[first], keys[first] = parents, levels[first] - 1, keys[first] & ~bit
        keep = np.ones(self.count, dtype=bool)
        keep[first + 1] = False
        return Forest(keys[keep], levels[keep], corners[keep], self.roots or self)

    def holding(self, points: np.ndarray) -> np.ndarray:
        """The leaf that holds each point, found by a walk across facets from that of the last."""
        return np.asarray(_walk(points, self._inverse, self.neighbours))

    @cached_property
    def _inverse(self) -> np.ndarray:
        """Matrices that give the coordinates c of a point: x = sum_j c_j vertex_j."""
        return np.linalg.inv(self.corners)

    def _bisected(self, marked: np.ndarray) -> Forest:
        """The marked leaves cut, nothing else."""
        copies = np.where(marked, 2, 1)
        origin = np.repeat(np.arange(self.count), copies)
        second = np.concatenate([[False], origin[1:] == origin[:-1]])
        cut = marked[origin]
        first = cut & ~second
        levels = self.levels[origin] + cut
        keys = self.keys[origin] + np.where(second, np.int64(1) << (DEEPEST - levels), 0)
        corners = self.corners[origin]
        parents = self.corners[marked]
        middle = normalised(parents[:, 0] + parents[:, 1])
        if self.dimension == 2:
            corners[first, 1] = middle
            corners[second, 0] = middle
        else:
            a, b, c = parents[:, 0], parents[:, 1], parents[:, 2]
            corners[first] = np.stack([c, a, middle], axis=1)
            corners[second] = np.stack([b, c, middle], axis=1)
        return Forest(keys, levels, corners, self.roots or self)

    def _balanced(self, marked: np.ndarray) -> np.ndarray:
        """Marks of arcs, and of those that would be left two levels behind a neighbour."""
        while True:
            after = self.levels + marked
            behind = ~marked & (after[self.neighbours].max(axis=1) > after + 1)
            if not behind.any():
                return marked
            marked = marked | behind

    def _cut_edges(self, marked: np.ndarray) -> np.ndarray:
        """Edges, by the vertex opposite, at whose midpoints there has to be a vertex.

        An edge is cut from both sides, and a triangle at its first edge before the others.
        """
        cut = np.zeros((self.count, 3), dtype=bool)
        cut[marked, 2] = True
        while True:
            across = cut | cut.ravel()[self.surface.across]
            across[:, 2] |= across[:, 0] | across[:, 1]
            if np.array_equal(across, cut):
                return cut
            cut = across

    def _removable(self, marked: np.ndarray) -> np.ndarray:
        """The first of each pair of siblings that can be coarsened."""
        d, levels = self.dimension, self.levels
        bit = np.int64(1) << np.maximum(DEEPEST - levels, 0)
        first = (levels > 0) & (self.keys & bit == 0)
        last = np.arange(self.count) == self.count - 1
        successor = np.minimum(np.arange(self.count) + 1, self.count - 1)
        first &= ~last & (levels[successor] == levels) & (self.keys[successor] == self.keys + bit)
        fine = marked & marked[successor]
        if d == 2:
            around = np.maximum(
                levels[self.neighbours].max(axis=1), levels[self.neighbours[successor]].max(axis=1)
            )
            return np.flatnonzero(first & fine & (around <= levels))
        cells = self.surface.cells
        vertices = len(self.surface.points)
        around = np.bincount(cells.ravel(), minlength=vertices)
        pairs = np.flatnonzero(first & fine)
        made = np.bincount(cells[pairs, 2], minlength=vertices)
        newest = cells[pairs, 2]
        return pairs[2 * made[newest] == around[newest]]


def _longest_edge_first(surface: Surface) -> np.ndarray:
    """Triangles turned so that their longest edge comes first.

    Edges of equal length are ordered by their vertices, so that no ring of triangles waits for
    one another.
    """
    cells = surface.cells
    ends = np.stack([cells[:, [0, 1]], cells[:, [1, 2]], cells[:, [2, 0]]], axis=1)
    low, high = ends.min(axis=2), ends.max(axis=2)
    length = np.linalg.norm(surface.points[low] - surface.points[high], axis=2)
    best = np.lexsort((high, low, length), axis=1)[:, -1]
    return np.take_along_axis(cells, (best[:, None] + np.arange(3)) % 3, axis=1)


@part
def _lowest(inverse, x):
    """The least coordinate of a point in a cell, and its vertex: >= 0 in the cell that holds it."""
    vertex, least = 0, np.inf
    for j in range(x.size):
        coordinate = 0.0
        for i in range(x.size):
            coordinate += x[i] * inverse[i, j]
        if coordinate < least:
            vertex, least = j, coordinate
    return vertex, least


@kernel
def _walk(points, inverse, neighbours):
    """The cell that holds each point: across facets that it lies behind, from that of the last."""
    cells = inverse.shape[0]
    found = np.empty(points.shape[0], dtype=np.int64)
    at = -1
    for p in range(points.shape[0]):
        x = points[p]
        steps = 0 if at >= 0 else cells
        while steps < cells:
            vertex, least = _lowest(inverse[at], x)
            if least >= 0.0:
                break
            at = neighbours[at, vertex]
            steps += 1
        if steps == cells:  # the first point, or one between cells, by rounding
            best = -np.inf
            for c in range(cells):
                _, least = _lowest(inverse[c], x)
                if least > best:
                    at, best = c, least
        found[p] = at
    return found
