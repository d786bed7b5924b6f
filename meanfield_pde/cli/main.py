"""The command line: a thin layer over the Python API.

Exit codes: 0 done, 1 the computation failed, 2 the input is wrong, 3 tokens deviate. Errors are one
line on standard error, printed once whatever the number of ranks; a traceback only with --debug.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from mpi4py import MPI
from petsc4py import PETSc

from meanfield_pde.cli.options import add_commands
from meanfield_pde.cli.petsc_options import petsc_options
from meanfield_pde.errors import InputError, MeanfieldError

# Ranks that fail together wait this long for each other before they end those that did not.
PATIENCE = 20.0
PETSC_NOTE = "Options of PETSc, such as -ts_ssp_type rks3 or -log_view, are given after all others."


class _Parser(argparse.ArgumentParser):
    """Raises its errors, and prints help on the first rank, so that both appear once."""

    def error(self, message: str) -> None:  # type: ignore[override]  # argparse exits here
        raise InputError(f"{message} (see {self.prog} --help)")

    def _print_message(self, message: str, file: Any = None) -> None:
        if MPI.COMM_WORLD.rank == 0:
            super()._print_message(message, file)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(
        prog="meanfield-pde",
        description="Mean-field dynamics of attention, as a density on the circle and the sphere.",
        epilog=f"Every command also runs under `mpiexec -n N`. {PETSC_NOTE}",
        allow_abbrev=False,
    )
    parser.add_argument("--debug", action="store_true", help="print a traceback on errors")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(
        name: str, action: Callable[[argparse.Namespace], None], summary: str
    ) -> argparse.ArgumentParser:
        sub = subparsers.add_parser(
            name, help=summary, description=summary, epilog=PETSC_NOTE, allow_abbrev=False
        )
        sub.set_defaults(action=action)
        sub.add_argument(
            "--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS
        )
        return sub

    add_commands(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(given))


def _run(given: list[str]) -> int:
    comm = MPI.COMM_WORLD
    debug = "--debug" in given
    # PETSc's handler would turn a closed pipe, or a batch system's SIGTERM, into pages of advice.
    PETSc.Sys.popSignalHandler()
    try:
        ours, petsc = _split_petsc(given)
        options = build_parser().parse_args(ours)
        _start_logging(quiet=getattr(options, "quiet", False))
        with petsc_options(petsc):
            options.action(options)
    except MeanfieldError as error:  # as a rule raised by every rank
        if comm.rank == 0:
            _report(str(error), debug)
        if _all_arrive():
            return error.exit_code
        if comm.rank != 0:
            _report(f"{error} (rank {comm.rank} alone)", debug)
        return _end_all(error.exit_code)
    except KeyboardInterrupt:
        _report("interrupted", debug)
        return _end_all(130)
    except Exception as error:  # a bug on one rank must not leave the others waiting
        hint = "" if debug else "; --debug gives the traceback"
        _report(f"{type(error).__name__}: {error} (rank {comm.rank}{hint})", debug)
        return _end_all(1)
    return 0


def _start_logging(*, quiet: bool) -> None:
    """Messages of the package on standard error, those of the first rank only."""
    logger = logging.getLogger("meanfield_pde")
    logger.handlers = [logging.StreamHandler(sys.stderr)]
    first = MPI.COMM_WORLD.rank == 0
    logger.setLevel(logging.INFO if first and not quiet else logging.ERROR)


def _report(message: str, debug: bool) -> None:
    """An error in one line, after its traceback if that is wanted."""
    if debug:
        traceback.print_exc()
    print(f"meanfield-pde: {' '.join(message.splitlines())}", file=sys.stderr, flush=True)


def _all_arrive() -> bool:
    """Whether every rank comes here, too; not so if one rank alone has failed."""
    request = MPI.COMM_WORLD.Ibarrier()
    deadline = time.monotonic() + PATIENCE
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _end_all(code: int) -> int:
    if MPI.COMM_WORLD.size > 1:
        time.sleep(0.5)  # mpiexec forwards the message; at once, it may drop it with the rank
        MPI.COMM_WORLD.Abort(code)
    return code


def _split_petsc(given: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and those from the first one of the form -name on, which are PETSc's."""
    ours: list[str] = []
    for i, argument in enumerate(given):
        if argument == "-help":  # PETSc has such an option, but hardly anyone means its pages
            ours.append("--help")
        elif ours and ours[-1] == "--grade-to":  # a vector may begin with a minus sign
            ours[-1] += f"={argument}"
        elif len(argument) > 2 and argument[0] == "-" and argument[1].isalpha():
            late = [one for one in given[i:] if one.startswith("--")]
            if late:
                raise InputError(f"{late[0]} must come before the PETSc option {argument}")
            return ours, given[i:]
        else:
            ours.append(argument)
    return ours, []


if __name__ == "__main__":
    main()
