"""From an initial density to the masses of the cells, which add up to one."""

from __future__ import annotations

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.initial.given import InitialLike, as_initial
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.support.checks import check_mass
from meanfield_pde.support.ranks import shared_errors


def cell_masses(initial: InitialLike, volumes: FiniteVolumes) -> np.ndarray:
    """Masses of this rank's own cells, scaled to a total of one. Collective."""
    density = as_initial(initial)
    with shared_errors(volumes.comm):  # it may call a function of the user's
        density.check(volumes.dimension)
    masses = density.cell_masses(volumes)
    # In input order, so that the total does not depend on the number of ranks.
    every = volumes.gather(masses)
    if not np.isfinite(every).all() or (every < 0).any():
        raise InputError("the initial density must be finite and >= 0 in every cell")
    with np.errstate(over="ignore"):
        total = every.sum()
    check_mass(total, "the initial density")
    return masses / total
