"""Geodesic cells cut by planes through the origin, which meet the sphere in great circles.

A cell is the set of directions of the non-negative combinations of its vertices, so that a plane
<n, x> = 0 cuts it where it cuts the flat arc or triangle: an edge from a to b with <n, a> > 0 >
<n, b> at the direction of <n, a> b - <n, b> a, without any approximation of the curved cell.

On the sphere the pieces are convex polygons. They are kept in arrays N x K x 3, the last vertex
repeated where there are fewer than K, and divided into triangles at the end: triangles cut over
and over would multiply.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.mesh.geometry import cell_volume, normalised

Pieces = tuple[np.ndarray, np.ndarray, np.ndarray]


def split(cells: np.ndarray, normals: np.ndarray) -> Pieces:
    """Divide arcs or triangles along planes <n, x> = 0.

    Args:
        cells: vertices, N x d x d.
        normals: one normal for each cell, N x d, or one for all, d.

    Returns:
        The pieces, again arcs or triangles (M x d x d), the cell each comes from (M), and the side
        it is on, +1 or -1 (M). A cell that is not cut is its own only piece.
    """
    if cells.shape[-1] == 3:
        polygons, parent, side = split_polygons(cells, normals)
        triangles, number = triangulated(polygons)
        return triangles, parent[number], side[number]
    heights = _heights(cells, normals)
    cut = _is_cut(heights)
    middle = _crossing(cells[cut, 0], cells[cut, 1], heights[cut, 0], heights[cut, 1])
    first, second = np.stack([cells[cut, 0], middle], 1), np.stack([middle, cells[cut, 1]], 1)
    number = np.flatnonzero(cut)
    pieces = np.concatenate([cells[~cut], first, second])
    parent = np.concatenate([np.flatnonzero(~cut), number, number])
    height = np.concatenate([heights[~cut].sum(axis=1), heights[cut, 0], heights[cut, 1]])
    solid = cell_volume(pieces) > 0
    return pieces[solid], parent[solid], np.where(height >= 0, 1, -1)[solid]


def split_polygons(polygons: np.ndarray, normals: np.ndarray) -> Pieces:
    """Divide convex polygons of the sphere (N x K x 3), like `split`, into polygons."""
    heights = _heights(polygons, normals)
    cut = _is_cut(heights)
    crossed, number = polygons[cut], np.flatnonzero(cut)
    above, below = _part(crossed, heights[cut]), _part(crossed, -heights[cut])
    width = max(polygons.shape[1], above.shape[1], below.shape[1])
    side = np.where(heights[~cut].sum(axis=1) >= 0, 1, -1)
    return (
        np.concatenate([padded(part, width) for part in (polygons[~cut], above, below)]),
        np.concatenate([np.flatnonzero(~cut), number, number]),
        np.concatenate([side, np.full(len(number), 1), np.full(len(number), -1)]),
    )


def triangulated(polygons: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Triangles that make up convex polygons, and the polygon that each is part of."""
    count = polygons.shape[1] - 2
    fans = [polygons[:, [0, i + 1, i + 2]] for i in range(count)]
    triangles = np.concatenate(fans)
    number = np.tile(np.arange(len(polygons)), count)
    solid = cell_volume(triangles) > 0  # not so where a vertex is repeated
    return triangles[solid], number[solid]


def _heights(cells: np.ndarray, normals: np.ndarray) -> np.ndarray:
    normals = np.broadcast_to(normals, (len(cells), cells.shape[-1]))
    heights = np.einsum("cvd,cd->cv", cells, normals)
    # A vertex whose height is rounding is on the plane: a cut there would only make slivers.
    negligible = 4 * np.finfo(float).eps * np.linalg.norm(normals, axis=1)
    heights[np.abs(heights) <= negligible[:, None]] = 0.0
    return heights


def _is_cut(heights: np.ndarray) -> np.ndarray:
    return (heights.min(axis=1) < 0) & (heights.max(axis=1) > 0)


def _part(polygons: np.ndarray, heights: np.ndarray) -> np.ndarray:
    """The part of each polygon where the height is positive (Sutherland and Hodgman)."""
    n, k, d = polygons.shape
    if n == 0:
        return polygons
    following, height_after = np.roll(polygons, -1, axis=1), np.roll(heights, -1, axis=1)
    crossing = np.sign(heights) * np.sign(height_after) < 0
    # In order: vertex 0 if it is kept, the crossing of the edge from 0 to 1 if there is one, ...
    candidates = np.empty((n, 2 * k, d))
    candidates[:, 0::2] = polygons
    edges = (polygons, following, heights, height_after)
    candidates[:, 1::2][crossing] = _crossing(*(array[crossing] for array in edges))
    kept = np.empty((n, 2 * k), dtype=bool)
    kept[:, 0::2] = (heights >= 0) & (polygons != np.roll(polygons, 1, axis=1)).any(axis=2)
    kept[:, 1::2] = crossing
    count = kept.sum(axis=1)
    order = np.argsort(~kept, axis=1, kind="stable")
    place = np.minimum(np.arange(count.max()), count[:, None] - 1)
    order = np.take_along_axis(order, place, axis=1)
    return np.take_along_axis(candidates, order[..., None], axis=1)


def padded(polygons: np.ndarray, width: int) -> np.ndarray:
    """The polygons with their last vertex repeated up to `width` vertices."""
    missing = width - polygons.shape[1]
    return np.concatenate([polygons, *[polygons[:, -1:]] * missing], axis=1)


def _crossing(a: np.ndarray, b: np.ndarray, at_a: np.ndarray, at_b: np.ndarray) -> np.ndarray:
    """Where the edge from a to b crosses the plane; the heights are of opposite sign."""
    return normalised(np.abs(at_a)[..., None] * b + np.abs(at_b)[..., None] * a)
