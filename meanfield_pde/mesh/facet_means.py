"""Means along facets from values at vertices, to fourth order in the length of an edge."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import scipy.sparse
import scipy.spatial

from meanfield_pde.mesh import geometry

# Vertices that enter the mean along an edge: on a regular mesh its ends and all next to them.
_STENCIL = 10
_SPARE = 6  # room for more of them at the same distance as the last
_TIE = 1e-6
# Where the weights would amplify their data by more than this, the two ends alone are used.
_LARGEST_WEIGHTS = 3.0
_SHIFT = 1e-14
_CHUNK = 8192  # facets whose weights are computed at once


class Facets(Protocol):
    """The facets of this rank, and the vertices of the whole mesh; see `FiniteVolumes`."""

    dimension: int
    vertices: np.ndarray
    facet_vertices: np.ndarray
    facet_midpoint: np.ndarray
    facet_length: np.ndarray
    facet_conormal: np.ndarray


def facet_mean_operator(mesh: Facets) -> scipy.sparse.csr_array:
    """The matrix that takes values at all vertices to their means along this rank's facets.

    On the sphere the mean of the two ends has an error of length^2 / 12 times the second
    derivative, which would dominate the error of the whole scheme. The weights of the nearest
    vertices are the least change of (1/2, 1/2) that is exact for all polynomials of degree 2 in
    the tangent plane: C w = r with rows of C the monomials, w = w_0 + C^+ (r - C w_0).
    """
    ends = mesh.facet_vertices
    facets, vertices = len(ends), len(mesh.vertices)
    if mesh.dimension == 2:
        one = np.ones(facets)
        return scipy.sparse.csr_array((one, (np.arange(facets), ends[:, 0])), (facets, vertices))
    size = min(_STENCIL + _SPARE, vertices)
    tree = scipy.spatial.cKDTree(mesh.vertices)
    near = np.empty((facets, size), dtype=np.int64)
    weights = np.empty((facets, size))
    for start in range(0, facets, _CHUNK):
        part = slice(start, start + _CHUNK)
        near[part], weights[part] = _stencils(mesh, tree, part, size)
    row = np.repeat(np.arange(facets), size)
    means = scipy.sparse.csr_array((weights.ravel(), (row, near.ravel())), (facets, vertices))
    means.eliminate_zeros()
    return means


def _stencils(
    mesh: Facets, tree: scipy.spatial.cKDTree, part: slice, size: int
) -> tuple[np.ndarray, np.ndarray]:
    """The vertices next to some facets, and their weights."""
    ends = mesh.facet_vertices[part]
    distance, near = tree.query(mesh.facet_midpoint[part], k=size)
    # All vertices as far away as the last one belong in, or none would: which of them comes first
    # is a matter of their numbers.
    last = distance[:, min(_STENCIL, size) - 1]
    inside = distance <= last[:, None] * (1 + _TIE)
    at_end = (near[:, :, None] == ends[:, None, :]).any(axis=2)
    middle = mesh.facet_midpoint[part, None]
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
    return near, weights
