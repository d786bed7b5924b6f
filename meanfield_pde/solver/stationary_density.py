"""The stationary density that an evolution comes to: `stationary`, for scripts.

Without noise a density concentrates, and there is nothing between its clusters for Newton's method
to work with: the evolution goes on until it is steady (`steadiness`), through states that are only
metastable. Where tokens repel each other it would take too long, and the density of least energy
is found directly (`least_energy`). With noise it goes on until Newton's method finds the state in
few steps, and the fastest perturbation of that says whether it is stable (`Stationary`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde.amr.settings import AdaptSettings
from meanfield_pde.attention.heads import is_one_head
from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.initial.given import InitialLike
from meanfield_pde.initial.masses import cell_masses
from meanfield_pde.initial.uniform import Uniform
from meanfield_pde.mesh.adopt import usable_mesh
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.least_energy import MOST_CELLS, least_energy, repels
from meanfield_pde.solver.settings import AUTO, SolverCase
from meanfield_pde.solver.solution import Solution
from meanfield_pde.solver.solve import solve
from meanfield_pde.solver.stationary import Growth, Stationary, is_stable
from meanfield_pde.solver.steadiness import TOLERANCE
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.ranks import on_root
from meanfield_pde.wasserstein.measure import Measure

# Of the sums of Newton's method: derivatives are differences over 1e-5 (`linearised`).
_TOLERANCE = 1e-14
# The change, per unit of time, from which on Newton's method does the rest: it takes some ten
# steps, and the evolution as many times as long as the slowest perturbation lives.
_NEAR = 1e-5
# The same where tokens repel each other: the density of least energy is one for all, so that the
# evolution need not be near, and what is left of it decays over times of 100 and more.
_REPELLED = 1e-3


@dataclass(frozen=True, eq=False)
class StationaryDensity:
    """A stationary density.

    Attributes:
        masses: of all cells.
        measure: the same on the cells.
        change: total variation per unit of time that is left.
        growth: the fastest perturbation; None without noise.
        solution: the evolution that came to it.
    """

    masses: np.ndarray = field(repr=False)
    measure: Measure = field(repr=False)
    change: float
    growth: Growth | None
    solution: Solution = field(repr=False)

    @property
    def density(self) -> np.ndarray:
        """Masses per arc length or area."""
        return np.asarray(self.masses / self.solution.cells_at(-1).volumes)

    @property
    def stable(self) -> bool | None:
        """Whether no perturbation grows; None without noise, where it is not known.

        Clusters of several places may stand for as long as anyone waits and merge all the same, and
        such as are narrower than cells that stay are held by these.
        """
        return None if self.growth is None else is_stable(self.growth.rate, self.solution.noise)


@typed
def stationary(
    attention: AttentionLike,
    mesh: dolfinx_mesh.Mesh,
    initial: InitialLike | None = None,
    *,
    noise: float = 0.0,
    until: float = 1000.0,
    steady: float = TOLERANCE,
    scheme: str = AUTO,
    adapt: float | AdaptSettings | None = None,
    threads: int | None = None,
) -> StationaryDensity:
    """Return the stationary density that an initial one comes to, stable or not. Collective.

    SolverError if it comes to none: what changes, or is metastable, at `until` is not stationary.
    Without noise, where V = -c Q^T K, c > 0, with Q^T K symmetric and positive definite, tokens
    repel each other: on the circle, with at most 3,000 cells, it is the density of least energy, to
    which all without zeros come.

    Args:
        attention: the matrices and the inverse temperature; layers end, and have no such density.
        mesh: a DOLFINx mesh of the circle or the sphere.
        initial: as in `solve`; uniform if left out. With noise it may be near a state that is not
            stable.
        noise: its strength sigma >= 0.
        until: when to give up.
        steady: the change per unit of time, in total variation, that counts as none; with noise
            what is left by Newton's method is far less.
        scheme: of transport, as in `solve`.
        adapt: of an adaptive mesh, as in `solve`; without noise only.
        threads: of each rank.
    """
    if len(attention.layers) > 1:
        raise InputError(
            f"a stationary density needs an attention that does not change, got "
            f"{len(attention.layers)} layers"
        )
    if noise and adapt is not None:
        raise InputError("adapt: Newton's method needs a mesh that stays; leave it out, or noise")
    direct = None if noise or adapt else _of_least_energy(attention, mesh, initial, scheme, steady)
    near = _NEAR if noise else 0.0 if direct is None else _REPELLED
    solution = solve(
        attention,
        mesh,
        initial,
        noise=noise,
        until=until,
        scheme=scheme,
        adapt=adapt,
        threads=threads,
        steady=max(steady, near),
        steady_metastable=noise > 0 or direct is not None,
    )
    if direct is not None:
        masses, change = direct
        measure = Measure((last := solution.measure(-1)).points, masses, last.spread)
        return StationaryDensity(masses, measure, change, None, solution)
    found = solution.steadiness
    if found is None or not found.stopped:
        raise SolverError(
            f"no stationary density by until = {until:g}: {found}; give a later until, or an "
            "initial density that is nearer to one"
        )
    if not noise:
        masses, change = solution.masses[-1], found.change
        return StationaryDensity(masses, solution.measure(-1), change, None, solution)
    volumes = FiniteVolumes(usable_mesh(mesh))
    settings = SolverCase(scheme, _TOLERANCE, "off")
    problem = Stationary(Equation(attention, volumes, settings, noise))
    state = problem.newton(solution.masses[-1], noise)
    growth = problem.growth(state.masses, noise)
    measure = solution.measure(-1)
    measure = Measure(measure.points, state.masses, measure.spread)
    # What only turns a state changes it all the same.
    change = float(np.abs(problem.rate(state.masses, noise)).sum())
    return StationaryDensity(state.masses, measure, change, growth, solution)


def _of_least_energy(
    attention: AttentionLike,
    mesh: dolfinx_mesh.Mesh,
    initial: InitialLike | None,
    scheme: str,
    steady: float,
) -> tuple[np.ndarray, float] | None:
    """The masses that all densities without zeros come to where tokens repel each other.

    With the change per unit of time that is left. None if the density does not come to them, or if
    they are not as stationary as is asked for. Collective.
    """
    heads = attention.layers[0].heads
    if not (is_one_head(attention.layers[0]) and heads and repels(heads[0])):
        return None
    volumes = FiniteVolumes(usable_mesh(mesh))
    start = cell_masses(Uniform() if initial is None else initial, volumes)
    if volumes.dimension > 2 or volumes.global_cells > MOST_CELLS:
        return None
    if not volumes.gather(start).min() > 0:
        return None
    cells = Cells.of(volumes)
    masses = on_root(volumes.comm, least_energy, heads[0], cells.points, cells.volumes)
    settings = SolverCase(scheme, _TOLERANCE, "off")
    problem = Stationary(Equation(attention, volumes, settings))
    change = float(np.abs(problem.rate(masses, 0.0)).sum())
    return (masses, change) if change <= steady else None
