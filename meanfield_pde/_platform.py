"""What has to be settled before anything else is imported: streams, order, and cache of kernels.

Two rules for compiled libraries, each learnt from a crash. The PyPI wheel `dolfinx-solver-real`
carries its own PETSc and has to prepare the loader before DOLFINx or petsc4py is imported. And h5py
has to come before `dolfinx.fem.petsc`: in the other order it finds the wheel's older HDF5 already
loaded and fails with 'Not a datatype'. So `load` imports what must come first, and DOLFINx itself
is left to the first that needs it.

Kernels are compiled at first use and kept beside the package, or else in the user's cache. Where
neither can be written, on compute nodes say, a temporary folder takes their place. Ranks of one
machine compile in turn, so that the first does it and the others find it in the cache. A kernel
that is kept holds those that it calls, so all are compiled again when a module with one changes.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib
import importlib.util
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

# The package, whose kernels call one another.
PACKAGE = Path(__file__).parent
# What to do where mpi4py, petsc4py or DOLFINx is missing.
INSTALL_HINT = (
    "DOLFINx is not installed: pip install 'meanfield_pde[fenicsx]' (Linux x86_64, "
    "Python 3.12 or later), or use the conda-forge environment in environment.yml"
)


def settle_streams() -> None:
    """Have closed standard streams lead nowhere, instead of to the next file opened.

    A file that gets the number of a closed stream would be written to by whatever libraries print.
    """
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, flags)  # the lowest number that is free
            if found != number:
                os.dup2(found, number)
                os.close(found)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def settle_cache() -> None:
    """Have numba keep what it compiles where that can be written; ranks compile in turn."""
    caching = importlib.import_module("numba.core.caching")
    dispatcher = importlib.import_module("numba.core.dispatcher")
    try:
        caching.FunctionCache(settle_cache)
    except RuntimeError:  # "no locator available"
        folder = _own_folder()
        if folder is None:  # nothing can be written anywhere: compile anew each time
            dispatcher.Dispatcher.enable_caching = lambda self: None
            return
        importlib.import_module("numba").config.CACHE_DIR = str(folder)
        os.environ["NUMBA_CACHE_DIR"] = str(folder)
        os.environ.setdefault("MPLCONFIGDIR", str(folder / "matplotlib"))  # would warn
    sources = caching._SourceFileBackedLocatorMixin
    if not hasattr(sources.get_source_stamp, "of_all"):
        sources.get_source_stamp = _of_all(sources.get_source_stamp)
    compile_alone = dispatcher.Dispatcher.compile
    if not hasattr(compile_alone, "in_turn"):
        dispatcher.Dispatcher.compile = _in_turn(compile_alone)


def _own_folder() -> Path | None:
    """A folder for temporary files that is this user's alone, since what is in it is executed."""
    for parent in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm"):
        if not parent:
            continue
        folder = Path(parent) / f"meanfield_pde-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError:
            continue
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        if private and found.st_uid == os.getuid():
            return folder
    return None


def _of_all(stamp_alone: Callable[..., Any]) -> Callable[..., Any]:
    """The stamp by which numba knows whether a kernel is still that of its module, and of all."""

    def stamp_of_all(self: Any) -> Any:
        stamp, own = stamp_alone(self), Path(self._py_file).is_relative_to(PACKAGE)
        return (stamp, _digest_of_kernels(PACKAGE)) if own else stamp

    stamp_of_all.of_all = True  # type: ignore[attr-defined]
    return stamp_of_all


@functools.cache
def _digest_of_kernels(folder: Path) -> str:
    """A digest of all modules in a folder that name numba, or what it is used through."""
    texts = (path.read_bytes() for path in sorted(folder.rglob("*.py")))
    compiled = (text for text in texts if b"numba" in text or b"support.kernels" in text)
    return hashlib.sha256(b"".join(compiled)).hexdigest()


def _in_turn(compile_alone: Callable[..., Any]) -> Callable[..., Any]:
    """Compilation under a lock of the machine; who comes second finds the result in the cache."""
    inside = [0]  # compiling one kernel compiles those that it calls

    def compile_in_turn(self: Any, signature: Any) -> Any:
        folder = None if inside[0] else _own_folder()
        if folder is None:
            return compile_alone(self, signature)
        with (folder / "compiling.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            inside[0] += 1
            try:
                return compile_alone(self, signature)
            finally:
                inside[0] -= 1

    compile_in_turn.in_turn = True  # type: ignore[attr-defined]
    return compile_in_turn


class _WithoutArguments(SourceFileLoader):
    """Loads DOLFINx, which looks for options of its logger, and fails where these are not UTF-8."""

    def exec_module(self, module: ModuleType) -> None:
        given, sys.argv = sys.argv, ["meanfield-pde"]
        try:
            super().exec_module(module)
        finally:
            sys.argv = given


class _FinderOfDolfinx(MetaPathFinder):
    """Finds DOLFINx, whoever imports it first."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "dolfinx":
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _WithoutArguments(spec.loader.name, spec.loader.path)
        return spec


def load(petsc_options: Sequence[str] = ()) -> None:
    """Load h5py and PETSc in the order that works, with which DOLFINx can be imported any time.

    Args:
        petsc_options: options for PETSc's own command line, such as `["-log_view"]`. They take
            effect only if PETSc has not been initialised in this process before.
    """
    if importlib.util.find_spec("dolfinx_solver") is not None:
        importlib.import_module("dolfinx_solver")
    elif importlib.util.find_spec("dolfinx") is None:
        raise ImportError(INSTALL_HINT)
    options_read = importlib.import_module("meanfield_pde._startup").options_read
    importlib.import_module("h5py")
    petsc4py = importlib.import_module("petsc4py")
    # PETSc's handlers would end a run that is asked to stop, with a page of advice.
    with options_read():
        petsc4py.init(["meanfield-pde", "-no_signal_handler", *petsc_options])
    sys.meta_path.insert(0, _FinderOfDolfinx())
