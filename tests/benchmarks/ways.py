"""The ways of summing side by side, one thread: seconds of a sum by each of them alone.

    python -m tests.benchmarks.ways [--quick] [--surface circle|sphere] [--cells N ...]
                                    [--beta B ...]

Sources are the cells, targets the vertices, the tolerance is 1e-10. The density is nearly uniform,
or has two clusters and tails of 1e-80, or of 1e-300 ("steep"). Processor times, measured in turn on
a sample of the targets, and divided by its share; what a way leaves undone is done by the direct
sum, and counted. 'Chosen' is the way that the cost model takes. Ten minutes in all.
"""

from __future__ import annotations

from mpi4py import MPI

import numpy as np

from meanfield_pde.attention.sum import AttentionSum, Sources, SumSettings, Targets
from meanfield_pde.attention.sum.cluster import ClusterExpansion
from meanfield_pde.attention.sum.direct import direct_sums
from meanfield_pde.attention.sum.harmonics import all_groups
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.surface import circle_surface, sphere_surface
from meanfield_pde.support.threads import set_threads
from tests.benchmarks.attention import TOLERANCE
from tests.benchmarks.tables import Table, cpu_seconds, options, present

SAMPLED = 8192  # targets whose sums are timed
# Logarithms of the density far from the clusters.
TAILS = {"concentrated": 80 * np.log(10), "steep": 300 * np.log(10)}


def sampled(count: int, run: int) -> np.ndarray:
    """Runs of tiles, spread evenly, that hold about SAMPLED targets."""
    wanted = min(max(1, count // run), max(4, SAMPLED // (16 * run)))
    starts = np.unique(np.linspace(0, max(1, count // run) - 1, wanted).astype(int)) * run
    tiles = (starts[:, None] + np.arange(run)).ravel()
    return tiles[tiles < count]


def by_clusters(
    sources: Sources, targets: Targets, settings: SumSettings, *, by_proxies: bool
) -> float:
    """Seconds by the cluster expansion, and by the direct sum for the blocks that it leaves."""
    expansion = ClusterExpansion(
        sources, targets, TOLERANCE, settings.clusters, settings.costs, by_proxies=by_proxies
    )
    expansion.load()
    tiles = sampled(targets.tiles, expansion.tiles)
    left = tiles[~expansion.sums(tiles)[1]]
    seconds = cpu_seconds(lambda: expansion.sums(tiles), 2)
    seconds += cpu_seconds(lambda: direct_sums(sources, targets.scores, left, TOLERANCE), 1)
    return cpu_seconds(expansion.load, 2) + seconds * targets.tiles / len(tiles)


def by_harmonics(sums: AttentionSum) -> float:
    """Seconds by harmonics, and by the direct sum for the tiles that they leave."""
    total = sums.moments(all_groups()).sum(axis=0)
    tiles = sampled(sums.targets.tiles, 1)
    seconds = cpu_seconds(lambda: sums.sums(tiles, total), 2) * sums.targets.tiles / len(tiles)
    return seconds + cpu_seconds(lambda: sums.moments(all_groups()), 2)


SIZES = (5120, 20_480, 81_920, 327_680)
OPTIONS = options("ways", __doc__)
OPTIONS.add_argument("--surface", choices=["circle", "sphere"], nargs="+")
OPTIONS.add_argument("--cells", type=int, nargs="+")
OPTIONS.add_argument("--beta", type=float, nargs="+", default=[1.0, 10.0, 100.0, 1e3, 1e4])


def main() -> None:
    """Print the table."""
    asked = OPTIONS.parse_args()
    set_threads(MPI.COMM_SELF, 1)
    settings = SumSettings()
    columns = ["surface", "cells", "beta", "density", "direct", "harmonics", "clusters", "proxies"]
    table = Table("Ways of summing, one thread, seconds", [*columns, "chosen"])
    for kind in asked.surface or ("circle", "sphere"):
        for cells in asked.cells or (SIZES[:1] if asked.quick else SIZES):
            surface = (circle_surface if kind == "circle" else sphere_surface)(cells)
            corners = surface.points[surface.cells]
            points = geometry.normalised(geometry.cell_mean(corners))
            volume = np.log(geometry.cell_volume(corners))
            height = np.abs(points @ ([0.6, 0.8] if kind == "circle" else [0.6, 0.0, 0.8])) - 1
            densities = {"uniform": volume + np.log1p(0.3 * points[:, 0])}
            densities |= {name: volume + tail * height for name, tail in TAILS.items()}
            for beta in asked.beta:
                for name, log_masses in densities.items():
                    sums = AttentionSum(points, surface.points, beta * surface.points, TOLERANCE)
                    sums.load(log_masses)
                    sources, targets = sums.sources, sums.targets
                    tiles = sampled(targets.tiles, 1)
                    direct = cpu_seconds(
                        lambda s=sources, w=targets.scores, t=tiles: direct_sums(
                            s, w, t, TOLERANCE
                        ),
                        2,
                    ) * (targets.tiles / len(tiles))
                    seconds = [direct]
                    seconds += [by_harmonics(sums) if sums.estimate.harmonics else np.nan]
                    for proxies in (False, True):
                        # To lay out more cells for proxy points than sources takes minutes.
                        many = proxies and kind == "sphere" and beta > 0.03 * cells
                        seconds.append(
                            np.nan
                            if many
                            else by_clusters(sources, targets, settings, by_proxies=proxies)
                        )
                    shown = ("" if np.isnan(one) else f"{one:.3g}" for one in seconds)
                    chosen = str(sums.estimate).split()[0]
                    table.row(kind, cells, f"{beta:g}", name, *shown, chosen)
    print()


if __name__ == "__main__":
    present(main, OPTIONS)
