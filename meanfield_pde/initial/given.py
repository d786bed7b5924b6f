"""Initial densities that only a script can give: functions of points or of DOLFINx, and masses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from dolfinx import fem

from meanfield_pde.errors import InputError
from meanfield_pde.initial.base import Content, InitialDensity
from meanfield_pde.initial.formula import ExpressionDensity
from meanfield_pde.initial.pointwise import PointwiseDensity, probes
from meanfield_pde.mesh.fields import function_on_cells
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.support.checks import numbers

# A mesh counts as that of the problem if its cells are at the same places to this: what single
# precision leaves of the vertices in a mesh file.
_SAME_PLACE = 1e-6

# What `solve` takes as initial density: one of the objects, a function of points (N x d -> N), a
# formula, a function of DOLFINx on the same mesh, or the masses of the cells in input order.
type InitialLike = (
    InitialDensity | Callable[[np.ndarray], np.ndarray] | str | fem.Function | np.ndarray
)


def as_initial(initial: InitialLike) -> InitialDensity:
    """The initial density as an object. Collective for a function of DOLFINx."""
    if isinstance(initial, InitialDensity):
        return initial
    if isinstance(initial, str):
        return ExpressionDensity(initial)
    if isinstance(initial, fem.Function):  # which is callable, too
        return FieldDensity.of(initial)
    if callable(initial):
        return FunctionDensity(initial)
    return CellMasses(numbers(initial, "initial masses"))


@dataclass(frozen=True)
class FunctionDensity(PointwiseDensity):
    """A density given by a Python function, of which nothing is known but its values."""

    function: Callable[[np.ndarray], np.ndarray]

    def to_table(self) -> dict[str, Any]:
        """Refused: a case file holds no Python."""
        raise InputError("a case file cannot hold a Python function; give a formula")

    def check(self, dimension: int) -> None:
        """Evaluate the function all over the sphere; refuse one that gives no number for each."""
        self.density(probes(dimension))

    def density(self, points: np.ndarray) -> np.ndarray:
        """Values of the function at the rows of points; InputError unless it gives one for each."""
        # A copy, since a function may use the array it is given for its own work.
        values = numbers(self.function(points.copy()), "what the initial density returns")
        if values.shape != (len(points),):
            raise InputError(
                "the initial density must take points (N x d) to N numbers, got an array of shape "
                f"{values.shape} for N = {len(points)}"
            )
        return values


@dataclass(frozen=True, eq=False)
class CellMasses(InitialDensity):
    """The masses of the cells in input order, spread evenly over each cell."""

    masses: np.ndarray

    def to_table(self) -> dict[str, Any]:
        """Refused: a case file holds no arrays."""
        raise InputError("a case file cannot hold the masses of cells; give a formula or tokens")

    def check(self, dimension: int) -> None:
        """Nothing that could be checked without the mesh."""

    def cell_masses(self, volumes: FiniteVolumes) -> np.ndarray:
        """The entries of this rank's own cells."""
        if self.masses.shape != (volumes.global_cells,):
            raise InputError(
                f"initial masses must be one number for each of the {volumes.global_cells} cells, "
                f"got an array of shape {self.masses.shape}"
            )
        return volumes.scatter(self.masses)

    def sample(self, generator: np.random.Generator, count: int, dimension: int) -> np.ndarray:
        """Refused: the masses do not say where their cells are."""
        raise InputError(
            "tokens cannot be drawn from the masses of cells; give a formula or tokens"
        )

    def exact(self, dimension: int) -> Content:
        """The masses."""
        return Content(self.masses)


@dataclass(frozen=True, eq=False)
class FieldDensity(CellMasses):
    """A density given by a function of DOLFINx, integrated over the cells of its mesh.

    A value in a straight cell is the density, with respect to arc length or area, at the point of
    the circle or the sphere above it.

    Attributes:
        centres: the mean of the vertices of each cell, on the sphere, in input order.
    """

    centres: np.ndarray

    @classmethod
    def of(cls, function: fem.Function) -> FieldDensity:
        """Integrate a scalar function. Collective."""
        if not isinstance(function, fem.Function) or function.ufl_shape != ():
            raise InputError(
                "the initial density must be a scalar fem.Function, got one of shape "
                f"{getattr(function, 'ufl_shape', None)}"
            )
        return cls(*function_on_cells(function))

    def cell_masses(self, volumes: FiniteVolumes) -> np.ndarray:
        """The entries of this rank's own cells."""
        own = volumes.cell_points[: volumes.owned].mean(axis=1)
        centres = normalised(volumes.gather(own))
        if (
            centres.shape != self.centres.shape
            or np.abs(centres - self.centres).max() > _SAME_PLACE
        ):
            raise InputError(
                "the initial density is a function on another mesh; interpolate it first, with "
                "fem.Function.interpolate_nonmatching, or give `solve` the mesh of the function"
            )
        return volumes.scatter(self.masses)
