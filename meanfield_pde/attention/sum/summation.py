"""The attention sum for fixed sources and targets, by whichever way is quickest.

Work is handed out in tiles of targets and groups of sources, and does not depend on how many
threads or ranks there are: the results are the same bit for bit on every number of either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from meanfield_pde.attention.sum.cluster import ClusterExpansion, ClusterSettings, expansions
from meanfield_pde.attention.sum.cost import Costs, Estimate, estimate
from meanfield_pde.attention.sum.direct import direct_sums, plain_sums, survey
from meanfield_pde.attention.sum.harmonics import (
    GROUPS,
    HarmonicExpansion,
    HarmonicSettings,
    all_groups,
    degree_for,
    range_of,
)
from meanfield_pde.attention.sum.tree import TILE, Share, Sources, Targets, alone, check_scores
from meanfield_pde.errors import InputError
from meanfield_pde.support.threads import WORK_PER_THREAD, useful_threads


@dataclass(frozen=True)
class SumSettings:
    """Settings of all ways of summing.

    Attributes:
        few_terms: up to this many terms, sources x targets, numpy adds them all up before sources
            and targets would have been sorted.
        work_per_thread: nanoseconds of work for which a thread is woken.
        harmonics: of the expansion in harmonics.
        clusters: of the cluster expansion.
        costs: of the operations, by which one is chosen.
    """

    few_terms: int = 500_000
    work_per_thread: float = WORK_PER_THREAD
    harmonics: HarmonicSettings = field(default_factory=HarmonicSettings)
    clusters: ClusterSettings = field(default_factory=ClusterSettings)
    costs: Costs = field(default_factory=Costs)


DEFAULTS = SumSettings()


class AttentionSum:
    """Softmax means and log Z at fixed targets for masses at fixed sources.

    Usage: `load` the masses; if `estimate.use_harmonics`, add up the `moments` of all groups; then
    take the `sums` of all tiles, in any parts. `evaluate` does all of it.

    Attributes:
        sources, targets: sorted.
        estimate: of the work for the masses loaded last.
    """

    estimate: Estimate

    def __init__(
        self,
        points: np.ndarray,
        where: np.ndarray,
        scores: np.ndarray,
        tolerance: float,
        settings: SumSettings = DEFAULTS,
    ) -> None:
        """Sort sources and targets.

        Args:
            points: sources, N x d with d <= 3.
            where: targets, by whose places they are sorted, M x d.
            scores: their w, M x d.
            tolerance: bound of the error of m, relative to the largest |y_j|, and of log Z.
            settings: of all ways.
        """
        self._settings, self._tolerance = settings, tolerance
        self.sources = Sources(points)
        nested = len(where) >= settings.clusters.fewest_points
        self.targets = Targets(where, scores, nested=nested)
        self._tiles = _evenly(self.targets.tiles, settings.costs.surveyed_tiles)
        self._harmonics: HarmonicExpansion | None = None
        dimension = self.sources.dimension
        longest = self.targets.longest
        if self.sources.on_sphere and dimension in (2, 3):
            degree = degree_for(longest, tolerance, dimension, settings.harmonics)
            if degree is not None:
                self._harmonics = HarmonicExpansion(dimension, degree, longest, settings.harmonics)
        self._expansions = expansions(
            self.sources, self.targets, tolerance, settings.clusters, settings.costs
        )
        self._clusters: ClusterExpansion | None = None

    @property
    def tiles_at_once(self) -> int:
        """The tiles that `sums` takes together: runs of this many, from a multiple of it on."""
        if self._clusters is not None and self.estimate.use_clusters:
            return self._clusters.tiles
        return 1

    def keep(self, tiles_of: Callable[[int], np.ndarray]) -> None:
        """Keep the scores of what this rank surveys, and of the tiles that it takes the sums of.

        Args:
            tiles_of: these, by the length of the runs in which tiles are dealt.
        """
        dealt = [tiles_of(run) for run in sorted({1, *(one.tiles for one in self._expansions)})]
        surveyed = [one.tiles_of(self._surveyed(one)) for one in self._expansions]
        self.targets.keep(np.concatenate([self._tiles, *surveyed, *dealt]))

    @property
    def many(self) -> bool:
        """Whether surveys are worth dividing among ranks."""
        return bool(self._expansions)

    def load(self, log_masses: np.ndarray, share: Share = alone) -> None:
        """Take the log masses of all sources, and choose how to compute their sums.

        Args:
            log_masses: of all sources.
            share: divides the making of rows, one for each of many items, among ranks.
        """
        sources, targets, harmonics = self.sources, self.targets, self._harmonics
        sources.load(log_masses, share)
        if harmonics is not None:
            # Z e^-r, in units of the largest mass, must be at least this.
            self._smallest = 2 * harmonics.error / self._tolerance * sources.total
        visits, bounded, untrusted = share(self._survey, self._tiles).T
        self.estimate = estimate(
            self._settings.costs,
            sources=sources.count,
            leaves=sources.leaves,
            tops=sources.tops,
            tiles=targets.tiles,
            targets=targets.count,
            visits=float(visits.mean()),
            bounded=float(bounded.mean()),
            terms=None if harmonics is None else harmonics.terms,
            degree=None if harmonics is None else harmonics.degree,
            untrusted=float(untrusted.mean()),
        )
        self._choose_clusters(float(visits.mean()), share)

    def _choose_clusters(self, visits: float, share: Share) -> None:
        """Take the cluster expansion that does most blocks of a survey, if it may be quick enough.

        Args:
            visits: leaves that a tile visits, on average.
            share: as for `load`.
        """
        self._clusters = None
        for clusters in self._expansions:
            if clusters.least_cost(visits) >= self.estimate.chosen:
                continue
            clusters.load(share)
            cost = share(clusters.costs, self._surveyed(clusters))[:, 0]
            left = cost < 0
            # Blocks left to the direct sum cost more than that; proxy points, which come first, may
            # be too coarse where sources are not.
            if left.mean() < 0.5:
                cost[left] = self.estimate.direct / clusters.blocks
                work = float(cost.mean()) * clusters.blocks
                self._clusters = clusters
                self.estimate = replace(self.estimate, clusters=work)
                return

    def _surveyed(self, clusters: ClusterExpansion) -> np.ndarray:
        """Return the blocks whose costs are looked at."""
        return _evenly(clusters.blocks, self._settings.costs.surveyed_blocks)

    def _survey(self, tiles: np.ndarray) -> np.ndarray:
        """Return rows: leaves visited, nodes bounded, 1 if harmonics are not accurate enough."""
        visits, log_z = survey(self.sources, *self.targets.of(tiles), self._tolerance)
        return np.column_stack([visits, self._untrusted(tiles, log_z)])

    def _untrusted(self, tiles: np.ndarray, log_z: np.ndarray) -> np.ndarray:
        """Return whether harmonics may be too coarse for a tile, by lower bounds of log Z."""
        if self._harmonics is None:
            return np.zeros(len(tiles), dtype=bool)
        sources, targets = self.sources, self.targets
        enough = math.log(self._smallest) + sources.largest + targets.lengths(tiles)
        low = (log_z < enough).any(axis=1)
        # Bounds by one group alone fall with its share of the mass: with many sources, by all tops.
        if self.many and low.any():
            found = sources.log_z_from_below(*targets.of(tiles[low]))
            low[low] = (np.maximum(log_z[low], found) < enough[low]).any(axis=1)
        return low

    def moments(self, groups: np.ndarray) -> np.ndarray:
        """Return the harmonic moments of the groups of sources listed, a range; to be added up."""
        assert self._harmonics is not None
        count = self.sources.points.shape[1]
        masses = self.sources.scaled_masses(range_of(groups, count))
        threads = self._threads(len(groups) / GROUPS)
        return self._harmonics.moments(self.sources.points, masses, groups, threads)

    def sums(self, tiles: np.ndarray, total: np.ndarray | None) -> np.ndarray:
        """Return rows m_x, m_y, m_z, log Z for the targets of the tiles listed.

        Args:
            tiles: numbers of the tiles.
            total: the sum of all moments for harmonics; None if another way is chosen.
        """
        if total is not None and self._harmonics is not None:
            return self._by_harmonics(self._harmonics, tiles, total)
        if self._clusters is not None and self.estimate.use_clusters:
            threads = self._threads(len(tiles) / self.targets.tiles)
            return self._fill_in(*self._clusters.sums(tiles, threads), tiles)
        return self._directly(tiles, len(tiles))

    def _by_harmonics(
        self, harmonics: HarmonicExpansion, tiles: np.ndarray, total: np.ndarray
    ) -> np.ndarray:
        threads = self._threads(len(tiles) / self.targets.tiles)
        out = harmonics.sums(*self.targets.of(tiles), total, threads)
        trusted = (out[3] >= self._smallest).reshape(-1, TILE).all(axis=1)
        z = np.maximum(out[3], self._smallest)
        out[:3] /= z
        out[3] = np.log(z) + self.targets.lengths(tiles).ravel() + self.sources.largest
        # Where Z is small beside e^r few sources matter, and the direct sum is at its best.
        return self._fill_in(out, trusted, tiles)

    def _fill_in(self, out: np.ndarray, done: np.ndarray, tiles: np.ndarray) -> np.ndarray:
        """Write the direct sums of the tiles that are not done."""
        if not done.all():
            others = self._directly(tiles[~done], len(tiles))
            out.reshape(4, -1, TILE)[:, ~done] = others.reshape(4, -1, TILE)
        return out

    def _directly(self, tiles: np.ndarray, share: int) -> np.ndarray:
        """Return direct sums, on as many threads as the work of `share` tiles keeps busy."""
        threads = self._threads(share / self.targets.tiles)
        return direct_sums(self.sources, *self.targets.of(tiles), self._tolerance, threads)

    def _threads(self, share: float) -> int:
        """Return how many threads a share of the work keeps busy; results do not depend on it."""
        return useful_threads(share * self.estimate.chosen, self._settings.work_per_thread)

    def evaluate(self, log_masses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means, N x d, and log Z, in the order of the targets given."""
        self.load(log_masses)
        total = None
        if self.estimate.use_harmonics:
            total = self.moments(all_groups()).sum(axis=0)
        sums = self.sums(np.arange(self.targets.tiles), total)
        result = np.empty((4, self.targets.count))
        result[:, self.targets.order] = sums
        return np.ascontiguousarray(result[: self.sources.dimension].T), result[3]


def _evenly(count: int, most: int) -> np.ndarray:
    """Return `most` of the numbers below `count`, or all, spread evenly."""
    return np.linspace(0, count - 1, min(most, count)).astype(np.int64)


def softmax(
    scores: np.ndarray,
    points: np.ndarray,
    log_masses: np.ndarray,
    *,
    tolerance: float = 1e-12,
    settings: SumSettings = DEFAULTS,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the softmax mean m_i and log Z_i for each row w_i of scores.

    The errors are at most the tolerance (plus rounding), of m_i times the largest |y_j|.

    Args:
        scores: N x d.
        points: y_j, M x d.
        log_masses: M numbers.
        tolerance: bound on the errors.
        settings: of the ways to sum.
    """
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
    if points.shape[1] > 3 or len(scores) * len(points) <= settings.few_terms:
        return plain_softmax(scores, points, log_masses)
    if not len(scores):
        return np.empty((0, points.shape[1])), np.empty(0)
    return AttentionSum(points, scores, scores, tolerance, settings).evaluate(log_masses)


def plain_softmax(
    scores: np.ndarray, points: np.ndarray, log_masses: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return softmax means and log Z by all terms: for few points, or in any dimension."""
    if points.shape[1] <= 3:
        found = plain_sums(scores, points, log_masses)
        return found[:, :-1], found[:, -1]
    mean = np.empty((len(scores), points.shape[1]))
    log_sum = np.empty(len(scores))
    chunk = max(1, 2_000_000 // len(points))  # targets at a time: arrays of 16 MB
    for start in range(0, len(scores), chunk):
        part = slice(start, start + chunk)
        exponent = scores[part] @ points.T + log_masses
        largest = exponent.max(axis=1, keepdims=True)
        weight = np.exp(exponent - largest)
        total = weight.sum(axis=1)
        mean[part] = weight @ points / total[:, None]
        log_sum[part] = largest[:, 0] + np.log(total)
    return mean, log_sum
