"""Mollweide maps of the sphere: equal areas stay equal, z is up, the x axis in the middle.

x = (2 sqrt(2) / pi) longitude cos a,  y = sqrt(2) sin a,  2a + sin 2a = pi sin(latitude)
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from matplotlib.axes import Axes
from scipy.spatial import cKDTree

from meanfield_pde.mesh.cells import Cells

WIDE, HIGH = 720, 360  # pixels of a map
EXTENT = (-2 * math.sqrt(2), 2 * math.sqrt(2), -math.sqrt(2), math.sqrt(2))


_NEAR = 8  # cells near a pixel among which the one that holds it is looked for


def pixel_cells(cells: Cells) -> tuple[np.ndarray, np.ndarray]:
    """The cell under each pixel of a Mollweide map, and the map's shape."""
    direction, inside = _pixels()
    near = cKDTree(cells.points).query(direction, k=min(_NEAR, len(cells.points)))[1]
    # x = sum of coordinates times corners, all of them >= 0 in the cell that holds x.
    inverse = np.linalg.inv(cells.vertices)
    found, best = near[:, 0], np.full(len(direction), -np.inf)
    for cell in near.T:
        smallest = np.einsum("pd,pdj->pj", direction, inverse[cell]).min(axis=1)
        better = smallest > best
        found, best = np.where(better, cell, found), np.where(better, smallest, best)
    return found, inside


@lru_cache(maxsize=1)
def _pixels() -> tuple[np.ndarray, np.ndarray]:
    """The directions of the pixels inside a map, and its shape."""
    x = ((np.arange(WIDE) + 0.5) / WIDE * 2 - 1) * 2 * math.sqrt(2)
    y = ((np.arange(HIGH) + 0.5) / HIGH * 2 - 1) * math.sqrt(2)
    x, y = np.meshgrid(x, y)
    auxiliary = np.arcsin(y / math.sqrt(2))
    latitude = np.arcsin((2 * auxiliary + np.sin(2 * auxiliary)) / math.pi)
    longitude = math.pi * x / (2 * math.sqrt(2) * np.cos(auxiliary))
    inside = np.abs(longitude) <= math.pi
    flat = np.cos(latitude)
    direction = np.stack(
        [flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=-1
    )
    return direction[inside], inside


def project(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Map coordinates of points on the sphere."""
    latitude = np.arcsin(np.clip(points[:, 2], -1, 1))
    longitude = np.arctan2(points[:, 1], points[:, 0])
    auxiliary = latitude.copy()
    for _ in range(60):  # Newton's method for 2a + sin 2a = pi sin(latitude); slow at the poles
        residual = 2 * auxiliary + np.sin(2 * auxiliary) - math.pi * np.sin(latitude)
        auxiliary -= residual / np.maximum(2 + 2 * np.cos(2 * auxiliary), 1e-12)
        auxiliary = np.clip(auxiliary, -math.pi / 2, math.pi / 2)
    return (
        2 * math.sqrt(2) / math.pi * longitude * np.cos(auxiliary),
        math.sqrt(2) * np.sin(auxiliary),
    )


def draw_outline(axes: Axes) -> None:
    """The edge of the map, and meridians and parallels."""
    turn = np.linspace(-math.pi / 2, math.pi / 2, 181)
    for degrees in range(-180, 181, 60):
        x = 2 * math.sqrt(2) * degrees / 180 * np.cos(turn)
        width = 0.9 if abs(degrees) == 180 else 0.3
        axes.plot(x, math.sqrt(2) * np.sin(turn), color="0.3", lw=width)
    for degrees in (-60, -30, 0, 30, 60):
        latitude = np.full(2, math.radians(degrees))
        height = project(np.column_stack([np.cos(latitude), 0 * latitude, np.sin(latitude)]))[1]
        half = 2 * math.sqrt(1 - (height[0] / math.sqrt(2)) ** 2) * math.sqrt(2)
        axes.plot([-half, half], height, color="0.3", lw=0.3)
