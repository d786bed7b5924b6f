"""The cell that holds a point of the circle or the sphere.

With the corners V_c of a cell as rows, x = a V_c has coordinates a >= 0 in the cell that holds it,
which is the one in which the smallest coordinate is largest.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
from scipy.spatial import cKDTree

from meanfield_pde.mesh.geometry import normalised

# Points that are looked for at once, all pixels of a map among them. The disc about a triangle has
# 2.4 times its area, so that there are as many matrices, 72 bytes each: 45 MB.
_CHUNK = 262_144


def cells_at(points: np.ndarray, corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cell that fits each point best, and the point's smallest coordinate in it.

    Of cells that tie, because the point is on their common facet, it is the first. If the cells are
    only part of a mesh and none is near, it is `len(corners)`, with the coordinate -inf.

    Args:
        points: N x d.
        corners: of the cells, cells x d x d.
    """
    best, inside = np.full(len(points), len(corners)), np.full(len(points), -np.inf)
    centres = normalised(corners.mean(axis=1))
    reach = np.linalg.norm(corners - centres[:, None], axis=2).max(axis=1) * (1 + 1e-9) + 1e-12
    inverse = np.linalg.inv(corners)
    for start in range(0, len(points), _CHUNK):
        some = points[start : start + _CHUNK]
        near = cKDTree(some).query_ball_point(centres, reach)
        count = np.fromiter(map(len, near), np.int64, len(corners))
        point = np.fromiter(chain.from_iterable(near), np.int64, count.sum())
        cell = np.repeat(np.arange(len(corners)), count)
        smallest = np.einsum("pd,pdj->pj", some[point], inverse[cell]).min(axis=1)
        largest = inside[start : start + _CHUNK]
        np.maximum.at(largest, point, smallest)
        fits = smallest == largest[point]
        np.minimum.at(best[start : start + _CHUNK], point[fits], cell[fits])
    return best, inside
