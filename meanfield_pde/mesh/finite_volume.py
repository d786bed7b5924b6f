"""Finite volumes on a distributed mesh: cells, facets and neighbours as flat arrays.

Everything here is computed from vertices and cells in the order of the mesh's input, whatever rank
holds them, so that the geometry and the operators built on it are the same bit for bit on every
number of ranks. Cells are numbered locally, own cells first, then the ghosts next to them.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from dolfinx import fem, la
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde.errors import InputError
from meanfield_pde.mesh import geometry
from meanfield_pde.mesh.clipping import split
from meanfield_pde.mesh.facet_means import FacetMeans
from meanfield_pde.mesh.surface import Surface
from meanfield_pde.support.ranks import shared_errors
from meanfield_pde.support.timings import timed

# Bytes of all cells that a rank receives at once: the log masses of 40,000 cells go in one piece,
# and beside those of ten million there is not another array of their size.
_AT_ONCE = 1 << 20


class FiniteVolumes:
    """Geometry and connectivity of the cells that this rank works on.

    Attributes:
        mesh, comm: the DOLFINx mesh, and its communicator.
        dimension: d, of the surrounding space; cells have d vertices and d facets.
        owned: number of own cells.
        global_cells: number of cells of the whole mesh.
        index_map: who owns which cell.
        cell_vertices: input numbers of the vertices of each cell.
        vertices: all vertices of the whole mesh in input order, on every rank.
        volume: of own and ghost cells.
        cell_mean: mean position over each own and ghost cell.
        centre: the same projected onto the sphere, the point that stands for the cell.
        cell_facets: facet i of each own cell, the one opposite its i-th vertex.
        cell_signs: +1 where the facet's conormal points out of the cell.
        neighbours: the cell across facet i of each own cell.
        neighbour_facets: the place of that facet among the facets of the neighbour.
        facet_vertices: input numbers of the vertices of each facet.
        facet_length, facet_conormal: geodesic length and unit conormal.
        input_cells: place in the mesh's input of each own and ghost cell.
    """

    @timed("Mesh")
    def __init__(self, mesh: dolfinx_mesh.Mesh, before: FiniteVolumes | None = None) -> None:
        """Collective.

        Args:
            mesh: a mesh of the circle or the sphere.
            before: those of a mesh that differs in places only; what is the same is taken over.
        """
        topology = mesh.topology
        self.mesh = mesh
        self.comm = mesh.comm
        self.dimension = d = mesh.geometry.dim
        if topology.dim != d - 1 or d not in (2, 3):
            raise InputError(
                "the mesh must be of arcs in the plane or triangles in space, got cells of "
                f"dimension {topology.dim} in {d} dimensions"
            )
        self._means_before: FacetMeans | None = None
        if before is not None:  # at zero temperature nobody has asked for them
            self._means_before = vars(before).get("facet_means")
        cell_map = topology.index_map(d - 1)
        self.index_map = cell_map
        self.owned = cell_map.size_local
        local = self.owned + cell_map.num_ghosts

        self.input_cells = np.asarray(topology.original_cell_index[:local], dtype=np.int64)
        nodes = np.asarray(mesh.geometry.input_global_indices, dtype=np.int64)
        positions = mesh.geometry.x[:, :d]
        cell_nodes = mesh.geometry.dofmaps[0][:local]
        order = np.argsort(nodes[cell_nodes], axis=1)
        cell_nodes = np.take_along_axis(cell_nodes, order, axis=1)
        self.cell_vertices = nodes[cell_nodes].astype(np.int32)
        self._gather_maps(nodes, positions)
        corners = self.cell_points
        self.volume = geometry.cell_volume(corners)
        self.cell_mean = geometry.cell_mean(corners)
        self.centre = geometry.normalised(self.cell_mean)
        self._build_facets(nodes)

    def _build_facets(self, nodes: np.ndarray) -> None:
        d, topology = self.dimension, self.mesh.topology
        topology.create_entities(d - 2)
        topology.create_connectivity(d - 2, d - 1)
        topology.create_connectivity(d - 1, d - 2)
        topology.create_connectivity(d - 2, 0)
        topology.create_connectivity(d - 1, 0)
        links = topology.connectivity(d - 2, d - 1)
        degree = np.diff(links.offsets)
        if not (degree[: topology.index_map(d - 2).size_local] == 2).all():
            raise InputError(
                "every facet of the mesh must lie between two cells of the same rank: the surface "
                "must be closed and the mesh made with GhostMode.shared_facet"
            )
        inner = np.flatnonzero(degree == 2)
        cells = links.array[links.offsets[inner][:, None] + np.arange(2)].astype(np.int64)
        ours = (cells < self.owned).any(axis=1)
        facets, cells = inner[ours], cells[ours]
        # Facets are oriented from the cell that comes first in the input to the other.
        order = np.argsort(self.input_cells[cells], axis=1)
        cells = np.take_along_axis(cells, order, axis=1)

        facet_nodes = dolfinx_mesh.entities_to_geometry(
            self.mesh, d - 2, facets.astype(np.int32)
        ).reshape(len(facets), d - 1)
        self.facet_vertices = np.sort(nodes[facet_nodes], axis=1).astype(np.int32)
        self.facet_length, conormal = geometry.facet_conormal(self.facet_points)
        across = self.cell_mean[cells[:, 1]] - self.cell_mean[cells[:, 0]]
        self.facet_conormal = conormal * np.sign((conormal * across).sum(axis=1))[:, None]

        # In each of its two cells a facet has the number of the vertex that is opposite to it.
        opposite = (
            ~(self.cell_vertices[cells][..., None] == self.facet_vertices[:, None, None, :]).any(-1)
        ).argmax(axis=2)
        self.cell_facets = np.full((self.owned, d), -1, dtype=np.int32)
        self.cell_signs = np.zeros((self.owned, d), dtype=np.int8)
        self.neighbours = np.full((self.owned, d), -1, dtype=np.int32)
        self.neighbour_facets = np.full((self.owned, d), -1, dtype=np.int32)
        for side, sign in ((0, 1), (1, -1)):
            own = np.flatnonzero(cells[:, side] < self.owned)
            place = (cells[own, side], opposite[own, side])
            self.cell_facets[place] = own
            self.cell_signs[place] = sign
            self.neighbours[place] = cells[own, 1 - side]
            self.neighbour_facets[place] = opposite[own, 1 - side]
        assert (self.cell_facets >= 0).all()

    def _gather_maps(self, nodes: np.ndarray, positions: np.ndarray) -> None:
        self.global_cells = int(self.index_map.size_global)
        self._counts = np.array(self.comm.allgather(self.owned))
        own = self.input_cells[: self.owned].astype(np.int32)
        self._input_order = np.concatenate(self.comm.allgather(own))
        vertex_map = self.mesh.geometry.index_map()
        own_nodes = vertex_map.size_local
        self.vertices = np.empty((vertex_map.size_global, self.dimension))
        numbers = np.concatenate(self.comm.allgather(nodes[:own_nodes]))
        self.vertices[numbers] = np.concatenate(self.comm.allgather(positions[:own_nodes]))

    @property
    def cell_points(self) -> np.ndarray:
        """The vertices of each own and ghost cell, cells x d x d."""
        return self.vertices[self.cell_vertices]

    @property
    def facet_points(self) -> np.ndarray:
        """The vertices of each facet, facets x (d - 1) x d."""
        return self.vertices[self.facet_vertices]

    @property
    def facet_midpoint(self) -> np.ndarray:
        """The middle of each facet, on the sphere."""
        return geometry.normalised(self.facet_points.mean(axis=1))

    @cached_property
    def space(self) -> fem.FunctionSpace:
        """The functions that are constant in each cell: value c is that in cell c."""
        space = fem.functionspace(self.mesh, ("DG", 0))
        assert np.array_equal(space.dofmap.list.ravel(), np.arange(len(self.volume)))
        return space

    def speed(self, flux: np.ndarray) -> np.ndarray:
        """Largest normal velocity through a facet, of own cells, for fluxes (facets x points)."""
        mean = flux.sum(axis=1) / self.facet_length
        return np.asarray(np.abs(mean[self.cell_facets]).max(axis=1))

    def outflow(self, flux: np.ndarray) -> np.ndarray:
        """Sum of max(q, 0) / |c| of own cells c over the points of each of their facets."""
        outward = np.maximum(self.cell_signs[..., None] * flux[self.cell_facets], 0.0)
        return np.asarray(outward.sum(axis=2) / self.volume[: self.owned, None])

    @cached_property
    def facet_means(self) -> FacetMeans:
        """The means along facets of values at vertices."""
        before, self._means_before = self._means_before, None
        return FacetMeans.of(self, before)

    def new_vector(self, block: int = 1) -> la.Vector:
        """A vector with `block` numbers for each own and ghost cell."""
        return la.vector(self.index_map, block)

    def gather(self, values: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """The values of all cells in input order, on every rank, from those of own cells.

        Args:
            values: of own cells, along the first axis.
            out: where they are written; another array if left out.
        """
        values = np.ascontiguousarray(values)
        shape = (self.global_cells, *values.shape[1:])
        result = np.empty(shape, values.dtype) if out is None else out.reshape(shape)
        if self.comm.size == 1:
            result[self._input_order] = values
            return result
        width = int(np.prod(values.shape[1:], dtype=int))
        pieces = -(-result.nbytes // _AT_ONCE)
        first = np.cumsum(self._counts) - self._counts
        for piece in range(pieces):
            begin, end = self._counts * piece // pieces, self._counts * (piece + 1) // pieces
            counts = end - begin
            received = np.empty((counts.sum(), *values.shape[1:]), dtype=values.dtype)
            own = values[begin[self.comm.rank] : end[self.comm.rank]]
            self.comm.Allgatherv(own, [received, counts * width])
            parts = [
                self._input_order[a:b] for a, b in zip(first + begin, first + end, strict=True)
            ]
            result[np.concatenate(parts)] = received
        return result

    def surface(self) -> Surface:
        """The whole mesh, on every rank. Collective."""
        cells = self.gather(self.cell_vertices[: self.owned])
        return Surface(self.vertices, cells.astype(np.int64))

    def integrate(
        self,
        function: geometry.Integrand,
        length_scale: float = math.inf,
        peaks: np.ndarray | None = None,
        smooth: np.ndarray | None = None,
        kink: np.ndarray | None = None,
    ) -> np.ndarray:
        """`geometry.integrate` over own cells, the same on every number of ranks. Collective.

        Args:
            function: the integrand.
            length_scale: the width of its peaks.
            peaks: where they are.
            smooth: which own cells need not be cut: the rule of degree 6 is enough for them.
            kink: normal of a plane in which the integrand has one, along which cells are divided.
        """
        cells, owner = self.cell_points[: self.owned], np.arange(self.owned)
        if kink is not None:
            cells, owner, _ = split(cells, kink)

        def by_cell(of_pieces: np.ndarray) -> np.ndarray:
            if kink is None:
                return of_pieces
            found = np.zeros((self.owned, *of_pieces.shape[1:]))
            np.add.at(found, owner, of_pieces)
            return found

        with shared_errors(self.comm):
            coarse, size = geometry.rough_integrals(function, cells)
        size = by_cell(size)
        columns = size.reshape(len(size), math.prod(size.shape[1:])).T
        whole = np.array([self.gather(one).sum() for one in columns]).reshape(size.shape[1:])
        rest = slice(None) if smooth is None else ~smooth[owner]
        with shared_errors(self.comm):
            given = function, cells[rest], coarse[rest], whole, length_scale, peaks
            coarse[rest] = geometry.refined_integrals(*given)
        return by_cell(coarse)

    def scatter(self, values: np.ndarray) -> np.ndarray:
        """The entries of own cells from values given in input order on every rank."""
        return values[self.input_cells[: self.owned]]
