"""Numbers on cells and at vertices as functions of DOLFINx, and integrals of such functions.

Everything is keyed by the place of a cell or a vertex in the order of the mesh's input, so that a
function has the same values on any number of ranks.
"""

from __future__ import annotations

import basix
import numpy as np
from dolfinx import fem
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde.mesh.adopt import numbering
from meanfield_pde.mesh.geometry import cell_volume, normalised

_RULES = {2: basix.CellType.interval, 3: basix.CellType.triangle}
# Of the rule that integrates a function of DOLFINx over a cell, which is not cut: an error of h^9
# where the function is smooth, with 16 points in a triangle.
_DEGREE = 8


def cell_function(mesh: dolfinx_mesh.Mesh, values: np.ndarray, name: str) -> fem.Function:
    """The function that is constant (DG0) in each cell. Collective.

    Args:
        mesh: the mesh.
        values: of all its cells in input order.
        name: of the function, which ParaView shows.
    """
    space = fem.functionspace(mesh, ("DG", 0))
    function = fem.Function(space, name=name)
    function.x.array[space.dofmap.list.ravel()] = values[numbering(mesh).cells]
    return function


def vertex_function(mesh: dolfinx_mesh.Mesh, values: np.ndarray, name: str) -> fem.Function:
    """The continuous, piecewise linear vector function with these values. Collective.

    Args:
        mesh: the mesh.
        values: at all its vertices in input order, vertices x d.
        name: of the function.
    """
    width = mesh.geometry.dim
    numbers = numbering(mesh)
    space = fem.functionspace(mesh, ("Lagrange", 1, (width,)))
    function = fem.Function(space, name=name)
    dofs = np.asarray(space.dofmap.list)[: len(numbers.vertices)]
    vectors = np.zeros((*numbers.vertices.shape, width))
    vectors[..., : values.shape[1]] = values[numbers.vertices]
    function.x.array.reshape(-1, width)[dofs] = vectors
    return function


def function_on_cells(function: fem.Function) -> tuple[np.ndarray, np.ndarray]:
    """Integrals over the cells above those of its mesh, and their centres. Collective.

    The straight cell with corners P_i is projected to the arc or the geodesic triangle above it,

        integral over the cell = ∫ u(X) |det(P_1, ..., P_d)| / |x(X)|^d dX,

    X in the reference cell. Both are in input order and the same on every rank.
    """
    mesh = function.function_space.mesh
    numbers = numbering(mesh)
    own = np.arange(mesh.topology.index_map(mesh.topology.dim).size_local, dtype=np.int32)
    d = numbers.vertices.shape[1]
    corners = normalised(mesh.geometry.x[numbers.nodes[own], :d])
    nodes, weights = basix.make_quadrature(_RULES[d], _DEGREE)
    values = fem.Expression(function, nodes, comm=mesh.comm).eval(mesh, own)
    values = np.asarray(values).reshape(len(own), len(nodes))
    barycentric = np.column_stack([1 - nodes.sum(axis=1), nodes])
    radius = np.linalg.norm(np.einsum("qk,ckd->cqd", barycentric, corners), axis=2)
    weights = weights / radius**d
    # As a mean times the exact volume: a constant is integrated to rounding.
    masses = cell_volume(corners) * (weights * values).sum(axis=1) / weights.sum(axis=1)
    centres = normalised(corners.sum(axis=1))

    def whole(array: np.ndarray) -> np.ndarray:
        result = np.empty((numbers.cell_count, *array.shape[1:]))
        places = np.concatenate(mesh.comm.allgather(numbers.cells[own]))
        result[places] = np.concatenate(mesh.comm.allgather(array))
        return result

    return whole(masses), whole(centres)
