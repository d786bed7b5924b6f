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

import numpy as np

from meanfield_pde.mesh.cell_fits import cell_fits
from meanfield_pde.mesh.finite_volume import FiniteVolumes

Width = Callable[[np.ndarray], np.ndarray]

# In kernels. With noise the error of the centres is of the other sign than those of muscl and of
# the noise, as long as the kernel is resolved. Order parameter of a stationary state on the sphere
# (beta = 5, sigma = 3.15, exactly 0.91347) with 320 cells: 0.9062 with centres, 0.888 with three
# points of a density that is constant in each cell.
_NARROW = 1.0


class CellSources:
    """Points that stand for all cells.

    Attributes:
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
        self._volumes, self._fits = volumes, cell_fits(volumes)
        own = slice(0, volumes.owned)
        self._wide: np.ndarray | None = None  # all cells
        if noise:
            width = np.exp(np.log(volumes.gather(volumes.volume[own])) / (volumes.dimension - 1))
            kernels = width * np.sqrt(inverse_width_squared(volumes.gather(volumes.centre[own])))
            self._wide = kernels > _NARROW
        kinds = [True] if self._wide is None else np.unique(self._wide)
        self.points_per_cell = " or ".join("3" if wide else "1" for wide in kinds)

    def points(self) -> np.ndarray:
        """Three for each cell, or, with noise, one for each narrow one, these last. Collective.

        The same on every rank, and not kept: they are a good part of what a cell of the whole mesh
        takes there.
        """
        volumes = self._volumes
        points = volumes.gather(self._fits.points)
        if self._wide is None:
            return points.reshape(-1, volumes.dimension)
        centre = volumes.gather(volumes.centre[: volumes.owned])
        wide = points[self._wide].reshape(-1, volumes.dimension)
        return np.concatenate([wide, centre[~self._wide]])

    def log_masses(self, log_masses: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Those of the points, for those of own cells. Collective.

        Args:
            log_masses: of own cells.
            out: where they are written if there is no noise.
        """
        wide = self._wide
        if wide is not None and not wide.any():
            return self._volumes.gather(log_masses)
        # Each rank makes those of its own cells.
        shares = self._fits.shares_for(log_masses)
        given = log_masses[:, None] + np.log(shares)
        if wide is None:
            found = self._volumes.gather(given, out)
            return found.ravel() if out is None else out
        found = self._volumes.gather(given)
        return np.concatenate([found[wide].ravel(), self._volumes.gather(log_masses)[~wide]])
