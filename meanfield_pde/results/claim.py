"""A result folder before a run writes in it: whose it is, and what is removed.

Nothing that a run has not written is ever removed or replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from meanfield_pde.case.text import differing_keys, same_case, same_problem
from meanfield_pde.errors import InputError
from meanfield_pde.results.checked_text import read_case_text, write_case
from meanfield_pde.results.names import (
    ALL,
    CASE,
    CHECKPOINT,
    DENSITY,
    FIELDS,
    FIGURES,
    HISTORY,
    PREVIOUS,
    SUMMARY,
    files_of_run,
    is_ours,
)
from meanfield_pde.support.checked_hdf5 import has_checksums
from meanfield_pde.support.checks import check_no_device
from meanfield_pde.support.files import make_folder, remove_file, remove_leftovers, writing


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
    for name in present:
        check_no_device(directory / name)  # which would be waited for
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
            raise InputError(f"{directory / name}: cannot be written, it is not a folder")
    return False


def begins_anew(directory: Path, case: str) -> bool:
    """Whether a run that is to be resumed has nothing to go on from, and so starts.

    There are no results, or those of a run of this case that was stopped before its first
    checkpoint, which it writes again.
    """
    present = {name for name in ALL if os.path.lexists(directory / name)}
    for name in present:
        check_no_device(directory / name)  # which would be waited for
    if present & {CHECKPOINT, PREVIOUS, SUMMARY}:
        return False
    return not present or (CASE in present and same_problem(_text_of_results(directory), case))


def _check_resumed(directory: Path, case: str, present: list[str]) -> None:
    for name, others in ((CASE, {CASE}), (CHECKPOINT, {CHECKPOINT, PREVIOUS})):
        if not others & set(present):
            raise InputError(f"{directory}: nothing to resume, there is no {name}")
    text = _text_of_results(directory)
    if not same_problem(text, case):
        raise InputError(
            f"{directory}: holds a checkpoint of another case, which differs in "
            f"{_differences(text, case)}; only [time], [output] and adapt.max_cells may change "
            "when a run is resumed"
        )


def _check_present(directory: Path, case: str, *, source: Path | None, overwrite: bool) -> None:
    """Refuse the results of another case, unless they are to be overwritten."""
    found = directory / CASE
    if source is not None and _is_same_file(source, found):
        if not same_case(_text_of_results(directory), case):
            raise InputError(
                f"{directory}: the results would replace the case file {source} itself; choose "
                "another folder",
                "--output",
            )
    elif not overwrite and not same_case(text := _text_of_results(directory), case):
        raise InputError(
            f"{directory}: holds results of another case, which differs in "
            f"{_differences(text, case)}; choose another folder, or overwrite them",
            "--output or --overwrite",
        )


def _is_same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # a link that leads nowhere is no case file
        return False


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


def claim_folder(directory: Path, case: str, figures: Iterable[str], *, resume: bool) -> None:
    """Make the result folder, without results unless they are resumed, and write case.toml.

    Args:
        directory: the folder.
        case: the text of the case.
        figures: the names of those of a run.
        resume: keep the results.
    """
    files = files_of_run(figures)
    make_folder(directory)
    with writing(directory):
        for name, patterns in files.items():
            remove_leftovers(directory / name, partial(is_ours, patterns))
        # case.toml stays until it is replaced: a folder without it is not known for a result.
        # What was concluded is no longer true of a run that goes on.
        remove_file(directory / SUMMARY)
        if resume:  # written again, when density.h5 has lost what is behind the checkpoint
            remove_file(directory / HISTORY)
        else:
            _remove_results(directory, files)
    write_case(directory, case)


def _remove_results(directory: Path, files: Mapping[str, Iterable[str]]) -> None:
    """Remove the files that a run has written, and its folders if nothing else is in them."""
    for folder, names in files.items():
        within = directory / folder
        found = [path.name for path in within.iterdir()] if within.is_dir() else []
        for known in names:
            for name in found:
                if name != CASE and re.fullmatch(known, name):
                    remove_file(within / name)
        if folder and within.is_dir() and not within.is_symlink() and not list(within.iterdir()):
            within.rmdir()


def _text_of_results(directory: Path) -> str:
    """The text of case.toml; with a checksum where density.h5 has them."""
    path = directory / DENSITY
    try:
        checked = path.is_file() and has_checksums(path)
    except (OSError, ValueError):  # whoever reads the densities says so
        checked = False
    return read_case_text(directory, checked=checked)


def _differences(text: str, other: str) -> str:
    """The first keys in which two case texts differ."""
    keys = differing_keys(text, other, ignore=("output.directory",))
    return ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
