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

# Read by PETSc when it is initialised: the first in the home, both in the current folder.
_OPTIONS_FILES = (".petscrc", "petscrc")
# Read from the current folder by numba, and by DOLFINx where it compiles a form.
_LIBRARY_FILES = (".numba_config.yaml", "dolfinx_jit_options.json", "ffcx_options.json")
_MOST_DIGITS = 9  # of a number of threads
_MARK = "PETSC ERROR: "


def report_in_one_line() -> None:
    """Have an error end the import of a command with one line; a traceback only with --debug."""

    def report(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if "--debug" in sys.argv:
            sys.__excepthook__(kind, error, trace)
        if next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0") == "0":
            plain = isinstance(error, InputError | OSError | MemoryError)  # which say what it is
            named = "" if plain else f"{kind.__name__}: "
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
    if not threads.isdecimal() or len(threads) > _MOST_DIGITS or int(threads) < 1:
        raise InputError(f"NUMBA_NUM_THREADS must be a positive whole number, got '{threads[:80]}'")
    for path in (*_options_files(), *map(Path, _LIBRARY_FILES), *_figure_settings()):
        if os.path.exists(path) and not os.path.isdir(path) and not os.path.isfile(path):
            raise InputError(f"{path} is a pipe or a device, not a file of settings; remove it")


def check_figure_settings() -> None:
    """InputError unless matplotlib can read its settings, and knows the backend they name."""
    found = [path for path in _figure_settings() if os.path.exists(path)]
    if not found and "MPLBACKEND" not in os.environ:
        return  # matplotlib waits until something is drawn, see `_lazy`
    for path in [path for path in found if not os.path.isdir(path)][:1]:
        try:
            path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: not readable settings of matplotlib ({error})") from None
    try:
        importlib.import_module("matplotlib")
    except ValueError as error:
        if backend := os.environ.get("MPLBACKEND"):
            raise InputError(
                f"MPLBACKEND must be a backend of matplotlib, got '{backend}'; unset it"
            ) from None
        raise InputError(f"matplotlib cannot read its settings ({error})") from None


def _options_files() -> list[Path]:
    """The files of options that PETSc reads, whether they are there or not."""
    home = Path(os.environ.get("HOME", "/"))
    return [*map(Path.cwd().joinpath, _OPTIONS_FILES), home / _OPTIONS_FILES[0]]


def _figure_settings() -> Iterator[Path]:
    """Where matplotlib looks for its settings, in its order; it takes the first that is there."""
    yield Path("matplotlibrc")
    if given := os.environ.get("MATPLOTLIBRC"):
        yield from (Path(given), Path(given, "matplotlibrc"))
    home = Path(os.environ.get("HOME", "/"))
    folder = os.environ.get("MPLCONFIGDIR")
    if not folder:
        folder = str(Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config", "matplotlib"))
    yield Path(folder, "matplotlibrc")


@contextmanager
def options_read() -> Iterator[None]:
    """Turn an error of PETSc in the block, on a file of its options, into an InputError.

    PETSc writes its page on the error to standard error by itself: kept back until it is known
    what it is.
    """
    if not any(map(os.path.lexists, _options_files())):
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
            reason = next((line for line in said if _OPTIONS_FILES[1] in line), str(error))
            raise InputError(f"PETSc cannot read its options: {reason}") from None
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            page.seek(0)
            os.write(2, page.read())
