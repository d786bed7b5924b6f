"""The front door for scripts: a problem in, its densities at the saved times out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from dolfinx import mesh as dolfinx_mesh

from meanfield_pde.amr.settings import AdaptSettings
from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.initial.given import InitialLike
from meanfield_pde.initial.uniform import Uniform
from meanfield_pde.mesh.adopt import usable_mesh
from meanfield_pde.solver.observables import OwnObservables
from meanfield_pde.solver.settings import (
    AUTO,
    LOG_MASSES,
    STEP_TOLERANCE,
    CompareCase,
    SolverCase,
    TimeCase,
)
from meanfield_pde.solver.simulation import Observer, Simulation
from meanfield_pde.solver.solution import Solution
from meanfield_pde.solver.step_control import StepSettings
from meanfield_pde.support.arguments import typed_except
from meanfield_pde.support.checks import check_ends
from meanfield_pde.support.old_names import accept_old_keywords


@accept_old_keywords
@typed_except("observables")  # of which `own_observables` says what is wrong with them
def solve(
    attention: AttentionLike,
    mesh: dolfinx_mesh.Mesh,
    initial: InitialLike | None = None,
    *,
    until: float,
    noise: float = 0.0,
    save_at: Sequence[float] = (),
    save_every: float | None = None,
    scheme: str = AUTO,
    tolerance: float = 1e-10,
    step_tolerance: float = STEP_TOLERANCE,
    threads: int | None = None,
    compare: CompareCase | None = None,
    log_masses: bool | None = None,
    adapt: float | AdaptSettings | None = None,
    steps: StepSettings | None = None,
    steady: float | None = None,
    steady_metastable: bool = False,
    observables: OwnObservables | None = None,
    observers: Iterable[Observer] = (),
) -> Solution:
    """Solve d/dt mu + div(mu P_x V m) = sigma Laplace-Beltrami mu to `until`. Collective.

    Args:
        attention: the matrices and the inverse temperature; `Heads` act at once, and with
            terms beside them; `Layers` change with time.
        mesh: a DOLFINx mesh of the circle or the sphere, distributed over its communicator.
        initial: a density of `meanfield_pde.initial`, a formula in x, y, z, a function of
            points, a scalar `fem.Function` on the mesh, or the masses of the cells in input
            order; uniform if left out.
        until: end time, refused if it is more than a billion first steps away.
        noise: its strength sigma >= 0.
        save_at: times to save besides the start and the end.
        save_every: the interval between saved times, instead of `save_at`.
        scheme: a name in `solver.schemes.SCHEMES`: "quadratic" (third order), "muscl" (second),
            "upwind" (first); by default the first, with noise the second.
        tolerance: bound on the error of the attention sum.
        step_tolerance: bound on the error of steps in time, per unit of time: of the place of the
            mass, in widths of the attention kernel, and of log rho on the mean.
        threads: threads of each rank; by default the cores divided by the ranks of the machine.
        compare: Wasserstein distances to add to the history.
        log_masses: whether masses are held in the extended range, below that of doubles; by
            default from when the smallest falls below 1e-280 and velocities can see it, never with
            noise or at zero temperature. What is saved are doubles.
        adapt: the tolerance of an adaptive mesh, in radians, or settings with it: the mesh is
            refined and coarsened so that its own part of the error in W_1 stays below this. The
            mesh given is the coarsest; each saved time has its own cells, `solution.cells_at(i)`.
            By default the mesh stays as it is.
        steps: what else steps are allowed to do, for studies of the error in time.
        steady: end before `until` where the density changes by less than this per unit of time, in
            total variation, and is to stay so: `solution.steadiness` says since when, and otherwise
            why it is not steady.
        steady_metastable: end there, too, where the density is to change later.
        observables: further columns of the history, by name: functions f of points (N x d -> N), or
            formulas in x, y, z, of which the integrals ∫ f dmu are taken.
        observers: called after every step and every saved time.
    """
    time = TimeCase(until, tuple(save_at), save_every, steady, steady_metastable)
    times = time.save_times
    chosen = next(name for name, value in LOG_MASSES.items() if value is log_masses)
    simulation = Simulation(
        attention,
        usable_mesh(mesh),
        Uniform() if initial is None else initial,
        noise=noise,
        settings=SolverCase(scheme, tolerance, chosen, step_tolerance),
        threads=threads,
        compare=compare,
        adapt=adapt,
        steps=steps,
        observables=observables,
    )
    try:
        _check_ends(simulation, times[-1])
        simulation.run(times, users=observers, steady=steady, steady_metastable=steady_metastable)
        return replace(simulation.solution(), mesh=mesh)  # the cells are numbered alike
    finally:
        simulation.close()


def _check_ends(simulation: Simulation, until: float) -> None:
    """InputError if steps as long as the first do not come to the end. Collective."""
    if until > 0:
        steps = max(until / one.longest_step() for one in simulation.evolutions.values())
        check_ends(steps, f"until = {until:g}", "make it less, or take larger cells")
