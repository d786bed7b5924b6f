"""The record of a run: its densities at the saved times, and a row of numbers for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.errors import InputError
from meanfield_pde.history.store import (
    CELLS,
    LOG_MASSES,
    MASSES,
    PATCHES,
    ZERO,
    ZERO_MASSES,
    Store,
)
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.point_density import PointDensity
from meanfield_pde.support.arguments import typed_except
from meanfield_pde.support.checks import points_of, time_index, to_sphere
from meanfield_pde.wasserstein.measure import Measure

# Of a mass beside its logarithm: that of a log mass of -700 is 1e-13 (ulp of 700).
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class History:
    """The density at the saved times.

    Attributes:
        attention: what drove it.
        cells: the cells of the mesh; of an adaptive one, those of the coarsest.
        store: the densities; `store.read(i)` reads one, `masses` all of them.
        history: numbers for each saved time, by name.
        limit: the push-forward of the initial density, if it was compared with.
        cost: "geodesic" or "chordal", of the distances in the history.
        noise: strength of the noise.
    """

    attention: AttentionLike
    cells: Cells
    store: Store
    history: dict[str, np.ndarray]
    limit: Measure | None = None
    cost: str = "geodesic"
    noise: float = 0.0

    @cached_property
    def times(self) -> np.ndarray:
        """The saved times."""
        return np.array(self.store.times)

    @cached_property
    def masses(self) -> np.ndarray:
        """The masses of all cells, times x cells; where the mesh moves, an array of arrays."""
        return self.store.all(MASSES)

    @cached_property
    def zero_masses(self) -> np.ndarray | None:
        """The masses at zero temperature, times x cells, if they were compared with."""
        return self.store.all(ZERO_MASSES) if ZERO_MASSES in self.store.names() else None

    @property
    def dimension(self) -> int:
        """Dimension d: 2 on the circle, 3 on the sphere."""
        return self.cells.dimension

    @property
    def points(self) -> np.ndarray:
        """The centres of the cells."""
        return self.cells.points

    @property
    def volumes(self) -> np.ndarray:
        """Arc lengths or areas of the cells."""
        return self.cells.volumes

    @property
    def spread(self) -> np.ndarray:
        """Mean squared distance of the points of each cell from its centre."""
        return self.cells.spread

    @property
    def vertices(self) -> np.ndarray:
        """The corners of the cells."""
        return self.cells.vertices

    @property
    def density(self) -> np.ndarray:
        """Masses per arc length or area, times x cells."""
        if self.store.moves:
            found = np.empty(len(self.store), dtype=object)
            found[:] = [self.density_at(index) for index in range(len(self.store))]
            return found
        return self.masses / self.cells.volumes

    @typed_except("index")  # of which `time_index` says how many there are
    def cells_at(self, index: int, *, zero_temperature: bool = False) -> Cells:
        """The cells of the density (or of that at zero temperature) at a saved time."""
        index = time_index(index, len(self.store))
        if not self.store.moves:
            return self.cells
        if zero_temperature and ZERO_MASSES not in self.store.names():
            raise InputError("there is no density at zero temperature: none was compared with")
        prefix = ZERO if zero_temperature else ""
        return Cells(*(self.store.read(index, prefix + name) for name in CELLS))

    def density_at(self, index: int) -> np.ndarray:
        """The density at one saved time; nothing else is read."""
        index = time_index(index, len(self.store))
        return self.store.read(index) / self.cells_at(index).volumes

    @typed_except("points", "index")
    def at(
        self, points: np.ndarray, index: int = -1, *, zero_temperature: bool = False
    ) -> np.ndarray:
        """The density at points of the circle or sphere, at a saved time; by default the last.

        It is positive, with `density_at` for its means over the quadrature points of cells, and of
        third order: in each cell it is reconstructed by the fit of transport, see
        `mesh.point_density`. The mass of Lagrangian patches is that of the cells that show them,
        reconstructed by itself.

        Args:
            points: rows of d coordinates; refused if they are off the sphere by more than 1e-6.
            index: of the saved time.
            zero_temperature: of the density at zero temperature, if that was compared with.
        """
        return np.exp(self.log_at(points, index, zero_temperature=zero_temperature))

    @typed_except("points", "index")
    def log_at(
        self, points: np.ndarray, index: int = -1, *, zero_temperature: bool = False
    ) -> np.ndarray:
        """The logarithm of `at`, also where the density is below the range of doubles."""
        points = to_sphere(points_of(points, self.dimension), lambda i: f"point {i[0]}")[0]
        index = time_index(index, len(self.store))
        cells = self.cells_at(index, zero_temperature=zero_temperature)
        return self.log_density_on(PointDensity(cells.vertices, points), index, zero_temperature)

    def log_density_on(
        self, places: PointDensity, index: int, zero_temperature: bool = False
    ) -> np.ndarray:
        """`log_at` at places on the mesh of that time, which serve all times of a mesh that stays.

        Args:
            places: the points.
            index: of the saved time.
            zero_temperature: as in `at`.
        """
        names = self.store.names()
        if zero_temperature and ZERO_MASSES not in names:
            raise InputError("there is no density at zero temperature: none was compared with")
        volumes = self.cells_at(index, zero_temperature=zero_temperature).volumes
        masses = self.store.read(index, ZERO_MASSES if zero_temperature else MASSES)
        with np.errstate(divide="ignore"):
            if zero_temperature or LOG_MASSES not in names:
                return places.log_at(np.log(masses / volumes))
            log_masses = self.store.read(index, LOG_MASSES)
            found = places.log_at(log_masses - np.log(volumes))
            if PATCHES + "sizes" not in names or not len(self.store.read(index, PATCHES + "sizes")):
                return found
            # What the cells show beside their own masses, but for the rounding of both.
            beside = masses - np.exp(log_masses)
            beside[beside <= _ROUNDING * masses] = 0.0
            # By itself, so that tails beside a narrow cluster stay as smooth as they are.
            return np.logaddexp(found, places.log_at(np.log(beside / volumes)))

    def measure(self, index: int = -1) -> Measure:
        """The density at a saved time as a discrete measure; by default the last."""
        index = time_index(index, len(self.store))
        cells = self.cells_at(index)
        return Measure(cells.points, self.store.read(index), cells.spread)
