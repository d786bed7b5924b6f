"""Meshes of the circle and the sphere in files: XDMF read and written, gmsh's `.msh` read.

A mesh from a file has passed `checks.check_surface`, and its cells keep the order they have in
the file; the results are written in that order too.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as ET

from mpi4py import MPI

import h5py
import numpy as np
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde.errors import InputError
from meanfield_pde.mesh.checks import check_surface
from meanfield_pde.mesh.surface import Surface, build_mesh, on_sphere
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.files import check_output, flush, put_in_place, writing
from meanfield_pde.support.hdf5 import new_hdf5, read_array
from meanfield_pde.support.ranks import on_root

_GMSH_HINT = "reading a .msh file needs gmsh: pip install 'meanfield_pde[gmsh]'"
_GMSH_LINE, _GMSH_TRIANGLE = 1, 2  # types of elements in the format of gmsh
_EXPECTED = "expected arcs (polylines of 2 vertices) or triangles, of first order"


@typed
def read_mesh(path: str | Path, comm: MPI.Comm = MPI.COMM_WORLD) -> dolfinx_mesh.Mesh:
    """Read a mesh file on rank 0, check it, and distribute it.

    An error is raised on every rank, so that no rank is left waiting for the others.
    """
    found: list[Surface] = []

    def read() -> int:
        found.append(read_surface(path))
        return found[0].dimension

    d = on_root(comm, read)
    nothing = Surface(np.zeros((0, d)), np.zeros((0, d), dtype=np.int64))
    return build_mesh(found[0] if found else nothing, comm)


def read_surface(path: str | Path) -> Surface:
    """Read and check the mesh in an `.xdmf` or `.msh` file; not collective.

    The cells keep their order. Vertices that no cell uses are dropped, the others keep their order.
    Vertices within 1e-6 of the unit sphere are moved onto it; those that are on it to rounding are
    kept bit for bit.
    """
    path = Path(path)
    readers = {".xdmf": _read_xdmf, ".msh": _read_msh}
    if path.suffix not in readers:
        raise InputError(f"{path}: a mesh file must end in .xdmf or .msh")
    if not os.path.isfile(path):  # unlike path.is_file(), False where a folder may not be read
        raise InputError(f"{path}: no such mesh file{_suggestion(path)}")
    surface = readers[path.suffix](path)
    check_surface(surface, str(path))
    return on_sphere(surface)


def write_surface(path: str | Path, surface: Surface) -> None:
    """Write a mesh as XDMF with an HDF5 file beside it; for one rank only.

    `read_surface` gives back the same points, bit for bit, and the same cells in the same order
    (DOLFINx's own writer renumbers both). Both files are complete before either takes its name.
    """
    path = Path(path)
    if path.suffix != ".xdmf":
        raise InputError(f"{path}: a mesh is written as XDMF, the file name must end in .xdmf")
    data = path.with_suffix(".h5")
    for one in (path, data):
        check_output(one)
    with writing(path):
        # The XDMF file names its HDF5 file, so both are written under their final names elsewhere.
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".mesh-") as scratch:
            new_data, new_path = Path(scratch) / data.name, Path(scratch) / path.name
            # Not compressed: the HDF5 of the PyPI build of DOLFINx cannot read compressed data.
            with new_hdf5(new_data) as file:
                file["/Mesh/mesh/topology"] = np.asarray(surface.cells, dtype=np.int64)
                file["/Mesh/mesh/geometry"] = np.asarray(surface.points, dtype=np.float64)
            new_path.write_bytes(_xdmf_text(surface, data.name))
            for new in (new_data, new_path):
                flush(new)
            # The HDF5 file first. The XDMF text depends on the sizes alone, which the reader
            # compares, so that an old text never passes for a description of the new data.
            put_in_place(new_data, data)
            put_in_place(new_path, path)
        flush(path.parent)


def _xdmf_text(surface: Surface, data_name: str) -> bytes:
    """XDMF 3 as DOLFINx and ParaView read it."""
    cells, d = surface.cells.shape
    kind = {2: ("Polyline", "XY"), 3: ("Triangle", "XYZ")}[d]
    root = ET.Element("Xdmf", Version="3.0")
    domain = ET.SubElement(root, "Domain")
    grid = ET.SubElement(domain, "Grid", Name="mesh", GridType="Uniform")
    topology = ET.SubElement(
        grid,
        "Topology",
        TopologyType=kind[0],
        NumberOfElements=str(cells),
        NodesPerElement=str(d),
    )
    geometry = ET.SubElement(grid, "Geometry", GeometryType=kind[1])
    for parent, number_type, size, dataset in (
        (topology, "Int", cells, "topology"),
        (geometry, "Float", len(surface.points), "geometry"),
    ):
        item = ET.SubElement(
            parent,
            "DataItem",
            Dimensions=f"{size} {d}",
            NumberType=number_type,
            Precision="8",
            Format="HDF",
        )
        item.text = f"{data_name}:/Mesh/mesh/{dataset}"
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _read_xdmf(path: Path) -> Surface:
    """The first grid of an XDMF file, whatever its name (DOLFINx and meshio choose different ones).

    Read with h5py and not with DOLFINx's XDMFFile, which prints the HDF5 library's error stack,
    needs the name of the grid, and in its PyPI build cannot read compressed files (meshio's).
    """
    try:
        root = ET.parse(path).getroot()
    except (ET.ParseError, LookupError, ValueError, OSError) as error:
        raise InputError(f"{path}: not an XDMF file: {error}") from error
    for grid in root.iter("Grid"):
        topology, geometry = grid.find("Topology"), grid.find("Geometry")
        if topology is not None and geometry is not None:
            break
    else:
        raise InputError(f"{path}: no mesh in it: no Grid with a Topology and a Geometry")
    kind = topology.get("TopologyType", topology.get("Type", "unknown"))
    vertices = {"polyline": 2, "triangle": 3}.get(kind.lower())
    nodes = topology.get("NodesPerElement", str(vertices))
    if vertices is None or nodes != str(vertices):
        detail = "" if vertices is None else f" with {nodes} vertices"
        raise InputError(f"{path}: the cells are of type {kind}{detail}; {_EXPECTED}")
    space = geometry.get("GeometryType", geometry.get("Type", "XYZ"))
    columns = {"XY": 2, "XYZ": 3}.get(space.upper())
    if columns is None:
        raise InputError(f"{path}: the Geometry is of type {space}; expected XY or XYZ")
    cells = _read_item(path, topology, vertices)
    points = _read_item(path, geometry, columns)
    numbers = np.nan_to_num(cells, nan=-1.0, posinf=-1.0, neginf=-1.0).astype(np.int64)
    wrong = np.flatnonzero((numbers != cells).any(axis=1))
    if len(wrong):
        raise InputError(
            f"{path}: cell {wrong[0]} has the vertices {cells[wrong[0]].tolist()}, expected "
            "integers"
        )
    return Surface(points.astype(np.float64), numbers)


def _read_item(path: Path, parent: ET.Element, columns: int) -> np.ndarray:
    """The table that an XDMF Topology or Geometry refers to, or holds as text."""
    where = f"{path}: the {parent.tag}"
    item = parent.find("DataItem")
    text = "" if item is None else (item.text or "").strip()
    if item is None or not text:
        raise InputError(f"{where} holds no data")
    form = item.get("Format", "XML").upper()
    try:
        shape = tuple(int(size) for size in item.get("Dimensions", "").split())
        if form == "XML":
            values = np.array(text.split(), dtype=np.float64).reshape(shape)
    except ValueError as error:
        raise InputError(f"{where} is not a table of numbers: {error}") from error
    if form == "HDF":
        values = _read_dataset(path, where, text)
    elif form != "XML":
        raise InputError(f"{where} is in the format {form}; expected HDF or XML")
    if values.shape != shape:
        raise InputError(
            f"{where} should have the dimensions {shape}, the data has {values.shape}: {text[:80]}"
        )
    if values.ndim == 1 and values.size % columns == 0:
        values = values.reshape(-1, columns)
    if values.ndim != 2 or values.shape[1] != columns:
        raise InputError(f"{where} has the dimensions {shape}; expected N x {columns}")
    return values


def _read_dataset(path: Path, where: str, reference: str) -> np.ndarray:
    """The data behind `file.h5:/dataset`, the file being named relative to the XDMF file."""
    name, _, dataset = reference.rpartition(":")
    data = path.parent / name
    if not os.path.isfile(data):
        raise InputError(f"{where} refers to {reference}, but there is no file {data}")
    try:
        with h5py.File(data, "r") as file:
            node = file.get(dataset) if dataset else None
            if not isinstance(node, h5py.Dataset) or node.dtype.kind not in "iuf":
                raise InputError(f"{where} refers to {reference}, which holds no numbers")
            try:
                return read_array(node)
            except ValueError as error:
                raise InputError(f"{where}: {data}: {error}") from None
    except OSError as error:
        raise InputError(f"{where}: {data} is damaged or not HDF5: {error}") from error


def _read_msh(path: Path) -> Surface:
    """A gmsh file: its triangles, or its lines if it has none; by element and node number."""
    try:
        with path.open("rb") as file:
            beginning = file.read(11)
    except OSError as error:
        raise InputError(f"{path}: cannot read it: {error.strerror}") from error
    # Anything else gmsh would run as a script in its own language.
    if not beginning.startswith((b"$MeshFormat", b"$Comments", b"$NO")):
        raise InputError(f"{path}: not a gmsh mesh file: it does not begin with $MeshFormat")
    with _gmsh_session() as gmsh:
        try:
            gmsh.merge(str(path))
        except Exception as error:  # gmsh raises nothing narrower
            raise InputError(f"{path}: gmsh cannot read it: {error}") from error
        node_tags, coordinates, _ = gmsh.model.mesh.getNodes()
        kinds, element_tags, element_nodes = gmsh.model.mesh.getElements()
        properties = [gmsh.model.mesh.getElementProperties(kind) for kind in kinds]
    # Elements on the corners of the geometry, and on the curves of a surface, come with the mesh.
    top = max((dimension for _, dimension, *_ in properties), default=0)
    if top == 0:
        raise InputError(f"{path}: no mesh in it: it has neither lines nor triangles")
    names = [name for name, dimension, *_ in properties if dimension == top]
    main = [i for i, (_, dimension, *_) in enumerate(properties) if dimension == top]
    if len(main) != 1 or kinds[main[0]] not in (_GMSH_LINE, _GMSH_TRIANGLE):
        raise InputError(f"{path}: the cells are of type {' and '.join(names)}; {_EXPECTED}")
    node_order = np.argsort(node_tags)
    nodes = element_nodes[main[0]].reshape(len(element_tags[main[0]]), -1)
    cells = np.searchsorted(node_tags, nodes[np.argsort(element_tags[main[0]])], sorter=node_order)
    return Surface(coordinates.reshape(-1, 3)[node_order], cells.astype(np.int64))


@contextlib.contextmanager
def _gmsh_session() -> Iterator[ModuleType]:
    """gmsh, silent, with an empty model of its own, leaving a session of the caller as it was."""
    try:
        import gmsh
    except (ImportError, OSError) as error:  # OSError: a graphics library of the system is missing
        raise InputError(f"{_GMSH_HINT} ({error})") from error
    outer = bool(gmsh.isInitialized())
    if not outer:
        gmsh.initialize(readConfigFiles=False, interruptible=False)
    terminal = gmsh.option.getNumber("General.Terminal")
    current = gmsh.model.getCurrent()
    gmsh.option.setNumber("General.Terminal", 0)
    gmsh.model.add("meanfield_pde")
    try:
        yield gmsh
    finally:
        gmsh.model.remove()
        gmsh.option.setNumber("General.Terminal", terminal)
        if outer:
            gmsh.model.setCurrent(current)
        else:
            gmsh.finalize()


def _suggestion(path: Path) -> str:
    """The mesh file in the same folder whose name is nearest to the one that does not exist."""
    names = [p.name for p in path.parent.glob("*") if p.suffix in (".xdmf", ".msh")]
    near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)
    return f"; did you mean {path.parent / near[0]}?" if near else ""
