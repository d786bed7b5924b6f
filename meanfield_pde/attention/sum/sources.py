"""Sources in a tree and targets in tiles, sorted once; only the masses change between steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from meanfield_pde.attention.sum.harmonics import GROUPS
from meanfield_pde.attention.sum.tiles import (
    NO_MASS,
    summarise_leaves,
    summarise_nodes,
    tile_sums,
)
from meanfield_pde.attention.sum.tree import LEAF, NODE, TILE, TOP, bisect, boxes
from meanfield_pde.errors import InputError
from meanfield_pde.support.threads import in_parts

# Beyond this the rounding of a score is as large as the differences that decide a softmax.
LARGEST_SCORE = 1e14
# From so many targets on, tiles are nested in larger groups.
MANY = 8192


# Takes work and its items; gives the rows of all items, whoever has done them.
Share = Callable[[Callable[[np.ndarray], np.ndarray], np.ndarray], np.ndarray]


def alone(work: Callable[[np.ndarray], np.ndarray], items: np.ndarray) -> np.ndarray:
    """Everything is done here."""
    return work(items)


class Sources:
    """The points y_j, sorted into the tree once, and the masses last loaded.

    Attributes:
        count, dimension: of the points given.
        leaves, nodes, tops: numbers of groups of the three levels.
        on_sphere: whether every |y_j| is one to rounding.
        largest: the largest log mass loaded.
    """

    def __init__(self, points: np.ndarray) -> None:
        self.count, self.dimension = points.shape
        order = bisect(points, (TOP, NODE, LEAF))
        # The last leaf is filled up with copies of its last point, which never have any mass.
        self._order = np.append(order, np.full(-self.count % LEAF, self.count))
        ordered = np.zeros((self.count, 3))
        ordered[:, : self.dimension] = points[order]
        padded = np.concatenate([ordered, np.repeat(ordered[-1:], -self.count % LEAF, axis=0)])
        self.points = np.ascontiguousarray(padded.T)
        self._boxes = tuple(boxes(ordered, size) for size in (LEAF, NODE, TOP))
        self.leaves, self.nodes, self.tops = map(len, self._boxes)
        self.on_sphere = bool((np.abs(np.linalg.norm(points, axis=1) - 1) < 1e-15).all())
        self._given = np.full(self.count + 1, NO_MASS)
        self._group_log_mass = tuple(np.empty(len(box)) for box in self._boxes)
        self._group_mean = tuple(np.empty((3, len(box))) for box in self._boxes)
        self._log_masses, self._in_order = np.empty(len(self._order)), False
        self.largest = NO_MASS

    def load(self, log_masses: np.ndarray, share: Share = alone) -> None:
        """Take the logs of the masses, in the order of the points given.

        Args:
            log_masses: of all points.
            share: has the leaves, of which each has a row of its own, summarised among ranks.
        """
        np.maximum(log_masses, NO_MASS, out=self._given[:-1])
        self._in_order = False
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

    def log_masses(self) -> np.ndarray:
        """Those loaded in the order of the tree, put there when they are first asked for."""
        if not self._in_order:
            np.take(self._given, self._order, out=self._log_masses)
            self._in_order = True
        return self._log_masses

    def scaled_masses(self, groups: np.ndarray) -> np.ndarray:
        """The masses loaded as parts of the largest, in the order of the tree.

        Only those of the groups of an expansion that are listed, a range; zeros elsewhere.
        """
        masses = np.zeros(len(self._order))
        if groups.size:
            share = -(-len(masses) // GROUPS)
            part = slice(groups[0] * share, (groups[-1] + 1) * share)
            masses[part] = np.exp(self._given[self._order[part]] - self.largest)
        return masses

    @property
    def total(self) -> float:
        """The sum of all masses, as a part of the largest."""
        return float(np.exp(self._group_log_mass[-1] - self.largest).sum())

    def sums(
        self, scores: np.ndarray, tiles: np.ndarray, tolerance: float, threads: int = 1
    ) -> np.ndarray:
        """Rows m_x, m_y, m_z, log Z for the targets of the tiles listed; scores are 3 x N."""
        out = np.empty((4, len(tiles) * TILE))
        visits = np.empty((len(tiles), 2))
        tree, log_masses, slack = self.tree(), self.log_masses(), self._slack(tolerance)

        def do(part: tuple[int, int]) -> None:
            tile_sums(part, scores, tiles, tree, log_masses, slack, True, out, visits)

        in_parts(do, len(tiles), threads)
        return out

    def survey(
        self, scores: np.ndarray, tiles: np.ndarray, tolerance: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """For the tiles listed: leaves visited and nodes looked at; log Z from below, by target."""
        out, visits = np.empty((4, len(tiles) * TILE)), np.empty((len(tiles), 2))
        everything, slack = (0, len(tiles)), self._slack(tolerance)
        tile_sums(
            everything, scores, tiles, self.tree(), self._log_masses, slack, False, out, visits
        )
        return visits, out[3].reshape(-1, TILE)

    @property
    def levels_from_below(self) -> tuple[int, ...]:
        """Levels whose groups are few enough for `log_z_from_below`, the quickest first."""
        return (2, 1) if self.nodes <= MANY else (2,)

    def log_z_from_below(self, scores: np.ndarray, tiles: np.ndarray, level: int) -> np.ndarray:
        """Jensen's bound of log Z from all groups of a level, tiles x TILE.

        Unlike those of `survey`, which take the best group alone, it does not fall with the mass of
        a group.
        """
        columns = (tiles[:, None] * TILE + np.arange(TILE)).ravel()
        exponent = scores[:, columns].T @ self._group_mean[level] + self._group_log_mass[level]
        largest = exponent.max(axis=1)
        total = np.exp(exponent - largest[:, None]).sum(axis=1)
        return (largest + np.log(total)).reshape(-1, TILE)

    def _slack(self, tolerance: float) -> float:
        return math.log(tolerance / (2 * self.leaves))

    def tree(self) -> tuple[Any, ...]:
        """What the compiled loops take; the log masses with their order, as they were given."""
        return (
            self.points,
            (self._given, self._order),
            self._group_mean,
            self._boxes,
            self._group_log_mass,
        )


class Targets:
    """Targets sorted into tiles by the points `where`, with their scores w."""

    def __init__(self, where: np.ndarray, scores: np.ndarray) -> None:
        check_scores(scores)
        # Many targets are also taken in blocks, which are runs of tiles.
        sizes = (TILE,) if len(where) < MANY else (TOP, TILE)
        order = bisect(where, sizes)
        self.count = len(where)
        # The last tile is filled up with copies of its last target.
        self.order = np.append(order, np.full(-len(order) % TILE, order[-1]))
        self.tiles = len(self.order) // TILE
        self.scores = np.zeros((3, len(self.order)))
        self.scores[: scores.shape[1]] = scores[self.order].T
        self.lengths = np.linalg.norm(self.scores, axis=0)


def check_scores(scores: np.ndarray) -> None:
    """InputError unless the scores are finite numbers whose differences mean something."""
    largest = float(np.abs(scores).max(initial=0.0))
    if not largest <= LARGEST_SCORE:
        raise InputError(
            f"the scores beta B^T x must be finite and at most {LARGEST_SCORE:g}, got "
            f"{largest:g}; for lower temperatures set beta = inf"
        )
