"""Which integrator takes the steps of a run: options of PETSc say so, on the command line too.

Before any work the command line tries the options that are given (`cli.petsc_options`): it asks for
the class, and the class for what it reads itself (`Integrator.check_options`). An option that
neither has asked for is refused.
"""

from __future__ import annotations

from petsc4py import PETSc

from meanfield_pde.solver.integrator import Integrator, PetscIntegrator, SSPRungeKutta


def integrator_class() -> type[Integrator]:
    """Return PETSc's TS if its options ask for anything of it, and the compiled rks3 otherwise."""
    if any(name.startswith("ts_") for name in PETSc.Options().getAll()):
        return PetscIntegrator
    return SSPRungeKutta
