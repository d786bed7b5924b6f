"""The sources of the attention sum where cells are wide and log rho is steep: three points, tilted.

The tail that clusters attend to is steep. With one source at the centre of a cell of width w, or
three that take the density in it as constant, the weight exp(beta <z, y>) of that cell is wrong by
the factor exp(<g, beta z> w^2 / 12), g the slope of log rho: that is an error of log rho itself,
and so of the time at which the metastable state ends. Here the mass M of a cell is shared out among
three points y_k as the reconstruction of the transport scheme has it,

    M_k = M s_k exp(<g, y_k - x>) / sum over l of s_l exp(<g, y_l - x>),

with the slope limited so that no factor exceeds e. Cells much narrower than the kernel, whose width
is |beta z|^(-1/2), have one point.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.attention.cell_sources import three_points
from meanfield_pde.attention.head import Attention
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.gradients import gradient_weights
from meanfield_pde.solver.reconstruction import face_factors, facet_numbers

# A cell of this width, in those of the kernel, has one point: the error above is then 1e-3 where
# |g| is as large as beta |z|.
_NARROW = 0.03


class TiltedSources:
    """Points that stand for all cells, the same on every rank.

    Attributes:
        points: three for each wide cell, and then one for each narrow one.
    """

    def __init__(self, attention: Attention, volumes: FiniteVolumes) -> None:
        """Collective."""
        own = slice(0, volumes.owned)
        corners = volumes.gather(volumes.cell_points[own])
        centre = volumes.gather(volumes.centre[own])
        self._log_volume = np.log(volumes.gather(volumes.volume[own]))
        self._neighbours = volumes.gather(volumes.input_cells[volumes.neighbours])
        points, shares = three_points(corners)
        frame, weights = gradient_weights(centre, centre[self._neighbours])
        ways = np.einsum("ckd,ctd->ckt", geometry.tangent_vector(centre[:, None], points), frame)
        self._rises = np.ascontiguousarray((ways @ weights)[:, _tilted(volumes.dimension)])
        self._shares = shares
        self._facets = facet_numbers(volumes.dimension)
        width = np.exp(self._log_volume / (volumes.dimension - 1))
        length = np.linalg.norm(attention.scores(centre), axis=1)
        self._wide = width * np.sqrt(length) > _NARROW
        self.points = np.concatenate(
            [points[self._wide].reshape(-1, volumes.dimension), centre[~self._wide]]
        )

    def log_masses(self, log_masses: np.ndarray) -> np.ndarray:
        """Those of the points, for those of all cells."""
        factors = np.empty(self._rises.shape[:2])
        face_factors(
            self._facets, log_masses - self._log_volume, self._neighbours, self._rises, factors
        )
        shares = self._shares.copy()
        shares[:, _tilted(factors.shape[1])] *= factors
        shares /= shares.sum(axis=1, keepdims=True)
        wide = (log_masses[:, None] + np.log(shares))[self._wide]
        return np.concatenate([wide.ravel(), log_masses[~self._wide]])


def _tilted(dimension: int) -> list[int]:
    """The points whose share changes: on an arc the middle one is the centre."""
    return [0, 2] if dimension == 2 else [0, 1, 2]
