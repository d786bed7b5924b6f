"""Meshes in files: what is read and written, and the message for each wrong mesh."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from mpi4py import MPI

import h5py
import numpy as np
import pytest
from dolfinx.io import XDMFFile

from meanfield_pde.errors import InputError
from meanfield_pde.mesh.checks import check_surface
from meanfield_pde.mesh.files import read_surface, write_surface
from meanfield_pde.mesh.surface import Surface, circle_surface, sphere_mesh, sphere_surface

MESHES = Path(__file__).parents[2] / "meshes"
CIRCLE = circle_surface(12)
SPHERE = sphere_surface(80)


def assert_same(one: Surface, other: Surface) -> None:
    np.testing.assert_array_equal(one.points, other.points)
    np.testing.assert_array_equal(one.cells, other.cells)
    assert one.points.dtype == np.float64
    assert one.cells.dtype == np.int64


def message_for(surface: Surface) -> str:
    """The error that a surface gets: one line that begins with the name of its file."""
    with pytest.raises(InputError) as caught:
        check_surface(surface, "some.xdmf")
    message = str(caught.value)
    assert message.startswith("some.xdmf: ")
    assert "\n" not in message
    return message


def with_points(surface: Surface, changes: dict[int, list[float]]) -> Surface:
    points = surface.points.copy()
    for vertex, place in changes.items():
        points[vertex] = place
    return Surface(points, surface.cells)


def copies(one: Surface, other: Surface) -> Surface:
    """Both meshes side by side, their vertices kept apart."""
    return Surface(
        np.concatenate([one.points, other.points]),
        np.concatenate([one.cells, other.cells + len(one.points)]),
    )


# ------------------------------------------------------------------------------- XDMF, both ways


@pytest.mark.parametrize(
    "surface",
    [
        circle_surface(401),
        circle_surface(800, grade=50.0, axis=np.array([1.0, 2.0])),
        sphere_surface(1280),
        sphere_surface(5120, grade=30.0, axis=np.array([1.0, 2.0, 3.0])),
    ],
)
def test_a_written_mesh_is_read_back_bit_for_bit(surface: Surface, tmp_path: Path) -> None:
    path = tmp_path / "a & b: mesh.xdmf"
    write_surface(path, circle_surface(5))
    write_surface(path, surface)  # over an earlier one
    assert_same(read_surface(path), surface)
    assert sorted(os.listdir(tmp_path)) == ["a & b: mesh.h5", "a & b: mesh.xdmf"]


@pytest.mark.parametrize("surface", [circle_surface(400), sphere_surface(320)])
def test_dolfinx_reads_what_is_written(surface: Surface, tmp_path: Path) -> None:
    write_surface(tmp_path / "mesh.xdmf", surface)
    with XDMFFile(MPI.COMM_SELF, tmp_path / "mesh.xdmf", "r") as file:
        points, cells = file.read_geometry_data(), file.read_topology_data()
        mesh = file.read_mesh()
    assert_same(Surface(points, cells), surface)
    assert mesh.topology.index_map(mesh.topology.dim).size_local == len(surface.cells)


def test_a_mesh_of_dolfinx_is_read(tmp_path: Path) -> None:
    with XDMFFile(MPI.COMM_SELF, tmp_path / "mesh.xdmf", "w") as file:
        mesh = sphere_mesh(320, comm=MPI.COMM_SELF)
        mesh.name = "another name"
        file.write_mesh(mesh)
    surface = read_surface(tmp_path / "mesh.xdmf")
    assert surface.cells.shape == (320, 3)
    assert surface.points.shape == (162, 3)


def test_a_circle_in_space_as_meshio_writes_it(tmp_path: Path) -> None:
    """A grid without a name, compressed data, a column z = 0, an unused vertex, a rough radius."""
    points = np.column_stack([CIRCLE.points, np.zeros(12)]) * (1 + 3e-7)
    with h5py.File(tmp_path / "mesh.h5", "w") as file:
        file.create_dataset("data0", data=np.vstack([[0, 0, 0], points]), compression="gzip")
        file.create_dataset("data1", data=(CIRCLE.cells + 1).astype("i4"), compression="gzip")
    (tmp_path / "mesh.xdmf").write_text(
        '<Xdmf Version="3.0"><Domain><Grid Name="Grid"><Geometry GeometryType="XYZ"><DataItem '
        'DataType="Float" Dimensions="13 3" Format="HDF" Precision="8">mesh.h5:/data0</DataItem>'
        '</Geometry><Topology TopologyType="Polyline" NumberOfElements="12" NodesPerElement="2">'
        '<DataItem DataType="Int" Dimensions="12 2" Format="HDF" Precision="4">mesh.h5:/data1'
        "</DataItem></Topology></Grid></Domain></Xdmf>"
    )
    surface = read_surface(tmp_path / "mesh.xdmf")
    np.testing.assert_array_equal(surface.cells, CIRCLE.cells)
    np.testing.assert_allclose(surface.points, CIRCLE.points, rtol=0, atol=4e-16)


def text_mesh(kind: str, cells: np.ndarray, points: np.ndarray) -> str:
    """A mesh as XDMF with its numbers in the text."""

    def item(values: np.ndarray) -> str:
        size = " ".join(map(str, values.shape))
        body = " ".join(map(str, values.ravel().tolist()))
        return f'<DataItem Dimensions="{size}" Format="XML">{body}</DataItem>'

    return (
        f'<Xdmf Version="3.0"><Domain><Grid><Topology TopologyType="{kind}">{item(cells)}'
        f'</Topology><Geometry GeometryType="XYZ">{item(points)}</Geometry></Grid></Domain></Xdmf>'
    )


def test_numbers_in_the_text(tmp_path: Path) -> None:
    path = tmp_path / "mesh.xdmf"
    path.write_text(text_mesh("Triangle", SPHERE.cells, SPHERE.points))
    assert_same(read_surface(path), SPHERE)


# ------------------------------------------------------------------- files that are not a mesh


def damaged(change: Callable[[Path], object]) -> Callable[[Path], Path]:
    """A file maker: a good mesh in mesh.xdmf and mesh.h5, then `change` applied to its folder."""

    def make(folder: Path) -> Path:
        write_surface(folder / "mesh.xdmf", SPHERE)
        change(folder)
        return folder / "mesh.xdmf"

    return make


def replaced(old: str, new: str) -> Callable[[Path], Path]:
    def change(folder: Path) -> None:
        text = (folder / "mesh.xdmf").read_text()
        assert old in text
        (folder / "mesh.xdmf").write_text(text.replace(old, new))

    return damaged(change)


def with_text(name: str, text: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).write_text(text)
        return folder / name

    return make


SQUARES = text_mesh("Quadrilateral", np.array([[0, 1, 2, 3]]), np.eye(4, 3))
FRACTIONS = text_mesh("Triangle", SPHERE.cells + 0.5, SPHERE.points)
HALF_OF_A_SPHERE = (MESHES / "sphere-gmsh.msh").read_text()[:30_000]
NOT_A_NUMBER = text_mesh("Triangle", SPHERE.cells, SPHERE.points).replace("0.0 ", "zero ")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "none.xdmf", "none.xdmf: no such mesh file$"),
        (lambda folder: folder, "must end in .xdmf or .msh"),
        (damaged(lambda folder: (folder / "mesh.h5").unlink()), "the Topology refers to mesh.h5:/"),
        (
            damaged(lambda folder: os.truncate(folder / "mesh.h5", 3000)),
            "mesh.xdmf: the Topology: .*mesh.h5 is damaged or not HDF5: .*truncated",
        ),
        (
            damaged(lambda folder: (folder / "mesh.h5").write_text("no")),
            "mesh.xdmf: the Topology: .*mesh.h5 is damaged or not HDF5",
        ),
        (
            replaced("/Mesh/mesh/geometry", "/Mesh/mesh"),
            "the Geometry refers to mesh.h5:/Mesh/mesh, which holds no numbers",
        ),
        (
            replaced('Dimensions="80 3"', 'Dimensions="40 3"'),
            r"the Topology should have the dimensions \(40, 3\), the data has \(80, 3\)",
        ),
        (replaced('Dimensions="80 3"', 'Dimensions="x"'), "the Topology is not a table of numbers"),
        (replaced("/geometry", "/topology"), "the Geometry should have the dimensions"),
        (replaced('"Triangle"', '"Mixed"'), "the cells are of type Mixed; expected arcs"),
        (replaced('"XYZ"', '"XY"'), "the Geometry has the dimensions .*; expected N x 2"),
        (replaced('"XYZ"', '"X_Y_Z"'), "the Geometry is of type X_Y_Z; expected XY or XYZ"),
        (replaced('"HDF"', '"Binary"'), "is in the format BINARY; expected HDF or XML"),
        (
            replaced('NodesPerElement="3"', 'NodesPerElement="6"'),
            "the cells are of type Triangle with 6 vertices; expected",
        ),
        (replaced("Geometry", "Else"), "no Grid with a Topology and a Geometry"),
        (with_text("a.xdmf", "not XML"), "not an XDMF file: syntax error"),
        (with_text("a.xdmf", SQUARES), "the cells are of type Quadrilateral; expected"),
        (with_text("a.xdmf", FRACTIONS), "cell 0 has the vertices .*, expected integers"),
        (with_text("a.xdmf", NOT_A_NUMBER), "is not a table of numbers: .*'zero'"),
        (with_text("a.msh", "SystemCall 'false';"), "a.msh: not a gmsh mesh file"),
        (with_text("a.msh", "$MeshFormat\n4.1 0 8\n$End"), "a.msh: no mesh in it: it has neither"),
        (with_text("a.msh", HALF_OF_A_SPHERE), "a.msh: gmsh cannot read it: Could not read nodes"),
    ],
)
def test_a_file_that_is_not_a_mesh(
    make: Callable[[Path], Path], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = make(tmp_path)
    with pytest.raises(InputError, match=message) as caught:
        read_surface(path)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")  # no word from HDF5 or gmsh


def test_a_near_miss_in_the_name_is_suggested() -> None:
    with pytest.raises(InputError, match=r"did you mean .*sphere-5120\.xdmf"):
        read_surface(MESHES / "sphere-5210.xdmf")


def test_writing_refuses_other_names_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for name in ("mesh.h5", "mesh", "mesh.msh"):
        with pytest.raises(InputError, match=r"must end in \.xdmf"):
            write_surface(tmp_path / name, CIRCLE)
    with pytest.raises(InputError, match=r"there is no folder .*none"):
        write_surface(tmp_path / "none" / "mesh.xdmf", CIRCLE)
    (tmp_path / "taken.h5").mkdir()
    with pytest.raises(InputError, match=r"taken\.h5: cannot be written \(it is a folder"):
        write_surface(tmp_path / "taken.xdmf", CIRCLE)
    assert os.listdir(tmp_path) == ["taken.h5"]


# ------------------------------------------------------------------------- meshes that are wrong


def test_a_hole_is_named() -> None:
    hole = 17
    message = message_for(Surface(SPHERE.points, np.delete(SPHERE.cells, hole, axis=0)))
    assert "the mesh has a boundary" in message
    assert "belongs to 1 cell (" in message
    assert "(3 facets wrong)" in message
    named = [int(vertex) for vertex in re.findall(r"vertex (\d+) at", message)]
    assert set(named) < set(SPHERE.cells[hole].tolist())


def test_a_gap_in_the_circle_is_named() -> None:
    message = message_for(Surface(CIRCLE.points, CIRCLE.cells[:-1]))
    assert "the facet of vertex 0 at (1, 0) belongs to 1 cell (0)" in message
    assert "(2 facets wrong)" in message


def test_a_seam_of_duplicate_vertices_is_explained() -> None:
    points = np.vstack([CIRCLE.points, CIRCLE.points[:1]])
    cells = CIRCLE.cells.copy()
    cells[-1, 1] = 12
    message = message_for(Surface(points, cells))
    assert message.endswith("vertices 0 and 12 coincide: merge duplicate vertices")


def test_a_branching_mesh_is_named() -> None:
    doubled = Surface(SPHERE.points, np.concatenate([SPHERE.cells, SPHERE.cells[5:6]]))
    assert re.search(r"the mesh branches: .* belongs to 3 cells \(.*\b80\)", message_for(doubled))
    doubled = Surface(CIRCLE.points, np.concatenate([CIRCLE.cells, CIRCLE.cells]))
    assert "belongs to 4 cells (0, 11, 12, 23)" in message_for(doubled)


@pytest.mark.parametrize("surface", [CIRCLE, SPHERE])
def test_two_components_are_named(surface: Surface) -> None:
    size = len(surface.cells)
    message = message_for(copies(surface, surface))
    assert "the mesh has 2 components, expected 1: cell 0 (" in message
    assert f"is in one of {size} cells and cell {size} (" in message


def test_a_vertex_off_the_sphere_is_named() -> None:
    message = message_for(with_points(SPHERE, {7: [0.0, 0.5, 0.0]}))
    assert "vertex 7 at (0, 0.5, 0) is at distance 0.5 from the origin" in message
    assert "whole mesh" not in message
    message = message_for(Surface(SPHERE.points * 2, SPHERE.cells))
    assert message.endswith("the whole mesh has this radius: divide its coordinates by 2")


def test_a_vertex_that_is_not_finite_is_named() -> None:
    assert "vertex 7 at (nan, 0) is not finite" in message_for(
        with_points(CIRCLE, {7: [np.nan, 0]})
    )


def test_arcs_out_of_the_plane_are_named() -> None:
    points = np.column_stack([CIRCLE.points, np.zeros(12)])
    check_surface(Surface(points, CIRCLE.cells), "flat")
    points[3] = [0, 0.6, 0.8]
    assert "vertex 3 at (0, 0.6, 0.8) is off the plane z = 0" in message_for(
        Surface(points, CIRCLE.cells)
    )


def test_degenerate_cells_are_named() -> None:
    cells = SPHERE.cells.copy()
    cells[9, 1] = cells[9, 0]
    assert "cell 9 is degenerate: it has the same vertex twice" in message_for(
        Surface(SPHERE.points, cells)
    )
    # A coinciding pair of vertices with two numbers.
    a, b = SPHERE.cells[9, :2]
    message = message_for(with_points(SPHERE, {a: SPHERE.points[b]}))
    assert "is degenerate: two of its vertices are 0 apart" in message
    # A triangle whose third vertex is on the great circle of the first two.
    a, b, c = SPHERE.cells[9]
    middle = SPHERE.points[a] + SPHERE.points[b]
    message = message_for(with_points(SPHERE, {c: middle / np.linalg.norm(middle)}))
    assert re.search(
        r"cell \d+ \(.*\) is degenerate: its vertices lie on one great circle", message
    )


def test_antipodal_vertices_are_named() -> None:
    arcs = Surface(np.array([[1.0, 0], [0, 1], [-1, 0]]), np.array([[0, 1], [1, 2], [2, 0]]))
    assert "cell 2 (vertex 2 at (-1, 0), vertex 0 at (1, 0)) is degenerate" in message_for(arcs)


def test_a_triangle_over_a_hemisphere_is_named() -> None:
    """Two triangles of the same three vertices on the equator: which hemisphere is which?"""
    points = np.column_stack([circle_surface(3).points, np.zeros(3)])
    message = message_for(Surface(points, np.array([[0, 1, 2], [0, 2, 1]])))
    assert "cell 0 (" in message
    assert "lie on one great circle" in message


def test_folds_are_named() -> None:
    surface = circle_surface(12)
    angle = np.array([0.0, 1, 2, 3, 2.5, 2.2, 3.5, 4, 4.5, 5, 5.5, 6])
    folded = Surface(np.column_stack([np.cos(angle), np.sin(angle)]), surface.cells)
    assert re.search(
        r"cells 2 and 3 overlap: the mesh is folded along .*vertex 3", message_for(folded)
    )
    # A vertex pulled across the opposite edge of one of its triangles.
    moved = SPHERE.points[20] - 3 * (SPHERE.points[20] - SPHERE.points[SPHERE.cells[2, 0]])
    message = message_for(with_points(SPHERE, {20: (moved / np.linalg.norm(moved)).tolist()}))
    assert re.search(r"cells \d+ and \d+ overlap: the mesh is folded along", message)
    # One hemisphere on both sides: closed, and of total area 4 pi, but half the sphere is bare.
    octant = Surface(
        np.array([[1.0, 0, 0], [0, 1, 0], [-1, 0, 0], [0, -1, 0], [0, 0, 1], [0, 0, 1]]),
        np.array([[i, (i + 1) % 4, top] for top in (4, 5) for i in range(4)]),
    )
    assert "overlap: the mesh is folded" in message_for(octant)


def test_a_double_cover_is_named() -> None:
    angle = 4 * np.pi * np.arange(24) / 24
    twice = Surface(np.column_stack([np.cos(angle), np.sin(angle)]), circle_surface(24).cells)
    assert "the cells cover the circle 2 times, expected once" in message_for(twice)
    # Two spheres cut open between the poles along a meridian and joined crosswise.
    rings, around = 4, 16
    theta = np.pi * np.arange(1, rings + 1) / (rings + 1)
    phi = 4 * np.pi * np.arange(around) / around
    grid = np.stack(
        [
            np.outer(np.sin(theta), np.cos(phi)),
            np.outer(np.sin(theta), np.sin(phi)),
            np.outer(np.cos(theta), np.ones(around)),
        ],
        axis=2,
    ).reshape(-1, 3)
    north, south = rings * around, rings * around + 1
    cells = []
    for j in range(around):
        k = (j + 1) % around
        cells.append([north, j, k])
        cells.append([south, (rings - 1) * around + j, (rings - 1) * around + k])
        for i in range(rings - 1):
            a, b, c, d = i * around + j, i * around + k, (i + 1) * around + j, (i + 1) * around + k
            cells += [[a, b, c], [b, d, c]]
    points = np.vstack([grid, [0, 0, 1], [0, 0, -1]])
    message = message_for(Surface(points, np.array(cells)))
    assert "the cells cover the sphere 2 times, expected once" in message


@pytest.mark.parametrize(
    ("surface", "message"),
    [
        (Surface(SPHERE.points, SPHERE.cells[:0]), "the mesh has no cells"),
        (Surface(CIRCLE.points, SPHERE.cells), "expected arcs"),
        (Surface(SPHERE.points, SPHERE.cells + 1), "the vertices of the mesh are numbered 0 to 41"),
        (Surface(SPHERE.points, SPHERE.cells - 1), "the vertices of the mesh are numbered 0 to 41"),
    ],
)
def test_wrong_arrays_are_named(surface: Surface, message: str) -> None:
    assert message in message_for(surface)


def test_a_wrong_mesh_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "hole.xdmf"
    write_surface(path, Surface(SPHERE.points, SPHERE.cells[1:]))
    with pytest.raises(InputError, match=re.escape(f"{path}: the mesh has a boundary: the facet")):
        read_surface(path)


# -------------------------------------------------------------------------------------- gmsh


@pytest.fixture
def gmsh() -> Iterator[ModuleType]:
    module = pytest.importorskip("gmsh")
    module.initialize(readConfigFiles=False, interruptible=False)
    module.option.setNumber("General.Terminal", 0)
    module.option.setNumber("Mesh.MeshSizeMax", 0.3)
    yield module
    if module.isInitialized():
        module.finalize()


@pytest.mark.parametrize("version", [2.2, 4.1])
def test_a_gmsh_sphere(gmsh: ModuleType, version: float, tmp_path: Path) -> None:
    path = tmp_path / "sphere.msh"
    gmsh.option.setNumber("Mesh.MshFileVersion", version)
    gmsh.model.occ.addSphere(0, 0, 0, 1)
    gmsh.model.occ.synchronize()
    gmsh.model.mesh.generate(2)
    gmsh.write(str(path))
    tags, nodes = gmsh.model.mesh.getElementsByType(2)
    numbers, coordinates, _ = gmsh.model.mesh.getNodes()
    place = dict(zip(numbers.tolist(), coordinates.reshape(-1, 3), strict=True))
    current = gmsh.model.getCurrent()
    surface = read_surface(path)
    assert gmsh.model.getCurrent() == current  # the caller's session is left as it was
    assert gmsh.model.mesh.getElementsByType(2)[0].tolist() == tags.tolist()
    expected = np.array([place[node] for node in nodes.tolist()]).reshape(-1, 3, 3)
    expected = expected[np.argsort(tags)]
    np.testing.assert_allclose(surface.points[surface.cells], expected, rtol=0, atol=1e-15)
    # The same elements refused: quadratic, and with the ball inside.
    gmsh.model.mesh.setOrder(2)
    gmsh.write(str(path))
    with pytest.raises(InputError, match="the cells are of type Triangle 6; expected"):
        read_surface(path)
    gmsh.model.mesh.setOrder(1)
    gmsh.model.mesh.generate(3)
    gmsh.write(str(path))
    with pytest.raises(InputError, match="the cells are of type Tetrahedron 4; expected"):
        read_surface(path)


def test_a_gmsh_circle(gmsh: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "circle.msh"
    gmsh.model.occ.addCircle(0, 0, 0, 1)
    gmsh.model.occ.addPoint(0, 0, 0)  # a vertex that no cell uses
    gmsh.model.occ.synchronize()
    gmsh.model.mesh.generate(1)
    gmsh.write(str(path))
    gmsh.model.add("empty")
    gmsh.write(str(tmp_path / "empty.msh"))
    gmsh.finalize()
    surface = read_surface(path)
    assert not gmsh.isInitialized()  # the session it had to open is closed again
    assert surface.dimension == 2
    assert len(surface.cells) == len(surface.points) >= 20
    with pytest.raises(InputError, match="it has neither lines nor triangles"):
        read_surface(tmp_path / "empty.msh")


def test_without_gmsh_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gmsh", None)
    with pytest.raises(InputError, match=r"pip install 'meanfield_pde\[gmsh\]'"):
        read_surface(MESHES / "sphere-gmsh.msh")


# ------------------------------------------------------------------------------- the ready ones


def test_the_ready_meshes_pass_the_check() -> None:
    pytest.importorskip("gmsh")
    sizes = {
        path.name: len(read_surface(path).cells)
        for path in MESHES.iterdir()
        if path.suffix in (".xdmf", ".msh")
    }
    assert sizes == {
        "circle-400.xdmf": 400,
        "sphere-5120.xdmf": 5120,
        "sphere-5120-graded.xdmf": 5120,
        "sphere-gmsh.msh": 2268,
    }
    assert_same(read_surface(MESHES / "sphere-5120.xdmf"), sphere_surface(5120))
    assert all(path.stat().st_size < 300_000 for path in MESHES.iterdir())
