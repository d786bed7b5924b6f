"""What each way of summing costs, in operations: the estimate by which one is chosen.

The estimate counts operations and never looks at a clock, so that the choice is the same on every
rank and in every run. For the masses at hand, some tiles, spread evenly over the targets, are
surveyed: how many leaves a tile visits, and whether the expansion in harmonics is accurate enough
for it; and of some blocks of the cluster expansion, what they cost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """Nanoseconds of operations on one core of an AMD EPYC with AVX-512, and sizes of surveys.

    Only ratios decide, and these are about the same on other processors, since all ways are made of
    vectorised fused multiply-adds. Fitted to `python -m tests.benchmarks.attention` and `million`.

    Attributes:
        leaf_visit: a leaf for a tile, 256 terms, with its bound.
        top_scan: a group of the top level for a tile, with its bounds.
        node_scan: a node for the reference of a tile.
        source_term: a term of the harmonics for a source.
        target_term: a term of the harmonics for a target.
        target: the Bessel functions of a target.
        cluster_bound: the bound of a cluster for a block.
        cluster: weighing a cluster for a block, besides its sources.
        weighed_source: weighing a source for a block.
        pair: a source for a target, term by term.
        value: a term of a polynomial for a target.
        values: a polynomial for a target, besides.
        moment: a moment for a source.
        proxy_product: a product for a proxy point in the first direction.
        proxy_sum: a moment for a row of proxy points in the second direction.
        gathered_source: moving a source's mass to proxy points.
        surveyed_tiles: for which visits are counted; a survey is a few per cent of the sum.
        surveyed_blocks: whose costs are counted.
    """

    leaf_visit: float = 165.0
    top_scan: float = 20.0
    node_scan: float = 10.0
    source_term: float = 0.17
    target_term: float = 0.45
    target: float = 45.0
    cluster_bound: float = 2.0
    cluster: float = 200.0
    weighed_source: float = 2.0
    pair: float = 0.8
    value: float = 0.2
    values: float = 4.0
    moment: float = 0.3
    proxy_product: float = 0.1
    proxy_sum: float = 0.5
    gathered_source: float = 80.0
    surveyed_tiles: int = 16
    surveyed_blocks: int = 8

    def of_clusters(self) -> tuple[float, ...]:
        """Return the costs for compiled loops of the cluster expansion, in their order."""
        return (
            self.cluster_bound, self.cluster, self.weighed_source, self.pair, self.value,
            self.values, self.moment, self.proxy_product, self.proxy_sum,
        )  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """Estimated work of one evaluation on one core [ns].

    Attributes:
        direct: of the pruned direct sum.
        harmonics: of the expansion in harmonics, with the direct sum where it is not accurate
            enough; None if scores are too long for one.
        degree: its degree.
        visited: share of the leaves that a tile visits.
        untrusted: share of the tiles with a target for which harmonics are not accurate enough.
        clusters: of the cluster expansion; None without one.
    """

    direct: float
    harmonics: float | None
    degree: int | None
    visited: float
    untrusted: float
    clusters: float | None = None

    @property
    def use_harmonics(self) -> bool:
        """Whether the expansion in harmonics is the quickest."""
        return self.harmonics is not None and self.harmonics < min(self.direct, self._by_clusters)

    @property
    def use_clusters(self) -> bool:
        """Whether the cluster expansion is the quickest."""
        return self._by_clusters < self.direct and not self.use_harmonics

    @property
    def chosen(self) -> float:
        """The work of the way that is used."""
        way = min(self.direct, self._by_clusters)
        return way if self.harmonics is None else min(way, self.harmonics)

    @property
    def _by_clusters(self) -> float:
        return math.inf if self.clusters is None else self.clusters

    def __str__(self) -> str:
        name = "cluster expansion" if self.use_clusters else "direct sum"
        if self.use_harmonics:
            name = f"harmonics of degree {self.degree}"
        ways = f"direct {self.direct * 1e-6:.3g} ms, {self.visited:.1%} of the leaves visited"
        if self.clusters is not None:
            ways += f"; clusters {self.clusters * 1e-6:.3g} ms"
        if self.harmonics is None:
            return f"{name} ({ways}; no harmonics: the scores are too long)"
        ways += f"; harmonics {self.harmonics * 1e-6:.3g} ms, {self.untrusted:.1%} left to direct"
        return f"{name} ({ways})"


def estimate(
    costs: Costs,
    *,
    sources: int,
    leaves: int,
    tops: int,
    tiles: int,
    targets: int,
    visits: float,
    bounded: float,
    terms: int | None,
    degree: int | None,
    untrusted: float,
    clusters: float | None = None,
) -> Estimate:
    """Return the work of all ways.

    Args:
        costs: of the operations.
        sources: number of sources.
        leaves: leaves of their tree.
        tops: groups of the top level.
        tiles: number of tiles.
        targets: number of targets.
        visits: leaves that a tile visits, on average.
        bounded: nodes that are bounded for the reference of a tile, on average.
        terms: terms of the harmonics; None if there are none.
        degree: their degree.
        untrusted: share of the tiles that harmonics leave to the direct sum.
        clusters: the work of the cluster expansion, which counts it itself.
    """
    scanned = bounded * costs.node_scan + tops * costs.top_scan
    direct = tiles * (visits * costs.leaf_visit + scanned)
    harmonics = None
    if terms is not None:
        harmonics = sources * terms * costs.source_term
        harmonics += targets * (terms * costs.target_term + costs.target)
        harmonics += untrusted * direct
    return Estimate(direct, harmonics, degree, visits / leaves, untrusted, clusters)
