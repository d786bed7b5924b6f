"""Geodesic geometry of arcs on the circle and triangles on the sphere, in plain numpy.

Cells are given by their vertices, an array cells x d x d: two points of the circle, or three of the
sphere. Volumes are arc lengths and spherical areas, not those of chords and flat triangles, so that
they add up to 2 pi and 4 pi to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import basix
import numpy as np

# Degree of the quadrature rule within a cell; a cell is split until the integrand is smooth on it.
_DEGREE = 6
_CHUNK = 200_000  # quadrature points held at once


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Vectors scaled to length one along the last axis."""
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def geodesic_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance 2 asin(|a - b| / 2) on the unit sphere, exact for close points."""
    return 2 * np.arcsin(np.minimum(1.0, np.linalg.norm(a - b, axis=-1) / 2))


def cell_volume(cells: np.ndarray) -> np.ndarray:
    """Arc length (d = 2) or spherical area (d = 3) of each cell."""
    if cells.shape[-1] == 2:
        return geodesic_distance(cells[:, 0], cells[:, 1])
    a, b, c = cells[:, 0], cells[:, 1], cells[:, 2]
    # Van Oosterom and Strackee: tan(area / 2) = |<a, b x c>| / (1 + <a, b> + <b, c> + <c, a>).
    # With b - a and c - a the triple product of a small triangle keeps all its digits.
    triple = np.abs(np.einsum("ij,ij->i", a, np.cross(b - a, c - a)))
    return 2 * np.arctan2(triple, 1 + (a * b).sum(1) + (b * c).sum(1) + (c * a).sum(1))


def cell_mean(cells: np.ndarray) -> np.ndarray:
    """Mean of the position over each cell: a point slightly inside the unit ball."""
    if cells.shape[-1] == 2:
        half = geodesic_distance(cells[:, 0], cells[:, 1]) / 2
        return normalised(cells.sum(axis=1)) * np.sinc(half / np.pi)[:, None]
    # The integral of x over a spherical polygon is half the sum over its edges of length times the
    # unit normal of the edge's plane, outward of the opposite vertex.
    total = np.zeros((len(cells), 3))
    for i in range(3):
        a, b, opposite = cells[:, i], cells[:, (i + 1) % 3], cells[:, (i + 2) % 3]
        normal = normalised(np.cross(a, b - a))
        normal *= np.sign((normal * opposite).sum(1))[:, None]
        total += geodesic_distance(a, b)[:, None] / 2 * normal
    return total / cell_volume(cells)[:, None]


def facet_conormal(facets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Length and unit conormal of facets given by their vertices (facets x (d - 1) x d).

    On the circle a facet is a point, of length 1, and the conormal the tangent. On the sphere it is
    a geodesic edge from a to b with conormal a x b / |a x b|, constant along the edge and therefore
    the same seen from both cells. The sign is arbitrary.
    """
    if facets.shape[-1] == 2:
        point = facets[:, 0]
        return np.ones(len(point)), np.column_stack([-point[:, 1], point[:, 0]])
    a, b = facets[:, 0], facets[:, 1]
    return geodesic_distance(a, b), normalised(np.cross(a, b - a))


def tangent_vector(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Logarithm map: the tangent vector at x that leads to y along a geodesic, |.| = distance."""
    along = y - (y * x).sum(axis=-1, keepdims=True) * x
    sine = np.linalg.norm(along, axis=-1, keepdims=True)
    distance = geodesic_distance(x, y)[..., None]
    return along * np.divide(distance, sine, out=np.ones_like(sine), where=sine > 0)


def integrate(
    function: Callable[[np.ndarray], np.ndarray], cells: np.ndarray, length_scale: float = math.inf
) -> np.ndarray:
    """Integral over each cell of a function of points (N x d -> N, or N x k).

    Args:
        function: the integrand.
        cells: vertices of the cells.
        length_scale: the angle over which the integrand changes; cells are split into pieces of
            half this width.
    """
    parts = []
    for start, stop in _chunks(cells, length_scale):
        points, weights = quadrature(cells[start:stop], length_scale)
        values = function(points.reshape(-1, points.shape[-1]))
        values = values.reshape(*weights.shape, *values.shape[1:])
        parts.append(np.einsum("cq,cq...->c...", weights, values))
    return np.concatenate(parts)


def quadrature(cells: np.ndarray, length_scale: float = math.inf) -> tuple[np.ndarray, np.ndarray]:
    """Points on the sphere (cells x q x d) and weights (cells x q) of a rule for each cell."""
    splits = _splits(cells, length_scale)
    dimension = cells.shape[-1]
    if dimension == 2:
        return _arc_quadrature(cells, splits)
    nodes, weights = basix.make_quadrature(basix.CellType.triangle, _DEGREE)
    pieces, piece_nodes = 4**splits, _split_triangle(splits)
    local = np.column_stack([1 - nodes.sum(axis=1), nodes])
    barycentric = np.einsum("qk,pkj->pqj", local, piece_nodes).reshape(-1, 3)
    flat = np.einsum("qk,ckd->cqd", barycentric, cells)
    a, b, c = cells[:, 0], cells[:, 1], cells[:, 2]
    triple = np.abs(np.einsum("ij,ij->i", a, np.cross(b - a, c - a)))
    radius = np.linalg.norm(flat, axis=2)
    # A flat element dS at distance r from the origin covers <x, n> dS / r^3 of the sphere.
    scaled = np.tile(weights / pieces, pieces)[None, :] * triple[:, None] / radius**3
    return flat / radius[..., None], scaled


def _arc_quadrature(cells: np.ndarray, splits: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(_DEGREE)
    pieces = 2**splits
    place = (np.arange(pieces)[:, None] + (nodes + 1) / 2).ravel() / pieces  # in [0, 1]
    length = geodesic_distance(cells[:, 0], cells[:, 1])
    start = cells[:, 0]
    direction = normalised(tangent_vector(start, cells[:, 1]))
    angle = (length[:, None] * place)[..., None]
    points = np.cos(angle) * start[:, None] + np.sin(angle) * direction[:, None]
    return points, length[:, None] * np.tile(weights / 2, pieces) / pieces


def _splits(cells: np.ndarray, length_scale: float) -> int:
    width = max(
        float(geodesic_distance(cells[:, i - 1], cells[:, i]).max()) for i in range(cells.shape[1])
    )
    # Beyond 2^8 pieces a side the integrand is a point mass for the mesh in any case.
    pieces = 2 * width / min(length_scale, 1.0)
    return int(np.clip(np.ceil(np.log2(pieces)), 0, 8))


def _chunks(cells: np.ndarray, length_scale: float) -> Iterator[tuple[int, int]]:
    per_cell = 12 * 4 ** _splits(cells, length_scale)
    size = max(1, _CHUNK // per_cell)
    for start in range(0, len(cells), size):
        yield start, min(start + size, len(cells))


def _split_triangle(splits: int) -> np.ndarray:
    """Barycentric vertices of the 4^splits congruent pieces of a triangle."""
    pieces = np.eye(3)[None]
    for _ in range(splits):
        a, b, c = pieces[:, 0], pieces[:, 1], pieces[:, 2]
        ab, bc, ca = (a + b) / 2, (b + c) / 2, (c + a) / 2
        corners = [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
        pieces = np.concatenate([np.stack(corner, axis=1) for corner in corners])
    return pieces
