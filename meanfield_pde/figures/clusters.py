"""Narrow clusters of a density on the sphere: where they are, and how far they reach.

A cluster is a peak c whose mass is concentrated about it: with theta the angle to c,

    w^2 = ∫_{theta < r} theta^2 dmu / ∫_{theta < r} dmu  <=  (r/3)^2

at one of the radii r. An even density has w^2 = r^2/2, one along a curve r^2/3, so that neither a
wide peak nor a great circle is a cluster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meanfield_pde.mesh.cells import Cells

# r, in radians; the first that holds a cluster is taken, so that two side by side are separated.
# On a map of 4 inches a disc of the first is 7 points wide; one of the last is 9 % of the sphere.
RADII = (0.075, 0.15, 0.3, 0.6)
NARROW = 1 / 3  # w / r: a disc of three widths holds 8/9 of the mass (Chebyshev)
LEAST = 0.02  # of the mass, in a cluster: less is the tail that feeds one (chosen, not tuned)
# Times the mean density, at the top of a cluster; ends the search among the rest (chosen, not
# tuned).
PEAK = 5.0
WIDTHS = 4.0  # half a window, in w: the tail beyond holds less than 1/16 of the mass (Chebyshev)
FEWEST_CELLS = 4.0  # half a window, in widths of the cell at the peak (chosen, not tuned)


@dataclass(frozen=True, eq=False)
class Cluster:
    """A narrow cluster.

    Attributes:
        centre: its mean direction, a unit vector.
        share: of the mass.
        half: of the window that shows it, in radians: the window is as wide as [-half, half].
    """

    centre: np.ndarray
    share: float
    half: float

    @property
    def frame(self) -> np.ndarray:
        """East and north at the centre, 2 x 3; at a pole those of longitude 0."""
        return east_and_north(self.centre)

    def local(self, points: np.ndarray) -> np.ndarray:
        """Return theta (cos a, sin a) of points (..., 3), a the azimuth from east to north."""
        across = points @ self.frame.T
        length = np.linalg.norm(across, axis=-1, keepdims=True)
        # As exact for points that are 1e-12 apart as for those at the other side.
        theta = np.arctan2(length, (points @ self.centre)[..., None])
        return across * np.divide(theta, length, out=np.ones_like(length), where=length > 0)

    def points(self, local: np.ndarray) -> np.ndarray:
        """Return the points of the sphere, N x 3, at theta (cos a, sin a), N x 2."""
        theta = np.linalg.norm(local, axis=1, keepdims=True)
        direction = np.divide(local, theta, out=np.zeros_like(local), where=theta > 0)
        return np.cos(theta) * self.centre + np.sin(theta) * (direction @ self.frame)

    def outline(self, count: int = 100) -> np.ndarray:
        """Return the edge of the window on the sphere as a closed curve, `count` points a side."""
        side = np.linspace(-1, 1, count, endpoint=False)
        one = np.ones(count)
        parts = ((side, -one), (one, side), (-side, one), (-one, -side), (-one[:1], -one[:1]))
        return self.points(self.half * np.concatenate([np.column_stack(part) for part in parts]))


def east_and_north(point: np.ndarray) -> np.ndarray:
    """Return unit vectors to the east and to the north at a point of the sphere, 2 x 3."""
    flat = math.hypot(point[0], point[1])
    # A pole but for rounding: its longitude says nothing, and maps have longitude 0 in the middle.
    cosine, sine = (point[0] / flat, point[1] / flat) if flat > 1e-9 else (1.0, 0.0)
    return np.array([[-sine, cosine, 0.0], [-point[2] * cosine, -point[2] * sine, flat]])


def find_clusters(cells: Cells, density: np.ndarray) -> list[Cluster]:
    """Return the narrow clusters of a density on the sphere, the heaviest first."""
    masses = density * cells.volumes
    shares = masses / masses.sum()
    found: list[Cluster] = []
    left = np.ones(len(density), dtype=bool)
    lowest = PEAK * masses.sum() / (4 * math.pi)
    while left.any():
        top = int(np.where(left, density, -1.0).argmax())
        if density[top] <= lowest:
            break
        angle = _angles(cells.points, cells.points[top])
        cluster = _cluster_at(cells, density, shares, angle, top)
        if cluster is None:
            left &= angle >= RADII[0]
            continue
        found.append(cluster)
        left &= (angle >= RADII[0]) & (_angles(cells.points, cluster.centre) >= cluster.half)
    # Equal shares keep their order from one time to the next.
    return sorted(found, key=lambda one: (-round(one.share, 2), *np.round(-one.centre, 1)))


def _cluster_at(
    cells: Cells, density: np.ndarray, shares: np.ndarray, angle: np.ndarray, top: int
) -> Cluster | None:
    """The cluster whose highest cell is `top`, from which angles are; None if there is none."""
    for radius in RADII:
        near = angle < radius
        if density[near].max() > density[top]:  # of another cluster, whose tail this is
            return None
        share = float(shares[near].sum())
        if share < LEAST:
            continue
        square = shares[near] @ (angle[near] ** 2 + cells.spread[near]) / share
        if square <= (NARROW * radius) ** 2:
            mean = shares[near] @ cells.points[near]
            half = max(WIDTHS * math.sqrt(square), FEWEST_CELLS * math.sqrt(cells.volumes[top]))
            return Cluster(mean / np.linalg.norm(mean), share, min(half, RADII[-1]))
    return None


def _angles(points: np.ndarray, place: np.ndarray) -> np.ndarray:
    """Return the angles of points, N x 3, to a place, exact for small ones."""
    return np.asarray(2 * np.arcsin(np.minimum(1, np.linalg.norm(points - place, axis=1) / 2)))
