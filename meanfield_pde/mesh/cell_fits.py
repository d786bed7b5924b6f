"""The quadratic fits of a mesh, made once for fluxes of transport and sources of attention."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.halo import Halo
from meanfield_pde.mesh.quadratic_fit import Matrices, Reconstruction, fits, stencils


class CellFits:
    """The fits of this rank's own cells, for the points of their facets and three within each.

    Attributes:
        points: the three of all cells (`geometry.three_points`), cells x 3 x d.
        shares: of the mass of a cell that belong to them where the density in it is constant.
    """

    def __init__(self, volumes: FiniteVolumes) -> None:
        """Collective."""
        d, own = volumes.dimension, slice(0, volumes.owned)
        corners = volumes.gather(volumes.cell_points[own])
        neighbours = volumes.gather(volumes.input_cells[volumes.neighbours])
        self._rows = volumes.input_cells[own]
        self.points, self.shares = geometry.three_points(corners)
        facets = geometry.gauss_points(volumes.facet_points)[volumes.cell_facets]
        facets = facets.reshape(volumes.owned, d * (d - 1), d)
        self._within = d * (d - 1)  # the first of the three
        wanted = np.concatenate([facets, self.points[self._rows]], axis=1)
        self._fits = fits(neighbours, corners, self._rows, wanted)

    def at_points(self) -> Reconstruction:
        """Densities at the three points of own cells."""
        stencil, fit, bend, points = self._fits
        within = np.ascontiguousarray(points[:, self._within :])
        return Reconstruction(self._rows, (stencil, fit, bend, within))

    def at_facets(self, halo: Halo) -> Matrices:
        """What `quadratic_factors` takes for the facets of the inner cells of a halo. Collective.

        Args:
            halo: three rings about own cells, in whose numbers these are.
        """
        _, fit, bend, points = self._fits
        points = np.delete(points, np.s_[self._within : -2], axis=1)
        matrices = fit, bend, points
        inner = [np.ascontiguousarray(halo.extended(one)[: halo.inner]) for one in matrices]
        return stencils(halo.neighbours, np.arange(halo.inner)), *inner


# Those of the meshes in use: to make them is a tenth of what a new mesh costs (9,000 cells of the
# sphere).
_MADE: WeakKeyDictionary[FiniteVolumes, CellFits] = WeakKeyDictionary()


def cell_fits(volumes: FiniteVolumes) -> CellFits:
    """Return the fits of a mesh, made when they are first asked for. Collective."""
    if volumes not in _MADE:
        _MADE[volumes] = CellFits(volumes)
    return _MADE[volumes]
