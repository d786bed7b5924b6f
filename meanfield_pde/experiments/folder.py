"""What experiments share: a folder of their own, and tables that can be resumed.

    case.toml      the case that was varied        NAME.csv      a row for each measurement
    summary.json   what was concluded              figures/      PNG files

An experiment that was stopped goes on where it was when its command is given again: measurements in
the table are not made again. One at a time may write in a folder.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mpi4py import MPI

from meanfield_pde.case.case import Case, OutputCase
from meanfield_pde.case.text import case_text, differing_keys, same_case
from meanfield_pde.errors import InputError, SolverError, StoppedError, StorageError
from meanfield_pde.experiments.levels import Level
from meanfield_pde.experiments.run import run_case
from meanfield_pde.results.checked_text import read_case_text, write_case
from meanfield_pde.results.lock import FolderLock
from meanfield_pde.results.names import CASE, CHECKPOINT, DENSITY, SUMMARY
from meanfield_pde.solver.step_control import StepSettings
from meanfield_pde.support.checks import real, whole
from meanfield_pde.support.ranks import on_root, shared_errors

LOG = logging.getLogger("meanfield_pde")


@contextmanager
def experiment_folder(
    directory: Path, case: Case, *, ignore: Iterable[str], comm: MPI.Comm
) -> Iterator[None]:
    """The folder of an experiment, made or resumed, while the body writes in it. Collective.

    A signal that stops the body leaves what is finished.

    Args:
        directory: the folder; InputError if it holds something else.
        case: the case that is varied.
        ignore: keys or sections in which it may differ from the one that is there.
        comm: the ranks of the experiment.
    """
    lock = FolderLock(directory)

    def open_folder() -> None:
        _check_folder(directory, case, ignore)
        lock.acquire()
        write_case(directory, case_text(case))

    try:
        on_root(comm, open_folder)
        yield
    except StoppedError as error:
        raise StoppedError(
            f"{directory}: stopped by a signal; what is finished is kept, and the same command "
            "goes on from there"
        ) from error
    finally:
        lock.release()


def _check_folder(directory: Path, case: Case, ignore: Iterable[str]) -> None:
    text = case_text(case)
    if directory.exists() and not directory.is_dir():
        raise InputError(f"{directory}: the output directory is a file")
    found = directory / CASE
    if (directory / DENSITY).exists():
        raise InputError(
            f"{directory}: holds the results of a run; choose another folder for an experiment"
        )
    if found.is_file():
        keys = differing_keys(read_case_text(directory), text, ignore=ignore)
        if keys:
            raise InputError(
                f"{directory}: holds an experiment with another case, which differs in "
                f"{', '.join(keys[:3])}; choose another folder"
            )


def run_unless_finished(
    case: Case,
    name: str,
    *,
    steps: StepSettings | None = None,
    brief: bool = False,
    quiet: bool,
    allow_long: bool,
    comm: MPI.Comm,
) -> None:
    """Run a case of an experiment from where it stands in its folder. Collective.

    Args:
        case: with a result folder of its own.
        name: what it is called in messages.
        steps: what steps are allowed to do.
        brief: draw no figures of it, and of its messages show warnings alone.
        quiet: no progress bar.
        allow_long: do not refuse a run of more than 1e9 steps.
        comm: the ranks that share the work.
    """
    state = on_root(comm, _state, case)
    if comm.rank == 0:
        LOG.info("%s: %s", name, state)
    if state == "finished":
        return
    level = LOG.level
    if brief:
        LOG.setLevel(max(level, logging.WARNING))
    try:
        run_case(
            case,
            comm=comm,
            resume=state == "resumed",
            overwrite=state == "started again",
            quiet=quiet,
            allow_long=allow_long,
            steps=steps,
            figures=not brief,
        )
    finally:
        LOG.setLevel(level)


def run_all(
    levels: Sequence[Level],
    names: Sequence[str],
    *,
    at_once: int,
    keep_going: bool = False,
    brief: bool = False,
    quiet: bool,
    allow_long: bool,
    comm: MPI.Comm,
) -> dict[int, str]:
    """Deal runs out to groups of ranks, each of which goes through its own in order. Collective.

    Args:
        levels: the cases, each with a result folder of its own, and what their steps may do.
        names: what they are called in messages.
        at_once: groups that share the ranks, at most as many as there are ranks.
        keep_going: go on with the others where one fails.
        brief: draw no figures of the runs, and of their messages show warnings alone.
        quiet: no progress bar.
        allow_long: do not refuse runs of more than 1e9 steps.
        comm: the ranks that share the work.

    Returns:
        Why runs have failed, by their index.
    """
    group = comm.rank * at_once // comm.size
    ranks = comm.Split(group, comm.rank)
    failed: dict[int, str] = {}
    with shared_errors(comm):  # of this group; the others are still at work
        for i in range(group, len(levels), at_once):
            try:
                run_unless_finished(
                    levels[i].case,
                    names[i],
                    steps=levels[i].steps,
                    brief=brief,
                    quiet=quiet,
                    allow_long=allow_long,
                    comm=ranks,
                )
            except InputError as error:  # such as too many steps
                raise InputError(f"{names[i]}: {error}", error.options) from None
            except StorageError:
                raise
            except SolverError as error:  # of all ranks of the group
                if not keep_going:
                    raise
                failed[i] = str(error)
    ranks.Free()
    return {i: why for part in comm.allgather(failed) for i, why in part.items()}


def in_folder(case: Case, directory: Path) -> Case:
    """The case with results in a folder, and no fields."""
    return replace(case, output=OutputCase(directory, "none", case.output.checkpoint_every))


def _state(case: Case) -> str:
    """Where a run stands: finished, resumed (from its checkpoint), or to be started."""
    directory = case.output.directory
    if not (directory / CASE).is_file():
        return "started"
    if not same_case(read_case_text(directory), case_text(case)):
        return "started"  # the run itself says what differs
    if (directory / SUMMARY).is_file():
        return "finished"
    return "resumed" if (directory / CHECKPOINT).is_file() else "started again"


def check_betas(
    betas: Sequence[float], *, fewest: int = 1, name: str = "betas"
) -> tuple[float, ...]:
    """The inverse temperatures in increasing order, each once; finite and positive."""
    found = sorted({real(beta, name, "a finite number > 0", lambda b: b > 0) for beta in betas})
    if len(found) < fewest:
        raise InputError(f"{name} needs {fewest} different values or more, got {len(found)}")
    return tuple(found)


def check_counts(counts: Sequence[int], *, name: str = "counts") -> tuple[int, ...]:
    """Numbers of tokens in increasing order, each once."""
    return tuple(sorted({whole(count, name, 2) for count in counts}))
