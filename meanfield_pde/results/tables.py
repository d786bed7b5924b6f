"""Tables and histories as text: CSV in full precision."""

from __future__ import annotations

import csv
import io
import math
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.solver.observables import columns as known_columns
from meanfield_pde.support.files import append, replace_text
from meanfield_pde.support.old_names import new_columns

Row = dict[str, Any]


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
            found = []
            for row in rows:
                if None in row or None in row.values():
                    raise csv.Error(f"line {rows.line_num} has not a cell for each column")
                found.append({name: _value(text) for name, text in row.items()})
            return found
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
    for name in (one.name for one in known_columns(dimension) if one.required):
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
    lines = history_text(rows).encode().splitlines(keepends=True)
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
            text = history_text(rows)
            replace_text(path, text)
            self._size = len(text.encode())

    def append(self, row: Row) -> None:
        """Add a row, so that it reads back to the same numbers."""
        text = _line(row) + "\n"
        if not self._size:
            text = ",".join(row) + "\n" + text
        append(self._path, self._size, text.encode())
        self._size += len(text.encode())


def history_text(rows: Sequence[Row]) -> str:
    """The text of history.csv with these rows."""
    return "\n".join([",".join(rows[0]), *map(_line, rows), ""])


def _line(row: Row) -> str:
    return ",".join(str(int(x)) if name == "step" else repr(x) for name, x in row.items())
