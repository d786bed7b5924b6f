"""W1 on the sphere between a density that is constant in each cell and an exact one, with bars.

At zero temperature with Q = K = I tokens move along x -> M x / |M x|, M = exp(V t). The exact mass
of a geodesic triangle is what the initial density has in its preimage, the triangle of the vertices
M^-1 p; and of 1 + <a, x> + <x, S x>, S symmetric without trace, the integral over a triangle is
closed: x and x x^T - 1/3 are eigenfunctions of the Laplacian, for 2 and 6, so that

    integral over T of <a, x>    = -1/2 sum over edges of length <a, n>,
    integral over T of <x, S x>  = -1/3 sum over edges of <n, S (p + q)> tan(length / 2),

with n the outward conormal of the edge from p to q. No quadrature, and nothing of the solver. At
finite beta the preimage is a polygon of many corners, as edges are bent there.

Cells are cut in four where that is needed until they are a common refinement of both densities.
What differs there is transported by the linear program, which certifies its interval; bars are
added for what lies within a piece: half of |difference| times its diameter, and, of the mass that
both have, what its four quarters would have to exchange.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg

from meanfield_pde import Attention, solve, sphere_mesh
from meanfield_pde.wasserstein import wasserstein
from meanfield_pde.wasserstein.measure import Measure
from tests.benchmarks import moving_mesh
from tests.benchmarks.characteristics import on_sphere

# The initial density, and V with eigenvalues 1, 0.4, 0.2 and no right angles between eigenvectors.
LINEAR = np.array([0.5, 0.0, -0.2])
QUADRATIC = np.array([[0.0, 0.15, 0.0], [0.15, 0.0, 0.0], [0.0, 0.0, 0.0]])
_TURN = scipy.linalg.expm(np.array([[0.0, -0.4, 0.3], [0.4, 0.0, -0.2], [-0.3, 0.2, 0.0]]))
DRIFT = _TURN @ np.array([[1.0, 0.4, -0.2], [0.0, 0.4, 0.3], [0.0, 0.0, 0.2]]) @ _TURN.T
# Pieces that cutting adds at most, and pieces that the linear program takes at most: its memory
# and time (chosen, not tuned).
_MOST_PIECES, _LARGEST = 40_000, 60_000
# What it may leave open, and when it is stopped.
_GAP, _SECONDS = 0.01, 120.0
TIMES = (1.0, 4.0, 12.0)
BARS = 0.05  # of the tolerance

Masses = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Interval:
    """Bounds of a distance."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.low:.2e} to {self.high:.2e}"


def density(x: np.ndarray) -> np.ndarray:
    """The initial density, times 4 pi."""
    return 1 + x @ LINEAR + np.einsum("ni,ij,nj->n", x, QUADRATIC, x)


def exact_masses(moment: float) -> Masses:
    """The exact mass of each of some geodesic triangles, N x 3 x 3, at a time."""
    back = scipy.linalg.expm(-DRIFT * moment)

    def masses(triangles: np.ndarray) -> np.ndarray:
        return _initial_masses(on_sphere(triangles @ back.T))

    return masses


def traced_masses(origin: Callable[[np.ndarray], np.ndarray], parts: int) -> Masses:
    """The same for a flow that says where points came from.

    Edges are traced back in n parts, whose ends are joined by geodesics. What that leaves
    out is of second order: it is extrapolated from half of them.
    """
    share = np.arange(parts)[:, None] / parts

    def masses(triangles: np.ndarray) -> np.ndarray:
        begin, end = triangles[:, :, None], np.roll(triangles, -1, axis=1)[:, :, None]
        edges = on_sphere((1 - share) * begin + share * end)
        polygons = origin(edges.reshape(-1, 3)).reshape(len(triangles), -1, 3)
        found = (4 * _initial_masses(polygons) - _initial_masses(polygons[:, ::2])) / 3
        return np.maximum(found, 0.0)

    return masses


def _initial_masses(polygons: np.ndarray) -> np.ndarray:
    total = _signed_areas(polygons[:, :1], polygons[:, 1:-1], polygons[:, 2:]).sum(axis=1)
    p, q = polygons, np.roll(polygons, -1, axis=1)
    inward = on_sphere(np.cross(p, q - p))
    length = 2 * np.arcsin(np.minimum(1.0, np.linalg.norm(p - q, axis=2) / 2))
    total += (inward @ LINEAR * length).sum(axis=1) / 2
    quadratic = ((inward @ QUADRATIC) * (p + q)).sum(axis=2)
    total += (quadratic * np.tan(length / 2)).sum(axis=1) / 3
    return np.abs(total) / (4 * np.pi)  # polygons that turn to the right have it below zero


def _areas(triangles: np.ndarray) -> np.ndarray:
    return np.abs(_signed_areas(triangles[:, 0], triangles[:, 1], triangles[:, 2]))


def _signed_areas(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    triple = (a * np.cross(b - a, c - a)).sum(axis=-1)
    return 2 * np.arctan2(triple, 1 + (a * b).sum(-1) + (b * c).sum(-1) + (c * a).sum(-1))


def _quarters(triangles: np.ndarray) -> np.ndarray:
    a, b, c = triangles[:, 0], triangles[:, 1], triangles[:, 2]
    ab, bc, ca = on_sphere(a + b), on_sphere(b + c), on_sphere(c + a)
    parts = [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
    return np.stack([np.stack(part, axis=1) for part in parts], axis=1)


def _in_four(triangles: np.ndarray, exact: Masses) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The quarters, their shares of the area, and their exact masses."""
    quarters = _quarters(triangles)
    areas = _areas(quarters.reshape(-1, 3, 3)).reshape(-1, 4)
    share = areas / areas.sum(axis=1, keepdims=True)
    return quarters, share, exact(quarters.reshape(-1, 3, 3)).reshape(-1, 4)


def distance(cells: np.ndarray, masses: np.ndarray, exact: Masses, wanted: float) -> Interval:
    """Bounds of W1 between masses that are spread evenly over cells and exact ones.

    Args:
        cells: geodesic triangles, N x 3 x 3, that cover the sphere.
        masses: in them.
        exact: the other measure.
        wanted: cells are cut until the bars are below this, or `_MOST_PIECES` have been
            added.
    """
    pieces, mass, other = cells, masses / masses.sum(), exact(cells)
    quarters, share, inside = _in_four(pieces, exact)
    while True:
        edges = np.linalg.norm(pieces - np.roll(pieces, 1, axis=1), axis=2)
        diameter = 2 * np.arcsin(edges.max(axis=1) / 2)
        spread = np.sqrt((edges**2).sum(axis=1)) / 6  # root mean square distance from the middle
        exchanged = np.abs(inside - other[:, None] * share).sum(axis=1) / 2
        # A quarter moved onto another goes half an edge at most. The quarters of the quarters of a
        # smooth density exchange a quarter of what the quarters do, and so on.
        bars = np.abs(mass - other) * spread + exchanged * diameter / 2 * 4 / 3
        room = (len(cells) + _MOST_PIECES - len(pieces)) // 3
        if bars.sum() < wanted or room <= 0:
            break
        order = np.argsort(bars)[::-1][:room]
        enough = int(np.searchsorted(np.cumsum(bars[order]), bars.sum() - wanted / 2)) + 1
        cut = order[:enough]
        kept = np.ones(len(pieces), dtype=bool)
        kept[cut] = False
        new = quarters[cut].reshape(-1, 3, 3)
        mass = np.concatenate([mass[kept], (mass[cut, None] * share[cut]).ravel()])
        other = np.concatenate([other[kept], inside[cut].ravel()])
        pieces = np.concatenate([pieces[kept], new])
        quarters, share, inside = (
            np.concatenate([old[kept], one])
            for old, one in zip((quarters, share, inside), _in_four(new, exact), strict=True)
        )
    return _transported(on_sphere(pieces.sum(axis=1)), mass - other, float(bars.sum()))


def _transported(points: np.ndarray, difference: np.ndarray, bar: float) -> Interval:
    # On fine uniform meshes differences are small nearly everywhere: the smallest are left out.
    order = np.argsort(np.abs(difference))
    left_out, kept = order[:-_LARGEST], order[-_LARGEST:]
    bar += np.pi * np.abs(difference[left_out]).sum()
    points, difference = points[kept], difference[kept]
    surplus, lack = np.maximum(difference, 0.0), np.maximum(-difference, 0.0)
    amount = (surplus.sum() + lack.sum()) / 2
    # What the rounding of masses leaves over would go pi at most.
    bar += np.pi * abs(surplus.sum() - lack.sum())
    if not surplus.any():
        return Interval(0.0, bar)
    found = wasserstein(
        Measure(points[surplus > 0], surplus[surplus > 0]),
        Measure(points[lack > 0], lack[lack > 0]),
        p=1,
        rtol=_GAP,
        time_limit=_SECONDS,
    )
    return Interval(max(0.0, amount * found.low - bar), amount * found.high + bar)


def zero_temperature(quick: bool) -> None:
    """W1 at three times, with tolerances and on uniform meshes."""
    attention = Attention(np.eye(3), np.eye(3), DRIFT, math.inf)
    runs: list[tuple[int, float | None]]
    runs = [(320, 3e-2), (320, 1e-2), (320, 3e-3), (1280, None), (5120, None)]
    runs += [] if quick else [(20_480, None), (81_920, None), (327_680, None)]
    solve(attention, sphere_mesh(20), density, until=0.05, adapt=0.3)  # compiles

    def error(solution: Any, index: int, tolerance: float | None) -> Interval:
        leaves, masses = solution.cells_at(index).vertices, solution.store.read(index)
        wanted = BARS * (tolerance or runs[0][1] or 1.0)
        return distance(leaves, masses, exact_masses(TIMES[index - 1]), wanted)

    title = "Zero temperature, sphere: W1 to the exact density"
    moving_mesh.against_exact(title, attention, sphere_mesh, density, TIMES, runs, error)
