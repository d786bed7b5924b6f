"""The attention sum on several ranks: what each of them adds up, and how all get the whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mpi4py import MPI

import numpy as np

from meanfield_pde.attention.sum.low_rank import all_groups
from meanfield_pde.attention.sum.summation import AttentionSum
from meanfield_pde.attention.sum.tree import TILE
from meanfield_pde.support.timings import timed


@dataclass(frozen=True, eq=False)
class _Deal:
    """Which tiles this rank does, and how the results of all are put together.

    Attributes:
        tiles: of this rank.
        counts: how many numbers each rank contributes.
        order: the targets in the order in which the ranks' results follow one another.
    """

    tiles: np.ndarray
    counts: list[int]
    order: np.ndarray


class SharedSum:
    """An attention sum with fixed sources and targets, its work dealt out to the ranks.

    Tiles of targets, or runs of them, are dealt in turn, because their cost varies from place to
    place on the sphere; groups of sources, for the moments of the expansion, in ranges. Every rank
    gets the whole result: O(cells) numbers, as many as the masses it needs in any case.
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
        groups = np.array_split(all_groups(), comm.size)
        self._groups = groups[comm.rank]
        self._group_counts = np.array([share.size for share in groups])
        self._deals: dict[int, _Deal] = {}

    @property
    def method(self) -> str:
        """How the last sums were computed, and the estimate that this was chosen by."""
        return str(self._sum.estimate)

    @timed("Attention sum")
    def __call__(self, log_masses: np.ndarray) -> np.ndarray:
        """Rows (m, log Z) at all targets for the log masses of all sources. Collective."""
        attention_sum = self._sum
        many = self._comm.size > 1 and attention_sum.many
        attention_sum.load(log_masses, *([self._dealt] if many else []))
        total = self._total_moments() if attention_sum.estimate.use_low_rank else None
        deal = self._deal(attention_sum.tiles_at_once)
        own = np.ascontiguousarray(attention_sum.sums(deal.tiles, total).T)
        gathered = own
        if self._comm.size > 1:
            gathered = np.empty((len(deal.order), 4))
            self._comm.Allgatherv(own, [gathered, deal.counts])
        dimension = attention_sum.sources.dimension
        result = np.empty((attention_sum.targets.count, dimension + 1))
        result[deal.order, :-1] = gathered[:, :dimension]
        result[deal.order, -1] = gathered[:, 3]
        return result

    def _dealt(self, work: Callable[[np.ndarray], np.ndarray], items: np.ndarray) -> np.ndarray:
        """The rows of all items, each done by one rank. Collective."""
        size = self._comm.size
        own = np.ascontiguousarray(work(items[self._comm.rank :: size]))
        found = np.empty((len(items), own.shape[1]))
        counts = [len(items[rank::size]) * own.shape[1] for rank in range(size)]
        self._comm.Allgatherv(own, [found, counts])
        rows = np.empty_like(found)
        rows[np.concatenate([np.arange(len(items))[rank::size] for rank in range(size)])] = found
        return rows

    def _deal(self, run: int) -> _Deal:
        """Who does which tiles, in runs of so many."""
        if run not in self._deals:
            size, targets = self._comm.size, self._sum.targets
            runs = np.arange(targets.tiles) // run
            shares = [np.flatnonzero(runs % size == rank) for rank in range(size)]
            order = targets.order.reshape(-1, TILE)[np.concatenate(shares)].ravel()
            counts = [share.size * TILE * 4 for share in shares]
            self._deals[run] = _Deal(shares[self._comm.rank], counts, order)
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
