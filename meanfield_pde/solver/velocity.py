"""The velocity of the density: the attention sum over all cells, as fluxes through facets.

    q_f = integral over facet f of <V m(x), conormal>

The conormal of a geodesic edge is constant along it and tangent to the sphere, so that the
projection P_x drops out. On the circle a facet is a point. On the sphere the flux is in two parts,
which belong to the Gauss points of the edge: density and velocity vary along it together, and the
product of their means would leave an error of second order. With m_a and m_b at the ends,

    q_f = L <V (mean of m -+ (m_b - m_a) / (2 sqrt 3)), conormal> / 2 each.

m is evaluated at the vertices, half as many as cells, and its mean along an edge is a weighted sum
of the values near by; at zero temperature, where nothing has to be summed, it is evaluated on the
edges. Without the denominator of the softmax, m(x) is the mean times Z(x).
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.amr.patches import NONE, Field, Patches
from meanfield_pde.amr.patches import sources as patch_sources
from meanfield_pde.attention.cell_sources import CellSources
from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.sum.direct import with_points
from meanfield_pde.attention.sum.shared import SharedSum
from meanfield_pde.attention.sum.summation import plain_softmax
from meanfield_pde.attention.term import Sources, VelocityTerm
from meanfield_pde.errors import InputError
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.support.kernels import kernel

# Of the rise along an edge, for half of the value at a Gauss point.
_TO_POINT = 0.25 / math.sqrt(3)


class TermSources:
    """The sources of a term that depends on the density: points of the cells, and those of patches.

    Attributes:
        points_per_cell: for the log.
    """

    def __init__(self, term: VelocityTerm, volumes: FiniteVolumes, *, noise: bool) -> None:
        """Collective.

        Args:
            term: says how wide its kernel is.
            volumes: the mesh.
            noise: whether there is noise.
        """
        self._volumes = volumes
        self._cells = CellSources(term.inverse_kernel_width_squared, volumes, noise=noise)
        self.points_per_cell = self._cells.points_per_cell

    def points(self) -> np.ndarray:
        """The points of all cells, the same on every rank. Collective."""
        return self._cells.points()

    def log_masses(self, log_masses: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Those of the points of the cells, for those of own cells. Collective."""
        return self._cells.log_masses(log_masses, out)

    def all(self, log_masses: np.ndarray, patches: Patches) -> Sources:
        """All points with mass, for the log masses of own cells and patches. Collective."""
        places, logs = patch_sources(patches, self._volumes.dimension)
        points = np.concatenate([self.points(), places])
        weights = np.concatenate([self.log_masses(log_masses), logs])
        full = weights > -np.inf
        return Sources(points[full], weights[full])


class MeanField:
    """Facet fluxes for the masses of the cells; at zero temperature they do not change.

    Attributes:
        sources: what is summed, at finite temperature.
        largest_weight: the largest factor Z(x) in the last fluxes, by which velocities exceed those
            of the softmax; 1 if that has its denominator.
    """

    sources: TermSources

    def __init__(
        self,
        attention: Attention,
        volumes: FiniteVolumes,
        tolerance: float,
        *,
        noise: bool = False,
    ) -> None:
        if attention.dimension != volumes.dimension:
            raise InputError(
                f"attention.value is {attention.dimension} x {attention.dimension}, "
                f"but the mesh lies in dimension {volumes.dimension}"
            )
        self.attention = attention
        self.volumes = volumes
        self.tolerance = tolerance
        self._fixed: np.ndarray | None = None
        self._summed = False
        self.largest_weight = 1.0
        self._norm = float(np.linalg.norm(attention.value, 2))
        if attention.zero_temperature:
            rule = geometry.facet_rule(volumes.facet_points)
            self._fixed = _integrated(
                volumes, rule, lambda x: attention.mean(x) @ attention.value.T
            )
        else:
            # The vertices that the facets of this rank need, and the means from them.
            means = volumes.facet_means
            self._near, matrix = means.numbers, means.matrix
            self._facet_mean = matrix.indptr, matrix.indices, matrix.data, means.ends
            self._push = volumes.facet_length[:, None] * (volumes.facet_conormal @ attention.value)
            self.sources = TermSources(attention, volumes, noise=noise)
            vertices, scores = volumes.vertices, attention.scores(volumes.vertices)
            self._sum = SharedSum(volumes.comm, self.sources.points(), vertices, scores, tolerance)

    @property
    def speed(self) -> float:
        """|V| times the largest weight: rates of growth are of this order."""
        return self._norm * self.largest_weight

    @property
    def fixed(self) -> bool:
        """Whether the fluxes are the same whatever the masses: at zero temperature."""
        return self._fixed is not None

    @property
    def method(self) -> str:
        """The points a cell, and the way of summing; empty if nothing was summed."""
        if not self._summed:
            return ""
        count = self.sources.points_per_cell
        points = "1 point" if count == "1" else f"{count} points"
        return f"attention sum, {points} a cell: {self._sum.method}"

    def facet_flux(self, log_masses: np.ndarray, patches: Patches = NONE) -> np.ndarray:
        """Fluxes through the facets of this rank, facets x points. Collective.

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
        sources = None if self._fixed is not None else self.sources.all(log_masses, patches)

        def means(x: np.ndarray) -> np.ndarray:
            if sources is None:
                return attention.mean(x)
            scores = attention.scores(x)
            found, log_z = plain_softmax(scores, sources.points, sources.log_masses)
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

    def _vertex_means(
        self, log_masses: np.ndarray, wanted: np.ndarray | None = None, patches: Patches = NONE
    ) -> np.ndarray:
        """m(x) at the vertices wanted, or at all."""
        self._load(self.sources.log_masses(log_masses, self._sum.room()))
        if self.attention.normalise:
            sums = self._with_patches(self._sums(wanted), patches, wanted)
            means = sums[:, : self.volumes.dimension]
        else:
            sums = self._with_patches(self._sums(None), patches, None)
            weight = np.exp(sums[:, -1:])  # the total mass is one
            self.largest_weight = float(weight.max())
            means = weight * sums[:, : self.volumes.dimension]
            means = means if wanted is None else means[wanted]
        return means

    def _load(self, log_masses: np.ndarray) -> None:
        """Take the log masses of the sources, unless all mass is in patches."""
        self._loaded = bool(log_masses.max() > -np.inf)
        if self._loaded:
            self._sum.load(log_masses)

    def _sums(self, wanted: np.ndarray | None) -> np.ndarray:
        """Means and log Z of the sources at vertices; Z = 0 where all mass is in patches."""
        if self._loaded:
            self._summed = True
            return self._sum(wanted)
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
        vertices = self.volumes.vertices
        scores = self.attention.scores(vertices if wanted is None else vertices[wanted])
        return with_points(sums, scores, *patch_sources(patches, self.volumes.dimension))

    def _facet_flux(self, vertex_means: np.ndarray) -> np.ndarray:
        return _pushed(self._push, *self._facet_mean, np.ascontiguousarray(vertex_means))


class PointwiseFlux:
    """Facet fluxes of a term that is evaluated at points: its push, integrated along each facet.

    Those of a term that does not depend on the density are computed once.
    """

    method = ""

    def __init__(
        self,
        term: VelocityTerm,
        volumes: FiniteVolumes,
        tolerance: float,
        *,
        noise: bool = False,
    ) -> None:
        self.term = term
        self.speed = term.speed_bound
        self.fixed = not term.depends_on_density
        self._volumes, self._tolerance = volumes, tolerance
        self._rule = geometry.facet_rule(volumes.facet_points)
        self._flux: np.ndarray | None = None
        if self.fixed:
            self._flux = self._integrated(None)
        else:
            self.sources = TermSources(term, volumes, noise=noise)

    def facet_flux(self, log_masses: np.ndarray, patches: Patches = NONE) -> np.ndarray:
        """Fluxes through the facets of this rank. Collective."""
        if self._flux is not None:
            return self._flux
        return self._integrated(self.sources.all(log_masses, patches))

    def field(self, log_masses: np.ndarray, patches: Patches) -> Field:
        """The velocity at any points. Collective."""
        sources = None if self.fixed else self.sources.all(log_masses, patches)
        term, tolerance = self.term, self._tolerance
        return lambda x: geometry.tangential(x, term.push(x, sources, tolerance=tolerance))

    def _integrated(self, sources: Sources | None) -> np.ndarray:
        term, tolerance = self.term, self._tolerance
        return _integrated(
            self._volumes, self._rule, lambda x: term.push(x, sources, tolerance=tolerance)
        )

    def vertex_velocity(self, log_masses: np.ndarray, patches: Patches = NONE) -> np.ndarray:
        """The velocity at all vertices. Collective."""
        return self.field(log_masses, patches)(self._volumes.vertices)


def _integrated(
    volumes: FiniteVolumes, rule: tuple[np.ndarray, np.ndarray], push: Field
) -> np.ndarray:
    """Fluxes through facets of a push at any points, by the `facet_rule` of these facets."""
    points, shares = rule
    pushes = push(points.reshape(-1, volumes.dimension)).reshape(points.shape)
    across = np.einsum("fkd,fd->fk", pushes, volumes.facet_conormal)
    return np.ascontiguousarray(volumes.facet_length[:, None] * (across @ shares.T))


@kernel
def _pushed(push, pointers, indices, shares, ends, vertex_means):
    """push_f . (means at points of facet f); the mean of both is a matrix times vertex means."""
    points = ends.shape[1]
    flux = np.empty((push.shape[0], points))
    for f in range(push.shape[0]):
        total = 0.0
        for e in range(pointers[f], pointers[f + 1]):
            along = 0.0
            for i in range(push.shape[1]):
                along += push[f, i] * vertex_means[indices[e], i]
            total += shares[e] * along
        if points == 1:
            flux[f, 0] = total
        else:
            rise = 0.0
            for i in range(push.shape[1]):
                rise += push[f, i] * (vertex_means[ends[f, 1], i] - vertex_means[ends[f, 0], i])
            flux[f, 0] = 0.5 * total - _TO_POINT * rise
            flux[f, 1] = 0.5 * total + _TO_POINT * rise
    return flux
