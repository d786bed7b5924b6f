"""Lifetimes on the sphere from triangles that move with the flow, by nothing of the solver.

    python -m tests.benchmarks.moving_triangles [--quick] [--case FILE]
        [--beta B ...] [--fine N ...] [--until T] [--log]

Nodes x move with v = P_x V m(x), and carry f = log rho and its gradient g:

    x' = v,    f' = -div v,    g' = -grad div v - (D v)^T g,

m the softmax mean, whose derivatives are softmax moments up to the third (`softmax_moments`). The
triangles between the nodes only interpolate (`cubic_triangles`): rho is integrated over them by a
rule of three nodes, which are the sources, or one for a narrow triangle. So an edge can be halved,
flipped or taken away (`triangle_mesh`) at the price of an interpolation error of fourth order; how
far the total mass is from one shows how large these errors are.

The axis progress is angle(U, E) / (angle(U, E) + angle(U, F)), U the principal axis of the second
moments, E and F the dominant eigenvectors of A = V K^T Q and V. The axis leaves when its progress
comes to half of that of the first V^k E between 1/5 and 4/5 (to 1/2 without one), for good. It is
half-way at 1/2, for good, too.
"""

from __future__ import annotations

import math
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from meanfield_pde.initial.expression import Expression
from tests.benchmarks.cubic_triangles import RULE, at_rule, in_the_middle, on_sphere
from tests.benchmarks.softmax_moments import Moments, Sources, rates, softmax
from tests.benchmarks.tables import Table, options, present
from tests.benchmarks.triangle_mesh import (
    coarsened,
    edge_sizes,
    edges,
    flip,
    halved,
    icosphere,
)

Density = Callable[[np.ndarray], np.ndarray]
Attention = Callable[[np.ndarray, Sources, np.ndarray, np.ndarray], Moments]
DEMO = Path(__file__).parents[2] / "demos/sphere.toml"
_HALVINGS = 3  # of the first icosahedron, 1,280 triangles, all of which are refined where needed
# The longest edge in kernels 1 / sqrt(beta |Q^T K|), d of `edge_sizes`, and the step of time for
# `fine` = 1; they fall like 1 / fine, 1 / fine^3 and 1 / fine (chosen, not tuned).
_WIDTH, _CHANGE, _STEP = 1.0, 0.03, 0.1
# A step times the largest |D w| over nodes: between two clusters, where velocities change within
# 1 / beta and gradients decay as fast, Runge and Kutta's method is unstable from 2.78 on.
_STIFF = 2.0
# In kernels: a triangle with shorter edges is one source, and log rho need not be smooth on shorter
# edges unless more than exp(-11.5) = 1e-5 of all mass is there.
_NARROW, _ROUGH, _LIGHT = 0.1, 0.7, -11.5
_COARSENINGS = 2  # per step: nodes next to one that is taken away wait for the next
_DIFFERENCE = 1e-5  # for the gradient of the initial density: its error is 1e-10
# A triangle of less area, relative to its longest edge squared, has the mass that it had before.
_FLAT = 1e-3
_APART = 0.2  # of places where the axis stops, by definition of the lifetime
_STOPS = 60  # that are looked at
_ARRIVED = 0.52  # a progress from which on it does not come back


@dataclass(frozen=True, eq=False)
class Case:
    """What to follow.

    Attributes:
        value: V.
        key_query: K^T Q.
        density: at the start, of any mass.
    """

    value: np.ndarray
    key_query: np.ndarray
    density: Density

    @classmethod
    def read(cls, path: Path) -> Case:
        """The matrices and the density expression of a case file."""
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        query, key, value = (np.array(table["attention"][one]) for one in ("query", "key", "value"))
        return cls(value, key.T @ query, Expression(table["initial"]["density"]))


class Triangles:
    """The whole sphere in triangles.

    Attributes:
        x: nodes.
        level: log rho there.
        gradient: of log rho there, tangential.
        triangles: nodes of each, in positive order.
        log_mass: of each.
        time: at which this is.
        width, change: the longest edge, and what d of `edge_sizes` is compared with.
    """

    def __init__(
        self,
        value: np.ndarray,
        score: np.ndarray,
        density: Density,
        fine: float = 1.0,
        attention: Attention = softmax,
    ) -> None:
        """Begin.

        Args:
            value: V.
            score: beta K^T Q.
            density: the initial density.
            fine: how many times finer, in space and time, than said above.
            attention: what points attend to.
        """
        self._value, self._score = np.ascontiguousarray(value), np.ascontiguousarray(score)
        self._kernel = 1 / math.sqrt(float(np.linalg.norm(score, 2)))
        self.width, self.change = _WIDTH * self._kernel / fine, _CHANGE / fine**3
        self._narrow = _NARROW * self._kernel / fine
        self.time, self._time_step = 0.0, _STEP / fine
        self._attention = attention
        self._density = density
        self.x, self.triangles = icosphere(_HALVINGS)
        self.log_mass = np.zeros(len(self.triangles))
        self.level, self.gradient = self._at_start(self.x)
        while self._halve(at_start=True):
            pass
        _, self.log_mass = self._quadrature(self.x, self.level, self.gradient)[1:]
        total = math.log(np.exp(self.log_mass).sum())
        self.level -= total
        self.log_mass -= total

    def step(self) -> None:
        """One step of Runge and Kutta's method, and a better mesh."""
        begun = self.x, self.level, self.gradient
        ended = begun
        now = begun
        dt = math.inf
        for part, weight in ((1 / 2, 1 / 6), (1 / 2, 1 / 3), (1.0, 1 / 3), (0.0, 1 / 6)):
            x, level, gradient = on_sphere(now[0]), *now[1:]
            moments = self._attention(
                x, self._sources(x, level, gradient), self._score, self._value
            )
            if math.isinf(dt):
                turn = self._value @ moments.covariance @ self._score
                fastest = float(np.linalg.norm(turn, axis=(1, 2)).max())
                dt = min(self._time_step, _STIFF / fastest)
            found = rates(x, gradient, moments, self._score, self._value)
            ended = _moved(ended, weight * dt, found)
            now = _moved(begun, part * dt, found)
        self.x, self.level = on_sphere(ended[0]), ended[1]
        self.gradient = ended[2] - (ended[2] * self.x).sum(axis=1)[:, None] * self.x
        self.time += dt
        self.adapt()
        self.log_mass = self._quadrature(self.x, self.level, self.gradient)[2]

    def adapt(self) -> None:
        """Halve edges, flip edges, and take nodes away."""
        while self._halve():
            pass
        for _ in range(_COARSENINGS):
            flip(self.triangles, self.x)
            self._coarsen()

    def second_moments(self) -> np.ndarray:
        """The integral of x x^T."""
        y, log_mass = self._sources(self.x, self.level, self.gradient)
        return np.asarray(np.einsum("n,ni,nj->ij", np.exp(log_mass), y, y))

    def areas(self) -> np.ndarray:
        """Of the flat triangles seen from the origin, twice; negative for the wrong order."""
        return _areas(self.x[self.triangles])[0]

    def _at_start(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        def log(points: np.ndarray) -> np.ndarray:
            return np.log(self._density(on_sphere(points)))

        steps = _DIFFERENCE * np.eye(3)
        slopes = [(log(x + one) - log(x - one)) / (2 * _DIFFERENCE) for one in steps]
        gradient = np.column_stack(slopes)
        return log(x), gradient - (gradient * x).sum(axis=1)[:, None] * x

    def _quadrature(
        self, x: np.ndarray, level: np.ndarray, gradient: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Points (N x 3 x 3), their log masses (N x 3), and those of triangles."""
        corners = x[self.triangles]
        area, longest = _areas(corners)
        y = RULE @ corners
        length = np.linalg.norm(y, axis=2)
        # The area on the sphere is that of the flat triangle, times <n, y> / |y|^3.
        logs = at_rule(corners, level[self.triangles], gradient[self.triangles])
        logs -= 3 * np.log(length)
        flat = area < _FLAT * longest**2
        logs[~flat] += np.log(area[~flat] / 6)[:, None]
        total = np.logaddexp.reduce(logs, axis=1)
        logs[flat] += (self.log_mass - total)[flat, None]
        return y / length[..., None], logs, np.where(flat, self.log_mass, total)

    def _sources(self, x: np.ndarray, level: np.ndarray, gradient: np.ndarray) -> Sources:
        y, logs, total = self._quadrature(x, level, gradient)
        narrow = _areas(x[self.triangles])[1] < self._narrow
        share = np.exp(logs[narrow] - total[narrow, None])
        middle = on_sphere(np.einsum("nq,nqj->nj", share, y[narrow]))
        points = np.concatenate([y[~narrow].reshape(-1, 3), middle])
        return points, np.concatenate([logs[~narrow].ravel(), total[narrow]])

    def _floor(self) -> np.ndarray:
        """The length below which log rho need not be smooth, at nodes."""
        floor = np.full(len(self.x), _ROUGH * self._kernel)
        floor[self.triangles[self.log_mass > _LIGHT]] = 1e-300
        return floor

    def _halve(self, at_start: bool = False) -> bool:
        """Whether there was an edge to be halved."""
        floor = self._floor()

        def sizes(ends: np.ndarray) -> np.ndarray:
            return np.asarray(
                edge_sizes(ends, self.x, self.level, self.gradient, floor, self.width, self.change)
            )

        self.triangles, origin, nodes = halved(self.triangles, len(self.x), sizes)
        if not len(nodes):
            return False
        x, level, gradient = in_the_middle(self.x[nodes], self.level[nodes], self.gradient[nodes])
        if at_start:
            level, gradient = self._at_start(x)
        self.x = np.concatenate([self.x, x])
        self.level = np.concatenate([self.level, level])
        self.gradient = np.concatenate([self.gradient, gradient])
        parts = np.bincount(origin)
        self.log_mass = self.log_mass[origin] - np.log(parts[origin])
        return True

    def _coarsen(self) -> None:
        floor, ends = self._floor(), edges(self.triangles)[0]
        rest = self.x, self.level, self.gradient, floor, self.width, self.change
        size = edge_sizes(ends, *rest)
        least = np.full(len(self.x), np.inf)
        for side in ends.T:
            np.minimum.at(least, side, size)
        kept = coarsened(self.triangles, np.argsort(least), *rest)
        self.triangles, self.log_mass = self.triangles[kept], self.log_mass[kept]
        used = np.zeros(len(self.x), dtype=bool)
        used[self.triangles] = True
        self.triangles = (np.cumsum(used) - 1)[self.triangles]
        self.x, self.level, self.gradient = self.x[used], self.level[used], self.gradient[used]


State = tuple[np.ndarray, np.ndarray, np.ndarray]


def _moved(state: State, dt: float, rate: State) -> State:
    x, level, gradient = (one + dt * other for one, other in zip(state, rate, strict=True))
    return x, level, gradient


def _areas(corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """det(a, b, c) and the longest edge of triangles."""
    sides = np.roll(corners, -1, axis=1) - corners
    area = (corners[:, 0] * np.cross(sides[:, 0], -sides[:, 2])).sum(axis=1)
    return area, np.sqrt((sides**2).sum(axis=2).max(axis=1))


def _axis(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eig(matrix)
    found = vectors[:, np.argmax(values.real)].real
    return np.asarray(found / np.linalg.norm(found))


def _angle(first: np.ndarray, second: np.ndarray) -> float:
    along = float(first @ second)
    return math.atan2(float(np.linalg.norm(first - along * second)), abs(along))


@dataclass(frozen=True)
class Lifetime:
    """Times of the axis.

    Attributes:
        leaves: when it leaves E; None if it does not.
        half: when it is half-way to F; None if it is not.
        most: triangles at most.
        mass_error: how far the total mass is from one, at most.
        seconds: of processor time.
    """

    leaves: float | None
    half: float | None
    most: int
    mass_error: float
    seconds: float


def lifetime(case: Case, beta: float, fine: float, until: float, log: bool = False) -> Lifetime:
    """Lifetime and half-way time."""
    begun = time.process_time()
    first, last = _axis(case.value @ case.key_query), _axis(case.value)

    def progress(axis: np.ndarray) -> float:
        gone, ahead = _angle(axis, first), _angle(axis, last)
        return gone / (gone + ahead)

    level, stop = 0.5, first
    for _ in range(_STOPS):
        stop = on_sphere(case.value @ stop)
        if _APART <= progress(stop) <= 1 - _APART:
            level = progress(stop) / 2
            break
    mesh = Triangles(case.value, beta * case.key_query, case.density, fine)
    times, found, most, mass_error = list[float](), list[float](), 0, 0.0
    while True:
        moments = mesh.second_moments()
        times.append(mesh.time)
        found.append(progress(np.linalg.eigh(moments)[1][:, -1]))
        most = max(most, len(mesh.triangles))
        mass_error = max(mass_error, abs(float(np.trace(moments)) - 1))
        if log and len(times) % 10 == 0:
            now = f"{mass_error:.0e} {time.process_time() - begun:.0f} s"
            print(f"{mesh.time:.2f} {found[-1]:.5f}", len(mesh.triangles), now, flush=True)
        if mesh.time > until or (found[-1] > _ARRIVED and min(found) < level):
            break
        mesh.step()
    seconds = time.process_time() - begun
    crossed = [_for_good(np.array(times), np.array(found), one) for one in (level, 0.5)]
    return Lifetime(crossed[0], crossed[1], most, mass_error, seconds)


def _for_good(times: np.ndarray, values: np.ndarray, level: float) -> float | None:
    below = int(np.flatnonzero(values < level).max(initial=-1))
    if below < 0:
        return float(times[0])
    if below == len(times) - 1:
        return None
    part = (level - values[below]) / (values[below + 1] - values[below])
    return float(times[below] + part * (times[below + 1] - times[below]))


OPTIONS = options("moving_triangles", __doc__)
OPTIONS.add_argument("--case", type=Path, default=DEMO, help="a case file on the sphere")
OPTIONS.add_argument("--beta", type=float, nargs="+")
OPTIONS.add_argument("--fine", type=float, nargs="+")
OPTIONS.add_argument("--until", type=float, help="when to give up")
OPTIONS.add_argument("--log", action="store_true", help="print on the way")


def main() -> None:
    """Print the table."""
    asked = OPTIONS.parse_args()
    case = Case.read(asked.case)
    columns = ["beta", "finer", "most triangles", "leaves", "half way", "mass error", "seconds"]
    table = Table(f"Lifetimes, {asked.case.name}, by triangles that move with the flow", columns)
    for beta in asked.beta or ((100.0,) if asked.quick else (100.0, 200.0, 300.0)):
        for fine in asked.fine or ((0.5,) if asked.quick else (0.7, 0.85, 1.0)):
            found = lifetime(case, beta, fine, asked.until or 8 + beta / 10, asked.log)
            times = ["-" if one is None else f"{one:.4f}" for one in (found.leaves, found.half)]
            rest = f"{found.mass_error:.0e}", f"{found.seconds:.0f}"
            table.row(f"{beta:g}", fine, found.most, *times, *rest)


if __name__ == "__main__":
    present(main, OPTIONS)
