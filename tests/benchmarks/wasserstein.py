"""Time and memory of certified Wasserstein distances, against POT's network simplex and scipy.

    python -m tests.benchmarks.wasserstein [--quick] [--kind K ...] [--atoms N ...] [--p P ...]

    densities  smooth densities at scattered points of the sphere, no two in common
    random     random points of the sphere with random masses
    tokens     the same points with equal masses, an assignment problem
    meshes     smooth densities on the cells of two icosahedral meshes, the second a size finer
    images     two random images of a square, smooth, on the same pixels (as DOTmark's GRF classes)

Seconds are processor time of one thread. POT takes part up to 10,000 atoms, where its matrices need
some 4 GB, scipy up to 5,000. Every solve runs in a process of its own, so that the peak memory is
its own. The gap is that of the certified interval, by potentials checked against all pairs.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
import ot

from meanfield_pde.mesh.surface import sphere_surface
from meanfield_pde.support.memory import peak_memory
from meanfield_pde.wasserstein import WassersteinResult, wasserstein
from meanfield_pde.wasserstein.measure import Measure
from tests.benchmarks.tables import Table, options, present
from tests.problems import on_sphere, sphere_densities

RTOL = 1e-8  # of all solvers alike
# Atoms up to which the others are run: they hold all pairs in memory.
MOST_FOR_POT, MOST_FOR_SCIPY = 10_000, 5_000
REPEAT = 5  # solves, of which the fastest counts, of up to SHORT atoms:
SHORT = 1_000
SMALL = {"densities": (1_000, 2_500, 5_000), "tokens": (1_000,)}
LARGE = {
    "densities": (10_000, 65_536, 100_000),
    "random": (1_000, 10_000, 65_536, 100_000),
    "meshes": (5_000, 65_536, 100_000),
    "images": (1_024, 4_096, 16_384, 65_536),
}


def random_atoms(count: int) -> tuple[Measure, Measure]:
    """Random points with random masses."""
    rng = np.random.default_rng(count)
    first, second = (Measure(on_sphere(rng, count, 3), rng.random(count)) for _ in range(2))
    return first, second


def tokens(count: int) -> tuple[Measure, Measure]:
    """Random points with equal masses."""
    first, second = (Measure(mu.points, np.ones(count)) for mu in random_atoms(count))
    return first, second


def mesh_cells(count: int) -> tuple[Measure, Measure]:
    """Masses of smooth densities on the cells of a mesh of at least `count`, and of the next."""
    meshes = [sphere_surface(count)]
    meshes.append(sphere_surface(len(meshes[0].cells) + 1))
    measures = []
    for mesh, mean, sharpness in zip(meshes, ([0.98, 0, 0.2], [0, 0.6, -0.8]), (3, 4), strict=True):
        a, b, c = (mesh.points[mesh.cells[:, k]] for k in range(3))
        centres = a + b + c
        centres /= np.linalg.norm(centres, axis=1)[:, None]
        areas = np.linalg.norm(np.cross(b - a, c - a), axis=1) / 2
        measures.append(Measure(centres, areas * np.exp(sharpness * (centres @ mean - 1))))
    return measures[0], measures[1]


def images(count: int) -> tuple[Measure, Measure]:
    """Exponentials of Gaussian random fields on the pixels of the unit square."""
    side = round(count**0.5)
    rng = np.random.default_rng(count)
    frequency = np.hypot(
        *np.meshgrid(np.fft.fftfreq(side, 1 / side), np.fft.fftfreq(side, 1 / side))
    )
    pixels = (np.stack(np.meshgrid(*2 * [np.arange(side)], indexing="ij"), -1) + 0.5) / side
    measures = []
    for _ in range(2):
        noise = np.fft.fft2(rng.normal(size=(side, side)))
        field = np.fft.ifft2(noise * (1 + frequency**2) ** -1.25).real
        measures.append(Measure(pixels.reshape(-1, 2), np.exp(field / field.std()).ravel()))
    return measures[0], measures[1]


KINDS: dict[str, Callable[[int], tuple[Measure, Measure]]] = {
    "densities": sphere_densities,
    "random": random_atoms,
    "tokens": tokens,
    "meshes": mesh_cells,
    "images": images,
}


def ours(
    kind: str, count: int, p: int, cost: str, method: str = "auto"
) -> tuple[float, float, WassersteinResult]:
    """Seconds of processor time, peak MB and the result."""
    mu, nu = KINDS[kind](count)
    small = sphere_densities(600)
    wasserstein(*small, p, cost, method=method)  # compiles, or loads what was compiled before
    seconds = np.inf
    for _ in range(REPEAT if count <= SHORT else 1):
        started = time.process_time()
        result = wasserstein(mu, nu, p, cost, rtol=RTOL, method=method)
        seconds = min(seconds, time.process_time() - started)
    return seconds, peak_memory() / 2**20, result


def network_simplex(kind: str, count: int, p: int, cost: str) -> tuple[float, float, float]:
    """Seconds of processor time (with the cost matrix), peak MB and the distance."""
    mu, nu = KINDS[kind](count)
    a, b = mu.masses / mu.masses.sum(), nu.masses / nu.masses.sum()
    seconds = np.inf
    for _ in range(REPEAT if count <= SHORT else 1):
        started = time.process_time()
        costs = ot.dist(mu.points, nu.points, "sqeuclidean")
        np.sqrt(np.maximum(costs, 0.0, out=costs), out=costs)
        if cost == "geodesic":
            np.arcsin(np.minimum(1.0, np.multiply(costs, 0.5, out=costs), out=costs), out=costs)
            costs *= 2
        costs **= p
        value = ot.emd2(a, b, costs, numItermax=10**9) ** (1 / p)
        seconds = min(seconds, time.process_time() - started)
    return seconds, peak_memory() / 2**20, value


def alone(function: Callable[..., Any], *arguments: object) -> Any:
    """What a function gives in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


OPTIONS = options("wasserstein", __doc__)
OPTIONS.add_argument("--kind", choices=list(KINDS), nargs="+", default=list(KINDS))
OPTIONS.add_argument("--atoms", type=int, nargs="+", help="atoms on each side")
OPTIONS.add_argument("--p", type=int, choices=(1, 2), nargs="+", default=[1, 2])
OPTIONS.add_argument("--cost", choices=("geodesic", "chordal"), nargs="+")


def main() -> None:
    """Print the table."""
    asked = OPTIONS.parse_args()
    table = Table(
        f"Certified Wasserstein distances, to a gap of {RTOL:g}",
        ["atoms", "kind", "p", "cost", "s", "MB", "gap", "POT s", "ratio", "POT MB", "difference",
         "scipy s", "status"],
    )  # fmt: skip
    for kind in asked.kind:
        large = () if asked.quick else LARGE.get(kind, ())
        sizes = asked.atoms or SMALL.get(kind, ()) + large
        for count in sizes:
            planar = kind == "images"
            both = ("geodesic", "chordal") if count > MOST_FOR_POT else ("geodesic",)
            for cost in ("chordal",) if planar else asked.cost or both:
                for p in asked.p:
                    seconds, memory, result = alone(ours, kind, count, p, cost)
                    others = ["-"] * 5
                    if count <= MOST_FOR_POT:
                        pot, pot_memory, value = alone(network_simplex, kind, count, p, cost)
                        others[:3] = f"{pot:.3g}", f"{seconds / pot:.3g}", f"{pot_memory:.0f}"
                        others[3] = f"{abs(result.value - value) / value:.0e}"
                    if count <= MOST_FOR_SCIPY:
                        others[4] = f"{alone(ours, kind, count, p, cost, 'scipy')[0]:.3g}"
                    atoms = f"{count:,}"
                    own = f"{seconds:.3g}", f"{memory:.0f}", f"{result.gap:.0e}"
                    table.row(atoms, kind, p, cost, *own, *others, result.status)


if __name__ == "__main__":
    present(main, OPTIONS)
