"""The cells of the whole mesh, as plain arrays that every rank has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.finite_volume import FiniteVolumes


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of the whole mesh in input order, the same on every rank.

    Attributes:
        points: the centre of each cell, on the sphere.
        volumes: arc length or spherical area.
        spread: mean squared geodesic distance of a cell's points from its centre.
        vertices: the corners of each cell, cells x d x d.
    """

    points: np.ndarray
    volumes: np.ndarray
    spread: np.ndarray
    vertices: np.ndarray

    @property
    def dimension(self) -> int:
        """Dimension d of the surrounding space."""
        return int(self.points.shape[1])

    def arrays(self) -> dict[str, np.ndarray]:
        """The four arrays by name."""
        return dict(vars(self))

    @classmethod
    def of(cls, volumes: FiniteVolumes) -> Cells:
        """Gather the cells of all ranks. Collective."""
        own = slice(0, volumes.owned)
        points, corners = volumes.centre[own], volumes.cell_points[own]
        spread = geometry.cell_spread(corners, points)
        arrays = (points, volumes.volume[own], spread, corners)
        return cls(*(volumes.gather(array) for array in arrays))
