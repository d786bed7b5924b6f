"""Sources in a tree with boxes, targets in tiles: sorted once; only masses change between steps.

Sources form a tree of three levels by kd bisection: leaves of LEAF points, nodes of BRANCH leaves,
tops of BRANCH nodes. Each group has a box around its points, and for the masses loaded its log mass
l and its mean point. Two bounds of its part of Z(w) = sum_j M_j exp(<w, y_j>) follow,

    <w, mean> + l  <=  log sum_(j in group) M_j exp(<w, y_j>)  <=  <w, c> + sum_i |<w, a_i>| + l,

from below by Jensen's inequality, from above by the box.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meanfield_pde.attention.sum.exponential import FAST, LOG2_E, NO_MASS, power_of_two
from meanfield_pde.errors import InputError
from meanfield_pde.support.kernels import kernel, part

# Sizes are compiled into the loops. 16 doubles are two vectors of AVX-512, enough independent sums
# to hide, with four of each, the latency of a fused multiply-add (4 cycles, 2 a cycle).
TILE = 16  # targets
LEAF = 16  # sources
BRANCH = 8  # leaves of a node, nodes of a top: a bound costs a twelfth of a leaf
NODE = BRANCH * LEAF
TOP = BRANCH * NODE
# Points whose boxes are made at once: arrays of 1.5 MB.
_CHUNK = 65_536
# Beyond this the rounding of a score, 1e-16 |w|, is 0.01: as large as what decides a softmax.
LARGEST_SCORE = 1e14

# Takes work and its items, and returns the rows of all items, whichever rank has made them.
Share = Callable[[Callable[[np.ndarray], np.ndarray], np.ndarray], np.ndarray]


def alone(work: Callable[[np.ndarray], np.ndarray], items: np.ndarray) -> np.ndarray:
    """Return the rows of all items, made here."""
    return work(items)


class Sources:
    """The points y_j, sorted into the tree once, and the log masses last loaded.

    Attributes:
        count, dimension: of the points.
        points: in the order of the tree, 3 x count, filled up to whole leaves.
        leaves, nodes, tops: number of groups on the three levels.
        on_sphere: whether every |y_j| is one to rounding.
        largest: the largest log mass loaded.
    """

    def __init__(self, points: np.ndarray) -> None:
        self.count, self.dimension = points.shape
        order = bisect(points, (TOP, NODE, LEAF))
        # The last leaf is filled up with copies of its last point, which never have any mass.
        added = -self.count % LEAF
        self._order = np.append(order, np.full(added, self.count, dtype=order.dtype))
        self.points = np.zeros((3, self.count + added))
        for start in range(0, self.count, _CHUNK):
            part = order[start : start + _CHUNK]
            self.points[: self.dimension, start : start + len(part)] = points[part].T
        self.points[: self.dimension, self.count :] = points[order[-1:]].T
        self._boxes = tuple(boxes(self.points.T, size) for size in (LEAF, NODE, TOP))
        self.leaves, self.nodes, self.tops = map(len, self._boxes)
        self.on_sphere = all(
            (np.abs(np.linalg.norm(points[start : start + _CHUNK], axis=1) - 1) < 1e-15).all()
            for start in range(0, self.count, _CHUNK)
        )
        self._group_log_mass = tuple(np.empty(len(box)) for box in self._boxes)
        self._group_mean = tuple(np.empty((3, len(box))) for box in self._boxes)
        self.largest = NO_MASS
        self.release()

    def load(self, log_masses: np.ndarray, share: Share = alone) -> None:
        """Take the log masses of all points, in the order in which these were given.

        Args:
            log_masses: of all points; what `room` returned, filled, is taken as it is.
            share: divides the summaries of the leaves, a row each, among ranks.
        """
        if log_masses is not self._room:
            self.room()[:] = log_masses
        np.maximum(self._given, NO_MASS, out=self._given)
        self.largest = float(self._given.max())
        log_mass, mean = self._group_log_mass, self._group_mean
        rows = share(self._summary, np.arange(self.leaves))
        log_mass[0][:], mean[0][:] = rows[:, 0], rows[:, 1:].T
        for level in (1, 2):
            summarise_nodes(log_mass[level - 1], mean[level - 1], log_mass[level], mean[level])

    def _summary(self, leaves: np.ndarray) -> np.ndarray:
        rows = np.empty((len(leaves), 4))
        summarise_leaves(self.points, (self._given, self._order), leaves, rows)
        return rows

    def room(self) -> np.ndarray:
        """Return an array for the log masses of all points, which need then not be copied."""
        self._given, self._sorted = np.full(self.count + 1, NO_MASS), np.empty(0)
        self._room = self._given[:-1]
        return self._room

    def release(self) -> None:
        """Forget the log masses; sums are taken once others are loaded."""
        self._given = self._sorted = self._room = np.empty(0)

    def log_masses(self) -> np.ndarray:
        """Return the log masses in the order of the tree; sorted when first asked for."""
        if not len(self._sorted):
            self._sorted = np.empty(len(self._order))
            for start in range(0, len(self._order), _CHUNK):
                part = slice(start, start + _CHUNK)
                self._sorted[part] = self._given[self._order[part]]
        return self._sorted

    def scaled_masses(self, wanted: slice) -> np.ndarray:
        """Return M_j / max M in the order of the tree; only those of a slice, zeros elsewhere."""
        masses = np.zeros(len(self._order))
        masses[wanted] = np.exp(self._given[self._order[wanted]] - self.largest)
        return masses

    @property
    def total(self) -> float:
        """The sum of all masses, divided by the largest."""
        return float(np.exp(self._group_log_mass[-1] - self.largest).sum())

    def log_z_from_below(self, scores: np.ndarray, tiles: np.ndarray) -> np.ndarray:
        """Return lower bounds of log Z for the targets of the tiles listed, tiles x TILE.

        By Jensen's inequality in every group k of the top level, of mass M_k and mean point c_k,

            Z(w) >= sum_k M_k exp(<w, c_k>).
        """
        columns = (tiles[:, None] * TILE + np.arange(TILE)).ravel()
        exponent = scores[:, columns].T @ self._group_mean[2] + self._group_log_mass[2]
        largest = exponent.max(axis=1)
        total = np.exp(exponent - largest[:, None]).sum(axis=1)
        return (largest + np.log(total)).reshape(-1, TILE)

    def tree(self) -> tuple[Any, ...]:
        """Return the arrays of compiled loops.

        Points; log masses in the order given, and the order of the tree; and for the levels leaves,
        nodes, tops, as tuples: means, boxes, log masses.
        """
        return (
            self.points,
            (self._given, self._order),
            self._group_mean,
            self._boxes,
            self._group_log_mass,
        )


class Targets:
    """Targets with scores w, sorted into tiles of TILE by the points `where`.

    Attributes:
        count: of the targets.
        order: numbers of the targets, tile by tile, filled up to whole tiles.
        tiles: number of tiles.
        scores: w in this order, 3 x targets; or of the tiles kept alone.
        longest: the largest |w|.
    """

    def __init__(self, where: np.ndarray, scores: np.ndarray, *, nested: bool = False) -> None:
        """Sort them; `nested` makes runs of TOP targets compact too, for blocks of tiles."""
        check_scores(scores)
        sizes = (TOP, TILE) if nested else (TILE,)
        order = bisect(where, sizes)
        self.count = len(where)
        # The last tile is filled up with copies of its last target.
        self.order = np.append(order, np.full(-len(order) % TILE, order[-1]))
        self.tiles = len(self.order) // TILE
        self.scores = np.zeros((3, len(self.order)))
        self.scores[: scores.shape[1]] = scores[self.order].T
        self.longest = float(np.linalg.norm(self.scores, axis=0).max())
        self._place: np.ndarray | None = None

    def keep(self, tiles: np.ndarray) -> None:
        """Keep the scores of these tiles; no others are asked for from now on."""
        kept = np.unique(tiles)
        self.scores = self.scores.reshape(3, -1, TILE).take(kept, axis=1).reshape(3, -1)
        self._place = np.full(self.tiles, -1)
        self._place[kept] = np.arange(len(kept))

    def of(self, tiles: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return `scores`, and the places there of the tiles listed."""
        return self.scores, tiles if self._place is None else self._place[tiles]

    def lengths(self, tiles: np.ndarray) -> np.ndarray:
        """Return |w| of the targets of the tiles listed, tiles x TILE."""
        scores, places = self.of(tiles)
        found = np.linalg.norm(scores.reshape(3, -1, TILE).take(places, axis=1), axis=0)
        return np.asarray(found)


def check_scores(scores: np.ndarray) -> None:
    """Raise InputError unless all scores are finite and at most LARGEST_SCORE."""
    largest = float(np.abs(scores).max(initial=0.0))
    if not largest <= LARGEST_SCORE:
        raise InputError(
            f"the scores beta B^T x must be finite and at most {LARGEST_SCORE:g}, got "
            f"{largest:g}; for lower temperatures set beta = inf"
        )


def bisect(points: np.ndarray, sizes: tuple[int, ...]) -> np.ndarray:
    """Return an order of the points in which runs of sizes[0] are compact, in these of sizes[1].

    Each size must divide the one before. Points with equal coordinates are ordered by number.
    """
    # Every rank keeps an order of all sources, so that half the bytes count.
    points, order = np.ascontiguousarray(points), np.arange(len(points), dtype=np.int32)
    within = len(points)
    for size in sizes:
        _grouped(points, order, within, size)
        within = size
    return order


@kernel
def _grouped(points, order, within, size):
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
def _select(points, axis, order, low, high, middle):
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
def _before(points, axis, one, other):
    a, b = points[one, axis], points[other, axis]
    return a < b or (a == b and one < other)


def boxes(points: np.ndarray, size: int) -> np.ndarray:
    """Return a box around each run of `size` points, as rows (c, a_1, a_2, a_3) of 12 numbers.

    Every point of the run is c + sum_i t_i a_i with |t_i| <= 1, hence

        <w, y> <= <w, c> + sum_i |<w, a_i>|.

    The axes are the principal ones: a patch of the sphere is flat, and for w along its normal,
    where the sums are largest, the bound is far below that of a ball.
    """
    found = np.empty((-(-len(points) // size), 12))
    each = max(1, _CHUNK // size)
    for first in range(0, len(found), each):
        part = points[first * size : (first + each) * size]
        filled = np.concatenate([part, np.repeat(part[-1:], -len(part) % size, axis=0)])
        found[first : first + each] = _boxes(filled.reshape(-1, size, 3))
    return found


def _boxes(grouped: np.ndarray) -> np.ndarray:
    offset = grouped - grouped.mean(axis=1, keepdims=True)
    _, axes = np.linalg.eigh(np.swapaxes(offset, 1, 2) @ offset)
    along = grouped @ axes
    low, high = along.min(axis=1), along.max(axis=1)
    centre = np.einsum("gik,gk->gi", axes, (low + high) / 2)
    # The rounding of the products above must not leave a point outside.
    half = (high - low) / 2 + 8 * np.finfo(float).eps * np.abs(grouped).max(axis=(1, 2))[:, None]
    scaled = np.swapaxes(axes * half[:, None, :], 1, 2)
    return np.concatenate([centre, scaled.reshape(-1, 9)], axis=1)


@kernel(fastmath=FAST)
def summarise_leaves(points, given, leaves, rows):
    """Write rows (log sum_j M_j, sum_j M_j y_j / sum_j M_j) of the leaves listed.

    `given` holds the log masses in the order of the user, and the order of the tree.
    """
    log_masses, order = given
    own, share = np.empty(LEAF), np.empty(LEAF)
    for k in range(leaves.size):
        start = leaves[k] * LEAF
        largest = NO_MASS
        for j in range(LEAF):
            own[j] = log_masses[order[start + j]]
            largest = max(largest, own[j])
        total, x, y, z = 0.0, 0.0, 0.0, 0.0
        for j in range(LEAF):
            share[j] = power_of_two((own[j] - largest) * LOG2_E)
            total += share[j]
            x += share[j] * points[0, start + j]
            y += share[j] * points[1, start + j]
            z += share[j] * points[2, start + j]
        rows[k, 0] = largest + math.log(total)
        rows[k, 1], rows[k, 2], rows[k, 3] = x / total, y / total, z / total


@kernel
def summarise_nodes(child_log_mass, child_mean, log_mass, mean):
    """Write the same for the nodes of the level above."""
    for k in range(log_mass.size):
        start, stop = k * BRANCH, min((k + 1) * BRANCH, child_log_mass.size)
        largest = child_log_mass[start]
        for j in range(start + 1, stop):
            largest = max(largest, child_log_mass[j])
        total = 0.0
        for i in range(3):
            mean[i, k] = 0.0
        for j in range(start, stop):
            share = math.exp(child_log_mass[j] - largest)
            total += share
            for i in range(3):
                mean[i, k] += share * child_mean[i, j]
        for i in range(3):
            mean[i, k] /= total
        log_mass[k] = largest + math.log(total)
