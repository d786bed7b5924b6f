"""Errors against exact solutions on few cells, for a commit beside another.

    python -m tests.benchmarks.exact_solutions [--quick] [--case NAME ...]

growth. Harmonics of degree 1 to 4 about the uniform density, Q = K = V = I, beta = 5. The error is
the largest relative one of their rates.

noise. The same with noise of strength 0.05. Rates are less by 0.05 k^2 on the circle and by
0.05 k (k + 1) on the sphere.

kuramoto. For beta = 0, V = I, a Poisson kernel stays one: r' = r (1 - r^2) / 2 on the circle. So
does (1 - w^2)^2 / |x - w|^4 on the sphere: w' = (1 - w^2) m(w) / 2, Lohe's model (Lipton, Mirollo,
Strogatz, arXiv 1907.07150). The error is the largest of the mean to t = 2.

perceptron. For beta = inf with B orthogonal, beside a linear perceptron, W u = relu(W u) -
relu(-W u), tokens move by x' = P_x (A + W) x. The error is L1 of cell masses at t = 1 to the
push-forward by exp((A + W) t).

It takes nothing but what `solve` takes, so that an earlier commit can run it, with `tests.oracles`.
Seconds are processor time of one thread, without compilation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import expm

from meanfield_pde import Attention, Heads, Perceptron, circle_mesh, solve, sphere_mesh
from meanfield_pde.mesh import geometry
from tests import oracles
from tests.benchmarks.tables import Table, options, present

MESHES: dict[int, Callable[[int], Any]] = {2: circle_mesh, 3: sphere_mesh}
CELLS = {2: (100, 400, 1600), 3: (320, 1280, 5120)}
NAMES = {2: "circle", 3: "sphere"}
DEGREES = (1, 2, 3, 4)
BETA, SIZE, NOISE = 5.0, 1e-6, 0.05  # of growth; SIZE: while modes are small each grows by itself
AXIS = {2: np.array([math.cos(0.7), math.sin(0.7)]), 3: np.array([0.48, 0.6, 0.64])}


def rate_of(d: int, degree: int, noise: float) -> float:
    """How fast a harmonic grows about the uniform density."""
    return float(oracles.growth_rate(d, degree, BETA) - noise * oracles.eigenvalue(d, degree))


def growth(d: int, cells: int, noise: float = 0.0) -> float:
    """The largest relative error of a rate."""
    one, until = np.eye(d), 0.5
    given: dict[str, Any] = {"until": until, "tolerance": 1e-12, "noise": noise}
    attention = Attention(one, one, one, BETA)

    def density(points: np.ndarray) -> np.ndarray:
        return 1 + SIZE * sum(oracles.harmonic(k, points) for k in DEGREES)

    solution = solve(attention, MESHES[d](cells), density, **given)
    # The uniform density is an equilibrium only up to the discretisation: take the difference.
    uniform = solve(attention, solution.mesh, **given)
    errors = []
    for k in DEGREES:
        mode = geometry.integrate(lambda x, k=k: oracles.harmonic(k, x), solution.cells.vertices)
        amplitude = (solution.masses - uniform.masses) @ (mode / solution.cells.volumes)
        rate, exact = math.log(amplitude[1] / amplitude[0]) / until, rate_of(d, k, noise)
        errors.append(abs(rate - exact) / rate_of(d, k, 0.0))
    return max(errors)


def kuramoto(d: int, cells: int) -> float:
    """The largest error of the mean."""
    one, start, towards = np.eye(d), {2: 0.4, 3: 0.2}[d], AXIS[d]
    solution = solve(
        Attention(one, one, one, 0.0),
        MESHES[d](cells),
        lambda points: oracles.conformal_kernel(d, points @ towards, start),
        until=2.0,
        save_every=0.5,
    )
    exact = oracles.synchronised_means(d, start, solution.times)
    found = np.column_stack([solution.history[f"mean_{axis}"] for axis in "xyz"[:d]])
    return float(np.abs(found - np.outer(exact, towards)).max())


def perceptron(d: int, cells: int) -> float:
    """L1 of cell masses to the push-forward."""
    drift = np.array([[1.0, 0.2, 0.0], [-0.1, 0.5, 0.1], [0.1, 0.0, 0.3]])[:d, :d]
    own = np.array([[0.1, 0.3, -0.2], [0.2, -0.4, 0.1], [0.0, 0.3, 0.2]])[:d, :d]
    one = np.eye(d)
    head = Attention(one, one, drift, math.inf)
    linear = Perceptron(np.vstack([one, -one]), np.hstack([own, -own]), activation="relu")

    def density(points: np.ndarray) -> np.ndarray:
        return 1 + 0.5 * points[..., 0] + 0.3 * points[..., 0] * points[..., 1]

    solution = solve(Heads([head], linear), MESHES[d](cells), density, until=1.0)
    corners = solution.cells.vertices
    # Geodesic cells come from geodesic cells.
    before = geometry.normalised(corners @ expm(-(drift + own)).T)
    exact = geometry.integrate(density, before, length_scale=0.3)
    return float(np.abs(solution.masses[-1] - exact / exact.sum()).sum())


CASES: dict[str, Callable[[int, int], float]] = {
    "growth": growth,
    "noise": lambda d, cells: growth(d, cells, NOISE),
    "kuramoto": kuramoto,
    "perceptron": perceptron,
}
OPTIONS = options("exact_solutions", __doc__)
OPTIONS.add_argument("--case", nargs="+", choices=list(CASES))


def main() -> None:
    """Print the table."""
    asked = OPTIONS.parse_args()
    columns = ["case", "surface", *(f"mesh {k}" for k in (1, 2, 3)), "seconds"]
    table = Table("Errors; meshes of 100, 400, 1,600 arcs or 320, 1,280, 5,120 triangles", columns)
    for name in asked.case or CASES:
        for d, counts in CELLS.items():
            CASES[name](d, counts[0])  # compiles
            begun = time.process_time()
            few = counts[: 1 if asked.quick else 3]
            errors = [f"{CASES[name](d, cells):.1e}" for cells in few]
            errors += ["-"] * (3 - len(few))
            table.row(name, NAMES[d], *errors, f"{time.process_time() - begun:.2f}")


if __name__ == "__main__":
    present(main, OPTIONS)
