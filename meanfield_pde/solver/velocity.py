"""The velocity of the density: the attention sum over all cells, as fluxes through facets.

    q_f = integral over facet f of <V m(x), conormal>

The conormal of a geodesic edge is constant along it and tangent to the sphere, so that the
projection P_x drops out. On the circle a facet is a point; on the sphere m is evaluated at the
vertices, half as many as cells, and its mean along an edge is a weighted sum of the values near by.
Without the denominator of the softmax, m(x) is the mean times Z(x).
"""

from __future__ import annotations

import logging

import numpy as np
import scipy.sparse

from meanfield_pde.attention.cell_sources import refinement_pays, three_points
from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.perceptron import Perceptron
from meanfield_pde.attention.sum.shared import SharedSum
from meanfield_pde.attention.sum.summation import plain_softmax
from meanfield_pde.errors import InputError
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.spots import NONE, Field, Spots
from meanfield_pde.solver.spots import sources as spot_sources
from meanfield_pde.solver.tilted_sources import TiltedSources
from meanfield_pde.support.kernels import kernel

_log = logging.getLogger("meanfield_pde")


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
        tilted: bool = False,
        told: bool = False,
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
        self._log_shares: np.ndarray | None = None  # of the points of a cell, if it has several
        self._tilted: TiltedSources | None = None
        self._logged = told
        self.largest_weight = 1.0
        self._norm = float(np.linalg.norm(attention.value, 2))
        if attention.zero_temperature:
            self._fixed = self._facet_flux(attention.mean(volumes.vertices[self._near]))
        else:
            if tilted:
                self._tilted = TiltedSources(attention, volumes)
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

    def flux(self, masses: np.ndarray, spots: Spots = NONE) -> np.ndarray:
        """Fluxes q_f through the facets of this rank, for the masses of own cells. Collective."""
        if self._fixed is not None:
            return self._fixed
        with np.errstate(divide="ignore"):
            return self.flux_from_log(np.log(masses), spots)

    def flux_from_log(self, log_masses: np.ndarray, spots: Spots = NONE) -> np.ndarray:
        """The same for log masses, which may be below the range of doubles. Collective."""
        if self._fixed is not None:
            return self._fixed
        return self._facet_flux(self._vertex_means(log_masses, self._near, spots))

    def field(self, log_masses: np.ndarray, spots: Spots) -> Field:
        """The velocity at any points, for the log masses of own cells and spots. Collective."""
        attention = self.attention
        places, logs = spot_sources(spots, self.volumes.dimension)
        if self._fixed is None:
            sources = np.concatenate([self._points, places])
            weights = np.concatenate([self._of_sources(log_masses), logs])

        def means(x: np.ndarray) -> np.ndarray:
            if self._fixed is not None:
                return attention.mean(x)
            found, log_z = plain_softmax(attention.scores(x), sources, weights)
            return found if attention.normalise else found * np.exp(log_z)[:, None]

        return lambda x: geometry.tangential(x, means(x) @ attention.value.T)

    def velocity(self, masses: np.ndarray) -> np.ndarray:
        """The velocity P_x V m(x) at all vertices, for the masses of own cells. Collective."""
        vertices = self.volumes.vertices
        if self._fixed is not None:
            means = self.attention.mean(vertices)
        else:
            with np.errstate(divide="ignore"):
                means = self._vertex_means(np.log(masses))
        moved = means @ self.attention.value.T
        return geometry.tangential(vertices, moved)

    def _of_sources(self, log_masses: np.ndarray) -> np.ndarray:
        """Log masses of all sources, for those of own cells. Collective."""
        log_masses = self.volumes.gather(log_masses)
        if self._tilted is not None:
            return self._tilted.log_masses(log_masses)
        if self._log_shares is not None:
            return (log_masses[:, None] + self._log_shares).ravel()
        return log_masses

    def _vertex_means(
        self, log_masses: np.ndarray, wanted: np.ndarray | None = None, spots: Spots = NONE
    ) -> np.ndarray:
        """m(x) at the vertices wanted, or at all."""
        log_masses = self._of_sources(log_masses)
        if self.attention.normalise:
            sums = self._with_spots(self._sum(log_masses, wanted), spots, wanted)
            means = sums[:, : self.volumes.dimension]
        else:
            sums = self._with_spots(self._sum(log_masses), spots, None)
            weight = np.exp(sums[:, -1:])  # the total mass is one
            self.largest_weight = float(weight.max())
            means = weight * sums[:, : self.volumes.dimension]
            means = means if wanted is None else means[wanted]
        if not self._logged and self.volumes.comm.rank == 0:
            points = "1 point" if self.points_per_cell == 1 else f"{self.points_per_cell} points"
            _log.info("attention sum, %s a cell: %s", points, self._sum.method)
        self._logged = True
        return means

    def _with_spots(self, sums: np.ndarray, spots: Spots, wanted: np.ndarray | None) -> np.ndarray:
        """Means and log Z at vertices, with those of the spots added to those of the cells."""
        if not spots:
            return sums
        vertices = self.volumes.vertices if wanted is None else self.volumes.vertices[wanted]
        d = self.volumes.dimension
        places, logs = spot_sources(spots, d)
        exponent = np.column_stack([sums[:, -1], self.attention.scores(vertices) @ places.T + logs])
        largest = exponent.max(axis=1, keepdims=True)
        weight = np.exp(exponent - largest)
        total = weight.sum(axis=1)
        means = (weight[:, :1] * sums[:, :d] + weight[:, 1:] @ places) / total[:, None]
        return np.column_stack([means, largest[:, 0] + np.log(total)])

    def _shared_sum(self) -> SharedSum:
        volumes, attention = self.volumes, self.attention
        own = slice(0, volumes.owned)
        scores = attention.scores(volumes.vertices)
        if self._tilted is not None:
            self._points = self._tilted.points
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


class PerceptronField:
    """Facet fluxes of a perceptron: the drift's mean along each facet, which does not change."""

    fixed = True

    def __init__(self, perceptron: Perceptron, volumes: FiniteVolumes) -> None:
        self.speed = perceptron.speed
        self._drift = perceptron.velocity
        points, weights = geometry.facet_rule(volumes.facet_points)
        drift = perceptron.drift(points.reshape(-1, volumes.dimension)).reshape(points.shape)
        mean = np.einsum("fq,fqd->fd", weights, drift)
        self._flux = volumes.facet_length * (mean * volumes.facet_conormal).sum(axis=1)

    def flux(self, masses: np.ndarray, spots: Spots = NONE) -> np.ndarray:
        """Fluxes through the facets of this rank, whatever the masses."""
        return self._flux

    def flux_from_log(self, log_masses: np.ndarray, spots: Spots = NONE) -> np.ndarray:
        """The same."""
        return self._flux

    def field(self, log_masses: np.ndarray, spots: Spots) -> Field:
        """The drift at any points, whatever the masses."""
        return self._drift


@kernel
def _pushed(  # type: ignore[no-untyped-def]
    push, pointers, indices, shares, vertex_means
):
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
