"""Tables, histories and summaries as text: CSV in full precision, and JSON."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.mesh.geometry import AXES
from meanfield_pde.results.names import HISTORY, SUMMARY
from meanfield_pde.support.checks import check_file
from meanfield_pde.support.files import append, replace_text
from meanfield_pde.support.old_names import new_columns
from meanfield_pde.support.plain import json_text

Row = dict[str, Any]
CHECKSUM = "sha256"  # the key of summary.json with a checksum of all the others
HISTORY_CHECKSUM = "history_sha256"  # the one with that of history.csv, as it was written


def read_table(path: Path) -> list[Row]:
    """The rows of a table; numbers as float, an empty cell as None, anything else as text.

    Columns of an earlier version have the names of this one.
    """
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            rows.fieldnames = new_columns(rows.fieldnames or (), path)
            return [{name: _value(text) for name, text in row.items()} for row in rows]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a readable table ({error})") from error


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Write a table whole; full precision, None and nan as an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _text(value) for name, value in row.items()})
    replace_text(path, text.getvalue())


def _text(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return repr(float(value)) if isinstance(value, float) else str(value)


def _value(text: str) -> Any:
    if text == "":
        return None
    try:
        return float(text)
    except ValueError:
        return {"True": True, "False": False}.get(text, text)


def read_history(path: Path) -> dict[str, np.ndarray]:
    """The columns of a history file by name; a last line without its end is left out."""
    try:
        whole, _, _ = path.read_text(encoding="utf-8").rpartition("\n")
        header, *rows = csv.reader(whole.splitlines())
        columns = np.array(rows, dtype=float).reshape(len(rows), len(header)).T
    except (OSError, ValueError, csv.Error) as error:
        reason = reprlib.repr(" ".join(str(error).split()))
        raise InputError(f"{path}: not a readable history ({reason})") from error
    if len(set(header)) < len(header):
        raise InputError(f"{path}: not a readable history (two columns have one name)")
    return dict(zip(header, columns, strict=True))


def check_columns(path: Path, columns: Mapping[str, np.ndarray], dimension: int) -> None:
    """InputError unless a history has the columns that every run writes."""
    axes = AXES[:dimension]
    wanted = ["time", "step", "mass", "min_density", "max_density", *(f"mean_{x}" for x in axes)]
    wanted += [f"second_{axes[i]}{y}" for i in range(dimension) for y in axes[i:]]
    for name in [*wanted, "energy", "lyapunov"]:
        if name not in columns:
            raise InputError(f"{path}: not the history of a run, column '{name}' is missing")


def check_history(before: bytes, after: bytes, rows: Sequence[Row], *, finished: bool) -> None:
    """ValueError unless a history file is what these rows were written as.

    Args:
        before: its content before the rows were read, which a run saves before it writes a line.
        after: its content after that: the same, unless a run is at work.
        rows: those that were saved.
        finished: whether the run has ended. One that has not may have been killed between a row
            and its line, or while it wrote the line.
    """
    lines = _history_text(rows).encode().splitlines(keepends=True)
    for content in (before, after):
        found = content.splitlines(keepends=True)
        for number, (line, expected) in enumerate(zip(found, lines, strict=False), 1):
            torn = number == len(found) and not finished and expected.startswith(line)
            if line != expected and not torn:
                raise ValueError(
                    f"line {number} is not what the run wrote; it was edited or damaged since, "
                    "and `run --resume` writes it again"
                )
    if before.count(b"\n") > len(lines):
        raise ValueError(
            f"it has {before.count(b'\n') - 1} rows, and there are densities at {len(rows)} times; "
            "they were damaged or lost, and `run --resume` computes them again"
        )
    if after.count(b"\n") < len(lines) - (not finished):
        raise ValueError(
            f"it has fewer rows than the {len(rows)} that the run wrote; it was cut since, and "
            "`run --resume` writes it again"
        )


class HistoryFile:
    """history.csv: a line is appended for each saved time, in full precision."""

    def __init__(self, path: Path, rows: Sequence[Row] = ()) -> None:
        """Begin the file anew, with the rows that are known already; without any, later."""
        self._path = path
        self._size = 0
        if rows:
            text = _history_text(rows)
            replace_text(path, text)
            self._size = len(text.encode())

    def append(self, row: Row) -> None:
        """Add a row, so that it reads back to the same numbers."""
        text = _line(row) + "\n"
        if not self._size:
            text = ",".join(row) + "\n" + text
        append(self._path, self._size, text.encode())
        self._size += len(text.encode())


def _history_text(rows: Sequence[Row]) -> str:
    return "\n".join([",".join(rows[0]), *map(_line, rows), ""])


def _line(row: Row) -> str:
    return ",".join(str(int(x)) if name == "step" else repr(x) for name, x in row.items())


def read_summary(directory: Path, rows: Sequence[Row], *, checked: bool = False) -> dict[str, Any]:
    """What summary.json says of a run; InputError unless it is what was written.

    Args:
        directory: where it is.
        rows: of the history, which it belongs to.
        checked: whether it must have a checksum; an earlier version wrote none.
    """
    path = directory / SUMMARY
    check_file(path, f"{path}: not a readable summary, there is no such file")
    try:
        text = path.read_bytes().decode()
        found = json.loads(text)
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable summary ({error})") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: not a readable summary (a table was expected)")
    digest = found.pop(CHECKSUM, None)
    if (checked or digest is not None) and text != _summary_text(found):
        raise InputError(
            f"{path}: not a readable summary (its checksum is {'wrong' if digest else 'missing'}: "
            "it was edited or damaged since the run wrote it, and `run --resume` writes it again)"
        )
    digest = found.pop(HISTORY_CHECKSUM, None)
    if checked and digest != _digest(_history_text(rows)):
        raise InputError(
            f"{path}: the summary of another run than that of {HISTORY}; `run --resume` writes it "
            "again"
        )
    return found


def write_summary(directory: Path, summary: dict[str, Any], rows: Sequence[Row] = ()) -> None:
    """Write summary.json, with checksums of the history it belongs to, if any, and of all in it."""
    belongs = {HISTORY_CHECKSUM: _digest(_history_text(rows))} if rows else {}
    replace_text(directory / SUMMARY, _summary_text(summary | belongs))


def _summary_text(summary: dict[str, Any]) -> str:
    return json_text(summary | {CHECKSUM: _digest(json_text(summary))}) + "\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
