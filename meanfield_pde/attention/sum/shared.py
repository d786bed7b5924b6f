"""The attention sum on several ranks: what each of them adds up, and how all receive the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mpi4py import MPI

import numpy as np

from meanfield_pde.attention.sum.harmonics import all_groups
from meanfield_pde.attention.sum.summation import AttentionSum
from meanfield_pde.attention.sum.tree import TILE
from meanfield_pde.support.timings import timed


@dataclass(frozen=True, eq=False)
class _Deal:
    """Which tiles this rank does, and how the results of all ranks are put together.

    Attributes:
        tiles: of this rank.
        counts: how many targets each rank contributes.
        places: of the targets in the results of all ranks, one after the other.
    """

    tiles: np.ndarray
    counts: np.ndarray
    places: np.ndarray


class SharedSum:
    """An attention sum with fixed sources and targets, its work divided among the ranks.

    Tiles of targets, or runs of them, are dealt in turn, because their cost varies from place to
    place on the sphere; groups of sources, for harmonic moments, in ranges. Every rank receives the
    whole result: O(cells) numbers, as many as the masses that it needs in any case.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        sources: np.ndarray,
        targets: np.ndarray,
        scores: np.ndarray,
        tolerance: float,
    ) -> None:
        self._comm = comm
        self._sum = AttentionSum(sources, targets, scores, tolerance)
        if comm.size > 1:
            self._sum.keep(lambda run: self._tiles(run)[comm.rank])
        groups = np.array_split(all_groups(), comm.size)
        self._groups = groups[comm.rank]
        self._group_counts = np.array([share.size for share in groups])
        self._deals: dict[int, _Deal] = {}

    @property
    def method(self) -> str:
        """How the last sums were computed, and the estimate by which this was chosen."""
        return str(self._sum.estimate)

    def room(self) -> np.ndarray:
        """Return an array for the log masses of all sources, which need then not be copied."""
        return self._sum.sources.room()

    @timed("Attention sum")
    def load(self, log_masses: np.ndarray) -> None:
        """Take the log masses of all sources, for one sum. Collective."""
        many = self._comm.size > 1 and self._sum.many
        self._sum.load(log_masses, *([self._dealt] if many else []))

    @timed("Attention sum")
    def __call__(self, wanted: np.ndarray | None = None) -> np.ndarray:
        """Return rows (m, log Z) at the targets wanted, or all. Collective."""
        rows = self._rows(slice(0, 4), wanted)
        dimension = self._sum.sources.dimension
        return rows if dimension == 3 else np.delete(rows, np.s_[dimension:3], axis=1)

    @timed("Attention sum")
    def log_partition(self) -> np.ndarray:
        """Return log Z at all targets. Collective."""
        return self._rows(slice(3, 4))[:, 0]

    def _rows(self, columns: slice, wanted: np.ndarray | None = None) -> np.ndarray:
        """Return columns of (m_x, m_y, m_z, log Z) at the targets wanted, or all. Collective."""
        attention_sum = self._sum
        total = self._total_moments() if attention_sum.estimate.use_harmonics else None
        deal = self._deal(attention_sum.tiles_at_once)
        own = np.ascontiguousarray(attention_sum.sums(deal.tiles, total)[columns].T)
        attention_sum.sources.release()
        gathered = own
        if self._comm.size > 1:
            width = own.shape[1]
            gathered = np.empty((attention_sum.targets.tiles * TILE, width))
            self._comm.Allgatherv(own, [gathered, deal.counts * width])
        return gathered[deal.places if wanted is None else deal.places[wanted]]

    def _dealt(self, work: Callable[[np.ndarray], np.ndarray], items: np.ndarray) -> np.ndarray:
        """Return the rows of all items, each made by one rank. Collective."""
        size = self._comm.size
        # As on one rank, for which compiled loops are compiled once.
        mine = np.ascontiguousarray(items[self._comm.rank :: size])
        own = np.ascontiguousarray(work(mine))
        found = np.empty((len(items), own.shape[1]))
        counts = [len(items[rank::size]) * own.shape[1] for rank in range(size)]
        self._comm.Allgatherv(own, [found, counts])
        rows = np.empty_like(found)
        rows[np.concatenate([np.arange(len(items))[rank::size] for rank in range(size)])] = found
        return rows

    def _tiles(self, run: int) -> list[np.ndarray]:
        """Return the tiles that each rank does, in runs of `run` tiles."""
        size = self._comm.size
        runs = np.arange(self._sum.targets.tiles) // run
        return [np.flatnonzero(runs % size == rank) for rank in range(size)]

    def _deal(self, run: int) -> _Deal:
        """Return which tiles this rank does, in runs of `run` tiles."""
        if run not in self._deals:
            targets, shares = self._sum.targets, self._tiles(run)
            order = targets.order.reshape(-1, TILE)[np.concatenate(shares)].ravel()
            counts = np.array([share.size for share in shares]) * TILE
            places = np.empty(targets.count, dtype=np.int32)
            places[order] = np.arange(len(order))
            self._deals[run] = _Deal(shares[self._comm.rank], counts, places)
        return self._deals[run]

    def _total_moments(self) -> np.ndarray:
        own = self._sum.moments(self._groups)
        parts = own
        if self._comm.size > 1:
            # Added up in the order of the groups on every rank: the same sum on any number of them.
            parts = np.empty((self._group_counts.sum(), *own.shape[1:]))
            counts = self._group_counts * int(np.prod(own.shape[1:]))
            self._comm.Allgatherv(own, [parts, counts])
        return parts.sum(axis=0)
