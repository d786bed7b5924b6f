"""Adaptive meshes: the error of W_1, and lifetimes, beside uniform meshes.

    python -m tests.benchmarks.adaptivity [--quick] [--beta B ...]
        [--case sphere|sphere-inclined|sphere-skew ...] [--given N ...] [--tolerance T ...]
        [--part w1|w1-sphere|w1-beta|w1-beta-sphere|lifetimes|sphere|axis|travelling|cost]

At zero temperature with Q = K = I tokens move to exp(V t) x / |exp(V t) x|. So W_1 of the density,
as it is in its cells, is taken against 400,000 atoms that moved exactly, and on the sphere bounded
from both sides (`exact_distance`). 'Estimate' is the column w1_error_estimate of
the history; seconds are processor time of one thread, compilation aside. Lifetimes are those of
`demos/circle-lopsided.toml`, with few cells and several tolerances, and of three cases on the
sphere in `demos/`; below each of these tables stands how far half-way times are apart that differ
in the mesh given alone (largest less smallest, over their mean). The other parts are in
`moving_mesh`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde import Attention, circle_mesh, solve, sphere_mesh
from meanfield_pde.attention.layers import single
from meanfield_pde.case.file import read_case
from meanfield_pde.experiments.lifetime import density_lifetime
from meanfield_pde.initial.given import InitialLike
from tests.benchmarks import exact_distance, finite_beta, moving_mesh
from tests.benchmarks.moving_arcs import Arcs, crossings
from tests.benchmarks.tables import Table, options, present
from tests.problems import rotation

ONE = np.eye(2)
DRIFT = rotation(0.3) @ np.array([[1.0, 0.4], [0.0, 0.2]]) @ rotation(-0.3)
TIMES = (1.0, 4.0, 12.0)
DEMOS = Path(__file__).parents[2] / "demos"
# The case of the lifetimes: V and A = V B^T with eigenvectors at 0.6 and -0.1 radians.
LOPSIDED = "demos/circle-lopsided.toml"
_HEAD = single(read_case(DEMOS.parent / LOPSIDED).attention, "a lifetime")
VALUE, KEY_QUERY = _HEAD.value, _HEAD.key_query
Run = tuple[int, float | None]  # cells of the (coarsest) mesh, and the tolerance
# Cases on the sphere with the betas of their lifetimes, and given meshes, not all of which are
# bisections of one another.
SPHERES = {
    "sphere": (100.0, 200.0, 300.0),
    "sphere-inclined": (120.0,),
    "sphere-skew": (100.0,),
}
GIVEN = (320, 1620, 2880, 3920, 5120)


def density(x: np.ndarray) -> np.ndarray:
    """The initial density at zero temperature."""
    return 1 + 0.5 * x[:, 0] + 0.3 * x[:, 0] * x[:, 1]


def lopsided(x: np.ndarray) -> np.ndarray:
    """The initial density of the lifetimes."""
    angle = np.arctan2(x[:, 1], x[:, 0])
    return 1 + 0.5 * np.cos(angle - 1) + 0.3 * np.sin(2 * angle)


def lopsided_integral(angle: np.ndarray) -> np.ndarray:
    """Its integral, but for a constant."""
    return np.asarray(angle + 0.5 * np.sin(angle - 1) - 0.15 * np.cos(2 * angle))


def exact(moment: float, count: int = 400_000) -> tuple[np.ndarray, np.ndarray]:
    """Angles and masses of atoms that moved exactly."""
    angle = 2 * np.pi * (np.arange(count) + 0.5) / count
    x = np.column_stack([np.cos(angle), np.sin(angle)])
    values, vectors = np.linalg.eig(DRIFT)
    flow = ((vectors * np.exp(values * moment)) @ np.linalg.inv(vectors)).real
    masses = density(x)
    y = x @ flow.T
    return np.arctan2(y[:, 1], y[:, 0]), masses / masses.sum()


def distance(first: tuple[np.ndarray, np.ndarray], second: tuple[np.ndarray, np.ndarray]) -> float:
    """W_1 on the circle: the integral of |F - G - its median|."""
    angle = np.concatenate([first[0], second[0]]) % (2 * np.pi)
    mass = np.concatenate([first[1], -second[1]])
    order = np.argsort(angle)
    level = np.cumsum(mass[order])
    gap = np.diff(angle[order], append=angle[order[0]] + 2 * np.pi)
    by_level = np.argsort(level)
    half = np.searchsorted(np.cumsum(gap[by_level]), np.pi)
    return float((np.abs(level - level[by_level][half]) * gap).sum())


def zero_temperature(quick: bool) -> None:
    """W_1 at three times, with tolerances and on uniform meshes."""
    attention = Attention(ONE, ONE, DRIFT, math.inf)
    runs: list[Run]
    runs = [(100, 1e-2), (100, 1e-3), (100, 1e-4), (100, None), (400, None), (1600, None)]
    runs += [] if quick else [(6400, None)]
    solve(attention, circle_mesh(20), density, until=0.5, adapt=0.1)  # compiles

    def error(solution: Any, index: int, _: float | None) -> str:
        return f"{distance(moving_mesh.atoms_of(solution, index), exact(TIMES[index - 1])):.1e}"

    title = "Zero temperature, circle: W1 to the exact density"
    moving_mesh.against_exact(title, attention, circle_mesh, density, TIMES, runs, error)


def circle_lifetimes(quick: bool, betas: Sequence[float] | None) -> None:
    """Lifetimes with several tolerances and coarsest meshes."""
    runs: list[Run] = [(200, None), (400, None), (100, 1e-3), (100, 1e-4)]
    runs += [] if quick else [(200, 1e-4), (400, 1e-4), (200, 3e-5), (200, 1e-5)]
    betas = betas or ((160.0,) if quick else (160.0, 320.0, 640.0))
    lifetimes(LOPSIDED, circle_case(0.0), circle_mesh, lopsided, runs, betas)
    arcs_lifetimes(quick, betas)


def arcs_lifetimes(quick: bool, betas: Sequence[float]) -> None:
    """The same from moving arcs. The first stop of the axis is at V e, e the eigenvector of A."""
    columns = ["beta", "finer", "most arcs", "leaves", "half way", "seconds"]
    table = Table(f"Lifetimes, {LOPSIDED}, by arcs that move with the flow", columns)
    start, end = -0.1, 0.6
    stop = VALUE @ [math.cos(start), math.sin(start)]
    levels = (start + math.atan2(stop[1], stop[0])) / 2, (start + end) / 2
    for beta in betas:
        for fine in (0.5,) if quick else (0.5, 1.0):
            begun = time.process_time()
            arcs = Arcs(VALUE, beta * KEY_QUERY, lopsided_integral, fine)
            times = crossings(arcs, levels, 12 + beta / 14)
            seconds = time.process_time() - begun
            found = ["-" if one is None else f"{one:.3f}" for one in times]
            table.row(f"{beta:g}", fine, len(arcs.angle), *found, f"{seconds:.0f}")


def lifetimes(
    title: str,
    attention: Attention,
    mesh: Callable[[int], Any],
    initial: InitialLike,
    runs: Sequence[Run],
    betas: Sequence[float],
) -> None:
    """A table of when the axis leaves, and when it is half of the way."""
    solve(attention.with_beta(betas[0]), mesh(20), initial, until=0.01, adapt=0.3)  # compiles
    columns = ["beta", "given", "tolerance", "most cells", "leaves", "half way", "seconds"]
    table = Table(f"Lifetimes, {title}", columns)
    halves: dict[tuple[str, str], list[float]] = {}
    for beta in betas:
        for cells, tolerance in runs:
            begun = time.process_time()
            found = density_lifetime(
                attention.with_beta(beta), mesh(cells), initial, adapt=tolerance, threads=1
            )
            seconds = time.process_time() - begun
            times = ["-" if one is None else f"{one:.3f}" for one in (found.lifetime, found.half)]
            name = f"{tolerance:g}" if tolerance else "uniform"
            table.row(f"{beta:g}", cells, name, found.most_cells, *times, f"{seconds:.1f}")
            halves.setdefault((f"{beta:g}", name), []).append(found.half or math.nan)
    print()
    for (name_of_beta, name), half in halves.items():
        if name != "uniform" and len(half) > 1:
            print(f"beta = {name_of_beta}, {name}: half-way times {spread(half):.2%} apart")


def spread(values: Sequence[float]) -> float:
    """How far values are apart: largest less smallest, over their mean."""
    return float(np.ptp(values) / np.mean(values))


def circle_case(beta: float) -> Attention:
    """The case of the lifetimes."""
    return Attention(KEY_QUERY, ONE, VALUE, beta)


def sphere_case(name: str = "sphere") -> tuple[Attention, InitialLike]:
    """Attention and initial density of a demo of the sphere."""
    case = read_case(DEMOS / f"{name}.toml")
    assert isinstance(case.attention, Attention)
    return case.attention, case.initial


def sphere_runs(
    quick: bool, name: str, given: Sequence[int] | None, tolerances: Sequence[float]
) -> list[Run]:
    """Given meshes by tolerance; by default the first demo on uniform meshes, too."""
    adaptive: list[Run] = [
        (cells, tolerance)
        for tolerance in tolerances
        for cells in given or (GIVEN[:2] if quick else GIVEN)
    ]
    if given or name != "sphere":
        return adaptive
    uniform = (1280, 5120) if quick else (1280, 5120, 20_480)
    return [*((cells, None) for cells in uniform), *adaptive]


def sphere_lifetimes(
    quick: bool,
    names: Sequence[str],
    betas: Sequence[float] | None,
    given: Sequence[int] | None,
    tolerances: Sequence[float],
) -> None:
    """Lifetimes of the demos on the sphere."""
    for name in names:
        attention, initial = sphere_case(name)
        runs = sphere_runs(quick, name, given, tolerances)
        known = betas or SPHERES[name][: 1 if quick else None]
        lifetimes(f"demos/{name}.toml", attention, sphere_mesh, initial, runs, known)


PARTS = (
    "w1",
    "w1-sphere",
    "w1-beta",
    "w1-beta-sphere",
    "lifetimes",
    "sphere",
    "axis",
    "travelling",
    "cost",
)
OPTIONS = options("adaptivity", __doc__)
OPTIONS.add_argument("--part", choices=PARTS)
OPTIONS.add_argument("--beta", type=float, nargs="+", help="of the lifetimes")
OPTIONS.add_argument("--case", choices=SPHERES, nargs="+", default=list(SPHERES))
OPTIONS.add_argument("--given", type=int, nargs="+", help="meshes of the sphere, in cells")
OPTIONS.add_argument("--tolerance", type=float, nargs="+", default=[2e-3], help="on the sphere")


def main() -> None:
    """Print the tables."""
    asked = OPTIONS.parse_args()
    quick = asked.quick
    parts: dict[str, Callable[[], None]] = {
        "w1": lambda: zero_temperature(quick),
        "w1-sphere": lambda: exact_distance.zero_temperature(quick),
        "w1-beta": lambda: finite_beta.circle(quick, DRIFT, density, distance),
        "w1-beta-sphere": lambda: finite_beta.sphere(quick),
        "lifetimes": lambda: circle_lifetimes(quick, asked.beta),
        "sphere": lambda: sphere_lifetimes(
            quick, asked.case, asked.beta, asked.given, asked.tolerance
        ),
        "axis": lambda: moving_mesh.axis(
            quick,
            circle_case(320.0),
            lopsided,
            Arcs(VALUE, 320 * KEY_QUERY, lopsided_integral, 0.5),
        ),
        "travelling": lambda: moving_mesh.travelling_cluster(quick, distance),
        "cost": lambda: moving_mesh.cost(quick, circle_case(160.0), *sphere_case()),
    }
    for name in PARTS:
        if asked.part in (None, name):
            parts[name]()


if __name__ == "__main__":
    present(main, OPTIONS)
