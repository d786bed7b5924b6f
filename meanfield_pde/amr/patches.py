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

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.linalg

from meanfield_pde.mesh.geometry import cell_volume, normalised
from meanfield_pde.support.kernels import kernel

Field = Callable[[np.ndarray], np.ndarray]  # velocities at points of the sphere, N x d
# Nodes of the interpolation, those of Chebyshev, and what gives the coefficients of powers.
_NODES = -np.cos(np.pi * (np.arange(5) + 0.5) / 5)
_POWERS = np.linalg.inv(np.vander(_NODES, increasing=True))
# Binomial coefficients C(k, j), and the times and weights of Runge and Kutta's classical method.
_BINOMIAL = np.array([[float(math.comb(k, j)) for j in range(5)] for k in range(5)])
# Of the step, where the next stage is; and weights of stages, over 6 (Runge and Kutta).
_PARTS = (0.5, 0.5, 1.0)
_WEIGHTS = (1.0, 2.0, 2.0, 1.0)  # over 6, as above
# They span all cells, and at least this many kernel widths, so that those of a point are not one
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
        """Some cells, and of the vertices those that they have."""
        used, numbers = np.unique(cells, return_inverse=True)
        origin = normalised(masses @ vertices[cells].mean(axis=1))
        frame = scipy.linalg.null_space(origin[None])
        offsets = (vertices[used] - origin) @ frame
        return cls(origin, frame, offsets, numbers.reshape(cells.shape), masses)

    @classmethod
    def point(cls, place: np.ndarray, mass: float) -> Patch:
        """A point mass: one cell whose corners are all at one vertex."""
        d = len(place)
        frame = scipy.linalg.null_space(place[None])
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
        return normalised(self.vertices[self.cells].mean(axis=1))

    @cached_property
    def centre(self) -> np.ndarray:
        """The mean."""
        return np.asarray(_above(self._shape[0][None] @ self.frame.T, self.origin)[0])

    @cached_property
    def widths(self) -> np.ndarray:
        """Standard deviations along the axes, the largest last."""
        return self._shape[1]

    @property
    def axes(self) -> np.ndarray:
        """The axes of the patch, d x (d - 1)."""
        return self._shape[2]

    @cached_property
    def _shape(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        u = self.offsets[self.cells].mean(axis=1)
        mean = self.masses @ u / self.mass
        scale = max(float(np.abs(u - mean).max()), 1e-300)
        u = (u - mean) / scale
        variances, turned = np.linalg.eigh((u * self.masses[:, None]).T @ u / self.mass)
        return mean, scale * np.sqrt(np.maximum(variances, 0.0)), self.frame @ turned

    @cached_property
    def sources(self) -> tuple[np.ndarray, np.ndarray]:
        """The points that stand for it in the attention, and the logarithms of their masses."""
        ways = np.sqrt(3) * (self.axes * self.widths).T
        points = normalised(self.centre + np.concatenate([0 * ways[:1], ways, -ways]))
        shares = np.full(len(points), 1 / 6)
        shares[0] -= shares.sum() - 1
        return points, np.log(shares * self.mass)

    def moved(self, field: Field, time: float, kernel: float) -> Patch:
        """After a time in velocities that do not change.

        The origin goes to r, and the offsets change by the velocities relative to its own.

        Args:
            field: the velocities.
            time: how long.
            kernel: the width over which the velocity changes.
        """
        origin, frame = self.origin, self.frame
        low, high = self.offsets.min(axis=0), self.offsets.max(axis=0)
        middle, way = (low + high) / 2, time * np.linalg.norm(field(origin[None]))
        reach = np.maximum((high - low) / 2, max(way, _LEAST * kernel))
        nodes = np.array(list(itertools.product(_NODES, repeat=len(reach))))
        speeds = field(_above((middle + nodes * reach) @ frame.T, origin)) @ frame / reach
        # Coefficients of powers of the components, each in [-1, 1] over the patch.
        factors = speeds.reshape(*[len(_NODES)] * len(reach), -1)
        for axis in range(len(reach)):
            factors = _along(_POWERS, factors, axis)
        # The origin in the first row, and the offsets.
        rows = np.vstack([-middle, self.offsets]) / reach
        carry = _carried_in_1d if len(reach) == 1 else _carried_in_2d
        rows = carry(np.ascontiguousarray(factors), rows, time)
        return self._carried_to(middle + rows[0] * reach, rows[1:] * reach)

    def _carried_to(self, r: np.ndarray, u: np.ndarray) -> Patch:
        """With the origin at r, the offsets from it being u, in the tangent plane as it was."""
        origin = _above(r[None] @ self.frame.T, self.origin)[0]
        projected = self.frame - np.outer(origin, origin @ self.frame)
        left, _, right = np.linalg.svd(projected, full_matrices=False)
        frame = left @ right
        height = np.sqrt(np.maximum(1 - ((r + u) ** 2).sum(axis=1), 0.0)) + np.sqrt(1 - r @ r)
        lower = (u * (u + 2 * r)).sum(axis=1) / height
        offsets = u @ (self.frame.T @ frame) - lower[:, None] * (self.origin @ frame)
        return replace(self, origin=origin, frame=frame, offsets=offsets)

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


def _along(matrix: np.ndarray, factors: np.ndarray, axis: int) -> np.ndarray:
    """A matrix times the coefficients along one axis."""
    return np.moveaxis(np.tensordot(matrix, factors, (1, axis)), 0, axis)


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
    return np.concatenate(points), np.concatenate(logs)


# What follows is compiled: the fourth-order Runge-Kutta method in the polynomials p, for the origin
# r and for offsets u from it, whose rates p(r + u) - p(r) come from the polynomials about r, to
# rounding of their own size.
@kernel
def _carried_in_1d(factors, rows, time):
    """Offsets N x 1 after a time, the first row being the origin; factors are 5 x 1."""
    about = np.empty(5)
    found, at, total = rows.copy(), rows.copy(), np.zeros(rows.shape[0])
    for stage in range(4):
        for j in range(5):
            about[j] = 0.0
            for k in range(4, j - 1, -1):
                about[j] = about[j] * at[0, 0] + _BINOMIAL[k, j] * factors[k, 0]
        for i in range(rows.shape[0]):
            u = at[i, 0]
            rate = about[0]
            if i > 0:
                rate = (((about[4] * u + about[3]) * u + about[2]) * u + about[1]) * u
            total[i] += _WEIGHTS[stage] * rate
            if stage < 3:
                found[i, 0] = rows[i, 0] + time * _PARTS[stage] * rate
        for i in range(rows.shape[0]):
            at[i, 0] = found[i, 0]
    for i in range(rows.shape[0]):
        found[i, 0] = rows[i, 0] + time / 6 * total[i]
    return found


@kernel
def _carried_in_2d(factors, rows, time):
    """Offsets N x 2 after a time, the first row being the origin; factors are 5 x 5 x 2."""
    half, about = np.empty((5, 5)), np.empty((2, 5, 5))
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
    for i in range(rows.shape[0]):
        for c in range(2):
            found[i, c] = rows[i, c] + time / 6 * total[i, c]
    return found
