"""Meshes of the circle and the sphere, as DOLFINx meshes with the ghost cells that transport needs.

The circle is divided into arcs, the sphere into geodesic triangles: each face of an icosahedron is
split into n^2 triangles whose vertices are projected onto the unit sphere, 20 n^2 cells in all.
A graded mesh is the image of the uniform one under x -> G x / |G x|, G = I + (g - 1) a a^T, which
moves the vertices toward the axis ±a.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

from mpi4py import MPI

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.checks import numbers, real, whole
from meanfield_pde.support.memory import check_fits, give_back_freed

if TYPE_CHECKING:  # the arrays need none of it: see `_lazy`
    import basix.ufl
    from dolfinx import mesh as dolfinx_mesh

_GOLDEN = (1 + 5**0.5) / 2  # the golden ratio
_ICOSAHEDRON_VERTICES = np.array(
    [
        [-1, _GOLDEN, 0],
        [1, _GOLDEN, 0],
        [-1, -_GOLDEN, 0],
        [1, -_GOLDEN, 0],
        [0, -1, _GOLDEN],
        [0, 1, _GOLDEN],
        [0, -1, -_GOLDEN],
        [0, 1, -_GOLDEN],
        [_GOLDEN, 0, -1],
        [_GOLDEN, 0, 1],
        [-_GOLDEN, 0, -1],
        [-_GOLDEN, 0, 1],
    ]
)
# fmt: off
_ICOSAHEDRON_FACES = np.array([
    [0, 11, 5], [0, 5, 1], [0, 1, 7], [0, 7, 10], [0, 10, 11],
    [1, 5, 9], [5, 11, 4], [11, 10, 2], [10, 7, 6], [7, 1, 8],
    [3, 9, 4], [3, 4, 2], [3, 2, 6], [3, 6, 8], [3, 8, 9],
    [4, 9, 5], [2, 4, 11], [6, 2, 10], [8, 6, 7], [9, 8, 1],
])
# fmt: on

# Beyond it cells are too thin to be of use, and steps too short (chosen, not tuned).
MOST_GRADE = 1e4
# While its arrays are made: a bound that says no before memory does; a run needs six times as much
# (`experiments.cost`).
BYTES_PER_CELL = 500.0


@dataclass(frozen=True, eq=False)
class Surface:
    """A mesh as plain arrays, in the order in which everything is written to files.

    Attributes:
        points: vertices on the unit sphere, N x d.
        cells: vertex numbers of each cell, M x d (arcs for d = 2, triangles for d = 3).
    """

    points: np.ndarray
    cells: np.ndarray

    @classmethod
    def of_corners(cls, corners: np.ndarray) -> Surface:
        """The mesh of cells given by their corners, cells x d x d: each vertex once, sorted."""
        count, d = corners.shape[:2]
        places = corners.reshape(-1, d) + 0.0  # -0 and 0 are the same place
        points, number = np.unique(places, axis=0, return_inverse=True)
        return cls(points, number.reshape(count, d))

    @property
    def dimension(self) -> int:
        """Dimension d of the surrounding space."""
        return int(self.points.shape[1])

    @property
    def facets(self) -> np.ndarray:
        """A number for the facet opposite to each vertex of each cell, in one row."""
        if self.dimension == 2:
            return self.cells[:, ::-1].ravel()
        ends = np.sort(self.cells[:, [[1, 2], [2, 0], [0, 1]]], axis=2)
        return (ends[..., 0] * len(self.points) + ends[..., 1]).ravel()

    @cached_property
    def across(self) -> np.ndarray:
        """The same facet seen from the other side, for each vertex of each cell, M x d.

        On a closed surface: cell and opposite vertex there, as an index of the flattened array.
        """
        pairs = np.argsort(self.facets, kind="stable").reshape(-1, 2)
        across = np.empty(self.cells.size, dtype=np.int64)
        across[pairs[:, 0]], across[pairs[:, 1]] = pairs[:, 1], pairs[:, 0]
        return across.reshape(-1, self.dimension)

    @cached_property
    def neighbours(self) -> np.ndarray:
        """The cell across the facet opposite to each vertex of a closed surface, M x d."""
        return self.across // self.dimension


def circle_surface(cells: int, *, grade: float = 1.0, axis: np.ndarray | None = None) -> Surface:
    """The circle in `cells` arcs; the arrays behind `circle_mesh`."""
    cells = whole(cells, "the number of cells of a mesh of the circle", 3)
    check_fits(BYTES_PER_CELL * cells, f"a mesh of {cells} cells", "take fewer")
    number = np.arange(cells)
    angle = 2 * np.pi * number / cells
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    arcs = np.column_stack([number, (number + 1) % cells])
    return Surface(_graded(points, grade, axis), arcs)


def sphere_surface(cells: int, *, grade: float = 1.0, axis: np.ndarray | None = None) -> Surface:
    """The smallest icosphere with at least `cells` triangles; the arrays behind `sphere_mesh`."""
    cells = whole(cells, "the number of cells of a mesh of the sphere", 1)
    check_fits(BYTES_PER_CELL * cells, f"a mesh of {cells} cells", "take fewer")
    n = int(np.ceil(np.sqrt(cells / 20) - 1e-9))
    # A vertex of a split face has integer weights (n - i - j, i, j) on the corners of the face.
    grid = np.indices((n + 1, n + 1))
    i, j = grid[:, grid.sum(axis=0) <= n]
    weights = np.column_stack([n - i - j, i, j])
    number = np.full((n + 1, n + 1), -1)
    number[i, j] = np.arange(len(i))
    up = i + j < n
    down = i + j < n - 1
    upward = np.column_stack([number[i, j][up], number[i[up] + 1, j[up]], number[i[up], j[up] + 1]])
    downward = np.column_stack(
        [
            number[i[down] + 1, j[down]],
            number[i[down] + 1, j[down] + 1],
            number[i[down], j[down] + 1],
        ]
    )
    pattern = np.concatenate([upward, downward])
    triangles = (pattern + len(i) * np.arange(20)[:, None, None]).reshape(-1, 3)
    # The same vertex seen from several faces has the same (corner, weight) pairs, zeros left out.
    corners = np.repeat(_ICOSAHEDRON_FACES, len(i), axis=0)
    shares = np.tile(weights, (20, 1))
    code = np.sort(np.where(shares > 0, corners * (n + 1) + shares, 0), axis=1)
    base = 12 * (n + 1)
    key = (code[:, 0] * base + code[:, 1]) * base + code[:, 2]
    _, first, vertex = np.unique(key, return_index=True, return_inverse=True)
    points = np.einsum("vk,vkd->vd", shares[first], _ICOSAHEDRON_VERTICES[corners[first]])
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    return Surface(_graded(points, grade, axis), vertex[triangles])


@typed
def circle_mesh(
    cells: int = 800,
    *,
    grade: float = 1.0,
    axis: np.ndarray | None = None,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> dolfinx_mesh.Mesh:
    """Mesh of the unit circle.

    Args:
        cells: number of arcs.
        grade: 1 for equal arcs; g > 1 makes them up to g^2 times shorter at the axis than across.
        axis: the direction toward which a graded mesh is refined.
        comm: communicator over which the mesh is distributed.
    """
    return build_mesh(circle_surface(cells, grade=grade, axis=axis), comm)


@typed
def sphere_mesh(
    cells: int = 5120,
    *,
    grade: float = 1.0,
    axis: np.ndarray | None = None,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> dolfinx_mesh.Mesh:
    """Mesh of the unit sphere: the smallest icosphere of 20 n^2 triangles with at least `cells`.

    Arguments as for `circle_mesh`.
    """
    return build_mesh(sphere_surface(cells, grade=grade, axis=axis), comm)


def build_mesh(surface: Surface, comm: MPI.Comm = MPI.COMM_WORLD) -> dolfinx_mesh.Mesh:
    """Distribute a surface over the ranks as a DOLFINx mesh; only rank 0's arrays are used.

    Every facet of a rank's own cells has both its cells on that rank (ghost mode shared_facet),
    without which facets between ranks would be lost.
    """
    import ufl
    from dolfinx import mesh as dolfinx_mesh

    give_back_freed()
    dimension = surface.dimension
    points = surface.points if comm.rank == 0 else np.zeros((0, dimension))
    cells = surface.cells if comm.rank == 0 else np.zeros((0, dimension))
    partitioner = dolfinx_mesh.create_cell_partitioner(dolfinx_mesh.GhostMode.shared_facet, 2)
    return dolfinx_mesh.create_mesh(
        comm, cells.astype(np.int64), ufl.Mesh(_element(dimension)), points, partitioner
    )


@cache
def _element(dimension: int) -> basix.ufl._ElementBase:
    """Of the positions of vertices; to make one takes as long as 100 cells of a mesh."""
    import basix.ufl

    cell = "interval" if dimension == 2 else "triangle"
    return basix.ufl.element("Lagrange", cell, 1, shape=(dimension,))


def on_sphere(surface: Surface) -> Surface:
    """A checked surface with its vertices on the sphere, and without those that no cell uses.

    Vertices that are on the sphere to rounding are kept bit for bit.
    """
    used, cells = np.unique(surface.cells, return_inverse=True)
    points = surface.points[used, : surface.cells.shape[1]]
    radius = np.linalg.norm(points, axis=1)
    off = np.abs(radius - 1) > 4 * np.finfo(float).eps
    points[off] /= radius[off, None]
    return Surface(points, cells.reshape(surface.cells.shape))


def _graded(points: np.ndarray, grade: float, axis: np.ndarray | None) -> np.ndarray:
    expected = f"a number >= 1 and <= {MOST_GRADE:g}"
    grade = real(grade, "mesh.grade", expected, lambda g: 1 <= g <= MOST_GRADE)
    if grade == 1:
        return points
    if axis is None:
        raise InputError("a graded mesh needs the axis toward which it is refined")
    direction = numbers(axis, "the axis of a graded mesh")
    length = np.linalg.norm(direction)
    if direction.shape != (points.shape[1],) or not (np.isfinite(length) and length > 0):
        raise InputError(
            f"the axis of a graded mesh must be {points.shape[1]} finite numbers, "
            f"not all zero, got {direction.tolist()}"
        )
    direction = direction / length
    moved = points + (grade - 1) * (points @ direction)[:, None] * direction
    return moved / np.linalg.norm(moved, axis=1, keepdims=True)
