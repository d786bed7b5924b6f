"""Mollweide maps of the sphere: equal areas stay equal, z is up, the x axis in the middle.

x = (2 sqrt(2) / pi) longitude cos a,  y = sqrt(2) sin a,  2a + sin 2a = pi sin(latitude)

The projection is matplotlib's, the axes are not: its `pcolormesh` on axes of that projection takes
0.19 s a map where `imshow` of its pixels takes 0.07 s, and an animation has up to 120.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from matplotlib.axes import Axes
from matplotlib.projections.geo import MollweideAxes

from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.location import cells_at

# Pixels of a map: one of three on a page, 4.2 inches wide at 150 dpi, has 630.
WIDE, HIGH = 720, 360
# x and y at the edges of the map, of an area of 4 pi.
EXTENT = (-2 * math.sqrt(2), 2 * math.sqrt(2), -math.sqrt(2), math.sqrt(2))
# Longitude and latitude to x, y: to 1.4e-3 beside the poles (measured), a fifth of a pixel.
_MAP = MollweideAxes.MollweideTransform(1)
BESIDE = 0.1  # radians from longitude 180°, where a marker of 9 points reaches over the edge


def paint(cells: Cells, density: np.ndarray) -> np.ndarray:
    """Return the map of a density, HIGH x WIDE, nan outside of it.

    A pixel has the density of the cell below it, or the largest of the cells with centres in it: no
    cluster is too narrow to be seen.
    """
    cell, inside = pixel_cells(cells)
    picture = np.full(inside.shape, np.nan)
    picture[inside] = density[cell]
    x, y = project(cells.points)
    row = np.clip((y - EXTENT[2]) / (EXTENT[3] - EXTENT[2]) * HIGH, 0, HIGH - 1).astype(int)
    column = ((x - EXTENT[0]) / (EXTENT[1] - EXTENT[0]) * WIDE).astype(int)
    # At the edge of the map the first or the last pixel of the row.
    first, count = inside.argmax(axis=1), inside.sum(axis=1)
    column = np.clip(column, first[row], (first + count - 1)[row])
    np.maximum.at(picture, (row, column), density)
    return picture


@lru_cache(maxsize=1)  # one for all times of a mesh that stays: 0.1 s each (1,280 cells)
def pixel_cells(cells: Cells) -> tuple[np.ndarray, np.ndarray]:
    """The cell under each pixel of a Mollweide map, and the map's shape."""
    direction, inside = _pixels()
    return cells_at(direction, cells.vertices)[0], inside


@lru_cache(maxsize=1)
def _pixels() -> tuple[np.ndarray, np.ndarray]:
    """The directions of the pixels inside a map, and its shape."""
    x = ((np.arange(WIDE) + 0.5) / WIDE * 2 - 1) * 2 * math.sqrt(2)
    y = ((np.arange(HIGH) + 0.5) / HIGH * 2 - 1) * math.sqrt(2)
    x, y = np.meshgrid(x, y)
    inside = (x / EXTENT[1]) ** 2 + (y / EXTENT[3]) ** 2 <= 1
    there = _MAP.inverted().transform(np.column_stack([x[inside], y[inside]]))
    longitude, latitude = there.T
    flat = np.cos(latitude)
    direction = np.stack(
        [flat * np.cos(longitude), flat * np.sin(longitude), np.sin(latitude)], axis=-1
    )
    return direction, inside


def project(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Map coordinates of points on the sphere."""
    latitude = np.arcsin(np.clip(points[:, 2], -1, 1))
    longitude = np.arctan2(points[:, 1], points[:, 0])
    x, y = _MAP.transform(np.column_stack([longitude, latitude])).T
    return x, y


def project_twice(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return map coordinates of points, and after them those beyond the other edge of the map.

    Of points beside longitude 180° only: half of a marker there is seen at each of the edges.
    """
    x, y = project(points)
    near = (points[:, 0] < 0) & (np.abs(points[:, 1]) < BESIDE)
    half = np.sqrt(np.maximum(EXTENT[1] ** 2 - 4 * y[near] ** 2, 0))
    beyond = x[near] - np.where(x[near] > 0, 2, -2) * half
    return np.append(x, beyond), np.append(y, y[near])


def curve(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return map coordinates of a curve on the sphere, N x 3, with a nan where it leaves the map.

    It does so across longitude 180°, and comes back at the other edge, at both of which it ends.
    """
    longitude = np.arctan2(points[:, 1], points[:, 0])
    x, y = project(points)
    crossed = np.flatnonzero(np.abs(np.diff(longitude)) > math.pi)
    half = np.sqrt(np.maximum(EXTENT[1] ** 2 - 4 * y**2, 0))  # of the map's width, at the height
    edges = np.stack([np.sign(x) * half, np.full(len(x), np.nan), np.full(len(x), np.nan)], axis=1)
    edges[:-1, 2] = edges[1:, 0]
    heights = np.stack([y, y, np.append(y[1:], np.nan)], axis=1)
    at = np.repeat(crossed + 1, 3)
    return np.insert(x, at, edges[crossed].ravel()), np.insert(y, at, heights[crossed].ravel())


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
