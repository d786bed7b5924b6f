"""Which of the three ways to compute the sums is quickest: tiles, the expansion, or series.

The estimate counts operations and never looks at a clock: a survey of a few tiles, spread evenly
over the targets, says how many leaves a tile visits for the masses at hand, and how many targets
the expansion could not be trusted with; a few blocks, what series cost. It is the same on every
rank and in every run, and so is the choice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# Nanoseconds on one core of an AMD EPYC with AVX-512. Only their ratios decide, and these are about
# the same on other processors, since both paths are vectorised fused multiply-adds.
LEAF_VISIT = 165.0  # a leaf for a tile, with its bound
TOP_SCAN = 20.0  # a group of the top level for a tile, and its bounds
NODE_SCAN = 10.0  # a node for the reference of a tile
SOURCE_TERM = 0.17  # a term of the expansion for a source
TARGET_TERM = 0.45  # and for a target
TARGET = 45.0  # the Bessel functions of a target
SURVEYED = 16  # tiles
SURVEYED_BLOCKS = 8


@dataclass(frozen=True)
class Estimate:
    """Estimated work of one evaluation on one core, in nanoseconds.

    Attributes:
        tiles: all targets by tiles.
        low_rank: by the expansion, and by tiles where that cannot be trusted; None without one.
        degree: degree of the expansion.
        visited: the part of the leaves that a tile visits.
        untrusted: the part of the tiles with a target that the expansion cannot be trusted with.
        series: by series between blocks and groups; None if there are none.
    """

    tiles: float
    low_rank: float | None
    degree: int | None
    visited: float
    untrusted: float
    series: float | None = None

    @property
    def use_low_rank(self) -> bool:
        """Whether the expansion is to be used."""
        return self.low_rank is not None and self.low_rank < min(self.tiles, self._by_series)

    @property
    def use_series(self) -> bool:
        """Whether series are to be used."""
        return self._by_series < self.tiles and not self.use_low_rank

    @property
    def chosen(self) -> float:
        """The work of the way that is used."""
        way = min(self.tiles, self._by_series)
        return way if self.low_rank is None else min(way, self.low_rank)

    @property
    def _by_series(self) -> float:
        return math.inf if self.series is None else self.series

    def __str__(self) -> str:
        tiles = f"tiles {self.tiles * 1e-6:.3g} ms, {self.visited:.1%} of the leaves visited"
        if self.series is not None:
            tiles += f"; series {self.series * 1e-6:.3g} ms"
        name = "series" if self.use_series else "tiles"
        if self.low_rank is None:
            return f"{name} ({tiles}; no expansion: the scores are too long for it)"
        low_rank = f"expansion {self.low_rank * 1e-6:.3g} ms, {self.untrusted:.1%} left to tiles"
        chosen = f"expansion of degree {self.degree}" if self.use_low_rank else name
        return f"{chosen} ({tiles}; {low_rank})"


def estimate(
    *,
    sources: int,
    leaves: int,
    tops: int,
    tiles: int,
    targets: int,
    visits: float,
    looked_at: float,
    terms: int | None,
    degree: int | None,
    untrusted: float,
    series: float | None = None,
) -> Estimate:
    """The work of all ways.

    Args:
        sources: number of sources.
        leaves: leaves of their tree.
        tops: groups of the top level.
        tiles: number of tiles.
        targets: number of targets.
        visits: leaves that a tile visits, on average.
        looked_at: nodes that it looks at.
        terms: terms of the expansion; None if there is none.
        degree: its degree.
        untrusted: part of the tiles that the expansion has to leave to the tiles.
        series: the work of series, which counts it itself.
    """
    by_tiles = tiles * (visits * LEAF_VISIT + looked_at * NODE_SCAN + tops * TOP_SCAN)
    low_rank = None
    if terms is not None:
        low_rank = sources * terms * SOURCE_TERM + targets * (terms * TARGET_TERM + TARGET)
        low_rank += untrusted * by_tiles
    return Estimate(by_tiles, low_rank, degree, visits / leaves, untrusted, series)
