"""The velocity of the density: the attention sum over all cells, as fluxes through facets.

    q_f = integral over facet f of <V m(x), conormal>

The conormal of a geodesic edge is constant along it and tangent to the sphere, so that the
projection P_x drops out. On the circle a facet is a point; on the sphere m is evaluated at the
vertices, half as many as cells, and its mean along an edge is a weighted sum of the values near by.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse
import scipy.spatial

from meanfield_pde import geometry
from meanfield_pde.attention import Attention
from meanfield_pde.attention_sum import TILE, Sources, Targets
from meanfield_pde.errors import InputError
from meanfield_pde.finite_volume import FiniteVolumes


class SharedSum:
    """An attention sum with fixed sources and targets, its tiles dealt out to the ranks.

    Tiles are dealt in turn, because their cost varies from place to place on the sphere. Every rank
    gets the whole result: O(cells) numbers, as many as the masses it needs in any case.
    """

    def __init__(
        self,
        volumes: FiniteVolumes,
        sources: np.ndarray,
        targets: np.ndarray,
        scores: np.ndarray,
        tolerance: float,
    ) -> None:
        self._comm = comm = volumes.comm
        self._tolerance = tolerance
        self._sources = Sources(sources)
        self._targets = Targets(targets, scores)
        shares = [np.arange(rank, self._targets.tiles, comm.size) for rank in range(comm.size)]
        self._tiles = shares[comm.rank]
        self._counts = [share.size * TILE * 4 for share in shares]
        # The targets in the order in which the ranks' results follow one another.
        self._order = self._targets.order.reshape(-1, TILE)[np.concatenate(shares)].ravel()

    def __call__(self, log_masses: np.ndarray) -> np.ndarray:
        """Rows (m, log Z) at all targets for the log masses of all sources. Collective."""
        sums = self._sources.sums(self._targets.scores, self._tiles, log_masses, self._tolerance)
        own = np.ascontiguousarray(sums.T)
        gathered = own
        if self._comm.size > 1:
            gathered = np.empty((len(self._order), 4))
            self._comm.Allgatherv(own, [gathered, self._counts])
        result = np.empty((self._targets.count, self._sources.dimension + 1))
        result[self._order, :-1] = gathered[:, : self._sources.dimension]
        result[self._order, -1] = gathered[:, 3]
        return result


class MeanField:
    """Facet fluxes for the masses of the cells; at zero temperature they do not change."""

    def __init__(self, attention: Attention, volumes: FiniteVolumes, tolerance: float) -> None:
        if attention.dimension != volumes.dimension:
            raise InputError(
                f"attention.value is {attention.dimension} x {attention.dimension}, "
                f"but the mesh lies in dimension {volumes.dimension}"
            )
        self.attention = attention
        self.volumes = volumes
        self.tolerance = tolerance
        self._push = volumes.facet_length[:, None] * (volumes.facet_conormal @ attention.value)
        self._facet_mean = facet_mean_operator(volumes)
        self._fixed: np.ndarray | None = None
        if attention.zero_temperature:
            self._fixed = self._facet_flux(attention.mean(volumes.vertices))
        else:
            centres = volumes.gather(volumes.centre[: volumes.owned])
            scores = attention.scores(volumes.vertices)
            self._sum = SharedSum(volumes, centres, volumes.vertices, scores, tolerance)

    def flux(self, masses: np.ndarray) -> np.ndarray:
        """Fluxes q_f through the facets of this rank, for the masses of own cells. Collective."""
        if self._fixed is not None:
            return self._fixed
        with np.errstate(divide="ignore"):
            log_masses = self.volumes.gather(np.log(masses))
        return self._facet_flux(self._sum(log_masses)[:, : self.volumes.dimension])

    def _facet_flux(self, vertex_means: np.ndarray) -> np.ndarray:
        return (self._push * (self._facet_mean @ vertex_means)).sum(axis=1)


# Vertices that enter the mean along an edge: on a regular mesh its ends and all next to them.
_STENCIL = 10
# Where the weights would amplify their data by more than this, the two ends alone are used.
_LARGEST_WEIGHTS = 3.0


def facet_mean_operator(volumes: FiniteVolumes) -> scipy.sparse.csr_array:
    """The matrix that takes values at all vertices to their means along this rank's facets.

    On the sphere the mean of the two ends has an error of length^2 / 12 times the second
    derivative, which would dominate the error of the whole scheme. The weights of the nearest
    vertices are the least change of (1/2, 1/2) that is exact for all polynomials of degree 2 in
    the tangent plane: C w = r with rows of C the monomials, w = w_0 + C^+ (r - C w_0).
    """
    ends = volumes.facet_vertices
    facets, vertices = len(ends), len(volumes.vertices)
    if volumes.dimension == 2:
        one = np.ones(facets)
        return scipy.sparse.csr_array((one, (np.arange(facets), ends[:, 0])), (facets, vertices))
    size = min(_STENCIL, vertices)
    _, near = scipy.spatial.cKDTree(volumes.vertices).query(volumes.facet_midpoint, k=size)
    at_end = (near[:, :, None] == ends[:, None, :]).any(axis=2)
    middle = volumes.facet_midpoint[:, None]
    length = volumes.facet_length[:, None]
    conormal = volumes.facet_conormal[:, None]
    arrow = geometry.tangent_vector(middle, volumes.vertices[near])
    across = (arrow * conormal).sum(axis=2) / length
    along = (arrow * np.cross(conormal, middle)).sum(axis=2) / length
    monomials = np.stack(
        [np.ones_like(along), along, across, along**2, along * across, across**2], axis=1
    )
    exact = np.array([1.0, 0.0, 0.0, 1 / 12, 0.0, 0.0])
    plain = at_end / 2.0
    miss = exact - np.einsum("fmk,fk->fm", monomials, plain)
    weights = plain + np.einsum("fkm,fm->fk", np.linalg.pinv(monomials), miss)
    fine = (at_end.sum(axis=1) == 2) & (np.abs(weights).sum(axis=1) < _LARGEST_WEIGHTS)
    # An unfit row keeps its ends only; its other weights are stored as zeros.
    near[~fine, :2] = ends[~fine]
    weights[~fine] = np.where(np.arange(size) < 2, 0.5, 0.0)
    row = np.repeat(np.arange(facets), size)
    return scipy.sparse.csr_array((weights.ravel(), (row, near.ravel())), (facets, vertices))
