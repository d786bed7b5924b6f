"""Does a mesh cover the circle or the sphere once? Asked of every mesh that comes from a file.

The finite volumes take for granted that every facet lies between two cells, on opposite sides of
it, and that the geodesic cells together are the whole circle or sphere, once:

    sum over cells of |cell|  =  2 pi  or  4 pi.

One rank looks at the whole mesh, some cells at a time: it must not take more than its run will.

Where this fails the error names the vertex, the facet or the cell, numbered from 0 as in the file.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from meanfield_pde.errors import InputError
from meanfield_pde.mesh.geometry import cell_volume, chunks
from meanfield_pde.mesh.surface import Surface
from meanfield_pde.support.checks import OFF_SPHERE

# Of the total geodesic length or area: above the rounding of the sum over a million cells, 1e-10 at
# the worst, and far below one of them, 1e-6.
_MEASURE_TOLERANCE = 1e-9
# Relative to the mean edge, which is 1e-3 with millions of cells: 1e-12 is some thousand roundings.
_SHORT_EDGE = 1e-9
# Height above the longest edge, relative to that edge: a triangle that is flatter may be so by the
# rounding of vertices in single precision.
_FLAT_TRIANGLE = 1e-6


def check_surface(surface: Surface, name: str) -> None:
    """Raise `InputError` unless the surface is a closed mesh that covers its sphere once.

    Vertices that no cell uses are ignored, and so is the third coordinate of arcs if it is 0.

    Args:
        surface: the mesh, its vertices within `OFF_SPHERE` of the unit sphere.
        name: what the error message calls the mesh, such as the path of its file.
    """
    _check_numbers(surface, name)
    _check_vertices(surface, name)
    d = surface.cells.shape[1]
    points = surface.points[:, :d]
    # Only vertices that no cell uses can be nearer to the origin than 0.5.
    radius = np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 0.5)
    unit = Surface(points / radius, surface.cells)
    _check_cells(unit, name)
    facets, neighbours, opposite = _facet_pairs(unit, name)
    _check_connected(unit, neighbours, name)
    _check_cover(unit, facets, neighbours, opposite, name)


def _check_numbers(surface: Surface, name: str) -> None:
    """The shapes of the arrays, and vertex numbers that exist."""
    points, cells = surface.points, surface.cells
    shapes = (*cells.shape[1:], *points.shape[1:])
    if shapes not in ((2, 2), (2, 3), (3, 3)):
        raise InputError(
            f"{name}: expected arcs (2 vertices) in the plane or triangles (3 vertices) in space, "
            f"got cells {cells.shape} and points {points.shape}"
        )
    if len(cells) == 0:
        raise InputError(f"{name}: the mesh has no cells")
    wrong = np.flatnonzero(((cells < 0) | (cells >= len(points))).any(axis=1))
    if len(wrong):
        raise InputError(
            f"{name}: cell {wrong[0]} has the vertices {cells[wrong[0]].tolist()}, but the "
            f"vertices of the mesh are numbered 0 to {len(points) - 1}"
        )
    d = cells.shape[1]
    equal = (cells[:, :, None] == cells[:, None, :]) & ~np.eye(d, dtype=bool)
    repeated = np.flatnonzero(equal.any(axis=(1, 2)))
    if len(repeated):
        raise InputError(
            f"{name}: cell {repeated[0]} is degenerate: it has the same vertex twice "
            f"({cells[repeated[0]].tolist()})"
        )


def _check_vertices(surface: Surface, name: str) -> None:
    """Finite, on the unit sphere, and for arcs in the plane z = 0."""
    d = surface.cells.shape[1]
    used = np.unique(surface.cells)
    points = surface.points[used]
    broken = np.flatnonzero(~np.isfinite(points).all(axis=1))
    if len(broken):
        raise InputError(f"{name}: {_vertex(surface, used[broken[0]])} is not finite")
    raised = np.flatnonzero(np.abs(points[:, d:]).max(axis=1, initial=0) > OFF_SPHERE)
    if len(raised):
        raise InputError(
            f"{name}: {_vertex(surface, used[raised[0]])} is off the plane z = 0, in which a mesh "
            "of arcs must lie"
        )
    radius = np.linalg.norm(points, axis=1)
    off = np.flatnonzero(np.abs(radius - 1) > OFF_SPHERE)
    if len(off):
        hint = ""
        if np.ptp(radius) <= OFF_SPHERE * radius.max():
            hint = (
                f"; the whole mesh has this radius: divide its coordinates by {radius.mean():.9g}"
            )
        raise InputError(
            f"{name}: {_vertex(surface, used[off[0]])} is at distance {radius[off[0]]:.9g} from "
            f"the origin; vertices must be at distance 1 (within {OFF_SPHERE:g}){hint}"
        )


def _check_cells(surface: Surface, name: str) -> None:
    """No cell with coinciding, antipodal or (nearly) cocircular vertices."""
    points, cells = surface.points, surface.cells
    d = cells.shape[1]
    pairs = [(0, 1)] if d == 2 else [(1, 2), (2, 0), (0, 1)]
    chords, gaps = np.empty((len(pairs), len(cells))), np.empty((len(pairs), len(cells)))
    for part in chunks(len(cells)):
        corners = points[cells[part]]
        for k, (i, j) in enumerate(pairs):
            # 2 - |a - b| is useless near an antipodal pair; |a + b| is exact there.
            chords[k, part] = np.linalg.norm(corners[:, i] - corners[:, j], axis=1)
            gaps[k, part] = np.linalg.norm(corners[:, i] + corners[:, j], axis=1)
    short = np.flatnonzero((chords <= _SHORT_EDGE * chords.mean()).any(axis=0))
    if len(short):
        cell = short[0]
        raise InputError(
            f"{name}: {_cell(surface, cell)} is degenerate: two of its vertices are "
            f"{chords[:, cell].min():.3g} apart"
        )
    antipodal = np.flatnonzero((gaps < OFF_SPHERE).any(axis=0))
    if len(antipodal):
        raise InputError(
            f"{name}: {_cell(surface, antipodal[0])} is degenerate: it has antipodal vertices, "
            "between which there is no unique geodesic"
        )
    if d == 3:
        longest = chords.max(axis=0)
        # The height of a vertex above the great circle through a and b: sin h = |det| / |a x b|,
        # where |a x b| = |a - b| |a + b| / 2. Small for slivers and for hemispheres alike.
        rows = np.arange(len(cells))
        base = chords.argmax(axis=0)
        determinant = [_determinant(points[cells[part]]) for part in chunks(len(cells))]
        height = np.abs(np.concatenate(determinant)) / (longest * gaps[base, rows] / 2)
        thin = np.flatnonzero(height < _FLAT_TRIANGLE * longest)
        if len(thin):
            raise InputError(
                f"{name}: {_cell(surface, thin[0])} is degenerate: its vertices lie on one great "
                f"circle (height {height[thin[0]]:.3g}, longest edge {longest[thin[0]]:.3g})"
            )


def _facet_pairs(surface: Surface, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The facets, the two cells of each, and the vertex of each cell that is not on the facet."""
    cells = surface.cells.astype(np.int32)  # as are all numbers of cells and vertices
    d = cells.shape[1]
    # Facet k of a cell is opposite its vertex k.
    sides = np.stack([np.delete(cells, k, axis=1) for k in range(d)], axis=1).reshape(-1, d - 1)
    sides.sort(axis=1)
    key = sides[:, 0] if d == 2 else sides @ np.array([len(surface.points), 1])
    order = np.argsort(key, kind="stable").astype(np.int32)
    start = np.flatnonzero(np.diff(key[order], prepend=-1))
    count = np.diff(start, append=len(key))
    wrong = np.flatnonzero(count != 2)
    if len(wrong):
        first = start[wrong[0]]
        number = count[wrong[0]]
        facet = sides[order[first]]
        vertices = " and ".join(_vertex(surface, vertex) for vertex in facet)
        owners = ", ".join(str(cell) for cell in order[first : first + min(number, 4)] // d)
        what = "the mesh has a boundary" if number == 1 else "the mesh branches"
        raise InputError(
            f"{name}: {what}: the facet of {vertices} belongs to {number} cell"
            f"{'' if number == 1 else 's'} ({owners}{', ...' if number > 4 else ''}), and every "
            f"facet must belong to 2 ({len(wrong)} facet{'' if len(wrong) == 1 else 's'} wrong)"
            f"{_duplicate_hint(surface, facet)}"
        )
    return sides[order[::2]], (order // d).reshape(-1, 2), cells.ravel()[order].reshape(-1, 2)


def _check_connected(surface: Surface, neighbours: np.ndarray, name: str) -> None:
    """One component: from every cell to every other through facets."""
    size = len(surface.cells)
    graph = coo_array((np.ones(len(neighbours), dtype=bool), tuple(neighbours.T)), (size, size))
    number, component = connected_components(graph, directed=False)
    if number > 1:
        other = int(np.flatnonzero(component != component[0])[0])
        raise InputError(
            f"{name}: the mesh has {number} components, expected 1: {_cell(surface, 0)} is in one "
            f"of {np.count_nonzero(component == component[0])} cells and {_cell(surface, other)} "
            f"in another of {np.count_nonzero(component == component[other])}"
        )


def _check_cover(
    surface: Surface, facets: np.ndarray, neighbours: np.ndarray, opposite: np.ndarray, name: str
) -> None:
    """The cells lie side by side and cover the circle or the sphere once.

    Without a fold the mesh is a covering (branched at most in vertices), and its total measure
    says how many times it covers.
    """
    points, cells = surface.points, surface.cells
    d = cells.shape[1]
    same = np.empty(len(facets), dtype=bool)
    for part in chunks(len(facets)):
        corners = (np.column_stack([facets[part], opposite[part, k]]) for k in range(2))
        first, second = (_determinant(points[corner]) > 0 for corner in corners)
        same[part] = first == second
    folded = np.flatnonzero(same)
    if len(folded):
        first, second = neighbours[folded[0]]
        vertices = " and ".join(_vertex(surface, vertex) for vertex in facets[folded[0]])
        raise InputError(
            f"{name}: cells {first} and {second} overlap: the mesh is folded along their facet of "
            f"{vertices} ({len(folded)} facet{'' if len(folded) == 1 else 's'} folded)"
        )
    volumes = [cell_volume(points[cells[part]]) for part in chunks(len(cells))]
    covered = np.concatenate(volumes).sum() / (2 * np.pi * (d - 1))
    if abs(covered - 1) > _MEASURE_TOLERANCE:
        raise InputError(
            f"{name}: the cells cover the {'circle' if d == 2 else 'sphere'} {covered:.9g} times, "
            "expected once"
        )


def _determinant(corners: np.ndarray) -> np.ndarray:
    """det(a, b) or det(a, b, c) of the corners K x d x d, accurate for small cells."""
    a = corners[:, 0]
    b = corners[:, 1] - a
    if corners.shape[1] == 2:
        return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
    return np.einsum("ki,ki->k", a, np.cross(b, corners[:, 2] - a))


def _vertex(surface: Surface, vertex: int) -> str:
    place = ", ".join(f"{x:.6g}" for x in surface.points[vertex])
    return f"vertex {vertex} at ({place})"


def _cell(surface: Surface, cell: int) -> str:
    vertices = ", ".join(_vertex(surface, vertex) for vertex in surface.cells[cell])
    return f"cell {cell} ({vertices})"


def _duplicate_hint(surface: Surface, facet: np.ndarray) -> str:
    """A common cause of a boundary: a seam whose vertices are stored twice."""
    used = np.unique(surface.cells)
    for vertex in facet:
        distance = np.linalg.norm(surface.points[used] - surface.points[vertex], axis=1)
        twins = used[(distance < OFF_SPHERE) & (used != vertex)]
        if len(twins):
            return f"; vertices {vertex} and {twins[0]} coincide: merge duplicate vertices"
    return ""
