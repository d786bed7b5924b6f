"""Patches: mass in clusters narrower than the kernel, carried by cells of their own that move.

While a cluster stands it becomes narrower like exp(-c t), soon below any cell, and how narrow it
has become decides how long it takes to be stretched again, and so when the metastable state ends.
Cells that stay would blur it as it travels. So a patch is made of cells that move with the flow,

    x' = v(x)     for each corner x of each cell,

and whose masses never change: nothing is blurred, however narrow they become, down to rounding.
A patch is narrower than the kernel: with c a point among them and E an orthonormal basis of the
tangent space there, E^T v is interpolated in u = E^T (x - c) by polynomials of degree 4 in each
component, from 5 or 5 x 5 Chebyshev nodes that the patch lies among.

To the attention a patch is 3 or 5 points with its mean and covariance,

    m  and  m +- 3^(1/2) s_k e_k, each of the latter with a sixth of the mass,

m the mean and s_k the standard deviations along the axes e_k: an error of fourth order in s over
the kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.linalg

from meanfield_pde.mesh.geometry import cell_volume, normalised
from meanfield_pde.support.kernels import kernel, part

Field = Callable[[np.ndarray], np.ndarray]  # velocities at points of the sphere, N x d
# Nodes of the interpolation, those of Chebyshev, and what gives the coefficients of powers.
_NODES = -np.cos(np.pi * (np.arange(5) + 0.5) / 5)
_POWERS = np.linalg.inv(np.vander(_NODES, increasing=True))
# Binomial coefficients C(k, j), by which polynomials are moved to another origin.
_BINOMIAL = np.array([[float(math.comb(k, j)) for j in range(5)] for k in range(5)])
# Runge and Kutta's classical method: the part of the step at which the next stage is, and the
# weights of stages over 6.
_PARTS, _WEIGHTS = (0.5, 0.5, 1.0), (1.0, 2.0, 2.0, 1.0)
# Nodes span all cells, and at least this many kernel widths, so that those of a point are not one
# point.
_LEAST = 1e-4


@dataclass(frozen=True, eq=False)
class Patch:
    """Cells that move with the flow.

    Attributes:
        origin: a point that moves with the flow among them.
        frame: E, an orthonormal basis of the tangent space there, d x (d - 1).
        offsets: u = E^T (x - origin) for each vertex, V x (d - 1): to rounding of their own size.
        cells: the numbers of the vertices of each, N x d.
        masses: of the cells.
    """

    origin: np.ndarray
    frame: np.ndarray
    offsets: np.ndarray
    cells: np.ndarray
    masses: np.ndarray

    @classmethod
    def of(cls, vertices: np.ndarray, cells: np.ndarray, masses: np.ndarray) -> Patch:
        """The patch of these cells, with those of the vertices that they have."""
        used, numbers = np.unique(cells, return_inverse=True)
        origin = normalised(masses @ vertices[cells].mean(axis=1))
        frame = _tangents(origin)
        offsets = (vertices[used] - origin) @ frame
        return cls(origin, frame, offsets, numbers.reshape(cells.shape), masses)

    @classmethod
    def point(cls, place: np.ndarray, mass: float) -> Patch:
        """A point mass: one cell whose corners are all at one vertex."""
        d = len(place)
        frame = _tangents(place)
        cells = np.zeros((1, d), dtype=np.int64)
        return cls(place, frame, np.zeros((1, d - 1)), cells, np.array([mass]))

    @property
    def is_point(self) -> bool:
        """Whether it has no extent, and so never will have any."""
        return len(self.offsets) == 1

    def part(self, chosen: np.ndarray) -> Patch:
        """Some of the cells."""
        used, numbers = np.unique(self.cells[chosen], return_inverse=True)
        cells = numbers.reshape(-1, self.cells.shape[1])
        return replace(self, offsets=self.offsets[used], cells=cells, masses=self.masses[chosen])

    def joined(self, other: Patch) -> Patch:
        """Both as one."""
        offsets = (other.vertices - self.origin) @ self.frame
        return replace(
            self,
            offsets=np.concatenate([self.offsets, offsets]),
            cells=np.concatenate([self.cells, other.cells + len(self.offsets)]),
            masses=np.concatenate([self.masses, other.masses]),
        )

    @cached_property
    def vertices(self) -> np.ndarray:
        """Where the vertices are, V x d."""
        return _above(self.offsets @ self.frame.T, self.origin)

    @cached_property
    def mass(self) -> float:
        """Of all cells."""
        return float(self.masses.sum())

    @cached_property
    def middles(self) -> np.ndarray:
        """Where the cells are, N x d."""
        return np.asarray(_middles(self.vertices, self.cells))

    @cached_property
    def extent(self) -> float:
        """A bound on the distance of any cell from the mean."""
        away = self.offsets - self._shape[0]
        return 2.0 * float(np.sqrt((away * away).sum(axis=1).max()))

    @cached_property
    def centre(self) -> np.ndarray:
        """The mean."""
        return np.asarray(_above(self._shape[0][None] @ self.frame.T, self.origin)[0])

    @property
    def widths(self) -> np.ndarray:
        """Standard deviations along the axes, the largest last."""
        return self._shape[1]

    @property
    def axes(self) -> np.ndarray:
        """The axes of the patch, d x (d - 1)."""
        return self._shape[2]

    @cached_property
    def _shape(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The mean offset, standard deviations, and axes, of the mass in the cells' middles."""
        mean, scale, covariance = _moments(self.offsets, self.cells, self.masses)
        if len(mean) == 1:
            return mean, scale * np.sqrt(covariance[0]), self.frame
        variances, turned = np.linalg.eigh(covariance)
        return mean, scale * np.sqrt(np.maximum(variances, 0.0)), self.frame @ turned

    @cached_property
    def sources(self) -> tuple[np.ndarray, np.ndarray]:
        """The points that stand for it in the attention, and the logarithms of their masses."""
        ways = np.sqrt(3) * (self.axes * self.widths).T
        points = normalised(self.centre + np.concatenate([0 * ways[:1], ways, -ways]))
        shares = np.full(len(points), 1 / 6)
        shares[0] -= shares.sum() - 1
        return points, np.log(shares * self.mass)

    def _carried(self, origin: np.ndarray, frame: np.ndarray, offsets: np.ndarray) -> Patch:
        return Patch(origin, frame, offsets, self.cells, self.masses)

    def pieces(self, halvings: int) -> tuple[np.ndarray, np.ndarray]:
        """Middles and masses of pieces of the cells, `halvings` times cut in two.

        The mass of a cell is shared out as if log rho were linear in it, with the mean of those of
        the cells around it at each vertex.
        """
        if not halvings:
            return self.middles, self.masses
        corners, count = self.vertices[self.cells], len(self.offsets)
        log_density = np.log(self.masses / np.maximum(cell_volume(corners), 1e-300))
        sums = np.bincount(self.cells.ravel(), np.repeat(log_density, corners.shape[1]), count)
        levels = (sums / np.bincount(self.cells.ravel(), minlength=count))[self.cells]
        origin = np.arange(len(corners))
        for _ in range(halvings):
            corners, levels, origin = _cut(corners), _cut(levels), np.repeat(origin, 2)
        weight = np.exp(levels.mean(axis=1) - log_density[origin])
        share = weight / np.bincount(origin, weight)[origin]
        return normalised(corners.mean(axis=1)), share * self.masses[origin]


def _tangents(origin: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the tangent space, d x (d - 1), in the layout of compiled code."""
    return np.ascontiguousarray(scipy.linalg.null_space(origin[None]))


def _above(flat: np.ndarray, centre: np.ndarray) -> np.ndarray:
    """The points of the sphere over points of the tangent plane at c."""
    height = np.sqrt(np.maximum(1 - (flat**2).sum(axis=1), 0.0))
    return flat + height[:, None] * centre


def _cut(cells: np.ndarray) -> np.ndarray:
    """Both halves of each cell, cut at the middle of the first edge; corners, or values there."""
    middle = (cells[:, 0] + cells[:, 1]) / 2
    if cells.shape[1] == 2:
        halves = [[cells[:, 0], middle], [middle, cells[:, 1]]]
    else:
        a, b, c = cells[:, 0], cells[:, 1], cells[:, 2]
        halves = [[c, a, middle], [b, c, middle]]
    both = np.stack([np.stack(half, axis=1) for half in halves], axis=1)
    return both.reshape(-1, *cells.shape[1:])


Patches = tuple[Patch, ...]
NONE: Patches = ()


def sources(patches: Patches, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """The points that stand for patches, and the logarithms of their masses."""
    if not patches:
        return np.zeros((0, dimension)), np.zeros(0)
    points, logs = zip(*(patch.sources for patch in patches), strict=True)
    return np.ascontiguousarray(np.concatenate(points)), np.concatenate(logs)


def moved(patches: Patches, field: Field, time: float, kernel: float) -> Patches:
    """Return patches after a time in velocities that do not change.

    Args:
        patches: where they are.
        field: the velocities.
        time: how long.
        kernel: the width over which the velocity changes.
    """
    if not patches:
        return patches
    starts = field(np.array([patch.origin for patch in patches]))
    least = np.maximum(time * np.linalg.norm(starts, axis=1), _LEAST * kernel)
    nodes = [
        _nodes(patch.origin, patch.frame, patch.offsets, reach)
        for patch, reach in zip(patches, least, strict=True)
    ]
    velocities = np.split(field(np.concatenate([places for places, _, _ in nodes])), len(patches))
    carry = _carried_on_circle if patches[0].frame.shape[1] == 1 else _carried_on_sphere
    return tuple(
        patch._carried(*carry(patch.origin, patch.frame, patch.offsets, *window, speeds, time))
        for patch, (_, *window), speeds in zip(patches, nodes, velocities, strict=True)
    )


# What follows is compiled, and carries no types. Velocities are those at nodes, interpolated by
# polynomials p of each component in [-1, 1] over the window that the nodes span, its middle and its
# reach given. The fourth-order Runge-Kutta method moves the origin r, and offsets u from it by the
# rates p(r + u) - p(r), which come from the polynomials about r, to rounding of their own size.
@kernel
def _moments(offsets, cells, masses):
    """Mean of the cells' middles, their largest distance s from it, and their covariance / s^2."""
    count, corners, k = cells.shape[0], cells.shape[1], offsets.shape[1]
    middles, mean, total = np.zeros((count, k)), np.zeros(k), 0.0
    for c in range(count):
        total += masses[c]
        for i in range(k):
            for j in range(corners):
                middles[c, i] += offsets[cells[c, j], i] / corners
            mean[i] += masses[c] * middles[c, i]
    scale, covariance = 1e-300, np.zeros((k, k))
    for i in range(k):
        mean[i] /= total
        for c in range(count):
            scale = max(scale, abs(middles[c, i] - mean[i]))
    for c in range(count):
        for i in range(k):
            for j in range(k):
                product = (middles[c, i] - mean[i]) / scale * ((middles[c, j] - mean[j]) / scale)
                covariance[i, j] += masses[c] / total * product
    return mean, scale, covariance


@kernel
def _middles(vertices, cells):
    """Normalised mean of the vertices of each cell."""
    d = vertices.shape[1]
    found = np.zeros((cells.shape[0], d))
    for c in range(cells.shape[0]):
        length = 0.0
        for i in range(d):
            for j in range(cells.shape[1]):
                found[c, i] += vertices[cells[c, j], i]
            length += found[c, i] * found[c, i]
        for i in range(d):
            found[c, i] /= math.sqrt(length)
    return found


@kernel
def _nodes(origin, frame, offsets, least):
    """Nodes on the sphere, and middle and reach of the window: all offsets, at least this far."""
    d, k = frame.shape
    middle, reach = np.empty(k), np.empty(k)
    for i in range(k):
        low, high = offsets[0, i], offsets[0, i]
        for v in range(offsets.shape[0]):
            low, high = min(low, offsets[v, i]), max(high, offsets[v, i])
        middle[i], reach[i] = (low + high) / 2, max((high - low) / 2, least)
    count = 5**k
    places = np.empty((count, d))
    for n in range(count):
        squared, number = 0.0, n
        for j in range(d):
            places[n, j] = 0.0
        for i in range(k - 1, -1, -1):
            u = middle[i] + _NODES[number % 5] * reach[i]
            number //= 5
            squared += u * u
            for j in range(d):
                places[n, j] += u * frame[j, i]
        height = math.sqrt(max(1 - squared, 0.0))
        for j in range(d):
            places[n, j] += height * origin[j]
    return places, middle, reach


@part
def _lowered(r, u, squared):
    """How much lower above the tangent plane the point over r + u is than that over r."""
    change = 0.0
    for i in range(r.size):
        change += u[i] * (u[i] + 2 * r[i])
    return change / (math.sqrt(max(1 - squared - change, 0.0)) + math.sqrt(1 - squared))


@part
def _on_plane(origin, frame, r, offsets):
    """Origin, frame and offsets when the origin has come to r, the frame as near as can be."""
    d, k = frame.shape
    squared = 0.0
    for i in range(k):
        squared += r[i] * r[i]
    new_origin, projected = np.empty(d), np.empty((d, k))
    for j in range(d):
        new_origin[j] = math.sqrt(max(1 - squared, 0.0)) * origin[j]
        for i in range(k):
            new_origin[j] += r[i] * frame[j, i]
    for i in range(k):
        along = 0.0
        for j in range(d):
            along += new_origin[j] * frame[j, i]
        for j in range(d):
            projected[j, i] = frame[j, i] - along * new_origin[j]
    # F = P S^(-1/2), S = P^T P, the orthonormal frame next to P; for two columns
    # S^(1/2) = (S + s) / t with s = det(S)^(1/2) and t = (trace S + 2 s)^(1/2).
    gram = np.zeros((k, k))
    for a in range(k):
        for b in range(k):
            for j in range(d):
                gram[a, b] += projected[j, a] * projected[j, b]
    new_frame = np.empty((d, k))
    if k == 1:
        for j in range(d):
            new_frame[j, 0] = projected[j, 0] / math.sqrt(gram[0, 0])
    else:
        s = math.sqrt(gram[0, 0] * gram[1, 1] - gram[0, 1] * gram[1, 0])
        t = math.sqrt(gram[0, 0] + gram[1, 1] + 2 * s)
        for j in range(d):
            one, two = projected[j, 0], projected[j, 1]
            new_frame[j, 0] = ((gram[1, 1] + s) * one - gram[0, 1] * two) / (s * t)
            new_frame[j, 1] = ((gram[0, 0] + s) * two - gram[0, 1] * one) / (s * t)
    new_offsets = np.zeros(offsets.shape)
    for v in range(offsets.shape[0]):
        lower = _lowered(r, offsets[v], squared)
        for j in range(d):
            along = -lower * origin[j]
            for i in range(k):
                along += offsets[v, i] * frame[j, i]
            for i in range(k):
                new_offsets[v, i] += along * new_frame[j, i]
    return new_origin, new_frame, new_offsets


@kernel
def _carried_on_circle(origin, frame, offsets, middle, reach, velocities, time):
    """Origin, frame and offsets after a time in velocities, given at 5 nodes."""
    count = offsets.shape[0]
    speeds, factors, about = np.empty(5), np.zeros(5), np.empty(5)
    for n in range(5):
        along = velocities[n, 0] * frame[0, 0] + velocities[n, 1] * frame[1, 0]
        speeds[n] = along / reach[0]
    for k in range(5):
        for n in range(5):
            factors[k] += _POWERS[k, n] * speeds[n]
    # The origin in the first row, and the offsets.
    rows = np.empty(count + 1)
    rows[0] = -middle[0] / reach[0]
    for v in range(count):
        rows[v + 1] = offsets[v, 0] / reach[0]
    found, at, total = rows.copy(), rows.copy(), np.zeros(count + 1)
    for stage in range(4):
        for j in range(5):
            about[j] = 0.0
            for k in range(4, j - 1, -1):
                about[j] = about[j] * at[0] + _BINOMIAL[k, j] * factors[k]
        for i in range(count + 1):
            u = at[i]
            rate = about[0]
            if i > 0:
                rate = (((about[4] * u + about[3]) * u + about[2]) * u + about[1]) * u
            total[i] += _WEIGHTS[stage] * rate
            if stage < 3:
                found[i] = rows[i] + time * _PARTS[stage] * rate
        for i in range(count + 1):
            at[i] = found[i]
    r, u = np.empty(1), np.empty((count, 1))
    r[0] = middle[0] + (rows[0] + time / 6 * total[0]) * reach[0]
    for v in range(count):
        u[v, 0] = (rows[v + 1] + time / 6 * total[v + 1]) * reach[0]
    return _on_plane(origin, frame, r, u)


@kernel
def _carried_on_sphere(origin, frame, offsets, middle, reach, velocities, time):
    """Origin, frame and offsets after a time in velocities, given at 5 x 5 nodes."""
    count = offsets.shape[0]
    half, about = np.empty((5, 5)), np.empty((2, 5, 5))
    factors = np.zeros((5, 5, 2))
    for c in range(2):
        for n in range(5):  # half holds coefficients along the second axis, for each node n
            for k in range(5):
                half[n, k] = 0.0
                for m in range(5):
                    along = 0.0
                    for i in range(3):
                        along += velocities[5 * n + m, i] * frame[i, c]
                    half[n, k] += _POWERS[k, m] * along / reach[c]
        for j in range(5):
            for k in range(5):
                for n in range(5):
                    factors[j, k, c] += _POWERS[j, n] * half[n, k]
    # The origin in the first row, and the offsets.
    rows = np.empty((count + 1, 2))
    for c in range(2):
        rows[0, c] = -middle[c] / reach[c]
        for v in range(count):
            rows[v + 1, c] = offsets[v, c] / reach[c]
    found, at, total = rows.copy(), rows.copy(), np.zeros(rows.shape)
    for stage in range(4):
        for c in range(2):
            for j in range(5):
                for m in range(5):
                    half[j, m] = 0.0
                    for k in range(4, j - 1, -1):
                        half[j, m] = half[j, m] * at[0, 0] + _BINOMIAL[k, j] * factors[k, m, c]
            for j in range(5):
                for m in range(5):
                    about[c, j, m] = 0.0
                    for k in range(4, m - 1, -1):
                        term = _BINOMIAL[k, m] * half[j, k]
                        about[c, j, m] = about[c, j, m] * at[0, 1] + term
        for i in range(rows.shape[0]):
            for c in range(2):
                rate = about[c, 0, 0]
                if i > 0:
                    rate = 0.0
                    for j in range(4, -1, -1):
                        inner = 0.0
                        for m in range(4, 0, -1):
                            inner = (inner + about[c, j, m]) * at[i, 1]
                        rate = rate * at[i, 0] + inner + (about[c, j, 0] if j > 0 else 0.0)
                total[i, c] += _WEIGHTS[stage] * rate
                if stage < 3:
                    found[i, c] = rows[i, c] + time * _PARTS[stage] * rate
        for i in range(rows.shape[0]):
            at[i, 0], at[i, 1] = found[i, 0], found[i, 1]
    r, u = np.empty(2), np.empty((count, 2))
    for c in range(2):
        r[c] = middle[c] + (rows[0, c] + time / 6 * total[0, c]) * reach[c]
        for v in range(count):
            u[v, c] = (rows[v + 1, c] + time / 6 * total[v + 1, c]) * reach[c]
    return _on_plane(origin, frame, r, u)
