"""PETSc's options from the command line and PETSC_OPTIONS: checked before any work, and set.

PETSc begins without either (`_platform`), since what it acts on then ends in a page of its own, or
in a crash. Files of options (.petscrc) are shared by all programs of a user, and hold what others
ask for.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpi4py import MPI
from petsc4py import PETSc

from meanfield_pde.errors import InputError, StorageError
from meanfield_pde.support.checks import to_path
from meanfield_pde.support.files import check_appendable
from meanfield_pde.support.ranks import on_root

# PETSc would take these, but the steps and their lengths are chosen by `Controller`.
_OURS = ("ts_dt", "ts_time_step", "ts_max_", "ts_init_time", "ts_exact_final_time", "ts_adapt")
# PETSc's manual has the first name; its code (3.25) reads the second, and ignores the first.
_RENAMED = {"ts_ssp_nstages": "ts_ssp_num_stages"}
_LOG_VIEW = "log_view"


@contextmanager
def petsc_options(given: Sequence[str]) -> Iterator[None]:
    """Set options while the body runs, after a trial that refuses those nothing asks for.

    Args:
        given: names and values, as on PETSc's own command line: ["-ts_ssp_type", "rk104"].
    """
    options = PETSc.Options()
    values = _of_environment() | _parse(given)
    if values.get(_LOG_VIEW):
        on_root(MPI.COMM_WORLD, check_appendable, _log_file(values[_LOG_VIEW] or ""))
    for name, value in values.items():
        options.setValue(name, value)
    try:
        if values:
            _check(values)
        if _LOG_VIEW in values:
            PETSc.Log.begin()
        yield
        if _LOG_VIEW in values:
            _view_log(values[_LOG_VIEW])
    finally:
        # PETSc has a page of warnings for those that nothing has asked for; here a line names one.
        for name in values:
            options.delValue(name)


def _parse(given: Sequence[str]) -> dict[str, str | None]:
    values: dict[str, str | None] = {}
    name = ""
    for argument in given:
        if _is_name(argument):
            name = _RENAMED.get(argument[1:], argument[1:])
            values[name] = None
        elif values[name] is None:
            values[name] = argument
        else:
            raise InputError(f"the PETSc option -{name} takes one value, got '{argument}' as well")
    return values


def _is_name(argument: str) -> bool:
    return argument[:1] == "-" and argument[1:2].isalpha()


def _of_environment() -> dict[str, str | None]:
    """Names and values in PETSC_OPTIONS."""
    try:
        given = shlex.split(os.environ.get("PETSC_OPTIONS", ""))
    except ValueError as error:
        raise InputError(f"PETSC_OPTIONS cannot be read: {error}") from None
    if given and not _is_name(given[0]):
        raise InputError(f"PETSC_OPTIONS must begin with an option, got '{given[0]}'")
    return _parse(given)


def _check(names: Iterable[str]) -> None:
    for name in names:
        if name.startswith(_OURS):
            raise InputError(
                f"the PETSc option -{name} has no effect here: the length of the steps follows "
                "from the density, and [time] says how far to go"
            )
    from meanfield_pde.solver.chosen_integrator import integrator_class  # see `_lazy`

    try:
        integrator_class().check_options()
    except PETSc.Error as error:  # a value that is not of the type asked for
        raise InputError(f"PETSc refuses its options: {_reason(error)}") from error
    _try_solver()
    options = PETSc.Options()
    for name in names:
        if name != _LOG_VIEW and not options.used(name):
            raise InputError(
                f"the PETSc option -{name} is not one that this solver asks for; look it up, "
                "or leave it out"
            )


def _try_solver() -> None:
    """Set up the solver of the noise for a small system, which reads the options of its parts."""
    from meanfield_pde.solver.diffusion import configured_solver  # see `_lazy`

    matrix: Any = PETSc.Mat()
    matrix.createAIJ((2, 2), comm=MPI.COMM_SELF)
    matrix.setUp()
    for i in range(2):
        matrix.setValue(i, i, 1.0)
    matrix.assemble()
    solver: Any = configured_solver(MPI.COMM_SELF)
    solver.setOperators(matrix)
    try:
        solver.setUp()
    except PETSc.Error as error:
        raise InputError(f"PETSc refuses its options: {_reason(error)}") from error
    finally:
        solver.destroy()
        matrix.destroy()


def _reason(error: PETSc.Error) -> str:
    """What is wrong: the last line of PETSc's stack, after the number of the rank."""
    return str(error).splitlines()[-1].split("] ", 1)[-1]


def _log_file(where: str) -> Path:
    return to_path(where.removeprefix(":"), "-log_view")


def _view_log(where: str | None) -> None:
    """Print PETSc's timings, or write them to the file that `-log_view :FILE` names."""
    target = "standard output" if where is None else str(_log_file(where))
    try:
        if where is None:
            PETSc.Log.view()
            return
        viewer: Any = PETSc.Viewer()
        viewer.createASCII(target, comm=MPI.COMM_WORLD)
        PETSc.Log.view(viewer)
        viewer.destroy()
    except PETSc.Error as error:
        raise StorageError(f"{target}: cannot be written ({_reason(error)})") from error
