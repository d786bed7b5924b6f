"""The result folder: what a run writes, and how it is read back.

    case.toml       the case as run, every default spelled out
    history.csv     a row for each saved time
    density.h5      /points /volumes /spread /vertices /times /masses, and if compared with,
                    /zero_temperature/masses and /limit; cells in the mesh's input order;
                    if the mesh follows the mass, the arrays of all times one after the other,
                    /offsets saying where each time begins, and /coarsest, the mesh it began as
    density.journal the latest densities, until density.h5 takes them in (`FileStore`)
    checkpoint.h5   the state of the evolution, for a restart; checkpoint.previous.h5 the one before
    summary.json    what was concluded
    fields/         the density for ParaView
    figures/        PNG files

Files are written by rank 0, at once and whole, or in lines and records that are checked when they
are read; a run that is killed leaves valid ones.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import h5py

from meanfield_pde.case.case import Case
from meanfield_pde.case.file import attention_of, parse, read_case
from meanfield_pde.case.text import differing_keys, same_case, same_problem
from meanfield_pde.errors import InputError, StorageError
from meanfield_pde.history.file_store import FileStore
from meanfield_pde.history.history import History
from meanfield_pde.history.store import CELLS
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.results.names import (
    ALL,
    CASE,
    CHECKPOINT,
    COARSEST,
    DENSITY,
    FIELDS,
    FIGURES,
    FILES,
    HISTORY,
    PREVIOUS,
    SUMMARY,
    is_ours,
)
from meanfield_pde.results.tables import read_history
from meanfield_pde.solver.settings import CompareCase, NoiseCase
from meanfield_pde.support.files import (
    make_folder,
    remove_file,
    remove_leftovers,
    replace_text,
    writing,
)
from meanfield_pde.wasserstein.measure import Measure


@dataclass(frozen=True, eq=False)
class Result(History):
    """A result folder that has been read.

    Attributes:
        directory: where it is.
        case_text: the text of case.toml.
    """

    directory: Path = Path()
    case_text: str = ""

    @cached_property
    def case(self) -> Case:
        """The case as run; the files that it names have to be there."""
        return read_case(self.directory / CASE)


def read_result(directory: str | Path) -> Result:
    """Read the result folder of a run; its densities are read when they are asked for."""
    folder = Path(directory)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such result folder")
    for name in (CASE, HISTORY, DENSITY):
        if not (folder / name).is_file():
            raise InputError(f"{folder}: not a result folder, {name} is missing")
    store = FileStore.open(folder / DENSITY)
    cells, limit = _constants(folder / DENSITY)
    columns = read_history(folder / HISTORY)
    # A run that was stopped may have saved one density more than rows of the history, and an
    # earlier version several rows more than densities.
    saved = min(len(store), *map(len, columns.values()))
    if saved < len(store) - 1 or not saved:
        raise InputError(f"{folder / HISTORY}: has fewer rows than {DENSITY} has times")
    del store.times[saved:]
    text = _case_text(folder)
    tables = parse(text)
    try:
        attention = attention_of(tables["attention"], folder, tables.get("perceptron"))
        cost = tables.get("compare", {}).get("cost", CompareCase.cost)
        noise = NoiseCase(**tables.get("noise", {})).strength
    except (InputError, KeyError, AttributeError) as error:
        raise InputError(f"{folder / CASE}: not the case of a run ({error})") from None
    return Result(
        attention=attention,
        cells=cells,
        store=store,
        history={name: column[:saved] for name, column in columns.items()},
        limit=limit,
        directory=folder,
        case_text=text,
        cost=cost,
        noise=noise,
    )


def _constants(path: Path) -> tuple[Cells, Measure | None]:
    """The cells, and the limit measure if there is one."""
    try:
        with h5py.File(path) as file:
            prefix = COARSEST if COARSEST in file else ""
            points, volumes, spread, vertices = (file[prefix + name][()] for name in CELLS)
            limit: Measure | None = None
            if "limit" in file:
                group = file["limit"]
                spreads = group["spread"][()] if "spread" in group else None
                limit = Measure(group["points"][()], group["masses"][()], spreads)
            shape = file["masses"].shape
    except (OSError, KeyError, TypeError, AttributeError, InputError) as error:
        raise InputError(f"{path}: not a readable density file ({error})") from error
    if not prefix and shape[1:] != (len(points),):
        raise InputError(f"{path}: masses must be times x cells")
    if any(array.shape != (len(points),) for array in (volumes, spread)):
        raise InputError(f"{path}: volumes and spread must be numbers for each cell")
    return Cells(points, volumes, spread, vertices), limit


def check_folder(
    directory: Path, case: str, *, source: Path | None, overwrite: bool, resume: bool
) -> bool:
    """Refuse a result folder that holds something else; nothing is written.

    Args:
        directory: the folder.
        case: the text of the case about to be run.
        source: the file it came from.
        overwrite: replace the results that are there, whatever case they came from.
        resume: go on from the checkpoint that is there.

    Returns:
        Whether it holds the finished results of this case, and is not to be touched.
    """
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: the output directory is a file")
    present = [name for name in ALL if os.path.lexists(directory / name)]
    if resume:
        _check_resumed(directory, case, present)
    elif present and CASE not in present:  # never delete what only has the name of a result
        raise InputError(
            f"{directory}: not a result folder, but it holds {present[0]}, which the results "
            "would replace; choose another folder",
            "--output",
        )
    elif present:
        _check_present(directory, case, source=source, overwrite=overwrite)
        if not overwrite and present != [CASE]:
            if SUMMARY in present:
                return True
            _refuse_stopped(directory, present)
    for name in (FIELDS, FIGURES):
        if name in present and not (directory / name).is_dir():
            raise StorageError(f"{directory / name}: cannot be written, it is not a folder")
    return False


def _check_resumed(directory: Path, case: str, present: list[str]) -> None:
    if CASE not in present or not {CHECKPOINT, PREVIOUS} & set(present):
        raise InputError(f"{directory}: nothing to resume, there is no {CHECKPOINT}")
    text = _case_text(directory)
    if not same_problem(text, case):
        raise InputError(
            f"{directory}: holds a checkpoint of another case, which differs in "
            f"{_differences(text, case)}; only [time] and [output] may change when a run is resumed"
        )


def _check_present(directory: Path, case: str, *, source: Path | None, overwrite: bool) -> None:
    """Refuse the results of another case, unless they are to be overwritten."""
    found = directory / CASE
    if source is not None and source.resolve() == found.resolve():
        if not same_case(_case_text(directory), case):
            raise InputError(
                f"{directory}: the results would replace the case file {source} itself; choose "
                "another folder",
                "--output",
            )
    elif not overwrite and not same_case(text := _case_text(directory), case):
        raise InputError(
            f"{directory}: holds results of another case, which differs in "
            f"{_differences(text, case)}; choose another folder, or overwrite them",
            "--output or --overwrite",
        )


def _refuse_stopped(directory: Path, present: list[str]) -> None:
    if {CHECKPOINT, PREVIOUS} & set(present):
        raise InputError(
            f"{directory}: holds a run of this case that was stopped; resume it, or overwrite it",
            "--resume or --overwrite",
        )
    raise InputError(
        f"{directory}: holds a run of this case that was stopped before its first checkpoint; "
        "overwrite it",
        "--overwrite",
    )


def claim_folder(directory: Path, case: str, *, resume: bool) -> None:
    """Make the result folder, without results unless they are resumed, and write case.toml."""
    make_folder(directory)
    with writing(directory):
        for name in FILES:
            remove_leftovers(directory / name, partial(is_ours, name))
        # case.toml stays until it is replaced: a folder without it is not known for a result.
        # What was concluded is no longer true of a run that goes on.
        remove_file(directory / SUMMARY)
        if not resume:
            _remove_results(directory)
    replace_text(directory / CASE, case)


def _remove_results(directory: Path) -> None:
    """Remove the files that a run has written, and its folders if nothing else is in them."""
    for folder, names in FILES.items():
        within = directory / folder
        found = [path.name for path in within.iterdir()] if within.is_dir() else []
        for known in names:
            for name in found:
                if name != CASE and re.fullmatch(known, name):
                    remove_file(within / name)
        if folder and within.is_dir() and not within.is_symlink() and not list(within.iterdir()):
            within.rmdir()


def _case_text(directory: Path) -> str:
    """The text of case.toml, which is valid TOML."""
    path = directory / CASE
    try:
        text = path.read_text(encoding="utf-8")
        parse(text)
    except (OSError, UnicodeDecodeError, InputError) as error:
        raise InputError(f"{path}: not a readable case ({error})") from error
    return text


def _differences(text: str, other: str) -> str:
    keys = differing_keys(text, other, ignore=("output.directory",))
    return ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
