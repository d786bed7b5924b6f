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

from meanfield_pde.attention.cell_sources import refinement_pays, three_points
from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.sum import AttentionSum
from meanfield_pde.attention.sum.low_rank import all_groups
from meanfield_pde.attention.sum.tree import TILE
from meanfield_pde.errors import InputError
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.support.timings import timed

_log = logging.getLogger("meanfield_pde")


class SharedSum:
    """An attention sum with fixed sources and targets, its work dealt out to the ranks.

    Tiles of targets are dealt in turn, because their cost varies from place to place on the sphere;
    groups of sources, for the moments of the expansion, in ranges. Every rank gets the whole
    result: O(cells) numbers, as many as the masses it needs in any case.
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
        self._sum = AttentionSum(sources, targets, scores, tolerance)
        ranks = range(comm.size)
        shares = [np.arange(rank, self._sum.targets.tiles, comm.size) for rank in ranks]
        self._tiles = shares[comm.rank]
        self._counts = [share.size * TILE * 4 for share in shares]
        groups = np.array_split(all_groups(), comm.size)
        self._groups = groups[comm.rank]
        self._group_counts = np.array([share.size for share in groups])
        # The targets in the order in which the ranks' results follow one another.
        self._order = self._sum.targets.order.reshape(-1, TILE)[np.concatenate(shares)].ravel()

    @property
    def method(self) -> str:
        """How the last sums were computed, and the estimate that this was chosen by."""
        return str(self._sum.estimate)

    @timed("Attention sum")
    def __call__(self, log_masses: np.ndarray) -> np.ndarray:
        """Rows (m, log Z) at all targets for the log masses of all sources. Collective."""
        attention_sum = self._sum
        attention_sum.load(log_masses)
        total = self._total_moments() if attention_sum.estimate.use_low_rank else None
        own = np.ascontiguousarray(attention_sum.sums(self._tiles, total).T)
        gathered = own
        if self._comm.size > 1:
            gathered = np.empty((len(self._order), 4))
            self._comm.Allgatherv(own, [gathered, self._counts])
        dimension = attention_sum.sources.dimension
        result = np.empty((attention_sum.targets.count, dimension + 1))
        result[self._order, :-1] = gathered[:, :dimension]
        result[self._order, -1] = gathered[:, 3]
        return result

    def _total_moments(self) -> np.ndarray:
        own = self._sum.moments(self._groups)
        parts = own
        if self._comm.size > 1:
            # Added up in the order of the groups on every rank: the same sum on any number of them.
            parts = np.empty((self._group_counts.sum(), *own.shape[1:]))
            counts = self._group_counts * int(np.prod(own.shape[1:]))
            self._comm.Allgatherv(own, [parts, counts])
        return parts.sum(axis=0)


class MeanField:
    """Facet fluxes for the masses of the cells; at zero temperature they do not change.

    Attributes:
        largest_weight: the largest factor Z(x) in the last fluxes, by which velocities exceed those
            of the softmax; 1 if that has its denominator.
    """

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
        self._facet_mean = volumes.facet_means
        self._fixed: np.ndarray | None = None
        self._log_shares: np.ndarray | None = None  # of the points of a cell, if it has several
        self._logged = False
        self.largest_weight = 1.0
        if attention.zero_temperature:
            self._fixed = self._facet_flux(attention.mean(volumes.vertices))
        else:
            self._sum = self._shared_sum()

    @property
    def speed(self) -> float:
        """|V| times the largest weight: rates of growth are of this order."""
        return float(np.linalg.norm(self.attention.value, 2)) * self.largest_weight

    @property
    def points_per_cell(self) -> int:
        """Points among which a cell's mass is divided in the attention sum: 1 or 3."""
        return 1 if self._log_shares is None else self._log_shares.shape[1]

    def flux(self, masses: np.ndarray) -> np.ndarray:
        """Fluxes q_f through the facets of this rank, for the masses of own cells. Collective."""
        if self._fixed is not None:
            return self._fixed
        with np.errstate(divide="ignore"):
            return self.flux_from_log(np.log(masses))

    def flux_from_log(self, log_masses: np.ndarray) -> np.ndarray:
        """The same for log masses, which may be below the range of doubles. Collective."""
        if self._fixed is not None:
            return self._fixed
        return self._facet_flux(self._vertex_means(log_masses))

    def velocity(self, masses: np.ndarray) -> np.ndarray:
        """The velocity P_x V m(x) at all vertices, for the masses of own cells. Collective."""
        vertices = self.volumes.vertices
        if self._fixed is not None:
            means = self.attention.mean(vertices)
        else:
            with np.errstate(divide="ignore"):
                means = self._vertex_means(np.log(masses))
        moved = means @ self.attention.value.T
        return moved - (moved * vertices).sum(axis=1, keepdims=True) * vertices

    def _vertex_means(self, log_masses: np.ndarray) -> np.ndarray:
        """m(x) at all vertices."""
        log_masses = self.volumes.gather(log_masses)
        if self._log_shares is not None:
            log_masses = (log_masses[:, None] + self._log_shares).ravel()
        sums = self._sum(log_masses)
        means = sums[:, : self.volumes.dimension]
        if not self.attention.normalise:
            weight = np.exp(sums[:, -1:])  # the total mass is one
            self.largest_weight = float(weight.max())
            means = weight * means
        if not self._logged and self.volumes.comm.rank == 0:
            points = "1 point" if self.points_per_cell == 1 else f"{self.points_per_cell} points"
            _log.info("attention sum, %s a cell: %s", points, self._sum.method)
        self._logged = True
        return means

    def _shared_sum(self) -> SharedSum:
        volumes, attention = self.volumes, self.attention
        own = slice(0, volumes.owned)
        scores = attention.scores(volumes.vertices)
        sources = volumes.gather(volumes.centre[own])
        cells = volumes.gather(volumes.cell_points[own])
        if refinement_pays(cells, volumes.vertices, scores, self.tolerance):
            points, shares = three_points(cells)
            sources = points.reshape(-1, volumes.dimension)
            self._log_shares = np.log(shares)
        return SharedSum(volumes, sources, volumes.vertices, scores, self.tolerance)

    def _facet_flux(self, vertex_means: np.ndarray) -> np.ndarray:
        return np.einsum("fi,fi->f", self._push, self._facet_mean @ vertex_means)
