"""How saved densities stand in an HDF5 file, and what of it is known without reading them.

times                  the saved times
history                the row of the history at each of them; attribute `columns`
masses, ...            times x cells; or, where the mesh moves, one time after the other, and
offsets                where each of them begins, for all arrays of the same group
attribute `saved`      the names of the arrays
"""

from __future__ import annotations

from dataclasses import dataclass, field

import h5py
import numpy as np

from meanfield_pde.history.checks import check_times
from meanfield_pde.history.journal import Record
from meanfield_pde.history.store import CELLS, MASSES, ZERO_MASSES, Row, least_rows
from meanfield_pde.support.hdf5 import read_array, shape_of

TIMES, ROWS, SAVED, COLUMNS = "times", "history", "saved", "columns"


@dataclass
class Found:
    """What is there: of the file, and of the journal what is not in the file yet."""

    times: list[float] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    folded: int = 0
    records: list[Record] = field(default_factory=list)
    checked: bool = True


def scan_file(file: h5py.File, found: Found) -> None:
    """Take times, rows and names from a file; ValueError, or what h5py raises, if they are none."""
    times = read_array(file[TIMES])
    check_times(times)
    found.times, found.folded = times.tolist(), len(times)
    found.names = _time_series(file, len(times))
    if ROWS in file:
        rows, columns = read_array(file[ROWS]), [str(one) for one in file[ROWS].attrs[COLUMNS]]
        if rows.dtype.kind != "f" or rows.shape != (len(times), len(columns)):
            raise ValueError(f"{ROWS} must be times x columns")
        found.rows = [dict(zip(columns, row, strict=True)) for row in rows.tolist()]


def offsets(name: str) -> str:
    """Name of the dataset that says where, in the one of this name, each time begins."""
    return name.rpartition("/")[0] + "/offsets"


def _time_series(file: h5py.File, saved: int) -> list[str]:
    """Names of the datasets that hold an array for each saved time."""
    known = [name for name in (MASSES, ZERO_MASSES) if name in file]
    names = [str(name) for name in file.attrs.get(SAVED, known)]
    for name in (MASSES, *names):
        if CELLS[0] in names:
            begin = read_array(file[offsets(name)])
            if begin.dtype.kind not in "iu" or begin.shape != (saved + 1,):
                raise ValueError(f"{offsets(name)} must be {saved + 1} whole numbers")
            rising = begin[0] == 0 and (np.diff(begin) >= least_rows(name)).all()
            if not rising or shape_of(file[name])[:1] != (begin[-1],):
                raise ValueError(f"{name} does not agree with {offsets(name)}")
        elif shape_of(file[name])[:1] != (saved,):
            raise ValueError(f"{name} must be times x cells")
    return names
