"""Tables, histories and summaries as text: CSV in full precision, and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.results.names import SUMMARY
from meanfield_pde.support.files import append, replace_text
from meanfield_pde.support.plain import json_text

Row = dict[str, Any]


def read_table(path: Path) -> list[Row]:
    """The rows of a table; numbers as float, an empty cell as None, anything else as text."""
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [
                {name: _value(text) for name, text in row.items()} for row in csv.DictReader(file)
            ]
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
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: not a readable history ({error})") from error
    return dict(zip(header, columns, strict=True))


class HistoryFile:
    """history.csv: a line is appended for each saved time, in full precision."""

    def __init__(self, path: Path, rows: Sequence[Row] = ()) -> None:
        """Begin the file anew, with the rows that are known already; without any, later."""
        self._path = path
        self._size = 0
        if rows:
            text = "\n".join([",".join(rows[0]), *map(_line, rows), ""])
            replace_text(path, text)
            self._size = len(text.encode())

    def append(self, row: Row) -> None:
        """Add a row, so that it reads back to the same numbers."""
        text = _line(row) + "\n"
        if not self._size:
            text = ",".join(row) + "\n" + text
        append(self._path, self._size, text.encode())
        self._size += len(text.encode())


def _line(row: Row) -> str:
    return ",".join(str(int(x)) if name == "step" else repr(x) for name, x in row.items())


def read_summary(directory: Path) -> dict[str, Any]:
    """What summary.json says."""
    path = directory / SUMMARY
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable summary ({error})") from error
    if not isinstance(found, dict):
        raise InputError(f"{path}: not a readable summary (a table was expected)")
    return found


def write_summary(directory: Path, summary: dict[str, Any]) -> None:
    """Write summary.json."""
    replace_text(directory / SUMMARY, json_text(summary) + "\n")
