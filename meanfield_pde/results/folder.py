"""The result folder: what a run writes, and how it is read back.

    case.toml       the case as run, every default spelled out
    history.csv     a row for each saved time
    density.h5      /points /volumes /spread /vertices /times /masses, and if compared with,
                    /zero_temperature/masses and /limit; cells in the mesh's input order
    checkpoint.h5   the state of the evolution, for a restart
    summary.json    what was concluded
    fields/         the density for ParaView
    figures/        PNG files

Files are written by rank 0, each at once and whole; a run that is killed leaves valid ones.
"""

from __future__ import annotations

import csv
import json
import math
import tomllib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from meanfield_pde.attention.layers import AttentionLike, from_arrays
from meanfield_pde.case.file import parse
from meanfield_pde.case.text import differing_keys, same_case, same_problem
from meanfield_pde.errors import InputError
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.support.files import remove, remove_leftovers, replace_file, replace_text
from meanfield_pde.wasserstein.measure import Measure

CASE, HISTORY, DENSITY = "case.toml", "history.csv", "density.h5"
CHECKPOINT, SUMMARY, FIELDS, FIGURES = "checkpoint.h5", "summary.json", "fields", "figures"
_ALL = (CASE, HISTORY, DENSITY, CHECKPOINT, SUMMARY, FIELDS, FIGURES)


@dataclass(frozen=True, eq=False)
class Result:
    """A result folder that has been read.

    Attributes:
        directory: where it is.
        case: the text of case.toml.
        points, volumes, spread, vertices: the cells, in the mesh's input order.
        times: the saved times.
        masses: times x cells.
        history: the columns of history.csv.
        zero_masses: times x cells at zero temperature, if the run compared with it.
        limit: the limit measure, if the run compared with it.
    """

    directory: Path
    case: str
    points: np.ndarray
    volumes: np.ndarray
    spread: np.ndarray
    vertices: np.ndarray
    times: np.ndarray
    masses: np.ndarray
    history: dict[str, np.ndarray]
    zero_masses: np.ndarray | None = None
    limit: Measure | None = None

    @property
    def dimension(self) -> int:
        """Dimension d: 2 on the circle, 3 on the sphere."""
        return int(self.points.shape[1])

    @property
    def attention(self) -> AttentionLike:
        """The attention of the case."""
        section = tomllib.loads(self.case)["attention"]
        return from_arrays(
            section,
            section["beta"],
            normalise=section.get("normalise", True),
            layer_duration=section.get("layer_duration"),
        )

    @property
    def cells(self) -> Cells:
        """The cells of the mesh."""
        return Cells(self.points, self.volumes, self.spread, self.vertices)

    @property
    def density(self) -> np.ndarray:
        """Masses per arc length or area, times x cells."""
        return self.masses / self.volumes

    def measure(self, index: int = -1) -> Measure:
        """The density at a saved time as a discrete measure; by default the last."""
        return Measure(self.points, self.masses[index], self.spread)


def read_result(directory: str | Path) -> Result:
    """Read the result folder of a run."""
    folder = Path(directory)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such result folder")
    for name in (CASE, HISTORY, DENSITY):
        if not (folder / name).is_file():
            raise InputError(f"{folder}: not a result folder, {name} is missing")
    try:
        with h5py.File(folder / DENSITY) as file:
            names = ("points", "volumes", "spread", "vertices", "times", "masses")
            arrays = {name: file[name][()] for name in names}
            if "zero_temperature" in file:
                arrays["zero_masses"] = file["zero_temperature/masses"][()]
            if "limit" in file:
                group = file["limit"]
                spread = group["spread"][()] if "spread" in group else None
                arrays["limit"] = Measure(group["points"][()], group["masses"][()], spread)
        saved, cells = len(arrays["times"]), len(arrays["points"])
    except (OSError, KeyError, TypeError, AttributeError, InputError) as error:
        raise InputError(f"{folder / DENSITY}: not a readable density file ({error})") from error
    if arrays["masses"].shape != (saved, cells):
        raise InputError(f"{folder / DENSITY}: masses must be times x cells")
    if any(arrays[name].shape != (cells,) for name in ("volumes", "spread")):
        raise InputError(f"{folder / DENSITY}: volumes and spread must be numbers for each cell")
    # A run that was stopped may have saved more rows of the history than densities.
    history = {name: column[:saved] for name, column in read_history(folder / HISTORY).items()}
    if any(len(column) < saved for column in history.values()):
        raise InputError(f"{folder / HISTORY}: has fewer rows than {DENSITY} has times")
    return Result(directory=folder, case=_case_text(folder), history=history, **arrays)


def read_history(path: Path) -> dict[str, np.ndarray]:
    """The columns of a history file by name."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = csv.reader(file)
        columns = np.array(rows, dtype=float).reshape(len(rows), len(header)).T
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable history ({error})") from error
    return dict(zip(header, columns, strict=True))


def check_folder(
    directory: Path, case: str, *, source: Path | None, overwrite: bool, resume: bool
) -> None:
    """Refuse a result folder that holds something else; nothing is written.

    Args:
        directory: the folder.
        case: the text of the case about to be run.
        source: the file it came from.
        overwrite: replace the results that are there, whatever case they came from.
        resume: go on from the checkpoint that is there.
    """
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: the output directory is a file")
    present = [name for name in _ALL if (directory / name).exists()]
    if resume:
        if not {CHECKPOINT, CASE} <= set(present):
            raise InputError(f"{directory}: nothing to resume, there is no {CHECKPOINT}")
        text = _case_text(directory)
        if not same_problem(text, case):
            raise InputError(
                f"{directory}: holds a checkpoint of another case, which differs in "
                f"{_differences(text, case)}; only [time] and [output] may change on --resume"
            )
        return
    if not present:
        return
    if CASE not in present:  # never delete what only has the name of a result
        raise InputError(
            f"{directory}: not a result folder, but it holds {present[0]}, which the results "
            "would replace; choose another --output"
        )
    found = directory / CASE
    if source is not None and source.resolve() == found.resolve():
        if not same_case(_case_text(directory), case):
            raise InputError(
                f"{directory}: the results would replace the case file {source} itself; choose "
                "another --output"
            )
    elif not overwrite and not same_case(text := _case_text(directory), case):
        raise InputError(
            f"{directory}: holds results of another case, which differs in "
            f"{_differences(text, case)}; choose another --output, or replace them with --overwrite"
        )


def claim_folder(directory: Path, case: str, *, resume: bool) -> None:
    """Make the result folder, without results unless they are resumed, and write case.toml."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for folder in (directory, directory / FIELDS, directory / FIGURES):
            remove_leftovers(folder)
        # case.toml stays until it is replaced: a folder without it is not known for a result.
        # What was concluded is no longer true of a run that goes on.
        for name in (SUMMARY,) if resume else _ALL:
            if name != CASE:
                remove(directory / name)
        replace_text(directory / CASE, case)
    except OSError as error:
        raise InputError(f"{directory}: cannot write the results ({error.strerror})") from error


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


class HistoryFile:
    """Writes history.csv; a row is formatted once, however often the file is replaced."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / HISTORY
        self._lines: list[str] = []

    def write(self, rows: list[dict[str, float]]) -> None:
        """Write all rows, in full precision, so that they read back to the same numbers."""
        for row in rows[len(self._lines) :]:
            numbers = (str(int(x)) if name == "step" else repr(x) for name, x in row.items())
            self._lines.append(",".join(numbers))
        replace_text(self._path, "\n".join([",".join(rows[0]), *self._lines, ""]))


def write_density(directory: Path, simulation: Simulation, case: str) -> None:
    """Write density.h5."""
    cells = simulation.cells

    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file["points"] = cells.points
            file["volumes"] = cells.volumes
            file["spread"] = cells.spread
            file["vertices"] = cells.vertices
            file["times"] = np.array(simulation.times)
            file["masses"] = np.array(simulation.masses)
            if simulation.zero is not None:
                file["zero_temperature/masses"] = np.array(simulation.zero_masses)
            limit = None if simulation.comparison is None else simulation.comparison.limit
            if limit is not None:
                file["limit/points"], file["limit/masses"] = limit.points, limit.masses
                if limit.spread is not None:
                    file["limit/spread"] = limit.spread
            file.attrs["version"] = version("meanfield_pde")
            file.attrs["case"] = case

    replace_file(directory / DENSITY, write)


def write_summary(directory: Path, summary: dict[str, Any]) -> None:
    """Write summary.json."""
    replace_text(directory / SUMMARY, json_text(summary) + "\n")


def json_text(summary: dict[str, Any]) -> str:
    """The summary as JSON; numbers that JSON does not have (nan, inf) become null."""
    return json.dumps(_plain(summary), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(one) for one in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value
