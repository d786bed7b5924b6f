"""The velocity at a saved time, without noise: the one that was integrated from this time on."""

from __future__ import annotations

from mpi4py import MPI

import numpy as np
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde.attention.layers import acting
from meanfield_pde.history.history import History
from meanfield_pde.mesh.adopt import usable_mesh
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.mesh.surface import Surface, build_mesh
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.saved_state import saved_state
from meanfield_pde.solver.settings import SolverCase
from meanfield_pde.support.checks import points_of, time_index, to_sphere


class SavedVelocity:
    """The right-hand side at a saved time, with the sources that it had, those of patches too.

    At the end of a layer it is that of the layer that has ended.
    """

    def __init__(
        self, history: History, index: int, mesh: dolfinx_mesh.Mesh, tolerance: float
    ) -> None:
        """Collective on the ranks of the mesh.

        Args:
            history: the densities.
            index: of the saved time, from 0 on.
            mesh: of that time.
            tolerance: of the attention sum.
        """
        columns = history.history
        patch_mass = columns["patch_mass"][index] if "patch_mass" in columns else 0.0
        log_masses, self._patches = saved_state(history.store, index, float(patch_mass))
        volumes = FiniteVolumes(usable_mesh(mesh))
        settings = SolverCase(tolerance=tolerance)
        equation = Equation(history.attention, volumes, settings, history.noise)
        self._rhs = equation.right_hand_side(acting(history.attention, history.times[index]))
        self._log_masses = volumes.scatter(log_masses)

    def at_vertices(self) -> np.ndarray:
        """The velocity at all vertices of the mesh. Collective."""
        return self._rhs.vertex_velocity(self._log_masses, self._patches)

    def at(self, points: np.ndarray) -> np.ndarray:
        """The velocity at points, N x d: all terms of the sum over sources. Collective."""
        return self._rhs.field(self._log_masses, self._patches)(points)


def velocity_at(history: History, points: np.ndarray, index: int, tolerance: float) -> np.ndarray:
    """Return the velocity at points of the circle or sphere, N x d; on any rank alone.

    Args:
        history: the densities.
        points: rows of d coordinates; refused if they are off the sphere by more than 1e-6.
        index: of the saved time.
        tolerance: of the attention sum.
    """
    points = to_sphere(points_of(points, history.dimension), lambda i: f"point {i[0]}")[0]
    index = time_index(index, len(history.store))
    surface = Surface.of_corners(history.cells_at(index).vertices)
    mesh = build_mesh(surface, MPI.COMM_SELF)
    return SavedVelocity(history, index, mesh, tolerance).at(points)
