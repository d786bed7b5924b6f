"""Arrays with names, dimensions and units, as files (.nc, .npz, .csv) and for xarray.

.nc     netCDF 3 with 64-bit offsets, by scipy: dimensions, coordinates, units and attributes
.npz    every array under its name
.csv    a row for each point and time: coordinates, then values; full precision, nan as empty cell
"""

from __future__ import annotations

import csv
import importlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import scipy.io

from meanfield_pde.errors import InputError
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.files import make_folder, replace_file
from meanfield_pde.support.npz import write_arrays

if TYPE_CHECKING:
    import xarray

_SUFFIXES = (".nc", ".npz", ".csv")
INSTALL_HINT = "pip install 'meanfield_pde[xarray]'"
_ROWS = 65_536  # of a table whose text is made at once: 10 MB


@dataclass(frozen=True, eq=False)
class Labelled:
    """An array with names for its axes.

    Attributes:
        dims: of each axis.
        values: the array.
        unit: of the values, "1" for a number.
        meaning: what they are.
    """

    dims: tuple[str, ...]
    values: np.ndarray
    unit: str
    meaning: str

    @property
    def attributes(self) -> dict[str, str]:
        """As in files and in xarray, by the names of the CF conventions."""
        return {"units": self.unit, "long_name": self.meaning}


@dataclass(frozen=True, eq=False)
class LabelledArrays:
    """Arrays on common dimensions.

    Attributes:
        coordinates: where and when, by name; one named like a dimension is that of its axis.
        variables: what there is, by name.
        attributes: of all of it.
    """

    coordinates: dict[str, Labelled]
    variables: dict[str, Labelled]
    attributes: dict[str, str] = field(default_factory=dict)

    @typed
    def write(self, path: str | Path) -> None:
        """Write a file, whole, in the format that its name ends in; its folder is made."""
        path = check_suffix(Path(path))
        if path.suffix.lower() == ".npz":
            every = self.coordinates | self.variables
            write_arrays(path, {name: one.values for name, one in every.items()})
            return
        write = self._write_table if path.suffix.lower() == ".csv" else self._write_netcdf
        make_folder(path.parent)
        replace_file(path, write)

    def to_xarray(self) -> xarray.Dataset:
        """The same as a dataset of xarray; InputError, with an install hint, where that is not."""
        try:
            package = importlib.import_module("xarray")
        except ModuleNotFoundError:
            raise InputError(f"a dataset needs the package xarray: {INSTALL_HINT}") from None
        made = {
            kind: {name: (one.dims, one.values, one.attributes) for name, one in arrays.items()}
            for kind, arrays in (("coords", self.coordinates), ("data_vars", self.variables))
        }
        return package.Dataset(**made, attrs=self.attributes)

    def _write_netcdf(self, path: Path) -> None:
        every = self.coordinates | self.variables
        sizes: dict[str, int] = {}
        for one in every.values():
            sizes |= zip(one.dims, one.values.shape, strict=True)
        beside = " ".join(name for name in self.coordinates if name not in sizes)
        with scipy.io.netcdf_file(path, "w", version=2) as file:
            for name, text in self.attributes.items():
                setattr(file, name, text.encode())
            for dim, size in sizes.items():
                file.createDimension(dim, size)
            for name, one in every.items():
                variable = file.createVariable(name, "f8", one.dims)
                variable[:] = one.values
                for key, text in one.attributes.items():
                    setattr(variable, key, text.encode())
                if beside and name in self.variables:
                    variable.coordinates = beside.encode()

    def _write_table(self, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow([*self.coordinates, *self.variables])
            for rows in self._rows():
                writer.writerows(rows)

    def _rows(self) -> Iterator[list[list[str]]]:
        """The rows of the table, some at a time: one for each entry of the largest array."""
        every = [*self.coordinates.values(), *self.variables.values()]
        largest = max(every, key=lambda one: len(one.dims))
        for start in range(0, largest.values.size, _ROWS):
            part = np.arange(start, min(start + _ROWS, largest.values.size))
            places = np.unravel_index(part, largest.values.shape)
            place = dict(zip(largest.dims, places, strict=True))
            columns = [one.values[tuple(place[dim] for dim in one.dims)] for one in every]
            yield [
                ["" if x != x else repr(x) for x in row] for row in np.transpose(columns).tolist()
            ]


def check_suffix(path: Path) -> Path:
    """The path; InputError unless its name ends so, in letters of either case."""
    if path.suffix.lower() not in _SUFFIXES:
        raise InputError(f"{path}: the name must end in .nc, .npz or .csv, got '{path.suffix}'")
    return path
