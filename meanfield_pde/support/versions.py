"""Versions of the package and of what it computes with."""

from __future__ import annotations

import platform
from importlib.metadata import version

from petsc4py import PETSc

import dolfinx


def versions() -> dict[str, str]:
    """Versions by name."""
    names = ("meanfield_pde", "numpy", "scipy", "numba", "h5py", "mpi4py")
    return {name: version(name) for name in names} | {
        "python": platform.python_version(),
        "dolfinx": dolfinx.__version__,
        "petsc": ".".join(map(str, PETSc.Sys.getVersion())),
    }
