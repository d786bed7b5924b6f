"""From settings to an evolution, for runs, lifetimes and the zero-temperature twin alike."""

from __future__ import annotations

import numpy as np

from meanfield_pde.initial.given import InitialLike
from meanfield_pde.initial.masses import cell_masses
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.evolution import Evolution
from meanfield_pde.solver.follower import Follower
from meanfield_pde.solver.following import MassFollower
from meanfield_pde.solver.settings import LOG_MASSES
from meanfield_pde.solver.wide_evolution import LogEvolution, doubles_run_out
from meanfield_pde.theory.projection_limit import ProjectionLimit


def build_evolution(
    equation: Equation,
    masses: np.ndarray,
    projection: ProjectionLimit | None = None,
    follower: Follower | None = None,
) -> Evolution:
    """The evolution that the settings of the equation ask for, from the masses of own cells.

    Args:
        equation: what to solve, where and how.
        masses: of this rank's own cells, at time 0.
        projection: of the attention whose tail decides whether doubles are enough; by default that
            of the equation.
        follower: what changes the mesh between steps.
    """
    wide = LOG_MASSES[equation.settings.log_masses]
    if equation.noise:
        wide = False  # noise fills the tails again
    if wide is None:
        wide = doubles_run_out(projection or ProjectionLimit(equation.attention))
    return (LogEvolution if wide else Evolution)(equation, masses, follower)


def start_evolution(
    equation: Equation,
    initial: InitialLike,
    resolution: float | None = None,
    projection: ProjectionLimit | None = None,
) -> Evolution:
    """The evolution from an initial density. Collective.

    Args:
        equation: what to solve, where and how.
        initial: the density at time 0.
        resolution: of a mesh that follows the mass, with that of the equation as the coarsest; None
            keeps the mesh as it is.
        projection: as for `build_evolution`.
    """
    if resolution is None:
        return build_evolution(equation, cell_masses(initial, equation.volumes), projection)
    follower = MassFollower.on(equation.volumes, resolution)
    fitted, masses = follower.begin(equation, initial)
    return build_evolution(fitted, masses, projection, follower)
