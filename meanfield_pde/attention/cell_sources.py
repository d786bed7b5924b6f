"""The sources of the attention sum: the points of the cells that stand for their masses.

With one source at the centre of a cell of width w, or three that take the density in it as
constant, the weight exp(beta <z, y>) of that cell is wrong by the factor
exp(<g, beta z> w^2 / 12), g the slope of log rho: an error of log rho itself where the density is
steep, as in the tail that clusters attend to, and so of the time at which the metastable phase
ends. Here the mass M of a cell is shared out among three points y_k (3 Gauss points on an arc) as
the reconstruction of the transport has it,

    M_k = M s_k exp(p(y_k)) / sum over l of s_l exp(p(y_l)),

p the quadratic fit to log rho, or its slopes where that is steep (`mesh.quadratic_fit`). With noise
the centres stand for cells narrower than the kernel, whose width is |beta z|^(-1/2).
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import WeakKeyDictionary, proxy

import numpy as np

from meanfield_pde.mesh.cell_fits import cell_fits
from meanfield_pde.mesh.finite_volume import FiniteVolumes

Width = Callable[[np.ndarray], np.ndarray]

# In kernels. With noise the error of the centres is of the other sign than those of muscl and of
# the noise, as long as the kernel is resolved. Order parameter of a stationary state on the sphere
# (beta = 5, sigma = 3.15, exactly 0.91347) with 320 cells: 0.9062 with centres, 0.888 with three
# points of a density that is constant in each cell.
_NARROW = 1.0


class ReconstructedCells:
    """The cells of the whole mesh, the same on every rank, with log rho reconstructed in each.

    Attributes:
        points: y_k, three in each cell, cells x 3 x d.
        shares: s_k, the shares of the mass of a cell where the density in it is constant.
        centre: x of each cell.
        log_volume: of each cell.
    """

    def __init__(self, volumes: FiniteVolumes) -> None:
        """Collective."""
        own = slice(0, volumes.owned)
        self.centre = volumes.gather(volumes.centre[own])
        self.log_volume = np.log(volumes.gather(volumes.volume[own]))
        fits = cell_fits(volumes)
        self.points, self.shares = fits.points, fits.shares
        self._volumes = proxy(volumes)  # which keeps these cells
        self._reconstruction = fits.at_points()

    def shares_for(self, log_masses: np.ndarray) -> np.ndarray:
        """The shares M_k / M of the points of all cells, for their log masses. Collective.

        Each rank makes those of its own cells.
        """
        factors = self._reconstruction.factors(log_masses - self.log_volume)
        shares = self.shares * self._volumes.gather(factors)
        return np.asarray(shares / shares.sum(axis=1, keepdims=True))


# Those of the meshes in use: all heads of a layer, and the moments, take the same. To make them is
# a third of what a right-hand side takes on a new mesh (20,480 cells of the sphere, one head).
_MADE: WeakKeyDictionary[FiniteVolumes, ReconstructedCells] = WeakKeyDictionary()


def reconstructed_cells(volumes: FiniteVolumes) -> ReconstructedCells:
    """The reconstructed cells of a mesh, made when they are first asked for. Collective."""
    if volumes not in _MADE:
        _MADE[volumes] = ReconstructedCells(volumes)
    return _MADE[volumes]


class CellSources:
    """Points that stand for all cells, the same on every rank.

    Attributes:
        points: three for each cell, and then, with noise, one for each narrow one.
        points_per_cell: for the log.
    """

    def __init__(
        self, inverse_width_squared: Width, volumes: FiniteVolumes, *, noise: bool = False
    ) -> None:
        """Collective.

        Args:
            inverse_width_squared: that of the kernel at points x; infinite where it is not known.
            volumes: the mesh.
            noise: whether there is noise.
        """
        self._cells = cells = reconstructed_cells(volumes)
        self._wide = np.ones(volumes.global_cells, dtype=bool)
        if noise:
            width = np.exp(cells.log_volume / (volumes.dimension - 1))
            self._wide = width * np.sqrt(inverse_width_squared(cells.centre)) > _NARROW
        self.points_per_cell = " or ".join(
            {False: "1", True: "3"}[w] for w in np.unique(self._wide)
        )
        self.points = np.concatenate(
            [
                cells.points[self._wide].reshape(-1, volumes.dimension),
                cells.centre[~self._wide],
            ]
        )

    def log_masses(self, log_masses: np.ndarray) -> np.ndarray:
        """Those of the points, for those of all cells. Collective."""
        if not self._wide.any():
            return log_masses
        shares = self._cells.shares_for(log_masses)
        wide = (log_masses[:, None] + np.log(shares))[self._wide]
        return np.concatenate([wide.ravel(), log_masses[~self._wide]])
