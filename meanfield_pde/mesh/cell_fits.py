"""The quadratic fits of a mesh, made once for fluxes of transport and sources of attention."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.halo import Halo
from meanfield_pde.mesh.quadratic_fit import (
    STEEP_SHARES,
    Matrices,
    fits,
    quadratic_factors,
    stencils,
)
from meanfield_pde.mesh.reconstruction import facet_numbers


class CellFits:
    """The fits of this rank's own cells, for the points of their facets and three within each.

    Attributes:
        halo: three rings about own cells, in whose numbers the fits are.
        points: the three of own cells (`geometry.three_points`), cells x 3 x d.
        shares: of the mass of a cell that belong to them where the density in it is constant.
    """

    def __init__(self, volumes: FiniteVolumes) -> None:
        """Collective."""
        d, self.halo = volumes.dimension, Halo(volumes, 3)
        self._facets = facet_numbers(d)
        corners = volumes.cell_points[: volumes.owned]
        self.points, self.shares = geometry.three_points(corners)
        facets = geometry.gauss_points(volumes.facet_points)[volumes.cell_facets]
        facets = facets.reshape(volumes.owned, d * (d - 1), d)
        wanted = np.concatenate([facets, self.points], axis=1)
        corners, rows = self.halo.extended(corners), np.arange(volumes.owned)
        *self._fit, points = fits(self.halo.neighbours, corners, rows, wanted)
        self._within = np.ascontiguousarray(points[:, d * (d - 1) :])
        self._at_facets = np.delete(points, np.s_[d * (d - 1) : -2], axis=1)
        self._log_volume = np.log(volumes.volume[: volumes.owned])

    def shares_for(self, log_masses: np.ndarray) -> np.ndarray:
        """The shares of mass of the three points, own cells x 3, for own log masses. Collective."""
        factors = np.empty(self.shares.shape)
        given = self.halo.extended(log_masses - self._log_volume)
        quadratic_factors(STEEP_SHARES, self._facets, given, *self._fit, self._within, factors)
        factors *= self.shares
        factors /= factors.sum(axis=1, keepdims=True)
        return factors

    def at_facets(self) -> Matrices:
        """What `quadratic_factors` takes for the facets of the halo's inner cells. Collective."""
        halo = self.halo
        if halo.inner > len(self._at_facets):
            # Own cells come first, so that these matrices take the place of theirs.
            self._fit[0] = stencils(halo.neighbours, np.arange(halo.inner))
            for i in (1, 2):
                self._fit[i] = np.ascontiguousarray(halo.extended(self._fit[i])[: halo.inner])
            points = halo.extended(self._at_facets)
            self._at_facets = np.ascontiguousarray(points[: halo.inner])
        return *self._fit, self._at_facets


# Those of the meshes in use: to make them is a tenth of what a new mesh costs (9,000 cells of the
# sphere).
_MADE: WeakKeyDictionary[FiniteVolumes, CellFits] = WeakKeyDictionary()


def cell_fits(volumes: FiniteVolumes) -> CellFits:
    """Return the fits of a mesh, made when they are first asked for. Collective."""
    if volumes not in _MADE:
        _MADE[volumes] = CellFits(volumes)
    return _MADE[volumes]
