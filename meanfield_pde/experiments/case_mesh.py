"""The mesh that a case asks for: made if the memory is there, or read and checked."""

from __future__ import annotations

from mpi4py import MPI

import numpy as np
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde.attention.heads import is_one_head
from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.case.case import MeshCase
from meanfield_pde.errors import InputError
from meanfield_pde.experiments.cost import check_memory
from meanfield_pde.mesh.files import read_mesh
from meanfield_pde.mesh.surface import circle_mesh, sphere_mesh
from meanfield_pde.theory.projection_limit import ProjectionLimit


def case_mesh(mesh: MeshCase, attention: AttentionLike, comm: MPI.Comm) -> dolfinx_mesh.Mesh:
    """The mesh that a case asks for. Collective."""
    if mesh.kind == "file":
        assert mesh.path is not None  # the case was checked
        try:
            found = read_mesh(mesh.path, comm)
        except InputError as error:
            raise InputError(f"mesh.path: {error}") from None
        if (dimension := found.geometry.dim) != attention.dimension:
            raise InputError(
                f"mesh.path: {mesh.path} is a mesh in dimension {dimension}, but attention.value "
                f"is {attention.dimension} x {attention.dimension}"
            )
        return found
    axis: np.ndarray | None = None
    if mesh.grade > 1:
        limit = ProjectionLimit(attention)
        space = limit.eigenspace
        several = not is_one_head(attention.layers[0])
        if several or space.dimension != 1 or space.basis is None:
            reason = space.reason or f"the dominant eigenspace has dimension {space.dimension}"
            if several and limit.reason:
                reason = limit.reason
            raise InputError(
                f"mesh.grade = {mesh.grade:g} refines toward the axis on which A = V B^T "
                f"concentrates, but A has no dominant eigenvector: {reason}; set mesh.grade = 1"
            )
        axis = space.basis[:, 0]
    check_memory(mesh, comm)
    make = circle_mesh if mesh.kind == "circle" else sphere_mesh
    assert mesh.cells is not None  # the case has filled in the default
    return make(mesh.cells, grade=mesh.grade, axis=axis, comm=comm)
