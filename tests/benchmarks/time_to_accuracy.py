"""Time to a given W1 error: this solver against plain N-token codes, one thread each.

    python -m tests.benchmarks.time_to_accuracy [--quick]

Circle, beta = 40, to t = 2: the truth are 8,000 quadrature nodes of the initial density that follow
the exact flow of their own measure (Runge-Kutta 4, steps of 0.02). The density is constant in each
cell: it enters W1 as 16 points a cell. Sphere, beta = 10, to t = 2: the truth is this solver with
81,920 cells (20,480 with --quick), and W1 is that between the masses which the 1,280 triangles of a
coarser icosphere hold, for tokens as for densities.

Tokens are moved as public codes move them: all pairs, chunk by chunk in numpy, by Heun's method
with steps of 0.05. 'Random' tokens are drawn from the initial density, 'regular' ones lie at the
centres of a mesh with the masses of its cells. Where N tokens would take too long, N comes from the
law W1 = c N^(-1/2), fitted to the runs shown, and the time from its growth as N^2.
"""

from __future__ import annotations

import math
import time

import numpy as np

from meanfield_pde import Attention, Measure, circle_mesh, sphere_mesh
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.surface import circle_surface, sphere_surface
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.wasserstein import wasserstein
from tests.benchmarks.attention import CHUNK
from tests.benchmarks.tables import Table, options, present

UNTIL = 2.0
STEP = 0.05
VALUE = np.diag([1.0, 0.3, 0.1])
BETA = {2: 40.0, 3: 10.0}
TARGET = {2: 1e-3, 3: 1e-2}
MESHES = {2: circle_mesh, 3: sphere_mesh}
SURFACES = {2: circle_surface, 3: sphere_surface}
METRIC_CELLS = 1280


def head(d: int) -> Attention:
    """Q = K = I, V diagonal."""
    return Attention(np.eye(d), np.eye(d), VALUE[:d, :d], BETA[d])


def density(x: np.ndarray) -> np.ndarray:
    """Initial density, up to a factor; at most 1.8."""
    return 1 + 0.5 * x[:, 0] + 0.3 * x[:, 0] * x[:, 1]


def plain_velocity(x: np.ndarray, masses: np.ndarray, attention: Attention) -> np.ndarray:
    """P_x V m(x) at all tokens, from all pairs."""
    push = np.empty_like(x)
    for start in range(0, len(x), CHUNK):
        part = slice(start, start + CHUNK)
        weight = attention.scores(x[part]) @ x.T
        weight -= weight.max(axis=1, keepdims=True)
        np.exp(weight, out=weight)
        weight *= masses
        push[part] = weight @ x / weight.sum(axis=1, keepdims=True)
    push = push @ attention.value.T
    return push - (push * x).sum(axis=1, keepdims=True) * x


def move_tokens(x: np.ndarray, masses: np.ndarray, attention: Attention) -> np.ndarray:
    """The tokens at the end."""
    for _ in range(round(UNTIL / STEP)):
        slope = plain_velocity(x, masses, attention)
        ahead = geometry.normalised(x + STEP * slope)
        slope = (slope + plain_velocity(ahead, masses, attention)) / 2
        x = geometry.normalised(x + STEP * slope)
    return x


def draw(count: int, d: int, seed: int) -> np.ndarray:
    """Random tokens, by rejection."""
    random = np.random.default_rng([seed, d])
    found = np.empty((0, d))
    while len(found) < count:
        x = geometry.normalised(random.normal(size=(2 * count, d)))
        found = np.concatenate([found, x[random.uniform(0, 1.8, len(x)) < density(x)]])
    return found[:count]


class Circle:
    """W1 on the circle, against characteristics."""

    def __init__(self) -> None:
        attention = head(2)
        angle = 2 * np.pi * (np.arange(8000) + 0.5) / 8000
        x = np.column_stack([np.cos(angle), np.sin(angle)])
        masses = density(x) / density(x).sum()

        def velocity(x: np.ndarray) -> np.ndarray:
            return attention.velocity(x, x, masses, tolerance=1e-10)

        for _ in range(round(UNTIL / 0.02)):
            first = velocity(x)
            second = velocity(geometry.normalised(x + 0.01 * first))
            third = velocity(geometry.normalised(x + 0.01 * second))
            fourth = velocity(geometry.normalised(x + 0.02 * third))
            x = geometry.normalised(x + 0.02 / 6 * (first + 2 * second + 2 * third + fourth))
        self._truth = Measure(x, masses)

    def error_of_points(self, points: np.ndarray, masses: np.ndarray) -> float:
        """W1 from atoms."""
        return wasserstein(Measure(points, masses), self._truth, 1).value

    def error_of_cells(self, cells: int, masses: np.ndarray) -> float:
        """W1 from a density that is constant in each arc."""
        angle = 2 * np.pi * (np.arange(16 * cells) + 0.5) / (16 * cells)
        points = np.column_stack([np.cos(angle), np.sin(angle)])
        return self.error_of_points(points, np.repeat(masses / 16, 16))


class Sphere:
    """W1 between the masses of the triangles of a coarse icosphere."""

    def __init__(self, cells: int) -> None:
        surface = sphere_surface(METRIC_CELLS)
        self._corners = surface.points[surface.cells]
        self._centres = geometry.normalised(geometry.cell_mean(self._corners))
        self._inverse = np.linalg.inv(self._corners)
        _, masses = evolve(3, cells)
        self._truth = self._collect(self._cell_points(cells), masses)

    def error_of_points(self, points: np.ndarray, masses: np.ndarray) -> float:
        """W1 from atoms."""
        mine = self._collect(points, masses)
        return wasserstein(mine, self._truth, 1, rtol=1e-3).value

    def error_of_cells(self, cells: int, masses: np.ndarray) -> float:
        """W1 from a density on an icosphere that refines the coarse one."""
        return self.error_of_points(self._cell_points(cells), masses)

    def _cell_points(self, cells: int) -> np.ndarray:
        surface = sphere_surface(cells)
        return geometry.normalised(geometry.cell_mean(surface.points[surface.cells]))

    def _collect(self, points: np.ndarray, masses: np.ndarray) -> Measure:
        """The masses of points in the triangle that holds them."""
        place = np.empty(len(points), dtype=int)
        for start in range(0, len(points), CHUNK):
            part = slice(start, start + CHUNK)
            # x = sum_i coordinate_i corner_i, and all coordinates are >= 0 in the right triangle.
            place[part] = np.einsum("pd,cdi->pci", points[part], self._inverse).min(2).argmax(1)
        return Measure(self._centres, np.bincount(place, masses, len(self._centres)))


def evolve(d: int, cells: int) -> tuple[float, np.ndarray]:
    """Seconds, with all set-up, and the masses of the cells at the end."""
    started = time.process_time()
    run = Simulation(head(d), MESHES[d](cells), density, threads=1)
    run.evolution.advance(UNTIL)
    return time.process_time() - started, run.volumes.gather(run.evolution.masses)


def regular(d: int, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens at the centres of cells, with their masses."""
    surface = SURFACES[d](cells)
    corners = surface.points[surface.cells]
    masses = geometry.integrate(density, corners)
    return geometry.normalised(geometry.cell_mean(corners)), masses / masses.sum()


def compare(d: int, metric: Circle | Sphere, quick: bool) -> None:
    """Print the rows of the circle or the sphere."""
    attention, target = head(d), TARGET[d]
    table = Table(
        f"Time to W1 = {target:g} at t = {UNTIL:g} on the {'circle' if d == 2 else 'sphere'}",
        ["method", "size", "W1", "seconds", "size needed", "seconds needed", "times ours"],
    )
    evolve(d, 20 if d == 3 else 25)  # compiles
    needed = math.nan
    for cells in (25, 50, 100, 200, 400, 800) if d == 2 else (1280, 5120, 20_480):
        seconds, masses = evolve(d, cells)
        error = metric.error_of_cells(cells, masses)
        if error <= target:
            needed = seconds
            break
        table.row("density", cells, f"{error:.1e}", f"{seconds:.2g}", "", "", "")
    table.row("density", cells, f"{error:.1e}", f"{seconds:.2g}", cells, f"{needed:.2g}", "1")

    constants = []
    for count in (250, 1000) if quick else (250, 1000, 4000):
        errors = []
        equal = np.full(count, 1 / count)
        for seed in range(4):
            started = time.process_time()
            end = move_tokens(draw(count, d, seed), equal, attention)
            seconds = time.process_time() - started
            errors.append(metric.error_of_points(end, equal))
        constants.append(float(np.mean(errors)) * math.sqrt(count))
        table.row("random", count, f"{np.mean(errors):.1e}", f"{seconds:.2g}", "", "", "")
    number = (np.mean(constants) / target) ** 2
    cost = seconds * (number / count) ** 2
    row = [f"{number:.2g}", f"{cost:.2g}", f"{cost / needed:.2g}"]
    table.row("random", "N^(-1/2) law", "", "", *row)

    for count in (50, 100, 200, 400, 800, 1600) if d == 2 else (320, 1280, 5120, 20_480):
        start, masses = regular(d, count)
        started = time.process_time()
        end = move_tokens(start, masses, attention)
        seconds = time.process_time() - started
        error = metric.error_of_points(end, masses)
        if error <= target or (quick and count > 1000):
            break
        table.row("regular", count, f"{error:.1e}", f"{seconds:.2g}", "", "", "")
    row = [count, f"{seconds:.2g}", f"{seconds / needed:.2g}"] if error <= target else ["-"] * 3
    table.row("regular", count, f"{error:.1e}", f"{seconds:.2g}", *row)


OPTIONS = options("time_to_accuracy", __doc__)


def main() -> None:
    """Print the tables."""
    quick = OPTIONS.parse_args().quick
    compare(2, Circle(), quick)
    compare(3, Sphere(20_480 if quick else 81_920), quick)
    print("\nProcessor times; those of the density include its mesh and all set-up.\n")


if __name__ == "__main__":
    present(main, OPTIONS)
