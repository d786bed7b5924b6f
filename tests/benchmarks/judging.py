"""Judging particle codes: p-values of right codes where no trajectories decide, on twelve settings.

Surface, beta 0.5, 5, 50, N = 200, 1000: right codes of many seeds at all times together, against
one band of samples for each setting. `python -m tests.benchmarks.judging [--quick]`.
"""

from __future__ import annotations

from mpi4py import MPI

import numpy as np

from meanfield_pde import Attention, circle_mesh, solve, sphere_mesh
from meanfield_pde.initial.sampling import sample_tokens
from meanfield_pde.judging.features import features
from meanfield_pde.judging.statistics import densities_at, sampling_band
from meanfield_pde.support.threads import set_threads
from tests import oracles
from tests.benchmarks.tables import Table, is_quick

DENSITY = "1 + 0.5*x*y + 0.4*y - 0.3*x"
TIMES = (1.0, 2.0)


def p_values(d: int, beta: float, count: int, seeds: int, samples: int) -> np.ndarray:
    """p-values of right codes, whose tokens are drawn and moved by plain numpy."""
    query, key, value = np.eye(d) + 0.4 * np.random.default_rng(d).normal(size=(3, d, d))
    mesh = circle_mesh(400) if d == 2 else sphere_mesh(1280)
    attention = Attention(query, key, value, beta)
    solution = solve(attention, mesh, DENSITY, until=TIMES[-1], save_at=TIMES[:-1])
    at = np.arange(len(solution.times))
    band = sampling_band(solution, at, count, samples=samples, seed=1, comm=MPI.COMM_SELF)
    quantiles, found = densities_at(solution, at), []
    masses = np.full(count, 1 / count)
    for seed in range(seeds):
        paths = [sample_tokens(DENSITY, count, seed, d)]
        steps = 40 if beta < 10 else 80
        for _ in TIMES:
            matrices = (query, key, value, beta)
            paths.append(oracles.characteristics(paths[-1], masses, *matrices, 1.0, steps))
        found.append(band.p_value(features(np.array(paths), None, quantiles)))
    return np.array(found)


def main() -> None:
    """Print the table."""
    quick = is_quick(__doc__ or "")
    set_threads(MPI.COMM_WORLD)
    seeds, samples = (40, 499) if quick else (200, 2000)
    table = Table(
        f"p-values of right codes, {seeds} seeds, {samples} samples",
        ("surface", "beta", "N", "p < 0.05", "p < 0.01", "mean p"),
    )
    every = []
    for count in (200,) if quick else (200, 1000):
        for d, surface in ((2, "circle"), (3, "sphere")):
            for beta in (0.5, 5.0, 50.0):
                found = p_values(d, beta, count, seeds, samples)
                every.append(found)
                below = [f"{100 * (found < level).mean():.1f}%" for level in (0.05, 0.01)]
                table.row(surface, beta, count, *below, f"{found.mean():.3f}")
    whole = np.concatenate(every)
    below = [f"{100 * (whole < level).mean():.1f}%" for level in (0.05, 0.01)]
    table.row("all", "", "", *below, f"{whole.mean():.3f}")


if __name__ == "__main__":
    main()
