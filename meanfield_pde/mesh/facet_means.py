"""Means along facets from values at vertices, to fourth order in the length of an edge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy.sparse
import scipy.spatial

from meanfield_pde.mesh import geometry

# Vertices that enter the mean along an edge: on a regular mesh its ends and all next to them.
_STENCIL = 10
# Room for more of them at the same distance as the last: with 320 to 20,480 cells of an icosphere
# there is one at most; what has more is cut off.
_SPARE = 6
# Distances this near to each other, relatively, are the same: symmetric meshes have such.
_TIE = 1e-6
# Where the absolute weights add up to more, data and their rounding would be amplified by as much,
# and the two ends alone, whose weights add up to 1, are used (chosen, not tuned).
_LARGEST_WEIGHTS = 3.0
_SHIFT = 1e-14  # of the trace of C C^T, whose rounding it exceeds
# Facets whose weights are computed at once: arrays of 16 vertices x 6 monomials, 6 MB each.
_CHUNK = 8192


class Facets(Protocol):
    """The facets of this rank, and the vertices of the whole mesh; see `FiniteVolumes`."""

    dimension: int
    vertices: np.ndarray
    facet_vertices: np.ndarray
    facet_length: np.ndarray
    facet_conormal: np.ndarray


@dataclass(frozen=True, eq=False)
class FacetMeans:
    """The means along the facets of this rank of values at vertices.

    On the circle a facet is a vertex. On the sphere the mean of the two ends has an error of
    length^2 / 12 times the second derivative, which would dominate the error of the whole scheme.
    The weights of the nearest vertices are the least change of (1/2, 1/2) that is exact for all
    polynomials of degree 2 in the tangent plane: C w = r with rows of C the monomials, w = w_0 +
    C^+ (r - C w_0).

    A row is a function of the positions of its vertices alone, taken in the order of their numbers.
    So where the vertices of two meshes come in the same order, as those of forests do, and none
    within `reach` of a facet is new or gone, its row is that of the mesh before, bit for bit.

    Attributes:
        vertices: of the whole mesh.
        numbers: of those that the means of this rank are taken of, and of the ends of its facets.
        ends: of each facet, as places among these.
        matrix: takes values at these vertices to the means, facets x numbers; it has no zeros.
        reach: how far from the middle of each facet its vertices lie.
    """

    vertices: np.ndarray
    numbers: np.ndarray
    ends: np.ndarray
    matrix: scipy.sparse.csr_array
    reach: np.ndarray

    @classmethod
    def of(cls, mesh: Facets, before: FacetMeans | None = None) -> FacetMeans:
        """Those of a mesh, with rows taken over from the mesh before where they are the same."""
        ends, count = mesh.facet_vertices, len(mesh.vertices)
        reach = np.zeros(len(ends))
        if mesh.dimension == 2:
            matrix = _matrix(np.ones(len(ends)), ends[:, 0], np.arange(len(ends) + 1), count)
        else:
            matrix = _rows(mesh, before, reach)
        used, place = np.zeros(count, dtype=bool), np.empty(count, dtype=np.int32)
        used[matrix.indices] = used[ends] = True
        numbers = np.flatnonzero(used)
        place[numbers] = np.arange(len(numbers))
        matrix = _matrix(matrix.data, place[matrix.indices], matrix.indptr, len(numbers))
        return cls(mesh.vertices, numbers, place[ends], matrix, reach)

    def kept(self, mesh: Facets) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """New numbers of the `numbers`, -1 if gone; rows of a new mesh that are rows of this."""
        count = len(mesh.vertices)
        points, place = geometry.distinct(np.concatenate([mesh.vertices, self.vertices]))
        number, known = np.full(len(points), -1), np.zeros(len(points), dtype=bool)
        number[place[:count]] = np.arange(count)
        known[place[count:]] = True
        changed = points[(number < 0) | ~known]
        number = number[place[count:]][self.numbers]
        # Facets are known by their ends.
        ends = np.sort(number[self.ends], axis=1)
        old = np.flatnonzero(ends[:, 0] >= 0)
        names = ends[old] @ [count, 1]
        old, names = old[np.argsort(names)], np.sort(names)
        wanted = np.sort(mesh.facet_vertices, axis=1) @ [count, 1]
        at = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
        rows = np.flatnonzero(names[at] == wanted) if len(names) else np.zeros(0, dtype=np.int64)
        old = old[at[rows]] if len(names) else rows
        if len(changed):
            middle = _middles(mesh, rows)
            far = self.reach[old] * (1 + _TIE)
            bound = far.max(initial=0.0)
            gap, _ = scipy.spatial.cKDTree(changed).query(middle, distance_upper_bound=bound)
            rows, old = rows[gap > far], old[gap > far]
        return number, rows, old


def _rows(mesh: Facets, before: FacetMeans | None, reach: np.ndarray) -> scipy.sparse.csr_array:
    """The matrix of a mesh of the sphere, facets x all vertices; writes how far its rows reach."""
    count = len(mesh.vertices)
    size = min(_STENCIL + _SPARE, count)
    rows, parts = np.empty(0, dtype=np.int64), []
    if before is not None and len(before.vertices) >= size:
        number, rows, old = before.kept(mesh)
        same = before.matrix[old]
        parts.append(_matrix(same.data, number[same.indices], same.indptr, count))
        reach[rows] = before.reach[old]
    missing = np.ones(len(reach), dtype=bool)
    missing[rows] = False
    tree, wanted = scipy.spatial.cKDTree(mesh.vertices), np.flatnonzero(missing)
    for part in np.split(wanted, range(_CHUNK, len(wanted), _CHUNK)):
        near, weights, reach[part] = _stencils(mesh, tree, part, size)
        used = weights != 0
        pointers = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
        parts.append(_matrix(weights[used], near[used], pointers, count))
    found = scipy.sparse.vstack(parts, format="csr")
    # Rows that were taken over come first.
    return found[np.argsort(np.concatenate([rows, wanted]))] if len(rows) else found


def _matrix(
    data: np.ndarray, columns: np.ndarray, pointers: np.ndarray, width: int
) -> scipy.sparse.csr_array:
    """A matrix with its entries row by row; 32-bit numbers, which are a fourth of its bytes."""
    numbers = columns.astype(np.int32, copy=False), pointers.astype(np.int32, copy=False)
    return scipy.sparse.csr_array((data, *numbers), (len(pointers) - 1, width))


def _middles(mesh: Facets, part: np.ndarray) -> np.ndarray:
    """The middles of some facets, on the sphere."""
    return geometry.normalised(mesh.vertices[mesh.facet_vertices[part]].mean(axis=1))


def _stencils(
    mesh: Facets, tree: scipy.spatial.cKDTree, part: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The vertices next to some facets, their weights, and how far away they are."""
    ends, middle = mesh.facet_vertices[part], _middles(mesh, part)
    distance, near = tree.query(middle, k=size)
    # All vertices as far away as the last one belong in, or none would: which of them comes first
    # is a matter of their numbers.
    reach = distance[:, min(_STENCIL, size) - 1] * (1 + _TIE)
    inside = distance <= reach[:, None]
    order = np.argsort(np.where(inside, near, near + len(mesh.vertices)), axis=1)
    near, inside = np.take_along_axis(near, order, 1), np.take_along_axis(inside, order, 1)
    near = np.where(inside, near, near[:, :1])
    at_end = (near[:, :, None] == ends[:, None, :]).any(axis=2) & inside
    middle = middle[:, None]
    length = mesh.facet_length[part, None]
    conormal = mesh.facet_conormal[part, None]
    arrow = geometry.tangent_vector(middle, mesh.vertices[near])
    across = (arrow * conormal).sum(axis=2) / length
    along = (arrow * np.cross(conormal, middle)).sum(axis=2) / length
    monomials = np.stack(
        [np.ones_like(along), along, across, along**2, along * across, across**2], axis=1
    )
    monomials *= inside[:, None]
    exact = np.array([1.0, 0.0, 0.0, 1 / 12, 0.0, 0.0])
    plain = at_end / 2.0
    miss = exact - np.einsum("fmk,fk->fm", monomials, plain)
    # C^+ = C^T (C C^T)^-1; the shift is for vertices so few that C has no full rank.
    normal = monomials @ np.swapaxes(monomials, 1, 2)
    normal += _SHIFT * np.trace(normal, axis1=1, axis2=2)[:, None, None] * np.eye(len(exact))
    multiplier = np.linalg.solve(normal, miss[..., None])[..., 0]
    weights = plain + np.einsum("fmk,fm->fk", monomials, multiplier)
    fine = (at_end.sum(axis=1) == 2) & (np.abs(weights).sum(axis=1) < _LARGEST_WEIGHTS)
    # An unfit row keeps its ends only; its other weights are stored as zeros.
    near[~fine, :2] = ends[~fine]
    weights[~fine] = np.where(np.arange(size) < 2, 0.5, 0.0)
    return near, weights, reach
