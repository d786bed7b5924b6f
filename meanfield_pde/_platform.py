"""What has to be settled before anything else is imported: streams, and the order of libraries.

Two rules for compiled libraries, each learnt from a crash. The PyPI wheel `dolfinx-solver-real`
carries its own PETSc and has to prepare the loader before DOLFINx or petsc4py is imported. And h5py
has to come before `dolfinx.fem.petsc`: in the other order it finds the wheel's older HDF5 already
loaded and fails with 'Not a datatype'. So `load` imports what must come first, and DOLFINx itself
is left to the first that needs it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType

from meanfield_pde import _signals

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


class _WithoutArguments(SourceFileLoader):
    """Loads DOLFINx, which looks for options of its logger, and fails where these are not UTF-8."""

    def exec_module(self, module: ModuleType) -> None:
        given, sys.argv = sys.argv, ["meanfield-pde"]
        try:
            super().exec_module(module)
        finally:
            sys.argv = given


class _FinderOfDolfinx(MetaPathFinder):
    """Finds DOLFINx, whoever imports it first; ImportError that says how to get it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "dolfinx":
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            raise ImportError(INSTALL_HINT)
        if isinstance(spec.loader, SourceFileLoader):
            spec.loader = _WithoutArguments(spec.loader.name, spec.loader.path)
        return spec


@contextmanager
def _without_petsc_options() -> Iterator[None]:
    """Have PETSc begin without PETSC_OPTIONS, which the command checks and sets as its own."""
    given = os.environ.pop("PETSC_OPTIONS", None) if _signals.is_command() else None
    try:
        yield
    finally:
        if given is not None:
            os.environ["PETSC_OPTIONS"] = given


def load(petsc_options: Sequence[str] = ()) -> None:
    """Load h5py and PETSc in the order that works, with which DOLFINx can be imported any time.

    Args:
        petsc_options: options for PETSc's own command line, such as `["-log_view"]`. They take
            effect only if PETSc has not been initialised in this process before.
    """
    if importlib.util.find_spec("dolfinx_solver") is not None:
        importlib.import_module("dolfinx_solver")
    elif importlib.util.find_spec("petsc4py") is None:
        raise ImportError(INSTALL_HINT)
    options_read = importlib.import_module("meanfield_pde._startup").options_read
    importlib.import_module("h5py")
    petsc4py = importlib.import_module("petsc4py")
    # PETSc's handlers would end a run that is asked to stop, with a page of advice.
    with options_read(), _without_petsc_options():
        petsc4py.init(["meanfield-pde", "-no_signal_handler", *petsc_options])
    sys.meta_path.insert(0, _FinderOfDolfinx())
