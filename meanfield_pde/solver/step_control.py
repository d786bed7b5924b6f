"""Length of a step: how long transport may take, and for how long velocities may be frozen.

A step moves mass by less than a cell (CFL), and resolves the growth of a density that hardly moves
yet, whose outflow rate says nothing: rates of growth are of the order |V|.

On an adaptive mesh cells in a cluster are far narrower than the attention kernel. What moves among
them changes no velocity, so these are frozen while transport alone takes as many substeps as the
cells want. With L(M) the transport by the velocities that M has,

    M_half = exp(dt/2 L(M)) M,     M_new = exp(dt L(M_half)) M,

of second order in dt. A token at x attends to y with the share p_x(y) ~ M(y) exp(<w, y>),
w = beta B^T x, and while y moves at the speed s the logarithm of its share changes by at most
|w| s dt. That is kept below a bound, s being the mean (sum M |v|^4)^(1/4): near the largest speed,
but not that of a trace of mass. And no cell of a cluster gives its mass away more than a few times,
so that the mesh can follow a cluster that travels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meanfield_pde.amr.patches import Patches
from meanfield_pde.amr.settings import AdaptSettings
from meanfield_pde.attention.heads import inverse_kernel_width_squared
from meanfield_pde.errors import SolverError
from meanfield_pde.solver.diffusion import ERROR_PER_STEP
from meanfield_pde.solver.equation import RightHandSide
from meanfield_pde.solver.integrator import Velocity
from meanfield_pde.support.arguments import check_settings
from meanfield_pde.support.ranks import largest, total


@dataclass(frozen=True)
class StepSettings:
    """What steps are allowed to do.

    Attributes:
        courant: dt / C x outflow rate at which steps are taken; None for that of the scheme.
        growth: bound on dt |V|: the relative error of a growth rate is then dt^2 |V|^2 / 24, 4e-4.
        smallest: a step shorter than this, of the time, is refused: clocks would stand still.
        change: bound on the change of log p_x in a step with a frozen velocity. The error is of
            second order: half-way times on the circle at beta = 160 to 640, with tolerances of 1e-3
            and 1e-4, change by 2e-4 from 0.5 to 2, and runs are 1.4 to 1.7 times as fast
            (`tests.benchmarks.adaptivity --part lifetimes`).
        crossed: how often a cell of a cluster may give away its mass in such a step.
        frozen_from: velocities are frozen where that may last this many times longer than a step of
            transport, which asks for them at each stage; below, both take as many steps.
        splitting: bound on the error of a step by the splitting of transport and noise, in total
            variation; the whole mass is one.
        diffusion: bound on the error of a step of noise, in total variation.
        splitting_every: steps between estimates of that error, which cost as much as two.
        lengths: with noise steps have one of n lengths between any number and its double, so
            that factorisations are used again.
    """

    courant: float | None = None
    growth: float = 0.1
    smallest: float = 1e-12
    change: float = 2.0
    crossed: float = 4.0
    frozen_from: float = 1.5
    splitting: float = 1e-5
    diffusion: float = ERROR_PER_STEP
    splitting_every: int = 10
    lengths: int = 8

    def __post_init__(self) -> None:
        check_settings(self, "steps.", zero=["frozen_from"], infinite=["frozen_from"])

    def courant_of(self, rhs: RightHandSide) -> float:
        """The number at which steps of transport are taken."""
        return rhs.transport.scheme.accurate if self.courant is None else self.courant


def longest_step(
    rhs: RightHandSide, coefficient: float, rate: float, time: float, steps: StepSettings
) -> float:
    """Return how long a step of transport may be.

    Args:
        rhs: the right-hand side.
        coefficient: SSP coefficient of the method.
        rate: outflow rate, the largest of all cells.
        time: at which it starts.
        steps: the bounds.
    """
    limit = longest_growth(rhs, steps)
    if rate > 0:
        limit = min(limit, coefficient * steps.courant_of(rhs) / rate)
    if limit < steps.smallest * max(1.0, time):
        raise SolverError(
            f"at t = {time:.6g} tokens move so fast that steps would have to be as short "
            f"as {limit:.1e}; scale attention.value down, or take larger cells"
        )
    return limit


def longest_growth(rhs: RightHandSide, steps: StepSettings) -> float:
    """Return how long a step may be wherever the mass is."""
    return steps.growth / max(rhs.speed, 1e-300)


def longest_frozen(
    rhs: RightHandSide,
    masses: np.ndarray,
    velocity: Velocity,
    patches: Patches,
    steps: StepSettings,
    adapt: AdaptSettings,
) -> float:
    """Return for how long velocities may be frozen. Collective.

    Args:
        rhs: the right-hand side.
        masses: of own cells.
        velocity: of the state.
        patches: beside the cells.
        steps: the bounds.
        adapt: says which cells are those of a cluster.
    """
    volumes = rhs.transport.volumes
    fourth = total(volumes.comm, float(masses @ volumes.speed(velocity.flux) ** 4))
    if velocity.field is not None:
        speeds = (velocity.field(np.array([patch.centre for patch in patches])) ** 2).sum(axis=1)
        fourth += float(np.array([patch.mass for patch in patches]) @ speeds**2)
    mean = fourth**0.25
    cluster = masses > adapt.indicators.cluster_mass
    crossed = np.max(volumes.outflow(velocity.flux).sum(axis=1), where=cluster, initial=0.0)
    change = inverse_kernel_width_squared(rhs.layer) * mean / steps.change
    crossing = largest(volumes.comm, float(crossed)) / steps.crossed
    return min(longest_growth(rhs, steps), 1 / max(change, crossing, 1e-300))
