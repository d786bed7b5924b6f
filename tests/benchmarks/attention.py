"""The attention sum against chunked numpy log-sum-exp, one thread each, with errors.

    python -m tests.benchmarks.attention [--quick]

Sources are the cells of an icosphere, targets its vertices. Numpy does what public particle codes
do: scores by a matrix product, exp, and the weighted mean, for 256 targets at a time. Times are
processor times, the best of several; sorting the points, done once per mesh, is not counted.
"""

from __future__ import annotations

from mpi4py import MPI

import numpy as np

from meanfield_pde.attention.sum import AttentionSum
from meanfield_pde.attention.sum.harmonics import all_groups
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.surface import sphere_surface
from meanfield_pde.support.threads import set_threads
from tests.benchmarks.tables import Table, cpu_seconds, milliseconds, options, present

TOLERANCE = 1e-10  # the default of runs
CHUNK = 256  # targets at once, a bound on memory
BETAS = (1.0, 10.0, 100.0, 1000.0)
MOST_TARGETS = 10_242  # of numpy's; beyond, its time is scaled up from these


def plain(scores: np.ndarray, points: np.ndarray, log_masses: np.ndarray) -> np.ndarray:
    """Softmax means as in the definition, chunk by chunk."""
    mean = np.empty((len(scores), 3))
    with_one = np.column_stack([points, np.ones(len(points))])
    for start in range(0, len(scores), CHUNK):
        part = slice(start, start + CHUNK)
        weight = scores[part] @ points.T
        weight += log_masses
        weight -= weight.max(axis=1, keepdims=True)
        np.exp(weight, out=weight)
        sums = weight @ with_one
        mean[part] = sums[:, :3] / sums[:, 3:]
    return mean


def densities(points: np.ndarray, volume: np.ndarray) -> dict[str, np.ndarray]:
    """Log masses of a density near the uniform one, and of two clusters with tails of 1e-80."""
    axis = np.array([0.6, 0.0, 0.8])
    nearly = np.log1p(0.3 * points[:, 0] + 0.2 * points[:, 1] * points[:, 2])
    clusters = 80 * np.log(10) * (np.abs(points @ axis) - 1)
    return {"uniform": np.log(volume) + nearly, "concentrated": np.log(volume) + clusters}


OPTIONS = options("attention", __doc__)


def main() -> None:
    """Print the table."""
    quick = OPTIONS.parse_args().quick
    set_threads(MPI.COMM_SELF, 1)
    table = Table(
        "Attention sum, one thread, milliseconds",
        ["cells", "density", "beta", "numpy", "ours", "ratio", "error", "method"],
    )
    for cells in (5120,) if quick else (5120, 20_480, 81_920):
        surface = sphere_surface(cells)
        corners = surface.points[surface.cells]
        points = geometry.normalised(geometry.cell_mean(corners))
        step = -(-len(surface.points) // MOST_TARGETS)
        for name, log_masses in densities(points, geometry.cell_volume(corners)).items():
            for beta in BETAS:
                scores = beta * surface.points
                attention_sum = AttentionSum(points, surface.points, scores, TOLERANCE)
                found = attention_sum.evaluate(log_masses)[0]
                tiles = np.arange(attention_sum.targets.tiles)

                def ours(
                    sums: AttentionSum = attention_sum,
                    masses: np.ndarray = log_masses,
                    tiles: np.ndarray = tiles,
                ) -> None:
                    sums.load(masses)
                    use = sums.estimate.use_harmonics
                    sums.sums(tiles, sums.moments(all_groups()).sum(axis=0) if use else None)

                def numpy_sum(
                    scores: np.ndarray = scores[::step], masses: np.ndarray = log_masses
                ) -> None:
                    plain(scores, points, masses)  # noqa: B023 (called at once)

                mine = cpu_seconds(ours, 5 if cells < 50_000 else 2)
                share = len(scores) / len(scores[::step])
                theirs = share * cpu_seconds(numpy_sum, 2 if cells < 50_000 else 1)
                miss = found[::step] - plain(scores[::step], points, log_masses)
                error = np.linalg.norm(miss, axis=1).max()
                method = str(attention_sum.estimate).split()[0]
                table.row(
                    cells,
                    name,
                    f"{beta:g}",
                    milliseconds(theirs),
                    milliseconds(mine),
                    f"{theirs / mine:.0f}",
                    f"{error:.0e}",
                    method,
                )
    print(
        f"\nTolerance {TOLERANCE:g}. At 81,920 cells numpy is timed on a quarter of the targets and"
        " scaled up. 'Error' is the largest over the targets of the distance to numpy's means.\n"
    )


if __name__ == "__main__":
    present(main, OPTIONS)
