"""Spots: mass in clusters narrower than the kernel, carried by cells of their own that move.

While a cluster stands it becomes narrower like exp(-c t), soon below any cell, and how narrow it
has become decides how long it takes to be stretched again, and so when the metastable state ends.
Cells that stay would blur it as it travels. So a spot is made of cells that move with the flow,

    x' = v(x)     for each corner x of each cell,

and whose masses never change: nothing is blurred, however narrow they become, down to rounding.
A spot is narrower than the kernel: with c a point among them and E an orthonormal basis of the
tangent space there, E^T v is interpolated in u = E^T (x - c) by polynomials of degree 4 in each
component, from 5 or 5 x 5 Chebyshev nodes that the spot lies among.

To the attention a spot is 3 or 5 points with its mean and covariance,

    m  and  m +- 3^(1/2) s_k e_k, each of the latter with a sixth of the mass,

m the mean and s_k the standard deviations along the axes e_k: an error of fourth order in s over
the kernel.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.linalg

from meanfield_pde.errors import InputError
from meanfield_pde.mesh.geometry import cell_volume, normalised

Field = Callable[[np.ndarray], np.ndarray]  # velocities at points of the sphere, N x d
# Nodes of the interpolation, those of Chebyshev, and what gives the coefficients of powers.
_NODES = -np.cos(np.pi * (np.arange(5) + 0.5) / 5)
_POWERS = np.linalg.inv(np.vander(_NODES, increasing=True))
# They span all cells, and at least so many kernels.
_LEAST = 1e-4


@dataclass(frozen=True, eq=False)
class Spot:
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
    def of(cls, vertices: np.ndarray, cells: np.ndarray, masses: np.ndarray) -> Spot:
        """Some cells, and of the vertices those that they have."""
        used, numbers = np.unique(cells, return_inverse=True)
        origin = normalised(masses @ vertices[cells].mean(axis=1))
        frame = scipy.linalg.null_space(origin[None])
        offsets = (vertices[used] - origin) @ frame
        return cls(origin, frame, offsets, numbers.reshape(cells.shape), masses)

    def part(self, chosen: np.ndarray) -> Spot:
        """Some of the cells."""
        used, numbers = np.unique(self.cells[chosen], return_inverse=True)
        cells = numbers.reshape(-1, self.cells.shape[1])
        return replace(self, offsets=self.offsets[used], cells=cells, masses=self.masses[chosen])

    def joined(self, other: Spot) -> Spot:
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
        """The axes of the spot, d x (d - 1)."""
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

    def moved(self, field: Field, time: float, kernel: float) -> Spot:
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
        # Coefficients of powers of the components, each in [-1, 1] over the spot.
        factors = speeds.reshape(*[len(_NODES)] * len(reach), -1)
        for axis in range(len(reach)):
            factors = _along(_POWERS, factors, axis)
        # The origin in the first row, and the offsets, by Runge and Kutta's method.
        rows = np.vstack([-middle, self.offsets]) / reach
        rates = [_relative(factors, rows)]
        for part in (0.5, 0.5, 1.0):
            rates.append(_relative(factors, rows + time * part * rates[-1]))
        weights = time / 6 * np.array([1.0, 2.0, 2.0, 1.0])
        rows = rows + sum(w * rate for w, rate in zip(weights, rates, strict=True))
        return self._carried_to(middle + rows[0] * reach, rows[1:] * reach)

    def _carried_to(self, r: np.ndarray, u: np.ndarray) -> Spot:
        """With the origin at r, the offsets from it being u, in the tangent plane as it was."""
        origin = _above(r[None] @ self.frame.T, self.origin)[0]
        tilted = self.frame - np.outer(origin, origin @ self.frame)
        left, _, right = np.linalg.svd(tilted, full_matrices=False)
        frame = left @ right
        height = np.sqrt(np.maximum(1 - ((r + u) ** 2).sum(axis=1), 0.0)) + np.sqrt(1 - r @ r)
        lower = (u * (u + 2 * r)).sum(axis=1) / height
        offsets = u @ (self.frame.T @ frame) - lower[:, None] * (self.origin @ frame)
        return replace(self, origin=origin, frame=frame, offsets=offsets)

    def pieces(self, halvings: int) -> tuple[np.ndarray, np.ndarray]:
        """Middles and masses of pieces of the cells, so many times cut in two.

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


def _relative(factors: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The polynomials at r, the first row, and their differences between r + u and r for others u.

    The differences come from the polynomials about r, to rounding of their own size.
    """
    size = len(_NODES)
    for axis, x in enumerate(rows[0]):
        shift = np.array(
            [[math.comb(k, j) * x ** max(k - j, 0) for k in range(size)] for j in range(size)]
        )
        factors = _along(shift, factors, axis)
    first = (0,) * rows.shape[1]
    speed = factors[first].copy()
    factors[first] = 0.0
    return np.vstack([speed, _polynomial(factors, rows[1:])])


def _polynomial(factors: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Sums of factors times powers of the components of u, by Horner's rule."""
    if not u.shape[1]:
        return factors
    found = _polynomial(factors[-1], u[:, 1:])
    for factor in factors[-2::-1]:
        found = found * u[:, :1] + _polynomial(factor, u[:, 1:])
    return found


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


Spots = tuple[Spot, ...]
NONE: Spots = ()


def sources(spots: Spots, dimension: int) -> tuple[np.ndarray, np.ndarray]:
    """The points that stand for spots, and the logarithms of their masses."""
    if not spots:
        return np.zeros((0, dimension)), np.zeros(0)
    points, logs = zip(*(spot.sources for spot in spots), strict=True)
    return np.concatenate(points), np.concatenate(logs)


def record(spots: Spots) -> dict[str, np.ndarray]:
    """Arrays for a checkpoint, whose names begin with "spot_"."""
    if not spots:
        return {}
    places = [np.column_stack([spot.origin, spot.frame]) for spot in spots]
    return {
        "spot_sizes": np.array([[len(spot.masses), len(spot.offsets)] for spot in spots]),
        "spot_places": np.concatenate(places),
        "spot_offsets": np.concatenate([spot.offsets for spot in spots]),
        "spot_cells": np.concatenate([spot.cells for spot in spots]),
        "spot_masses": np.concatenate([spot.masses for spot in spots]),
    }


NAMES = ("spot_sizes", "spot_places", "spot_offsets", "spot_cells", "spot_masses")


def recorded(arrays: Mapping[str, np.ndarray]) -> Spots:
    """The spots that such arrays stand for."""
    if "spot_sizes" not in arrays:
        return NONE
    sizes, numbers = arrays["spot_sizes"], arrays["spot_cells"]
    length = [len(arrays["spot_masses"]), len(arrays["spot_offsets"])]
    most = np.repeat(sizes[:, 1], np.maximum(sizes[:, 0], 0))
    if (sizes < 1).any() or (sizes.sum(axis=0) != length).any() or len(numbers) != len(most):
        raise InputError("the spots in the checkpoint do not fit together; start again")
    if ((numbers < 0) | (numbers >= most[:, None])).any():
        raise InputError("the spots in the checkpoint lack some of their vertices; start again")
    if len(arrays["spot_places"]) != len(sizes) * numbers.shape[1]:
        raise InputError("the spots in the checkpoint have no places; start again")
    cells, vertices = np.cumsum(sizes, axis=0)[:-1].T
    each = zip(
        np.split(arrays["spot_places"], len(sizes)),
        np.split(arrays["spot_offsets"], vertices),
        np.split(arrays["spot_cells"], cells),
        np.split(arrays["spot_masses"], cells),
        strict=True,
    )
    return tuple(Spot(place[:, 0], place[:, 1:], *others) for place, *others in each)
