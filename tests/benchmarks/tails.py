"""Order in the tails at zero temperature: log masses of cells against exact ones.

    python -m tests.benchmarks.tails [--quick] [--surface circle|sphere] [--seed N ...]
        [--cells N ...] [--mesh uniform|graded|bisected] [--scheme NAME] [--shorter F]

With B orthogonal |B^T x| = 1, and tokens move by x' = P_x A x, A = V B^T, to M x / |M x| with
M = exp(A t). So the density is, in d dimensions,

    log rho_t(x) = log rho_0(y / |y|) - d log |y| - t trace A,     y = M^-1 x,

and the mass of a cell is its integral, by quadrature of exp(log rho_t - its maximum). Each A is
random, with the eigenvalues 1 > l_2 > ..., each at most 0.6 of the one before. Mass leaves the
neighbourhood of the last eigenvector and gathers where <l, x> = 0, l the left eigenvector of the
last eigenvalue, of length one. The error is the mean of |log M - log M_exact| over the cells with
|<l, x>| > 0.3 in which the exact log rho changes by less than 1 from corner to corner; what is
beside them is a cluster or a ridge that cells do not resolve. 'Order' is the slope of its logarithm
in that of the cells' width, over the meshes of 1,280 cells and more. The lines 's' have the
processor time of the steps, those 'ms' that of one step.

Graded meshes are finer toward the last eigenvector, and bisected ones have cells of half the width
in the half-space around it; columns are named by the cells that a uniform one would have. With
`--shorter F` steps are F times as short, which leaves the error of the reconstruction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import scipy.linalg
import scipy.stats

from meanfield_pde import Attention, circle_mesh, solve, sphere_mesh
from meanfield_pde.amr.forest import Forest
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.surface import build_mesh, circle_surface, sphere_surface
from meanfield_pde.solver.schemes import SCHEMES
from meanfield_pde.theory.fits import linear_fit
from tests.benchmarks.sums import Counter, shorter
from tests.benchmarks.tables import Table, options, present
from tests.benchmarks.time_to_accuracy import density

TIMES = (1.0, 4.0, 9.0)
RATIOS = 0.1, 0.6  # between eigenvalues that follow one another
AWAY = 0.3  # least |<l, x>|
STEEPEST = 1.0  # change of log rho in a cell
FITTED_FROM = 1280
# Beyond 20,480 cells on the circle, at 5 minutes for each A, errors of third order are of rounding.
CELLS = {"circle": (320, 1280, 5120, 20_480), "sphere": (320, 1280, 5120, 20_480, 81_920)}
DIMENSIONS = {"circle": 2, "sphere": 3}
GRADE = 3.0  # of graded meshes, of G = I + (g - 1) a a^T
# Eigenvectors that are nearly parallel would make a mesh coarse for them (chosen, not tuned).
_CONDITION = 3.0


def drift(seed: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """A random A with its last left eigenvector l, of length one."""
    random = np.random.default_rng([seed, d])
    values = np.cumprod([1.0, *random.uniform(*RATIOS, d - 1)])
    while True:
        vectors = geometry.normalised(random.normal(size=(d, d))).T
        if np.linalg.cond(vectors) < _CONDITION:
            break
    inverse = np.linalg.inv(vectors)
    return vectors * values @ inverse, geometry.normalised(inverse[-1:])[0]


def attention(seed: int, a: np.ndarray) -> Attention:
    """The head of V B^T = A, with a random orthogonal B."""
    b = scipy.stats.ortho_group.rvs(len(a), random_state=seed)
    return Attention(b.T, np.eye(len(a)), a @ b, math.inf)


def log_density(x: np.ndarray, a: np.ndarray, time: float) -> np.ndarray:
    """The exact log rho_t at points of any shape, ... x d."""
    d = len(a)
    back = x @ scipy.linalg.expm(-time * a).T
    length = np.linalg.norm(back, axis=-1)
    points = (back / length[..., None]).reshape(-1, d)
    whole = 2 * math.pi if d == 2 else 4 * math.pi  # of the initial density
    start = np.log(density(points) / whole).reshape(length.shape)
    return np.asarray(start - d * np.log(length) - time * np.trace(a))


def exact_log_masses(
    corners: np.ndarray, a: np.ndarray, left: np.ndarray, time: float
) -> np.ndarray:
    """The exact log masses of the cells that are looked at; nan for the others."""
    ends = log_density(corners, a, time)
    away = np.abs(geometry.normalised(corners.sum(axis=1)) @ left) > AWAY
    chosen = away & (np.ptp(ends, axis=1) < STEEPEST)
    found = np.full(len(corners), math.nan)
    points, weights = geometry.quadrature(corners[chosen])
    logs = log_density(points, a, time)
    top = logs.max(axis=1, keepdims=True)
    found[chosen] = top[:, 0] + np.log((weights * np.exp(logs - top)).sum(axis=1))
    return found


def order(cells: Sequence[int], errors: Sequence[float], d: int) -> float:
    """The power of the width of N cells, N^(-1 / (d - 1)), with which errors fall."""
    pairs = [(n, e) for n, e in zip(cells, errors, strict=True) if n >= FITTED_FROM and e > 0]
    if len(pairs) < 2:
        return math.nan
    number, error = np.log(np.array(pairs)).T
    return float(linear_fit(-number / (d - 1), error).slope)


@cache
def mesh_of(surface: str, cells: int, kind: str = "uniform", seed: int = 0) -> Any:
    """A mesh of the solver, for the A of a seed if it is not uniform."""
    make, arrays = {
        "circle": (circle_mesh, circle_surface),
        "sphere": (sphere_mesh, sphere_surface),
    }[surface]
    if kind == "uniform":
        return make(cells)
    values, vectors = np.linalg.eig(drift(seed, DIMENSIONS[surface])[0])
    axis = vectors[:, values.real.argmin()].real
    if kind == "graded":
        return make(cells, grade=GRADE, axis=axis)
    forest = Forest.of(arrays(cells))
    for _ in range(DIMENSIONS[surface] - 1):
        forest = forest.refined(forest.corners.sum(axis=1) @ axis > 0)
    return build_mesh(forest.surface)


def errors_of(
    surface: str,
    seed: int,
    cells: int,
    scheme: str,
    times: Sequence[float],
    kind: str = "uniform",
    factor: float = 1.0,
) -> tuple[list[float], float, int]:
    """Mean errors of log masses at some times, and the processor time and number of steps."""
    a, left = drift(seed, DIMENSIONS[surface])
    counter = Counter()
    solution = solve(
        attention(seed, a),
        mesh_of(surface, cells, kind, 0 if kind == "uniform" else seed),
        density,
        until=times[-1],
        save_at=times[:-1],
        scheme=scheme,
        threads=1,
        observers=[counter],
        **shorter(factor, scheme, DIMENSIONS[surface]),
    )
    found = []
    for masses, time in zip(solution.masses[1:], times, strict=True):
        exact = exact_log_masses(solution.vertices, a, left, time)
        known = np.isfinite(exact)
        found.append(float(np.abs(np.log(masses[known]) - exact[known]).mean()))
    return found, counter.seconds[0], solution.steps


OPTIONS = options("tails", __doc__)
OPTIONS.add_argument("--surface", choices=CELLS, nargs="+", default=list(CELLS))
OPTIONS.add_argument("--seed", type=int, nargs="+")
OPTIONS.add_argument("--cells", type=int, nargs="+")
OPTIONS.add_argument("--mesh", choices=["uniform", "graded", "bisected"], default="uniform")
OPTIONS.add_argument("--scheme", choices=SCHEMES, default="quadratic")
OPTIONS.add_argument("--shorter", type=float, default=1.0, help="factor of steps")


def main() -> None:
    """Print the tables."""
    asked = OPTIONS.parse_args()
    quick = asked.quick
    for surface in asked.surface:
        d, cells = DIMENSIONS[surface], asked.cells or CELLS[surface][: 3 if quick else None]
        errors_of(surface, 0, 20, asked.scheme, (0.5,))  # compiles
        title = f"Error of log masses, {surface}, {asked.mesh} meshes, {asked.scheme}"
        table = Table(title, ["seed", "eigenvalues", "t", *map(str, cells), "order"])
        orders = []
        for seed in asked.seed or range(1 if quick else 5):
            values = np.sort(np.linalg.eigvals(drift(seed, d)[0]).real)[::-1]
            name = seed, " ".join(f"{value:.2f}" for value in values)
            runs = [
                errors_of(surface, seed, number, asked.scheme, TIMES, asked.mesh, asked.shorter)
                for number in cells
            ]
            for index, time in enumerate(TIMES):
                errors = [found[index] for found, _, _ in runs]
                orders.append(order(cells, errors, d))
                row = [f"{error:.1e}" for error in errors]
                table.row(*name, f"{time:g}", *row, f"{orders[-1]:.2f}")
            table.row(*name, "s", *(f"{seconds:.3g}" for _, seconds, _ in runs), "")
            per_step = [f"{1e3 * seconds / steps:.3g}" for _, seconds, steps in runs]
            table.row(*name, "ms", *per_step, "")
        print(f"\nOrders: least {min(orders):.2f}, median {np.median(orders):.2f}\n")


if __name__ == "__main__":
    present(main, OPTIONS)
