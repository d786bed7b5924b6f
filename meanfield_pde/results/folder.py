"""The result folder: what a run writes, and how it is read back.

    case.toml       the case as run, every default spelled out
    history.csv     a row for each saved time
    density.h5      /points /volumes /spread /vertices /times /masses, and if compared with,
                    /zero_temperature/masses and /limit; cells in the mesh's input order;
                    if the mesh is adaptive, the arrays of all times one after the other,
                    /offsets saying where each time begins, and /coarsest, the mesh it began as
    density.journal the latest densities, until density.h5 takes them in (`FileStore`)
    checkpoint.h5   the state of the evolution, for a restart; checkpoint.previous.h5 the one before
    summary.json    what was concluded
    fields/         the density for ParaView
    figures/        PNG files

Files are written by rank 0, at once and whole, or in lines and records that are checked when they
are read; a run that is killed leaves valid ones. A checksum is part of the file that it is about,
so that neither is ever there without the other: at the end of density.h5 and checkpoint.h5, in each
record of the journal, in the last line of case.toml, under a key of summary.json. A table cannot
hold one, so the rows of history.csv are kept in density.h5 as well, with which it has to agree.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from meanfield_pde.case.attention_table import TERMS
from meanfield_pde.case.case import Case
from meanfield_pde.case.file import attention_of, parse, read_case
from meanfield_pde.case.text import FREE, differing_keys, same_problem
from meanfield_pde.errors import InputError
from meanfield_pde.history.checks import check_saved
from meanfield_pde.history.file_store import FileStore
from meanfield_pde.history.history import History
from meanfield_pde.history.store import CELLS
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.results.checked_text import read_case_text
from meanfield_pde.results.names import (
    CASE,
    COARSEST,
    DENSITY,
    HISTORY,
    SUMMARY,
)
from meanfield_pde.results.tables import check_columns, check_history, read_history
from meanfield_pde.solver.saved_velocity import velocity_at
from meanfield_pde.solver.settings import CompareCase, NoiseCase, SolverCase
from meanfield_pde.support.arguments import typed, typed_except
from meanfield_pde.support.checked_hdf5 import open_checked
from meanfield_pde.support.hdf5 import UNREADABLE, read_array
from meanfield_pde.support.old_names import Columns, new_columns
from meanfield_pde.wasserstein.measure import Measure

LOG = logging.getLogger("meanfield_pde")
_WARNED: set[Path] = set()


@dataclass(frozen=True, eq=False)
class Result(History):
    """A result folder that has been read.

    Attributes:
        directory: where it is.
        case_text: the text of case.toml.
    """

    store: FileStore
    directory: Path = Path()
    case_text: str = ""

    @cached_property
    def case(self) -> Case:
        """The case as run; the files that it names have to be there."""
        return read_case(self.directory / CASE)

    @typed_except("points", "index")
    def velocity_at(self, points: np.ndarray, index: int = -1) -> np.ndarray:
        """The velocity at points, as `Solution.velocity_at`."""
        settings = parse(self.case_text).get("solver", {})
        tolerance = settings.get("tolerance", SolverCase.tolerance)
        return velocity_at(self, points, index, tolerance)


@typed
def read_result(directory: str | Path) -> Result:
    """Read the result folder of a run; its densities are read when they are asked for.

    Each file is held against its checksum; a folder of an earlier version has none, as a warning
    says.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such result folder")
    for name in (CASE, HISTORY, DENSITY):
        if not (folder / name).is_file():
            raise InputError(f"{folder}: not a result folder, {name} is missing")
    store, saved = _saved(folder)
    columns = Columns(zip(new_columns(saved, folder), saved.values(), strict=True))
    cells, limit, origin = _constants(folder / DENSITY)
    check_columns(folder / HISTORY, columns, cells.dimension)
    text = read_case_text(folder, checked=store.checked)
    tables = parse(text)
    try:
        if origin is not None and not same_problem(text, origin):
            changed = differing_keys(text, origin, ignore=FREE)
            raise InputError(f"{DENSITY} was computed from another, with other {changed[0]}")
        beside = {name: tables[name] for name in TERMS if name in tables}
        attention = attention_of(tables["attention"], folder, beside)
        cost = tables.get("compare", {}).get("cost", CompareCase.cost)
        noise = NoiseCase(**tables.get("noise", {})).strength
    except (InputError, KeyError, AttributeError, TypeError) as error:
        raise InputError(f"{folder / CASE}: not the case of a run ({error})") from None
    if not store.checked:
        warn_unchecked(folder)
    return Result(
        attention=attention,
        cells=cells,
        store=store,
        history=columns,
        limit=limit,
        directory=folder,
        case_text=text,
        cost=cost,
        noise=noise,
    )


def _saved(folder: Path) -> tuple[FileStore, dict[str, np.ndarray]]:
    """The densities, and the columns of the history as they are called there, which agree."""
    path = folder / HISTORY
    finished = (folder / SUMMARY).is_file()
    try:
        before = path.read_bytes()
        store = FileStore.open(folder / DENSITY)
        after = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: not a readable history ({error})") from error
    if not store.checked:
        return store, _unchecked_history(path, store)
    if not store.rows:
        raise InputError(f"{store.path}: not a readable density file (it has no rows of {HISTORY})")
    try:
        check_history(before, after, store.rows, finished=finished)
    except (ValueError, OverflowError) as error:
        raise InputError(f"{path}: not a readable history ({error})") from error
    return store, {name: np.array([row[name] for row in store.rows]) for name in store.rows[0]}


def _unchecked_history(path: Path, store: FileStore) -> dict[str, np.ndarray]:
    """The history of an earlier version; what is read of the densities is held against it."""
    columns = read_history(path)
    # A run that was stopped may have saved one density more than rows of the history, and one of
    # an earlier version several rows more than densities.
    saved = min(len(store), *map(len, columns.values()))
    if saved < len(store) - 1 or not saved:
        raise InputError(f"{path}: has fewer rows than {DENSITY} has times")
    del store.times[saved:]
    columns = {name: column[:saved] for name, column in columns.items()}
    if not np.array_equal(columns.get("time", ()), store.times):
        raise InputError(f"{path}: its times are not those of {DENSITY}")
    store.rows = [
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    ]
    return columns


def _constants(path: Path) -> tuple[Cells, Measure | None, str | None]:
    """The cells, the limit measure if there is one, and the text of the case if it is there."""
    try:
        with open_checked(path) as file:
            prefix = COARSEST if COARSEST in file else ""
            arrays = {name: read_array(file[prefix + name]) for name in CELLS}
            for name, array in arrays.items():
                check_saved(name, array)
            limit: Measure | None = None
            if "limit" in file:
                group = file["limit"]
                spreads = read_array(group["spread"]) if "spread" in group else None
                limit = Measure(read_array(group["points"]), read_array(group["masses"]), spreads)
            shape = file["masses"].shape
            origin = file.attrs.get("case")
    except UNREADABLE as error:
        raise InputError(f"{path}: not a readable density file ({error})") from error
    cells = Cells(**arrays)
    count = len(cells.points)
    if not prefix and shape[1:] != (count,):
        raise InputError(f"{path}: masses must be times x cells")
    if any(array.shape != (count,) for array in (cells.volumes, cells.spread)):
        raise InputError(f"{path}: volumes and spread must be numbers for each cell")
    if cells.vertices.shape != (count, cells.dimension, cells.dimension):
        raise InputError(f"{path}: vertices must be the corners of each cell")
    return cells, limit, origin if isinstance(origin, str) else None


def warn_unchecked(folder: Path) -> None:
    """Say that a folder has no checksums, once in a process."""
    if folder not in _WARNED:
        _WARNED.add(folder)
        LOG.warning(
            "%s: written by an earlier version, without checksums; damage to its files may not be "
            "noticed",
            folder,
        )
