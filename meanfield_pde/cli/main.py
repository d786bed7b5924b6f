"""The command line: a thin layer over the Python API.

Exit codes: 0 done, 1 the computation failed, 2 the input is wrong, 3 tokens deviate, 75 stopped by
a signal with everything saved, 130 after Ctrl-C, and 128 + n where signal n has ended a command
that does not go on later: 143 after SIGTERM. Errors are one line on standard error, printed once
whatever the number of ranks; a traceback only with --debug.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import shlex
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mpi4py import MPI
from petsc4py import PETSc

from meanfield_pde._signals import (
    Interrupted,
    command_named,
    heed_signals,
    let_go,
    let_interrupt,
)
from meanfield_pde.cli.arguments import check_outputs
from meanfield_pde.cli.options import add_commands
from meanfield_pde.cli.petsc_options import petsc_options
from meanfield_pde.errors import InputError, MeanfieldError
from meanfield_pde.support.files import check_appendable, said_of_written
from meanfield_pde.support.old_names import with_new_options
from meanfield_pde.support.ranks import on_root

LOG = logging.getLogger("meanfield_pde")

# Seconds that ranks that fail together wait for each other before they end those that did not: far
# more than ranks are apart in a step, so that none is ended that would have said why itself.
PATIENCE = 20.0
# Seconds that other ranks leave to the first, which waits half of one: Ctrl-C comes to all at once.
INTERRUPTED = 2.0
# Characters of a message, three and a half lines of a terminal; of a longer one its end is kept,
# too.
LONGEST_LINE = 280
PETSC_NOTE = "Options of PETSc, such as -ts_ssp_type rks3 or -log_view, are given after all others."


class _Parser(argparse.ArgumentParser):
    """Raises its errors, and prints help on the first rank, so that both appear once."""

    def error(self, message: str) -> None:  # type: ignore[override]  # argparse exits here
        raise InputError(f"{message} (see {self.prog} --help)")

    def _print_message(self, message: str, file: Any = None) -> None:
        if MPI.COMM_WORLD.rank == 0 and message:
            file = file or sys.stderr
            file.write(message)  # argparse itself is silent where this fails
            file.flush()


class _LogFile(logging.FileHandler):
    """A file for messages; if it takes no more of them, that is said once, and the run goes on."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (the name in logging)
        LOG.removeHandler(self)
        LOG.warning(
            "%s: cannot be written; the messages that follow are not in it", self.baseFilename
        )
        with contextlib.suppress(OSError):
            self.close()


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = _Parser(
        prog="meanfield-pde",
        description="Mean-field dynamics of attention, as a density on the circle and the sphere.",
        epilog=f"Every command also runs under `mpiexec -n N`. {PETSC_NOTE}",
        allow_abbrev=False,
    )
    parser.add_argument("--debug", action="store_true", help="print a traceback on errors")
    parser.add_argument("--version", action="version", version=version("meanfield_pde"))
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
    code = _run(given)
    let_go()
    sys.exit(code)


def _run(given: list[str]) -> int:
    comm = MPI.COMM_WORLD
    debug = "--debug" in given
    try:
        let_interrupt()
        _speak_any_encoding()
        if not debug:  # what is not finite is found and named where it matters
            warnings.simplefilter("ignore", RuntimeWarning)
        PETSc.Sys.popSignalHandler()  # there is one if something else has initialised PETSc
        heed_signals()
        if any(other != given for other in comm.allgather(given)):
            raise InputError("all ranks must be given the same command; write mpiexec -n N once")
        ours, petsc = _split_petsc(given)
        ours, notes = with_new_options(ours)
        options = build_parser().parse_args(ours)
        on_root(comm, check_outputs, options)
        _start_logging(getattr(options, "log", None), quiet=getattr(options, "quiet", False))
        for note in notes:
            LOG.warning("%s", note)
        with petsc_options(petsc):
            options.action(options)
        if sys.stdout is not None:
            sys.stdout.flush()  # what cannot be written is found while it can be said
    except MeanfieldError as error:  # as a rule raised by every rank
        if comm.rank == 0:
            _report(f"{error} ({error.options})" if error.options else str(error), debug)
            LOG.debug("%s", error)
        if _all_arrive():
            return error.exit_code
        if comm.rank != 0:
            _report(f"{error} (rank {comm.rank} alone)", debug)
        return _end_all(error.exit_code)
    except KeyboardInterrupt as error:
        if comm.rank != 0:
            time.sleep(INTERRUPTED)  # as a rule the first rank has said so, and ends all
        if isinstance(error, Interrupted):
            _report(f"{command_named()} {error}; {said_of_written()}", debug)
            return _end_all(error.exit_code)
        _report("interrupted", debug)
        return _end_all(130)
    except MemoryError:
        _report(f"there is not enough memory (rank {comm.rank}); take fewer cells or tokens", debug)
        return _end_all(1)
    except OSError as error:  # a terminal, a pipe or a disk that takes no more output, say
        _drop_output()
        if not isinstance(error, BrokenPipeError):  # whoever has enough read closes the pipe
            where = f"{error.filename}: " if error.filename else "writing or reading failed: "
            _report(f"{where}{error.strerror or error} (rank {comm.rank})", debug)
        return _end_all(1)
    except Exception as error:  # a bug on one rank must not leave the others waiting
        hint = "" if debug else "; --debug gives the traceback"
        _report(f"{type(error).__name__}: {error} (rank {comm.rank}{hint})", debug)
        return _end_all(1)
    return 0


def _start_logging(log: Path | None, *, quiet: bool) -> None:
    """Messages of the package on standard error, and in a file; those of the first rank only."""
    first = MPI.COMM_WORLD.rank == 0
    shown = logging.StreamHandler(sys.stderr)
    shown.setLevel(logging.WARNING if quiet else logging.INFO)
    if sys.stderr.isatty():  # there is a bar
        shown.addFilter(lambda record: not record.name.endswith(".progress"))
    for handler in LOG.handlers:
        handler.close()
    LOG.handlers = [shown]
    LOG.propagate = False
    LOG.setLevel(logging.DEBUG if first and log is not None else logging.INFO)
    if not first:
        LOG.setLevel(logging.ERROR)
    if log is None:
        return

    def open_log() -> None:
        check_appendable(log)
        kept = _LogFile(log, encoding="utf-8")
        kept.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        LOG.addHandler(kept)
        LOG.debug("%s", " ".join(sys.argv))

    on_root(MPI.COMM_WORLD, open_log)


def _speak_any_encoding() -> None:
    """Let a terminal that knows ASCII only show a question mark instead of a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _report(message: str, debug: bool) -> None:
    """An error in one line, after its traceback if that is wanted."""
    if debug:
        traceback.print_exc()
    line = "".join(c if c.isprintable() else "?" for c in " ".join(message.split()))
    if len(line) > LONGEST_LINE:  # the end may hold the remedy
        line = f"{line[: LONGEST_LINE - 75]} ... {line[-70:]}"
    print(f"meanfield-pde: {line}", file=sys.stderr, flush=True)


def _all_arrive() -> bool:
    """Whether every rank comes here, too; not so if one rank alone has failed."""
    request = MPI.COMM_WORLD.Ibarrier()
    deadline = time.monotonic() + PATIENCE
    while not request.Test():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _drop_output() -> None:
    """Have what is left in the buffer of standard output lead nowhere; it would fail again."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


def _end_all(code: int) -> int:
    if MPI.COMM_WORLD.size > 1:
        time.sleep(0.5)  # mpiexec forwards the message; at once, it may drop it with the rank
        MPI.COMM_WORLD.Abort(code)
    return code


def _split_petsc(given: list[str]) -> tuple[list[str], list[str]]:
    """Our arguments, and those from the first one of the form -name on, which are PETSc's."""
    ours: list[str] = []
    for i, argument in enumerate(given):
        if argument in ("-n", "-np"):
            ranks, *rest = given[i + 1 :] or ["N"]
            command = shlex.join(["meanfield-pde", *ours, *rest])
            raise InputError(
                f"{argument} is an option of mpiexec: write `mpiexec -n {ranks} {command}`"
            )
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
