"""The cells of the whole mesh, as plain arrays that every rank has."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cached_property

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
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def of(cls, volumes: FiniteVolumes) -> Cells:
        """Those of a mesh. Collective."""
        return _CellsOfMesh(volumes)


class _CellsOfMesh(Cells):
    """Arrays that are made when they are asked for, which a run does not on every rank.

    Kept are the numbers of corners, 12 bytes a cell of the sphere, where the arrays are 112.
    """

    def __init__(self, volumes: FiniteVolumes) -> None:
        self._places = volumes.vertices
        self._numbers = volumes.gather(volumes.cell_vertices[: volumes.owned])

    @property
    def dimension(self) -> int:
        """Dimension d of the surrounding space."""
        return int(self._places.shape[1])

    @cached_property
    def points(self) -> np.ndarray:
        return np.concatenate([_centres(corners) for corners in self._parts()])

    @cached_property
    def volumes(self) -> np.ndarray:
        return np.concatenate([geometry.cell_volume(corners) for corners in self._parts()])

    @cached_property
    def spread(self) -> np.ndarray:
        return np.concatenate(
            [geometry.cell_spread(corners, _centres(corners)) for corners in self._parts()]
        )

    @property
    def vertices(self) -> np.ndarray:
        return self._places[self._numbers]

    def _parts(self) -> Iterator[np.ndarray]:
        """The corners of all cells, some at a time."""
        for part in geometry.chunks(len(self._numbers)):
            yield self._places[self._numbers[part]]


def _centres(corners: np.ndarray) -> np.ndarray:
    return geometry.normalised(geometry.cell_mean(corners))
