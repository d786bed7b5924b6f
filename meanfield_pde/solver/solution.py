"""What `solve` returns: the history of a run, and its fields as functions of DOLFINx."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from dolfinx import fem
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde.history.history import History
from meanfield_pde.mesh.fields import cell_function, vertex_function
from meanfield_pde.mesh.surface import Surface, build_mesh
from meanfield_pde.solver.saved_velocity import SavedVelocity, velocity_at
from meanfield_pde.solver.steadiness import Steadiness
from meanfield_pde.support.arguments import typed_except
from meanfield_pde.support.checks import time_index


@dataclass(frozen=True, eq=False)
class Solution(History):
    """The density at the saved times, the same on every rank.

    Attributes:
        steps: number of time steps taken.
        rejected: number of steps that had to be repeated.
        wall_time: seconds.
        tolerance: of the attention sum.
        steadiness: whether the last state is steady, and since when; None of a run that was read.
        mesh: the DOLFINx mesh that was given to `solve`; the coarsest, if it is adaptive.
    """

    mesh: dolfinx_mesh.Mesh = field(kw_only=True)
    steps: int = 0
    rejected: int = 0
    wall_time: float = 0.0
    tolerance: float = 1e-10
    steadiness: Steadiness | None = None

    def mesh_at(self, index: int = -1) -> dolfinx_mesh.Mesh:
        """The mesh of a saved time: `mesh`, or if that is adaptive, one made anew. Collective.

        Its cells are those of `cells_at`, in the same order.
        """
        index = time_index(index, len(self.store))
        if not self.store.moves:
            return self.mesh
        if index not in self._meshes:
            surface = Surface.of_corners(self.cells_at(index).vertices)
            self._meshes[index] = build_mesh(surface, self.mesh.comm)
        return self._meshes[index]

    @cached_property
    def _meshes(self) -> dict[int, dolfinx_mesh.Mesh]:
        """Those made so far: functions can be combined if their mesh is the same object."""
        return {}

    def function(self, index: int = -1) -> fem.Function:
        """The density at a saved time as a function constant in the cells of `mesh_at`. Collective.

        Its values are masses per arc length or area of the circle or sphere, those of `density`.
        An integral with UFL's `dx` is over the straight cells: it falls short by the second power
        of their width.
        """
        return cell_function(self.mesh_at(index), self.density_at(index), "density")

    def velocity(self, index: int = -1) -> fem.Function:
        """The velocity, without noise, at a saved time as a function on `mesh_at`. Collective.

        The one that the solver integrates from this time on: linear in each cell, with the values
        at the vertices of the attention sum over the sources that it has, those of patches among
        them. At the end of a layer, of the layer that has ended.
        """
        index = time_index(index, len(self.store))
        mesh = self.mesh_at(index)
        values = SavedVelocity(self, index, mesh, self.tolerance).at_vertices()
        return vertex_function(mesh, values, "velocity")

    @typed_except("points", "index")
    def velocity_at(self, points: np.ndarray, index: int = -1) -> np.ndarray:
        """The velocity of `velocity` at points of the circle or sphere, N x d; by direct sums.

        On any rank alone.

        Args:
            points: rows of d coordinates; refused if they are off the sphere by more than 1e-6.
            index: of the saved time; by default the last.
        """
        return velocity_at(self, points, index, self.tolerance)
