"""Spots: mass in clusters narrower than the kernel, carried by cells of their own that move.

While a cluster stands it becomes narrower like exp(-c t), soon below any cell, and how narrow it
has become decides how long it takes to be stretched again, and so when the metastable state ends.
Cells that stay would blur it as it travels. So a spot is made of cells that move with the flow,

    x' = v(x)     for each corner x of each cell,

and whose masses never change: nothing is blurred, however narrow they become, down to rounding.
A spot is narrower than the kernel: with c its mean and E an orthonormal basis of the tangent space
there, E^T v is interpolated in u = E^T (x - c) by polynomials of degree 4 in each component, from 5
or 5 x 5 Chebyshev nodes that the spot lies among.

To the attention a spot is 3 or 5 points with its mean and covariance,

    c  and  c +- 3^(1/2) s_k e_k, each of the latter with a sixth of the mass,

s_k the standard deviations along the axes e_k: an error of fourth order in s over the kernel.
"""

from __future__ import annotations

import itertools
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
        vertices: of the cells, V x d.
        cells: the numbers of the vertices of each, N x d.
        masses: of the cells.
    """

    vertices: np.ndarray
    cells: np.ndarray
    masses: np.ndarray

    @classmethod
    def of(cls, vertices: np.ndarray, cells: np.ndarray, masses: np.ndarray) -> Spot:
        """Some cells, and of the vertices those that they have."""
        used, numbers = np.unique(cells, return_inverse=True)
        return cls(vertices[used], numbers.reshape(cells.shape), masses)

    def part(self, chosen: np.ndarray) -> Spot:
        """Some of the cells."""
        return Spot.of(self.vertices, self.cells[chosen], self.masses[chosen])

    def joined(self, other: Spot) -> Spot:
        """Both as one."""
        return Spot(
            np.concatenate([self.vertices, other.vertices]),
            np.concatenate([self.cells, other.cells + len(self.vertices)]),
            np.concatenate([self.masses, other.masses]),
        )

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
        """The mean c."""
        return np.asarray(normalised(self.masses @ self.middles))

    @cached_property
    def widths(self) -> np.ndarray:
        """Standard deviations along the axes, the largest last."""
        return self._shape[0]

    @property
    def axes(self) -> np.ndarray:
        """E, d x (d - 1): the axes of the spot."""
        return self._shape[1]

    @cached_property
    def _shape(self) -> tuple[np.ndarray, np.ndarray]:
        frame = scipy.linalg.null_space(self.centre[None])
        u = (self.middles - self.centre) @ frame
        variances, turned = np.linalg.eigh((u * self.masses[:, None]).T @ u / self.mass)
        return np.sqrt(np.maximum(variances, 0.0)), frame @ turned

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

        Args:
            field: the velocities.
            time: how long.
            kernel: the width over which the velocity changes.
        """
        centre, axes = self.centre, self.axes
        u = (self.vertices - centre) @ axes
        low, high = u.min(axis=0), u.max(axis=0)
        middle, way = (low + high) / 2, time * np.linalg.norm(field(centre[None]))
        reach = np.maximum((high - low) / 2, max(way, _LEAST * kernel))
        nodes = np.array(list(itertools.product(_NODES, repeat=len(reach))))
        rates = field(_above((middle + nodes * reach) @ axes.T, centre)) @ axes / reach
        # Coefficients of powers of the components, each in [-1, 1] over the spot.
        factors = rates.reshape(*[len(_NODES)] * len(reach), -1)
        for axis in range(len(reach)):
            factors = np.moveaxis(np.tensordot(_POWERS, factors, (1, axis)), 0, axis)

        def speed(u: np.ndarray) -> np.ndarray:
            return _polynomial(factors, u)

        u = (u - middle) / reach
        first = speed(u)
        second = speed(u + time / 2 * first)
        third = speed(u + time / 2 * second)
        u = u + time / 6 * (first + 2 * second + 2 * third + speed(u + time * third))
        return replace(self, vertices=_above((middle + u * reach) @ axes.T, centre))

    def pieces(self, halvings: int) -> tuple[np.ndarray, np.ndarray]:
        """Middles and masses of pieces of the cells, so many times cut in two.

        The mass of a cell is shared out as if log rho were linear in it, with the mean of those of
        the cells around it at each vertex.
        """
        if not halvings:
            return self.middles, self.masses
        corners, count = self.vertices[self.cells], len(self.vertices)
        log_density = np.log(self.masses / np.maximum(cell_volume(corners), 1e-300))
        sums = np.bincount(self.cells.ravel(), np.repeat(log_density, corners.shape[1]), count)
        levels = (sums / np.bincount(self.cells.ravel(), minlength=count))[self.cells]
        origin = np.arange(len(corners))
        for _ in range(halvings):
            corners, levels, origin = _cut(corners), _cut(levels), np.repeat(origin, 2)
        weight = np.exp(levels.mean(axis=1) - log_density[origin])
        share = weight / np.bincount(origin, weight)[origin]
        return normalised(corners.mean(axis=1)), share * self.masses[origin]


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
    return {
        "spot_sizes": np.array([[len(spot.masses), len(spot.vertices)] for spot in spots]),
        "spot_vertices": np.concatenate([spot.vertices for spot in spots]),
        "spot_cells": np.concatenate([spot.cells for spot in spots]),
        "spot_masses": np.concatenate([spot.masses for spot in spots]),
    }


NAMES = ("spot_sizes", "spot_vertices", "spot_cells", "spot_masses")


def recorded(arrays: Mapping[str, np.ndarray]) -> Spots:
    """The spots that such arrays stand for."""
    if "spot_sizes" not in arrays:
        return NONE
    sizes, numbers = arrays["spot_sizes"], arrays["spot_cells"]
    length = [len(arrays["spot_masses"]), len(arrays["spot_vertices"])]
    most = np.repeat(sizes[:, 1], np.maximum(sizes[:, 0], 0))
    if (sizes < 1).any() or (sizes.sum(axis=0) != length).any() or len(numbers) != len(most):
        raise InputError("the spots in the checkpoint do not fit together; start again")
    if ((numbers < 0) | (numbers >= most[:, None])).any():
        raise InputError("the spots in the checkpoint lack some of their vertices; start again")
    cells, vertices = np.cumsum(sizes, axis=0)[:-1].T
    each = zip(
        np.split(arrays["spot_vertices"], vertices),
        np.split(arrays["spot_cells"], cells),
        np.split(arrays["spot_masses"], cells),
        strict=True,
    )
    return tuple(Spot(*one) for one in each)
