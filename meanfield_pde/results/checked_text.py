"""case.toml and summary.json of a folder, each with a checksum of all else in it.

A file says what the results beside it belong to: one that was changed there is refused. The last
line of case.toml is a comment of TOML with the checksum of all lines above it, so that the file is
a case file like any other, which a copy of it, changed, is as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from meanfield_pde.case.file import parse
from meanfield_pde.errors import InputError
from meanfield_pde.results.names import CASE, HISTORY, SUMMARY
from meanfield_pde.results.tables import Row, history_text
from meanfield_pde.support.checks import check_file
from meanfield_pde.support.files import replace_text
from meanfield_pde.support.plain import json_text

_MARK = "# sha256 of the lines above: "
CHECKSUM = "sha256"  # the key of summary.json with a checksum of all the others
HISTORY_CHECKSUM = "history_sha256"  # the one with that of history.csv, as it was written


def write_case(directory: Path, text: str) -> None:
    """Write case.toml, and its checksum."""
    replace_text(directory / CASE, _marked(text.rstrip("\n") + "\n"))


def read_case_text(directory: Path, *, checked: bool = False) -> str:
    """The text of case.toml, valid TOML, without its checksum; InputError if that is wrong.

    Args:
        directory: where it is.
        checked: whether it must have a checksum; an earlier version wrote none.
    """

    def take(whole: str) -> tuple[str, bool, bool]:
        above, mark, _ = whole.rpartition(_MARK)
        text = above if mark else whole
        parse(text)
        return text, bool(mark), whole == _marked(text)

    return _read(directory / CASE, "case", take, checked, "")


def write_summary(directory: Path, summary: dict[str, Any], rows: Sequence[Row] = ()) -> None:
    """Write summary.json, with checksums of the history it belongs to, if any, and of all in it."""
    belongs = {HISTORY_CHECKSUM: _digest(history_text(rows))} if rows else {}
    replace_text(directory / SUMMARY, _summary_text(summary | belongs))


def read_summary(
    directory: Path, rows: Sequence[Row] = (), *, checked: bool = False
) -> dict[str, Any]:
    """What summary.json says; InputError unless it is what was written.

    Args:
        directory: where it is.
        rows: of the history that it has to belong to, if `checked`.
        checked: whether it must have checksums; an earlier version wrote none.
    """

    def take(whole: str) -> tuple[dict[str, Any], bool, bool]:
        found = json.loads(whole)
        if not isinstance(found, dict):
            raise ValueError("a table was expected")
        marked = found.pop(CHECKSUM, None) is not None
        return found, marked, whole == _summary_text(found)

    remedy = ", and `run --resume` writes it again"
    path = directory / SUMMARY
    found = _read(path, "summary", take, checked, remedy)
    digest = found.pop(HISTORY_CHECKSUM, None)
    if checked and rows and digest != _digest(history_text(rows)):
        raise InputError(
            f"{path}: the summary of another run than that of {HISTORY}; `run --resume` writes it "
            "again"
        )
    return found


def _read[T](
    path: Path, what: str, take: Callable[[str], tuple[T, bool, bool]], checked: bool, remedy: str
) -> T:
    """What a file says, by `take`, which also tells if it has a checksum and is as written."""
    check_file(path, f"{path}: not a readable {what}, there is no such file")
    try:
        found, marked, as_written = take(path.read_bytes().decode())
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a readable {what} ({error})") from error
    if (checked or marked) and not as_written:
        raise InputError(
            f"{path}: not a readable {what} (its checksum is {'wrong' if marked else 'missing'}: "
            f"it was edited or damaged since the run wrote it{remedy})"
        )
    return found


def _marked(text: str) -> str:
    return f"{text}{_MARK}{_digest(text)}\n"


def _summary_text(summary: dict[str, Any]) -> str:
    return json_text(summary | {CHECKSUM: _digest(json_text(summary))}) + "\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
