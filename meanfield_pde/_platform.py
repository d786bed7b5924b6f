"""The order in which compiled libraries must be loaded. Imported first by the package.

Two rules, each learnt from a crash. The PyPI wheel `dolfinx-solver-real` carries its own PETSc and
has to prepare the loader before DOLFINx or petsc4py is imported. And h5py has to come before
`dolfinx.fem.petsc`: in the other order h5py finds the wheel's older HDF5 already loaded and fails
with 'Not a datatype'.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence

INSTALL_HINT = (
    "DOLFINx is not installed: pip install 'meanfield_pde[fenicsx]' (Linux x86_64, "
    "Python 3.12 or later), or use the conda-forge environment in environment.yml"
)


def load(petsc_options: Sequence[str] = ()) -> None:
    """Load h5py, PETSc and DOLFINx in the order that works.

    Args:
        petsc_options: options for PETSc's own command line, such as `["-log_view"]`. They take
            effect only if PETSc has not been initialised in this process before.
    """
    if importlib.util.find_spec("dolfinx_solver") is not None:
        importlib.import_module("dolfinx_solver")
    elif importlib.util.find_spec("dolfinx") is None:
        raise ImportError(INSTALL_HINT)
    importlib.import_module("h5py")
    petsc4py = importlib.import_module("petsc4py")
    petsc4py.init(["meanfield-pde", *petsc_options])
    importlib.import_module("dolfinx.fem.petsc")
