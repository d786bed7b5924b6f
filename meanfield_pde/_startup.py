"""What a process finds where it starts, and how a command says that it cannot start there.

The libraries that are imported read environment variables and files of options, and raise errors of
their own on what they cannot read. Each is one line here, and wrong input.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from meanfield_pde._signals import COMMAND, RANK_VARIABLES
from meanfield_pde.errors import InputError

# Read by PETSc when it is initialised: in the home, and in the current folder.
_OPTIONS_FILE = ".petscrc"
_MARK = "PETSC ERROR: "


def report_in_one_line() -> None:
    """Have an error end the import of a command with one line; a traceback only with --debug."""

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if "--debug" in sys.argv:
            sys.__excepthook__(kind, error, trace)
        if next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0") == "0":
            named = "" if isinstance(error, InputError) else f"{kind.__name__}: "
            print(f"{COMMAND}: {named}{' '.join(str(error).split())}", file=sys.stderr, flush=True)
        os._exit(getattr(error, "exit_code", 1))

    sys.excepthook = report


def check_surroundings() -> None:
    """InputError unless there is a current folder, and numba can read its number of threads."""
    try:
        Path.cwd()
    except OSError as error:
        raise InputError(f"the current folder cannot be read ({error.strerror})") from None
    threads = os.environ.get("NUMBA_NUM_THREADS", "1").strip()
    if not threads.isdecimal() or int(threads) < 1:
        raise InputError(f"NUMBA_NUM_THREADS must be a positive whole number, got '{threads}'")


def check_backend() -> None:
    """InputError unless matplotlib knows the backend that MPLBACKEND names."""
    backend = os.environ.get("MPLBACKEND")
    if not backend:
        return
    try:
        importlib.import_module("matplotlib")
    except ValueError:
        raise InputError(
            f"MPLBACKEND must be a backend of matplotlib, got '{backend}'; unset it"
        ) from None


@contextmanager
def options_read() -> Iterator[None]:
    """Turn an error of PETSc in the block, on a file of its options, into an InputError.

    PETSc writes its page on the error to standard error by itself: kept back until it is known
    what it is.
    """
    files = [folder / _OPTIONS_FILE for folder in (Path.cwd(), Path(os.environ.get("HOME", "/")))]
    if not any(map(os.path.lexists, files)):
        yield
        return
    kept = os.dup(2)
    with tempfile.TemporaryFile() as page:
        os.dup2(page.fileno(), 2)
        try:
            yield
        except RuntimeError as error:  # petsc4py.PETSc.Error is one
            page.seek(0)
            said = [
                line.partition(_MARK)[2]
                for line in page.read().decode(errors="replace").splitlines()
            ]
            page.truncate(0)
            reason = next((line for line in said if _OPTIONS_FILE in line), str(error))
            raise InputError(f"PETSc cannot read its options: {reason}") from None
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            page.seek(0)
            os.write(2, page.read())
