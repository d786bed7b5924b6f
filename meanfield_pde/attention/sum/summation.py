"""The attention sum for fixed sources and targets, by whichever way is quicker.

Work is handed out in tiles of targets and groups of sources, and does not depend on how many
threads or ranks there are: the results are the same bit for bit on every number of either.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from meanfield_pde.attention.sum import cost_model
from meanfield_pde.attention.sum.harmonics import GROUPS
from meanfield_pde.attention.sum.low_rank import Expansion, all_groups, degree_for
from meanfield_pde.attention.sum.series import Series, ways
from meanfield_pde.attention.sum.sources import Share, Sources, Targets, alone, check_scores
from meanfield_pde.attention.sum.tree import TILE
from meanfield_pde.errors import InputError
from meanfield_pde.support.threads import useful_threads

# Up to so many terms the plain sum is done before sources and targets would have been sorted.
FEW_TERMS = 500_000


def _evenly(count: int, most: int) -> np.ndarray:
    """At most so many of the numbers below `count`."""
    return np.linspace(0, max(0, count - 1), min(most, count)).astype(np.int64)


class AttentionSum:
    """Softmax means and log Z at fixed targets for masses at fixed sources.

    Usage: `load` the masses; if `estimate.use_low_rank`, add up the `moments` of all groups; then
    the `sums` of all tiles, in any parts. `evaluate` does all of it.
    """

    def __init__(
        self, points: np.ndarray, where: np.ndarray, scores: np.ndarray, tolerance: float
    ) -> None:
        self.sources = Sources(points)
        self.targets = Targets(where, scores)
        self._tolerance = tolerance
        self._tiles = _evenly(self.targets.tiles, cost_model.SURVEYED)
        self._expansion: Expansion | None = None
        dimension = self.sources.dimension
        longest = float(self.targets.lengths.max())
        if self.sources.on_sphere and dimension in (2, 3):
            degree = degree_for(longest, tolerance, dimension)
            if degree is not None:
                self._expansion = Expansion(dimension, degree, longest)
        self._ways = ways(self.sources, self.targets, tolerance)
        self._series: Series | None = None
        self.estimate: cost_model.Estimate

    @property
    def tiles_at_once(self) -> int:
        """Tiles that `sums` wants together: runs of so many, from a multiple of it on."""
        if self._series is not None and self.estimate.use_series:
            return self._series.tiles
        return 1

    @property
    def many(self) -> bool:
        """Whether there is so much to survey that it is worth sharing out."""
        return bool(self._ways)

    def load(self, log_masses: np.ndarray, share: Share = alone) -> None:
        """Take the logs of the masses of all sources, and choose how to compute their sums.

        Args:
            log_masses: of all sources.
            share: has what makes a row for each of many items done among ranks.
        """
        sources, targets, expansion = self.sources, self.targets, self._expansion
        sources.load(log_masses, share)
        if expansion is not None:
            # Z e^-r, relative to the largest mass as the expansion has it, must be at least this.
            self._smallest = 2 * expansion.error / self._tolerance * sources.total
        visits, looked_at, untrusted = share(self._survey, self._tiles).T
        self.estimate = cost_model.estimate(
            sources=sources.count,
            leaves=sources.leaves,
            tops=sources.tops,
            tiles=targets.tiles,
            targets=targets.count,
            visits=float(visits.mean()),
            looked_at=float(looked_at.mean()),
            terms=None if expansion is None else expansion.terms,
            degree=None if expansion is None else expansion.degree,
            untrusted=float(untrusted.mean()),
        )
        self._choose_series(float(visits.mean()), share)

    def _choose_series(self, visits: float, share: Share) -> None:
        """Take the series that are quickest by a survey of some blocks, if any may be quick enough.

        Args:
            visits: leaves that a tile visits, on average.
            share: as for `load`.
        """
        self._series, best = None, math.inf
        for series in self._ways:
            if series.least_cost(visits) >= self.estimate.chosen:
                continue
            series.load(share)
            cost = share(series.costs, _evenly(series.blocks, cost_model.SURVEYED_BLOCKS))[:, 0]
            left = cost < 0
            cost[left] = self.estimate.tiles / series.blocks
            work = float(cost.mean()) * series.blocks
            if work < best:
                self._series, best = series, work
                self.estimate = replace(self.estimate, series=work)
            # Where nodes are too coarse for most of the blocks, sources may do.
            if left.mean() < 0.5:
                break

    def _survey(self, tiles: np.ndarray) -> np.ndarray:
        """Of each tile the leaves it visits, the nodes it looks at, and whether to be trusted.

        The last is 1 if it has a target that the expansion cannot be trusted with.
        """
        visits, log_z = self.sources.survey(self.targets.scores, tiles, self._tolerance)
        return np.column_stack([visits, self._untrusted(tiles, log_z)])

    def _untrusted(self, tiles: np.ndarray, log_z: np.ndarray) -> np.ndarray:
        """Whether the expansion is too coarse for a tile, by bounds of log Z from below."""
        if self._expansion is None:
            return np.zeros(len(tiles), dtype=bool)
        sources, targets = self.sources, self.targets
        enough = math.log(self._smallest) + sources.largest
        enough = enough + targets.lengths.reshape(-1, TILE)[tiles]
        low = (log_z < enough).any(axis=1)
        # Better bounds, which take longer, where they may still show that it is fine.
        for level in sources.levels_from_below if self._series is not None else ():
            if low.any():
                found = sources.log_z_from_below(targets.scores, tiles[low], level)
                low[low] = (np.maximum(log_z[low], found) < enough[low]).any(axis=1)
        return low

    def moments(self, groups: np.ndarray) -> np.ndarray:
        """The moments of the groups of sources listed, for the expansion; to be added up."""
        assert self._expansion is not None
        masses = self.sources.scaled_masses(groups)
        threads = self._threads(len(groups) / GROUPS)
        return self._expansion.moments(self.sources.points, masses, groups, threads)

    def sums(self, tiles: np.ndarray, total: np.ndarray | None) -> np.ndarray:
        """Rows m_x, m_y, m_z, log Z for the targets of the tiles listed.

        Args:
            tiles: numbers of the tiles.
            total: the sum of all moments, for the expansion; None if another way is chosen.
        """
        if total is not None and self._expansion is not None:
            return self._sums_by_expansion(self._expansion, tiles, total)
        threads = self._threads(len(tiles) / self.targets.tiles)
        if self._series is not None and self.estimate.use_series:
            out, done = self._series.sums(tiles, threads)
            return self._left_to_tiles(out, tiles, done)
        return self.sources.sums(self.targets.scores, tiles, self._tolerance, threads)

    def _sums_by_expansion(
        self, expansion: Expansion, tiles: np.ndarray, total: np.ndarray
    ) -> np.ndarray:
        threads = self._threads(len(tiles) / self.targets.tiles)
        out = expansion.sums(self.targets.scores, tiles, total, threads)
        trusted = (out[3] >= self._smallest).reshape(-1, TILE).all(axis=1)
        z = np.maximum(out[3], self._smallest)
        out[:3] /= z
        lengths = self.targets.lengths.reshape(-1, TILE)[tiles].ravel()
        out[3] = np.log(z) + lengths + self.sources.largest
        # Where Z is small beside e^r few sources matter, and tiles are at their best.
        return self._left_to_tiles(out, tiles, trusted)

    def _left_to_tiles(self, out: np.ndarray, tiles: np.ndarray, done: np.ndarray) -> np.ndarray:
        """Fill in the tiles that are not done."""
        if not done.all():
            threads = self._threads(len(tiles) / self.targets.tiles)
            scores, left = self.targets.scores, tiles[~done]
            others = self.sources.sums(scores, left, self._tolerance, threads)
            out.reshape(4, -1, TILE)[:, ~done] = others.reshape(4, -1, TILE)
        return out

    def _threads(self, share: float) -> int:
        """No more threads than a share of the work keeps busy; they do not change the results."""
        return useful_threads(share * self.estimate.chosen)

    def evaluate(self, log_masses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means, N x d, and log Z, in the order of the targets given."""
        self.load(log_masses)
        total = None
        if self.estimate.use_low_rank:
            total = self.moments(all_groups()).sum(axis=0)
        sums = self.sums(np.arange(self.targets.tiles), total)
        result = np.empty((4, self.targets.count))
        result[:, self.targets.order] = sums
        return np.ascontiguousarray(result[: self.sources.dimension].T), result[3]


def softmax_mean(
    scores: np.ndarray, points: np.ndarray, log_masses: np.ndarray, *, tolerance: float = 1e-12
) -> np.ndarray:
    """Softmax mean m_i for each row w_i of scores; points are M x d, log_masses M numbers.

    The error of m_i is at most tolerance (plus rounding) times the largest |y_j|.
    """
    return softmax(scores, points, log_masses, tolerance=tolerance)[0]


def log_partition(
    scores: np.ndarray, points: np.ndarray, log_masses: np.ndarray, *, tolerance: float = 1e-12
) -> np.ndarray:
    """The logarithm of Z_i, to `tolerance`; arguments as for `softmax_mean`."""
    return softmax(scores, points, log_masses, tolerance=tolerance)[1]


def softmax(
    scores: np.ndarray, points: np.ndarray, log_masses: np.ndarray, *, tolerance: float = 1e-12
) -> tuple[np.ndarray, np.ndarray]:
    """Softmax means and log Z at once; arguments as for `softmax_mean`."""
    points = np.atleast_2d(np.asarray(points, dtype=float))
    if scores.shape[1] != points.shape[1] or log_masses.shape != (len(points),):
        raise InputError(
            f"targets, points and masses do not fit together: {scores.shape}, {points.shape} and "
            f"{log_masses.shape}"
        )
    if not (np.isfinite(points).all() and (log_masses < np.inf).all()):
        raise InputError("the points and masses of an attention sum must be finite numbers")
    if not (log_masses > -np.inf).any():
        raise InputError("an attention sum needs at least one mass above zero")
    check_scores(scores)
    if points.shape[1] > 3 or len(scores) * len(points) <= FEW_TERMS:
        return plain_softmax(scores, points, log_masses)
    if not len(scores):
        return np.empty((0, points.shape[1])), np.empty(0)
    return AttentionSum(points, scores, scores, tolerance).evaluate(log_masses)


def plain_softmax(
    scores: np.ndarray, points: np.ndarray, log_masses: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """All terms of the sums, in chunks of targets: for few points, or in higher dimensions."""
    mean = np.empty((len(scores), points.shape[1]))
    log_sum = np.empty(len(scores))
    chunk = max(1, 2_000_000 // len(points))
    for start in range(0, len(scores), chunk):
        part = slice(start, start + chunk)
        exponent = scores[part] @ points.T + log_masses
        largest = exponent.max(axis=1, keepdims=True)
        weight = np.exp(exponent - largest)
        total = weight.sum(axis=1)
        mean[part] = weight @ points / total[:, None]
        log_sum[part] = largest[:, 0] + np.log(total)
    return mean, log_sum
