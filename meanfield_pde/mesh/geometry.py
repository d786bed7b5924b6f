"""Geodesic geometry of arcs on the circle and triangles on the sphere, in plain numpy.

Cells are given by their corners, an array cells x d x d: two points of the circle, or three of the
sphere. Volumes are arc lengths and spherical areas, not those of chords and flat triangles, so that
they add up to 2 pi and 4 pi to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Integrand = Callable[[np.ndarray], np.ndarray]

AXES = "xyz"  # names of the coordinates

# Of the quadrature rule within a triangle, 12 points, and the number of Gauss points of an arc:
# cells are cut until it is accurate, so that a lower one takes more cuts and a higher one more
# points (chosen, not tuned).
_DEGREE = 6
# Of an arc, for `three_points`: as many as on a triangle, where three have degree 2.
_GAUSS = np.polynomial.legendre.leggauss(3)
# Cells whose quadrature points are held at once: 4 x 12 of each in 3 coordinates, 9 MB.
_CHUNK = 8192
# When a piece of a cell need not be cut again, relative to the piece, so that tails have nine
# digits, and to the whole (`integrate`).
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12
_TAIL = 1e-5  # relative, for what is below 1e-15 of the whole
_ROUNDING = 4e-16  # of a vertex, two ulps of its coordinates
# Cuts, to 1/64 of a cell, before the absolute bound counts, which would spoil the tails.
_PATIENCE = 6
# Cuts at most, to 1e-9 of a cell, and pieces at once, 36 MB of corners: a bound on the cost of what
# is not smooth.
_DEEPEST, _MOST_PIECES = 30, 500_000


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Vectors scaled to length one along the last axis."""
    return vectors / norm(vectors)[..., None]


def norm(vectors: np.ndarray) -> np.ndarray:
    """|v| along the last axis, of few coordinates: three times as fast as numpy's norm there."""
    return np.sqrt(np.einsum("...i,...i->...", vectors, vectors))


def tangential(x: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """The parts P_x of vectors tangent to the sphere at x."""
    return vectors - np.einsum("...i,...i->...", vectors, x)[..., None] * x


def geodesic_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance 2 asin(|a - b| / 2) on the unit sphere, exact for close points."""
    return 2 * np.arcsin(np.minimum(1.0, norm(a - b) / 2))


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
        normal *= np.sign(np.einsum("ci,ci->c", normal, opposite))[:, None]
        total += geodesic_distance(a, b)[:, None] / 2 * normal
    return total / cell_volume(cells)[:, None]


def facet_conormal(facets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Length and unit conormal of facets given by their corners (facets x (d - 1) x d).

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
    along = tangential(x, y)
    sine = norm(along)[..., None]
    distance = geodesic_distance(x, y)[..., None]
    return along * np.divide(distance, sine, out=np.ones_like(sine), where=sine > 0)


def cell_spread(cells: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Mean squared geodesic distance of the points of each cell from its centre."""
    spread = np.empty(len(cells))
    for part in chunks(len(cells)):
        nodes, weights = quadrature(cells[part])
        squared = geodesic_distance(nodes, centres[part, None]) ** 2
        spread[part] = (weights * squared).sum(axis=1) / weights.sum(axis=1)
    return spread


def quadrature(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points (cells x q x d) and weights (cells x q): degree 11 on arcs, 6 on triangles."""
    return _arc_rule(cells) if cells.shape[-1] == 2 else _triangle_rule(cells)


def three_points(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points (cells x 3 x d) on the sphere and shares (cells x 3) of the mass of each cell."""
    if cells.shape[-1] == 2:
        nodes, weights = _GAUSS
        half = geodesic_distance(cells[:, 0], cells[:, 1])[:, None, None] / 2
        middle = normalised(cells.sum(axis=1))[:, None]
        along = normalised(cells[:, 1] - cells[:, 0])[:, None]
        angle = half * nodes[:, None]
        points = normalised(np.cos(angle) * middle + np.sin(angle) * along)
        return points, np.tile(weights / 2, (len(cells), 1))
    # The places of the rule of degree 2, with shares that make the mean position exact.
    points = normalised((np.ones((3, 3)) + 3 * np.eye(3)) / 6 @ cells)
    mean = cell_mean(cells)[..., None]
    shares = np.linalg.solve(np.swapaxes(points, 1, 2), mean)[..., 0]
    return points, shares / shares.sum(axis=1, keepdims=True)


def gauss_points(facets: np.ndarray) -> np.ndarray:
    """The points of facets that fluxes belong to, facets x (d - 1) x d.

    On the circle a facet is a point; on the sphere these are the two Gauss points of an edge, the
    one next to its first end first.
    """
    return facets if facets.shape[-1] == 2 else _arc_rule(facets, 2)[0]


def facet_rule(facets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Points on facets (facets x k x d), and shares of values there that belong to Gauss points.

    With shares s (d - 1 x k), sum over k of s_qk v_k is half of what the linear function nearest to
    v along an edge has at Gauss point q, of degree 11 for the mean of v. The sum of both is that
    mean. On the circle a facet is a point.
    """
    if facets.shape[-1] == 2:
        return facets, np.ones((1, 1))
    nodes, weights = np.polynomial.legendre.leggauss(_DEGREE)
    shares = weights / 4 * (1 + np.sqrt(3) * np.outer([-1.0, 1.0], nodes))
    return _arc_rule(facets)[0], shares


def halved(cells: np.ndarray) -> np.ndarray:
    """Each cell cut at the middles of its edges: cells x (2 arcs or 4 triangles) x d x d."""
    if cells.shape[-1] == 2:
        a, b = cells[:, 0], cells[:, 1]
        middle = normalised(a + b)
        return np.stack([np.stack([a, middle], 1), np.stack([middle, b], 1)], axis=1)
    a, b, c = cells[:, 0], cells[:, 1], cells[:, 2]
    ab, bc, ca = normalised(a + b), normalised(b + c), normalised(c + a)
    corners = [(a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca)]
    return np.stack([np.stack(corner, axis=1) for corner in corners], axis=1)


def integrate(
    function: Integrand,
    cells: np.ndarray,
    length_scale: float = math.inf,
    peaks: np.ndarray | None = None,
) -> np.ndarray:
    """Integral over each cell of a function of points (N x d -> N, or N x k).

    A cell is cut until its rule and those of its pieces agree to 1e-9 of the integral of |f|, so
    that tails are exact too (to 1e-5 where they hardly count), or to 1e-12 of the whole. A peak
    narrower than a cell would be missed: cells that hold one are cut at least to its width.

    Args:
        function: the integrand.
        cells: corners of the cells.
        length_scale: the width of the peaks.
        peaks: points where the integrand is concentrated, N x d.
    """
    coarse, size = rough_integrals(function, cells)
    return refined_integrals(function, cells, coarse, size.sum(axis=0), length_scale, peaks)


def rough_integrals(function: Integrand, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integrals of f and of |f| over each cell by the rule of degree 6 alone."""
    return _apply_rule(function, cells)[:2]


def refined_integrals(
    function: Integrand,
    cells: np.ndarray,
    coarse: np.ndarray,
    whole: np.ndarray | float,
    length_scale: float,
    peaks: np.ndarray | None,
) -> np.ndarray:
    """`integrate`, from the rough integrals of f over the cells and that of |f| over the whole.

    Given the whole, the integral over a cell does not depend on which others are asked for.
    """
    return np.concatenate(
        [
            _refine_part(function, cells[part], coarse[part], whole, length_scale, peaks)
            for part in chunks(len(cells))
        ]
    )


def chunks(count: int) -> list[slice]:
    """Slices of `count` cells, small enough for arrays of quadrature points."""
    return [slice(start, start + _CHUNK) for start in range(0, max(count, 1), _CHUNK)]


def _refine_part(
    function: Integrand,
    cells: np.ndarray,
    coarse: np.ndarray,
    whole: np.ndarray | float,
    length_scale: float,
    peaks: np.ndarray | None,
) -> np.ndarray:
    result = np.zeros_like(coarse)
    owner, pieces = np.arange(len(cells)), cells
    for level in range(_DEEPEST + 1):
        children = halved(pieces)
        family = children.shape[:2]
        fine, size, largest = _apply_rule(function, children.reshape(-1, *cells.shape[1:]))
        fine = fine.reshape(*family, *fine.shape[1:])
        size = size.reshape(*family, *size.shape[1:]).sum(axis=1)
        largest = largest.reshape(*family, *largest.shape[1:]).max(axis=1)
        error = np.abs(fine.sum(axis=1) - coarse)
        # The area of a sliver is not known better than its length times the rounding of a vertex.
        edge = np.linalg.norm(pieces - np.roll(pieces, 1, axis=1), axis=2).max(axis=1)
        noise = _ROUNDING * edge.reshape(-1, *[1] * (error.ndim - 1)) * largest
        good = error <= _RELATIVE * size + noise
        good |= (error <= _TAIL * size) & (error <= 1e-3 * _ABSOLUTE * whole)
        if level >= _PATIENCE:
            good |= error <= _ABSOLUTE * whole
        good = good.all(axis=tuple(range(1, good.ndim)))
        # Noise, such as the square of a distance that is zero, would be cut without end.
        if level < _DEEPEST and len(pieces) < _MOST_PIECES:
            good &= ~_holds_peak(pieces, length_scale, peaks)
        else:
            good[:] = True
        np.add.at(result, owner[good], fine[good].sum(axis=1))
        if good.all():
            break
        pieces = children[~good].reshape(-1, *cells.shape[1:])
        coarse = fine[~good].reshape(-1, *fine.shape[2:])
        owner = np.repeat(owner[~good], family[1])
    return result


def _holds_peak(cells: np.ndarray, width: float, peaks: np.ndarray | None) -> np.ndarray:
    """Cells wider than `width` that reach to within that distance of a peak."""
    holds = np.zeros(len(cells), dtype=bool)
    if peaks is None or not len(cells):
        return holds
    middle = normalised(cells.sum(axis=1))
    radius = geodesic_distance(cells, middle[:, None]).max(axis=1)
    for peak in peaks:
        holds |= geodesic_distance(middle, peak) <= radius + width
    return holds & (2 * radius > width)


def _apply_rule(
    function: Integrand, cells: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Integrals of f and of |f| by the rule of degree 6 over each cell, and the largest |f|.

    Pieces of cells that are cut are many: those at the separatrix, for the limit of a narrow
    density on 5,120 cells, took 1.0 GB and 2.9 s at once, and take 0.3 GB and 1.1 s so.
    """
    parts = [_apply_at_once(function, cells[part]) for part in chunks(len(cells))]
    integrals, sizes, largest = (np.concatenate(part) for part in zip(*parts, strict=True))
    return integrals, sizes, largest


def _apply_at_once(
    function: Integrand, cells: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    points, weights = quadrature(cells)
    values = function(points.reshape(-1, points.shape[-1]))
    values = values.reshape(*weights.shape, *values.shape[1:])
    size = np.abs(values)
    if values.ndim == 2:  # four times as quick as what holds for any number of columns
        return (weights * values).sum(axis=1), (weights * size).sum(axis=1), size.max(axis=1)
    return (
        np.einsum("cq,cq...->c...", weights, values),
        np.einsum("cq,cq...->c...", weights, size),
        size.max(axis=1),
    )


def _triangle_rule(cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    import basix  # a part of DOLFINx: see `_lazy`

    nodes, weights = basix.make_quadrature(basix.CellType.triangle, _DEGREE)
    barycentric = np.column_stack([1 - nodes.sum(axis=1), nodes])
    # The same to the last bit whatever the other cells are, as it is not by `barycentric @ cells`.
    flat = np.einsum("qk,ckd->cqd", barycentric, cells)
    a, b, c = cells[:, 0], cells[:, 1], cells[:, 2]
    triple = np.abs(np.einsum("ij,ij->i", a, np.cross(b - a, c - a)))
    radius = norm(flat)
    # A flat element dS at distance r from the origin covers <x, n> dS / r^3 of the sphere.
    return flat / radius[..., None], weights * triple[:, None] / radius**3


def _arc_rule(cells: np.ndarray, count: int = _DEGREE) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    length = geodesic_distance(cells[:, 0], cells[:, 1])
    start = cells[:, :1]
    direction = normalised(tangent_vector(start, cells[:, 1:]))
    angle = (length[:, None] * (nodes + 1) / 2)[..., None]
    points = np.cos(angle) * start + np.sin(angle) * direction
    return points, length[:, None] * weights / 2


def distinct(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct rows, sorted, and which of them each row is."""
    order = np.lexsort(points.T)
    ordered = points[order]
    new = np.ones(len(points), dtype=bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    number = np.empty(len(points), dtype=np.int64)
    number[order] = np.cumsum(new) - 1
    return ordered[new], number
