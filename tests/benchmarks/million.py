"""One attention sum on up to 1,310,720 cells of the sphere, at all temperatures, one thread.

    python -m tests.benchmarks.million [--quick] [--cells N ...] [--beta B ...] [--density NAME]

A quarter of an hour in all, so that it can be asked for in pieces; --quick takes 81,920 cells.

Seconds are those of a sum at a share of the targets, spread evenly in runs, divided by that share.
'Error' is the largest distance to means by extended precision, at 40 targets; 'repeated' what every
rank does for itself when there are several (masses taken in, upper levels of the tree; except for
harmonics, putting masses in order), in parts of the sum; 'direct' how many times as long the direct
sum takes for the same targets.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mpi4py import MPI

import numpy as np

from meanfield_pde.attention.sum import AttentionSum
from meanfield_pde.attention.sum.direct import direct_sums
from meanfield_pde.attention.sum.harmonics import all_groups
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.surface import sphere_surface
from meanfield_pde.support.memory import peak_memory
from meanfield_pde.support.threads import set_threads
from tests.benchmarks.attention import TOLERANCE, densities
from tests.benchmarks.tables import Table, cpu_seconds, options, present

BETAS = (1.0, 10.0, 100.0, 1000.0, 10_000.0)
SAMPLED = 16_384  # targets whose sums are timed
CHECKED = 40


def exact(score: np.ndarray, points: np.ndarray, log_masses: np.ndarray) -> np.ndarray:
    """The mean at one target, in extended precision."""
    exponent = (points @ score.astype(np.longdouble)) + log_masses
    weight = np.exp(exponent - exponent.max())
    return weight @ points / weight.sum()


def sampled_tiles(sums: AttentionSum) -> np.ndarray:
    """Runs of tiles, as many as hold about SAMPLED targets, spread evenly."""
    run = sums.tiles_at_once
    count = sums.targets.tiles // run
    wanted = min(count, max(4, SAMPLED // (16 * run)))
    runs = np.unique(np.linspace(0, count - 1, wanted).astype(np.int64))
    return (runs[:, None] * run + np.arange(run)).ravel()


def take_in(sums: AttentionSum, log_masses: np.ndarray) -> None:
    """Load masses, and put them in order where that will be needed."""
    sums.load(log_masses)
    if not sums.estimate.use_harmonics:
        sums.sources.log_masses()


def shared_out(sums: AttentionSum, log_masses: np.ndarray) -> float:
    """Seconds of loading masses that are dealt out to the ranks if there are several."""
    spent = 0.0

    def share(work: Callable[[np.ndarray], np.ndarray], items: np.ndarray) -> np.ndarray:
        nonlocal spent
        begun = time.process_time()
        rows = work(items)
        spent += time.process_time() - begun
        return rows

    found = []
    for _ in range(2):
        spent = 0.0
        sums.load(log_masses, share)
        found.append(spent)
    return min(found)


SIZES = (81_920, 327_680, 1_310_720)
NAMES = ("uniform", "concentrated")
OPTIONS = options("million", __doc__)
OPTIONS.add_argument("--cells", type=int, nargs="+")
OPTIONS.add_argument("--beta", type=float, nargs="+", default=BETAS)
OPTIONS.add_argument("--density", choices=NAMES, nargs="+", default=NAMES)


def main() -> None:
    """Print the table."""
    asked = OPTIONS.parse_args()
    set_threads(MPI.COMM_SELF, 1)
    table = Table(
        "A sum, one thread",
        ["cells", "density", "beta", "seconds", "direct", "repeated", "error", "MB", "method"],
    )
    for cells in asked.cells or (SIZES[:1] if asked.quick else SIZES):
        surface = sphere_surface(cells)
        corners = surface.points[surface.cells]
        points = geometry.normalised(geometry.cell_mean(corners))
        extended = points.astype(np.longdouble)
        for name, log_masses in densities(points, geometry.cell_volume(corners)).items():
            for beta in asked.beta if name in asked.density else ():
                scores = beta * surface.points
                sums = AttentionSum(points, surface.points, scores, TOLERANCE)
                sums.load(log_masses)
                tiles = sampled_tiles(sums)
                share = len(tiles) / sums.targets.tiles
                total, moments = None, 0.0
                if sums.estimate.use_harmonics:
                    moments = cpu_seconds(lambda s=sums: s.moments(all_groups()), 2)
                    total = sums.moments(all_groups()).sum(axis=0)
                found = sums.sums(tiles, total)
                ours = cpu_seconds(lambda s=sums, t=tiles, m=total: s.sums(t, m), 2) / share
                few = np.ascontiguousarray(tiles[::8])
                by_direct = cpu_seconds(
                    lambda s=sums, t=few: direct_sums(s.sources, s.targets.scores, t, TOLERANCE),
                    1,
                ) * (sums.targets.tiles / len(few))
                load = cpu_seconds(lambda s=sums, m=log_masses: take_in(s, m), 2)
                repeated = max(0.0, load - shared_out(sums, log_masses))
                whole = ours + moments + load
                targets = sums.targets.order.reshape(-1, 16)[tiles].ravel()
                error = 0.0
                for place in np.linspace(0, len(targets) - 1, CHECKED).astype(int):
                    mean = exact(scores[targets[place]], extended, log_masses)
                    error = max(error, float(np.linalg.norm(found[:3, place] - mean)))
                memory = peak_memory() / 2**20
                method = str(sums.estimate).split()[0]
                table.row(
                    cells,
                    name,
                    f"{beta:g}",
                    f"{whole:.3g}",
                    f"{by_direct / whole:.2f}",
                    f"{repeated / whole:.1%}",
                    f"{error:.0e}",
                    f"{memory:.0f}",
                    method,
                )
    print()


if __name__ == "__main__":
    present(main, OPTIONS)
