"""Any DOLFINx mesh of the circle or the sphere: its numbers, and a mesh that the solver can use.

Cells and vertices are known by their place in the order in which the mesh was given to DOLFINx,
the same on every number of ranks. The solver needs straight cells with their vertices on the
sphere, and on each rank both cells of every facet of its own cells. A mesh that lacks this is made
anew from its vertices, with the same cells in the same order.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from mpi4py import MPI

import numpy as np
from dolfinx import common
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde.errors import InputError
from meanfield_pde.mesh.checks import check_surface
from meanfield_pde.mesh.surface import Surface, build_mesh, on_sphere
from meanfield_pde.support.ranks import on_root

LOG = logging.getLogger("meanfield_pde")

_CORNERS = {"interval": 2, "triangle": 3}


@dataclass(frozen=True, eq=False)
class Numbering:
    """The cells and vertices of this rank by their place in the whole mesh.

    Attributes:
        cells: place of each own and ghost cell.
        vertices: places of the vertices of each own and ghost cell, cells x d.
        nodes: the same as rows of `mesh.geometry.x`.
        cell_count, vertex_count: of the whole mesh.
    """

    cells: np.ndarray
    vertices: np.ndarray
    nodes: np.ndarray
    cell_count: int
    vertex_count: int


def numbering(mesh: dolfinx_mesh.Mesh) -> Numbering:
    """Number cells and vertices in the order of the mesh's input. Collective."""
    topology, geometry = mesh.topology, mesh.geometry
    name = topology.cell_name()
    if name not in _CORNERS:
        raise InputError(
            f"the mesh must be of arcs or of triangles, got cells of type {name}; the density "
            "lives on the circle or the sphere itself, not inside"
        )
    cell_map = topology.index_map(topology.dim)
    local = cell_map.size_local + cell_map.num_ghosts
    try:
        given = np.asarray(topology.original_cell_index, dtype=np.int64)[:local]
    except RuntimeError:  # a mesh that was taken from another has none
        given = np.zeros(local, dtype=np.int64)
    cells, cell_count = _places(given, np.arange(cell_map.size_local), cell_map, mesh.comm)
    # Nodes that are no corner of a cell belong to curved cells; they come after the corners.
    nodes = np.asarray(geometry.dofmaps[0])[:local, : _CORNERS[name]]
    node_map = geometry.index_map()
    given = np.asarray(geometry.input_global_indices, dtype=np.int64)
    own = np.unique(nodes)
    own = own[own < node_map.size_local]
    places, vertex_count = _places(given, own, node_map, mesh.comm)
    return Numbering(cells, places[nodes], nodes, cell_count, vertex_count)


def usable_mesh(mesh: dolfinx_mesh.Mesh) -> dolfinx_mesh.Mesh:
    """The mesh itself, or one made anew that the solver can use. Collective.

    An `InputError` is raised on every rank if it does not cover the circle or the sphere once.
    """
    numbers = numbering(mesh)
    surface = gathered_surface(mesh, numbers)
    on_root(mesh.comm, check_surface, surface, "the mesh")
    dimension = mesh.topology.dim
    mesh.topology.create_entities(dimension - 1)  # collective, unlike what `_lacks` does
    mesh.topology.create_connectivity(dimension - 1, dimension)
    mesh.topology.create_connectivity(dimension, dimension - 1)
    lacks = mesh.comm.allreduce(_lacks(mesh, numbers), MPI.MAX)
    if not lacks:
        return mesh
    if mesh.comm.rank == 0:
        LOG.info("the mesh is made anew: %s", lacks)
    return build_mesh(on_sphere(surface), mesh.comm)


def gathered_surface(mesh: dolfinx_mesh.Mesh, numbers: Numbering) -> Surface:
    """The whole mesh in its own order; vertices and cells are those of rank 0. Collective."""
    geometry = mesh.geometry
    own = slice(0, mesh.topology.index_map(mesh.topology.dim).size_local)
    # Each vertex comes once, from the rank that owns it.
    place = np.full(geometry.index_map().size_local, -1, dtype=np.int32)
    mine = numbers.nodes < len(place)
    place[numbers.nodes[mine]] = numbers.vertices[mine]
    used = np.flatnonzero(place >= 0)
    found = mesh.comm.gather(
        (
            numbers.cells[own].astype(np.int32),
            numbers.vertices[own].astype(np.int32),
            place[used],
            geometry.x[used, : geometry.dim],
        )
    )
    if found is None:
        shape = (0, numbers.vertices.shape[1])
        return Surface(np.zeros(shape), np.zeros(shape, dtype=np.int64))
    points = np.zeros((numbers.vertex_count, geometry.dim))
    cells = np.empty((numbers.cell_count, numbers.vertices.shape[1]), dtype=np.int64)
    for places, vertices, nodes, positions in found:
        cells[places], points[nodes] = vertices, positions
    return Surface(points, cells)


def _places(
    given: np.ndarray, own: np.ndarray, index_map: common.IndexMap, comm: MPI.Comm
) -> tuple[np.ndarray, int]:
    """Place of each local index in the order of the given numbers, and how many there are.

    Args:
        given: a number for each local index.
        own: the own indices that count; every other index that is asked for is a ghost of one.
        index_map: gives the numbers instead if those given are not different from each other.
        comm: the communicator of the mesh.
    """
    numbers = given
    known = np.concatenate(comm.allgather(numbers[own]))
    order = np.unique(known)
    if len(order) < len(known):
        local = np.arange(index_map.size_local + index_map.num_ghosts, dtype=np.int32)
        numbers = index_map.local_to_global(local)
        order = np.unique(np.concatenate(comm.allgather(numbers[own])))
    return np.searchsorted(order, numbers), len(order)


def _lacks(mesh: dolfinx_mesh.Mesh, numbers: Numbering) -> str:
    """What the solver misses on this rank; empty if nothing."""
    topology, geometry = mesh.topology, mesh.geometry
    d = numbers.vertices.shape[1]
    if geometry.dim != d or np.asarray(geometry.dofmaps[0]).shape[1] != d:
        return "its cells are curved, or lie in a space of more dimensions than they need"
    radius = np.linalg.norm(geometry.x[numbers.nodes], axis=-1)
    if (np.abs(radius - 1) > 4 * np.finfo(float).eps).any():
        return "its vertices are off the sphere by more than rounding"
    if not _in_order(mesh, numbers):
        return "its cells or vertices have no numbers of their own"
    own = topology.index_map(d - 1).size_local
    sides = topology.connectivity(d - 1, d - 2)
    degree = np.diff(topology.connectivity(d - 2, d - 1).offsets)
    if (degree[sides.array[: sides.offsets[own]]] != 2).any():
        return "it was not distributed with GhostMode.shared_facet"
    return ""


def _in_order(mesh: dolfinx_mesh.Mesh, numbers: Numbering) -> bool:
    """Whether DOLFINx's own numbers of the input are those used here."""
    try:
        given = mesh.topology.original_cell_index[: len(numbers.cells)]
    except RuntimeError:
        return False
    nodes = mesh.geometry.input_global_indices[numbers.nodes]
    return np.array_equal(given, numbers.cells) and np.array_equal(nodes, numbers.vertices)
