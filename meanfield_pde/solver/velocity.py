"""The velocity of the density: the attention sum over all cells, as fluxes through facets.

    q_f = integral over facet f of <V m(x), conormal>

The conormal of a geodesic edge is constant along it and tangent to the sphere, so that the
projection P_x drops out. On the circle a facet is a point; on the sphere m is evaluated at the
vertices, half as many as cells, and its mean along an edge is a weighted sum of the values near by.
Without the denominator of the softmax, m(x) is the mean times Z(x).
"""

from __future__ import annotations

import numpy as np
import scipy.sparse

from meanfield_pde.amr.patches import NONE, Field, Patches
from meanfield_pde.amr.patches import sources as patch_sources
from meanfield_pde.attention.cell_sources import refinement_pays, three_points
from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.reconstructed_sources import ReconstructedSources
from meanfield_pde.attention.sum.direct import with_points
from meanfield_pde.attention.sum.shared import SharedSum
from meanfield_pde.attention.sum.summation import plain_softmax
from meanfield_pde.attention.term import Sources, VelocityTerm
from meanfield_pde.errors import InputError
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.support.kernels import kernel


class MeanField:
    """Facet fluxes for the masses of the cells; at zero temperature they do not change.

    Attributes:
        largest_weight: the largest factor Z(x) in the last fluxes, by which velocities exceed those
            of the softmax; 1 if that has its denominator.
    """

    def __init__(
        self,
        attention: Attention,
        volumes: FiniteVolumes,
        tolerance: float,
        *,
        sub_cell: bool = False,
    ) -> None:
        if attention.dimension != volumes.dimension:
            raise InputError(
                f"attention.value is {attention.dimension} x {attention.dimension}, "
                f"but the mesh lies in dimension {volumes.dimension}"
            )
        self.attention = attention
        self.volumes = volumes
        self.tolerance = tolerance
        self._push = volumes.facet_length[:, None] * (volumes.facet_conormal @ attention.value)
        # The vertices that the facets of this rank need, and the means from them.
        means = volumes.facet_means
        self._near = np.unique(means.indices)
        columns = np.searchsorted(self._near, means.indices)
        shape = (means.shape[0], len(self._near))
        self._facet_mean = scipy.sparse.csr_array((means.data, columns, means.indptr), shape)
        self._fixed: np.ndarray | None = None
        self._summed = False
        self._log_shares: np.ndarray | None = None  # of the points of a cell, if it has several
        self._reconstructed: ReconstructedSources | None = None
        self.largest_weight = 1.0
        self._norm = float(np.linalg.norm(attention.value, 2))
        if attention.zero_temperature:
            self._fixed = self._facet_flux(attention.mean(volumes.vertices[self._near]))
        else:
            if sub_cell:
                self._reconstructed = ReconstructedSources(attention, volumes)
            self._sum = self._shared_sum()

    @property
    def speed(self) -> float:
        """|V| times the largest weight: rates of growth are of this order."""
        return self._norm * self.largest_weight

    @property
    def fixed(self) -> bool:
        """Whether the fluxes are the same whatever the masses: at zero temperature."""
        return self._fixed is not None

    @property
    def points_per_cell(self) -> int:
        """Points among which a cell's mass is divided in the attention sum: 1 or 3."""
        return 1 if self._log_shares is None else self._log_shares.shape[1]

    @property
    def method(self) -> str:
        """The points a cell, and the way of summing; empty if nothing was summed."""
        if not self._summed:
            return ""
        points = "1 point" if self.points_per_cell == 1 else f"{self.points_per_cell} points"
        return f"attention sum, {points} a cell: {self._sum.method}"

    def facet_flux(self, log_masses: np.ndarray, patches: Patches = NONE) -> np.ndarray:
        """Fluxes q_f through the facets of this rank. Collective.

        Args:
            log_masses: of own cells; they may be below the range of doubles.
            patches: beside the cells.
        """
        if self._fixed is not None:
            return self._fixed
        return self._facet_flux(self._vertex_means(log_masses, self._near, patches))

    def field(self, log_masses: np.ndarray, patches: Patches) -> Field:
        """The velocity at any points, for the log masses of own cells and patches. Collective."""
        attention = self.attention
        places, logs = patch_sources(patches, self.volumes.dimension)
        if self._fixed is None:
            sources = np.concatenate([self._points, places])
            weights = np.concatenate([self._of_sources(log_masses), logs])
            full = weights > -np.inf
            sources, weights = sources[full], weights[full]

        def means(x: np.ndarray) -> np.ndarray:
            if self._fixed is not None:
                return attention.mean(x)
            found, log_z = plain_softmax(attention.scores(x), sources, weights)
            return found if attention.normalise else found * np.exp(log_z)[:, None]

        return lambda x: geometry.tangential(x, means(x) @ attention.value.T)

    def vertex_velocity(self, log_masses: np.ndarray, patches: Patches = NONE) -> np.ndarray:
        """P_x V m(x) at all vertices, for the log masses of own cells and patches. Collective."""
        vertices = self.volumes.vertices
        if self._fixed is not None:
            means = self.attention.mean(vertices)
        else:
            means = self._vertex_means(log_masses, patches=patches)
        moved = means @ self.attention.value.T
        return geometry.tangential(vertices, moved)

    def _of_sources(self, log_masses: np.ndarray) -> np.ndarray:
        """Log masses of all sources, for those of own cells. Collective."""
        log_masses = self.volumes.gather(log_masses)
        if self._reconstructed is not None:
            return self._reconstructed.log_masses(log_masses)
        if self._log_shares is not None:
            return (log_masses[:, None] + self._log_shares).ravel()
        return log_masses

    def _vertex_means(
        self, log_masses: np.ndarray, wanted: np.ndarray | None = None, patches: Patches = NONE
    ) -> np.ndarray:
        """m(x) at the vertices wanted, or at all."""
        log_masses = self._of_sources(log_masses)
        if self.attention.normalise:
            sums = self._with_patches(self._sums(log_masses, wanted), patches, wanted)
            means = sums[:, : self.volumes.dimension]
        else:
            sums = self._with_patches(self._sums(log_masses, None), patches, None)
            weight = np.exp(sums[:, -1:])  # the total mass is one
            self.largest_weight = float(weight.max())
            means = weight * sums[:, : self.volumes.dimension]
            means = means if wanted is None else means[wanted]
        return means

    def _sums(self, log_masses: np.ndarray, wanted: np.ndarray | None) -> np.ndarray:
        """Means and log Z of the sources at vertices; Z = 0 where all mass is in patches."""
        if log_masses.max() > -np.inf:
            self._summed = True
            return self._sum(log_masses, wanted)
        count = len(self.volumes.vertices) if wanted is None else len(wanted)
        nothing = np.zeros((count, self.volumes.dimension + 1))
        nothing[:, -1] = -np.inf
        return nothing

    def _with_patches(
        self, sums: np.ndarray, patches: Patches, wanted: np.ndarray | None
    ) -> np.ndarray:
        """Means and log Z at vertices, with those of the patches added to those of the cells."""
        if not patches:
            return sums
        scores = self._scores if wanted is None else self._scores[wanted]
        return with_points(sums, scores, *patch_sources(patches, self.volumes.dimension))

    def _shared_sum(self) -> SharedSum:
        volumes, attention = self.volumes, self.attention
        own = slice(0, volumes.owned)
        scores = self._scores = attention.scores(volumes.vertices)
        if self._reconstructed is not None:
            self._points = self._reconstructed.points
            return SharedSum(volumes.comm, self._points, volumes.vertices, scores, self.tolerance)
        sources = volumes.gather(volumes.centre[own])
        cells = volumes.gather(volumes.cell_points[own])
        if refinement_pays(cells, volumes.vertices, scores, self.tolerance):
            points, shares = three_points(cells)
            sources = points.reshape(-1, volumes.dimension)
            self._log_shares = np.log(shares)
        self._points = sources
        return SharedSum(volumes.comm, sources, volumes.vertices, scores, self.tolerance)

    def _facet_flux(self, vertex_means: np.ndarray) -> np.ndarray:
        mean = self._facet_mean
        means = np.ascontiguousarray(vertex_means)
        return _pushed(self._push, mean.indptr, mean.indices, mean.data, means)


class PointwiseFlux:
    """Facet fluxes of a term that is evaluated at points: its push, integrated along each facet.

    Those of a term that does not depend on the density are computed once. Otherwise the sources are
    the cells' centres and the points of the patches.
    """

    method = ""

    def __init__(self, term: VelocityTerm, volumes: FiniteVolumes, tolerance: float) -> None:
        self.term = term
        self.speed = term.speed_bound
        self.fixed = not term.depends_on_density
        self._volumes, self._tolerance = volumes, tolerance
        self._points, self._weights = geometry.facet_rule(volumes.facet_points)
        self._flux = self._integrated(None) if self.fixed else None

    def facet_flux(self, log_masses: np.ndarray, patches: Patches = NONE) -> np.ndarray:
        """Fluxes through the facets of this rank. Collective."""
        if self._flux is not None:
            return self._flux
        return self._integrated(self._sources(log_masses, patches))

    def field(self, log_masses: np.ndarray, patches: Patches) -> Field:
        """The velocity at any points. Collective."""
        sources = None if self.fixed else self._sources(log_masses, patches)
        term, tolerance = self.term, self._tolerance
        return lambda x: geometry.tangential(x, term.push(x, sources, tolerance=tolerance))

    def _sources(self, log_masses: np.ndarray, patches: Patches) -> Sources:
        volumes = self._volumes
        points, logs = patch_sources(patches, volumes.dimension)
        centres = volumes.gather(volumes.centre[: volumes.owned])
        return Sources(
            np.concatenate([centres, points]),
            np.concatenate([volumes.gather(log_masses), logs]),
        )

    def _integrated(self, sources: Sources | None) -> np.ndarray:
        volumes, points = self._volumes, self._points
        flat = points.reshape(-1, volumes.dimension)
        push = self.term.push(flat, sources, tolerance=self._tolerance).reshape(points.shape)
        mean = np.einsum("fq,fqd->fd", self._weights, push)
        return np.asarray(volumes.facet_length * (mean * volumes.facet_conormal).sum(axis=1))

    def vertex_velocity(self, log_masses: np.ndarray, patches: Patches = NONE) -> np.ndarray:
        """The velocity at all vertices. Collective."""
        return self.field(log_masses, patches)(self._volumes.vertices)


@kernel
def _pushed(push, pointers, indices, shares, vertex_means):
    """push_f . (mean along facet f), the mean being a sparse matrix times those at vertices."""
    flux = np.empty(push.shape[0])
    for f in range(push.shape[0]):
        total = 0.0
        for e in range(pointers[f], pointers[f + 1]):
            along = 0.0
            for i in range(push.shape[1]):
                along += push[f, i] * vertex_means[indices[e], i]
            total += shares[e] * along
        flux[f] = total
    return flux
