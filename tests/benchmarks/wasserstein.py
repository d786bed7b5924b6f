"""Time and memory of certified Wasserstein distances, against POT's network simplex and scipy.

    python -m tests.benchmarks.wasserstein [--full]

Densities on the sphere at scattered points, no two in common. Every row runs in a process of its
own, so that the peak memory is that of one solve.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import ot

from meanfield_pde.support.memory import peak_memory
from meanfield_pde.wasserstein import WassersteinResult, wasserstein
from tests.problems import sphere_densities

# Atoms on each side, p, cost, relative gap asked for, and whether POT (n x m memory) and
# method="scipy" take part.
SMALL = [(count, p, "geodesic", 1e-8, True) for count in (1000, 2500, 5000) for p in (1, 2)]
# The sizes of DOTmark's grids, on the sphere; minutes to hours.
LARGE = [
    (4096, 1, "geodesic", 1e-8, True),
    (4096, 2, "geodesic", 1e-8, True),
    (16_384, 1, "geodesic", 1e-8, False),
    (16_384, 2, "geodesic", 1e-8, False),
    (65_536, 2, "geodesic", 1e-8, False),
    (65_536, 2, "chordal", 1e-8, False),
    (100_000, 2, "geodesic", 1e-8, False),
    (100_000, 2, "chordal", 1e-8, False),
    (65_536, 1, "geodesic", 1e-4, False),
    (65_536, 1, "chordal", 1e-4, False),
    (100_000, 1, "geodesic", 1e-4, False),
    (100_000, 1, "chordal", 1e-4, False),
]


def ours(
    count: int, p: int, cost: str, rtol: float, method: str = "auto"
) -> tuple[float, float, WassersteinResult]:
    """Seconds of processor time, peak MB and the result."""
    mu, nu = sphere_densities(count)
    small = sphere_densities(600)
    wasserstein(*small, p, cost, method=method)  # compiles, or loads what was compiled before
    started = time.process_time()
    result = wasserstein(mu, nu, p, cost, rtol=rtol, method=method)
    seconds = time.process_time() - started
    return seconds, peak_memory() / 2**20, result


def network_simplex(count: int, p: int) -> tuple[float, float, float]:
    """Seconds of processor time (with the cost matrix), peak MB and the distance."""
    mu, nu = sphere_densities(count)
    started = time.process_time()
    squared = ot.dist(mu.points, nu.points, "sqeuclidean")
    costs = (2 * np.arcsin(np.minimum(1.0, 0.5 * np.sqrt(np.maximum(squared, 0.0))))) ** p
    a, b = mu.masses / mu.masses.sum(), nu.masses / nu.masses.sum()
    value = ot.emd2(a, b, costs, numItermax=10**9) ** (1 / p)
    return time.process_time() - started, peak_memory() / 2**20, value


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="also 4,096 to 100,000 atoms (long)")
    rows = SMALL + (LARGE if parser.parse_args().full else [])
    print(
        f"{'atoms':>6} {'p':>2} {'cost':>8} {'rtol':>7} {'ours s':>8} {'POT s':>8} {'ratio':>6} "
        f"{'scipy s':>8} {'gap':>8} {'difference':>10} {'ours MB':>8} {'POT MB':>7}  status"
    )
    fresh = multiprocessing.get_context("spawn")
    for count, p, cost, rtol, compare in rows:
        with ProcessPoolExecutor(1, mp_context=fresh) as pool:
            seconds, memory, result = pool.submit(ours, count, p, cost, rtol).result()
        other = f"{'-':>8} {'-':>6} {'-':>8} "
        difference, other_memory = f"{'-':>10}", f"{'-':>7}"
        if compare:
            with ProcessPoolExecutor(1, mp_context=fresh) as pool:
                pot_seconds, pot_memory, value = pool.submit(network_simplex, count, p).result()
            with ProcessPoolExecutor(1, mp_context=fresh) as pool:
                scipy_seconds = pool.submit(ours, count, p, cost, rtol, "scipy").result()[0]
            other = f"{pot_seconds:8.1f} {seconds / pot_seconds:6.2f} {scipy_seconds:8.2f} "
            difference = f"{abs(result.value - value) / value:10.1e}"
            other_memory = f"{pot_memory:7.0f}"
        print(
            f"{count:6d} {p:2d} {cost:>8} {rtol:7.0e} {seconds:8.2f} {other}"
            f"{result.gap:8.1e} {difference} {memory:8.0f} {other_memory}  {result.status}",
            flush=True,
        )


if __name__ == "__main__":
    main()
