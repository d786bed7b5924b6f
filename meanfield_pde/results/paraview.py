"""The density for ParaView: one number per cell, at every saved time.

    .pvd    a .vtu file (XML, base64) for each time, in double precision
    .xdmf   an HDF5 file for each time, and one with the mesh, in single precision: a third the size

Written by rank 0 from the masses in input order: the same files on every number of ranks. DOLFINx's
own writers leave truncated files behind when they are killed, and one file per rank; here each file
takes its place when it is complete, and the index that names it comes after it. Nobody waits for
the disk: a run that goes on after the machine has failed writes all of them again.
"""

from __future__ import annotations

import base64
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np

from meanfield_pde.history.store import MASSES
from meanfield_pde.mesh.surface import Surface
from meanfield_pde.results.names import FIELDS
from meanfield_pde.solver.simulation import Observer, Simulation
from meanfield_pde.support.files import make_folder, replace_file, replace_text
from meanfield_pde.support.hdf5 import new_hdf5
from meanfield_pde.support.ranks import on_root

_VTK_CELLS = {2: 3, 3: 5}  # line, triangle
_XDMF_CELLS = {2: "Polyline", 3: "Triangle"}
_XDMF_TYPES = {"i": "Int", "f": "Float"}
_HEAD = "<?xml version='1.0' encoding='utf-8'?>\n"
# What stands in an index before the entries of the saved times, and after them.
_FRAMES = {
    "pvd": (
        _HEAD + '<VTKFile type="Collection" version="1.0" byte_order="LittleEndian">\n'
        "  <Collection>\n",
        "  </Collection>\n</VTKFile>\n",
    ),
    "xdmf": (
        _HEAD + '<Xdmf Version="3.0">\n  <Domain>\n'
        '    <Grid Name="density" GridType="Collection" CollectionType="Temporal">\n',
        "    </Grid>\n  </Domain>\n</Xdmf>\n",
    ),
}


class FieldWriter(Observer):
    """Writes fields/density.pvd or fields/density.xdmf as the run goes on."""

    def __init__(self, directory: Path, kind: str) -> None:
        self._folder = directory / FIELDS
        self._kind = kind
        self._moves = False  # whether each time has its own grid
        self._points = np.zeros((0, 3))
        self._cells = np.zeros((0, 2), dtype=np.int64)
        self._entries: list[str] = []  # of the index, one for each time

    def started(self, simulation: Simulation) -> None:
        """Prepare the mesh, and write again what was saved before a restart. Collective."""
        self._moves = simulation.evolution.adapt is not None
        self._take(simulation.volumes.surface())
        on_root(simulation.comm, self._begin, simulation)

    def saved(self, simulation: Simulation) -> None:
        """Write the density at the time just saved. Collective."""
        on_root(simulation.comm, self._write, simulation, len(simulation.store) - 1)

    def _take(self, surface: Surface) -> None:
        """Take a grid: points in space, and triangles whose normals point outward."""
        points, cells = surface.points, surface.cells
        self._points = np.zeros((len(points), 3))
        self._points[:, : surface.dimension] = points
        self._cells = _outward(points, cells) if surface.dimension == 3 else cells

    def _begin(self, simulation: Simulation) -> None:
        make_folder(self._folder)
        if self._kind == "xdmf" and not self._moves:
            mesh = {"points": self._points, "cells": self._cells}
            self._write_arrays(self._folder / "mesh.h5", **mesh)
        for index in range(len(simulation.store)):
            self._write(simulation, index)

    def _write(self, simulation: Simulation, index: int) -> None:
        """The file of one time, then the index of all up to it."""
        store = simulation.store
        volumes = simulation.cells.volumes
        if self._moves:
            volumes = store.read(index, "volumes")
            self._take(Surface.of_corners(store.read(index, "vertices")))
        fields = {"density": store.read(index, MASSES) / volumes}
        suffix, write, listing = {
            "pvd": ("vtu", self._write_vtu, self._pvd_entry),
            "xdmf": ("h5", self._write_single, self._xdmf_entry),
        }[self._kind]
        name = f"density{index:06d}.{suffix}"
        write(self._folder / name, fields)
        self._entries.append(listing(store.times[index], name, list(fields)))
        begin, end = _FRAMES[self._kind]
        index_of_all = "".join([begin, *self._entries, end])
        replace_text(self._folder / f"density.{self._kind}", index_of_all, wait=False)

    def _write_vtu(self, path: Path, fields: dict[str, np.ndarray]) -> None:
        count, corners = self._cells.shape
        root = _vtk_root("UnstructuredGrid", header_type="UInt64")
        grid = ET.SubElement(root, "UnstructuredGrid")
        size = {"NumberOfPoints": str(len(self._points)), "NumberOfCells": str(count)}
        piece = ET.SubElement(grid, "Piece", size)
        _add_array(ET.SubElement(piece, "Points"), "Points", self._points)
        cells = ET.SubElement(piece, "Cells")
        _add_array(cells, "connectivity", self._cells)
        _add_array(cells, "offsets", corners * np.arange(1, count + 1))
        _add_array(cells, "types", np.full(count, _VTK_CELLS[corners], dtype=np.uint8))
        data = ET.SubElement(piece, "CellData", Scalars="density")
        for name, values in fields.items():
            _add_array(data, name, values)
        _write_xml(path, root)

    def _pvd_entry(self, time: float, name: str, fields: list[str]) -> str:
        return f'    <DataSet timestep="{time!r}" part="0" file="{name}" />\n'

    def _write_single(self, path: Path, fields: dict[str, np.ndarray]) -> None:
        grid = {"points": self._points, "cells": self._cells} if self._moves else {}
        single = {name: values.astype("f4") for name, values in fields.items()}
        self._write_arrays(path, **grid, **single)

    def _write_arrays(self, path: Path, **arrays: np.ndarray) -> None:
        def write(temporary: Path) -> None:
            with new_hdf5(temporary) as file:
                for name, array in arrays.items():
                    file[name] = array

        replace_file(path, write, wait=False)

    def _xdmf_entry(self, time: float, name: str, fields: list[str]) -> str:
        count, corners = self._cells.shape
        mesh = name if self._moves else "mesh.h5"
        layout = {"NumberOfElements": str(count), "NodesPerElement": str(corners)}
        grid = ET.Element("Grid", Name="mesh", GridType="Uniform")
        ET.SubElement(grid, "Time", Value=repr(time))
        topology = ET.SubElement(grid, "Topology", layout, TopologyType=_XDMF_CELLS[corners])
        _add_item(topology, self._cells, f"{mesh}:/cells")
        geometry = ET.SubElement(grid, "Geometry", GeometryType="XYZ")
        _add_item(geometry, self._points, f"{mesh}:/points")
        for field in fields:
            values = ET.SubElement(
                grid, "Attribute", Name=field, AttributeType="Scalar", Center="Cell"
            )
            _add_item(values, np.zeros(count, dtype="f4"), f"{name}:/{field}")
        ET.indent(grid, level=3)
        return "      " + ET.tostring(grid, encoding="unicode").rstrip() + "\n"


def _outward(vertices: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Triangles turned so that their normals point outward."""
    inward = np.linalg.det(vertices[cells]) < 0
    return np.where(inward[:, None], cells[:, [0, 2, 1]], cells)


def _vtk_root(kind: str, **attributes: str) -> ET.Element:
    return ET.Element("VTKFile", attributes, type=kind, version="1.0", byte_order="LittleEndian")


def _add_array(parent: ET.Element, name: str, values: np.ndarray) -> None:
    """An array of a VTK file: base64 of its length in bytes and its bytes."""
    kind = {"f": "Float", "i": "Int", "u": "UInt"}[values.dtype.kind]
    array = ET.SubElement(
        parent, "DataArray", type=f"{kind}{8 * values.dtype.itemsize}", Name=name, format="binary"
    )
    if values.ndim == 2 and name == "Points":
        array.set("NumberOfComponents", "3")
    data = values.astype(values.dtype.newbyteorder("<")).tobytes()
    array.text = base64.b64encode(len(data).to_bytes(8, "little") + data).decode()


def _add_item(parent: ET.Element, values: np.ndarray, where: str) -> None:
    """Where an array of an XDMF file is, and its shape and type."""
    item = ET.SubElement(
        parent,
        "DataItem",
        Dimensions=" ".join(map(str, values.shape)),
        NumberType=_XDMF_TYPES[values.dtype.kind],
        Precision=str(values.dtype.itemsize),
        Format="HDF",
    )
    item.text = where


def _write_xml(path: Path, root: ET.Element) -> None:
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
    replace_text(path, text, wait=False)
