"""Length of a step: an error estimate for velocities that stand still while the mass moves.

With exp(t L(M)) the flow by the velocities that masses M have (`flow`), a step is

    M_half = exp(dt/2 L(M)) M,     M_new = exp(dt L(M_half)) M,

of second order in dt, with two attention sums: the velocity of M_new is that with which the next
step begins. It also tells the error. If q, q_half and q_new are the fluxes of the three states, the
mean of the velocity over the step is by Simpson's rule (q + 4 q_half + q_new) / 6, so that the step
was taken with fluxes wrong by

    d = (q - 2 q_half + q_new) / 6,

of second order in dt: masses are wrong by dt times the divergence of d rho, and log rho, along
characteristics, by dt times the divergence of d. The error of a step per unit of time,

    sum over cells |div (d rho)| + mean over the surface |div d| + sum over patches M |d v| / l,

l the width of the attention kernel, is kept below the tolerance. Its first term is the distance in
total variation; the second counts tails, which hold no mass, and decide when the metastable phase
ends; the third is that of clusters in patches, which have no width to speak of.

Transport inside a step takes as many substeps as the cells want. On an adaptive mesh no cell of a
cluster gives its mass away more than a few times, so that the mesh can follow a cluster that
travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meanfield_pde.amr.patches import Patches
from meanfield_pde.attention.heads import inverse_kernel_width_squared
from meanfield_pde.solver.diffusion import ERROR_PER_STEP
from meanfield_pde.solver.equation import RightHandSide
from meanfield_pde.solver.integrator import Velocity
from meanfield_pde.support.arguments import check_settings
from meanfield_pde.support.ranks import largest, totals


@dataclass(frozen=True)
class StepSettings:
    """What steps are allowed to do.

    Attributes:
        tolerance: bound on the error of steps per unit of time, see above.
        growth: bound on dt times the rate of growth: its relative error is dt^2 rate^2 / 24, 4e-4.
        courant: dt / C x outflow rate at which steps of transport are taken; None for that of the
            scheme.
        crossed: how often a cell of a cluster may give away its mass in a step.
        smallest: a step shorter than this, of the time, is refused: clocks would stand still.
        splitting: bound on the error of a step by the splitting of transport and noise, in total
            variation; the whole mass is one.
        diffusion: bound on the error of a step of noise, in total variation.
        splitting_every: steps between estimates of that error, which cost as much as two.
        lengths: steps have one of n lengths between any number and its double: factorisations of
            noise are used again, and rounding, which differs with the number of ranks, is not seen.
    """

    tolerance: float = 2e-3
    growth: float = 0.1
    courant: float | None = None
    crossed: float = 4.0
    smallest: float = 1e-12
    splitting: float = 1e-5
    diffusion: float = ERROR_PER_STEP
    splitting_every: int = 10
    lengths: int = 8

    def __post_init__(self) -> None:
        check_settings(self, "steps.")


@dataclass(frozen=True)
class Estimate:
    """What the velocities of the three states of a step say.

    Attributes:
        error: of the step, per unit of time.
        growth: rate at which velocities change the faster the more they have changed, as they do
            where a density hardly moves yet; 0 where they stand still.
    """

    error: float
    growth: float


def estimate(
    rhs: RightHandSide,
    masses: np.ndarray,
    patches: Patches,
    velocities: Sequence[Velocity],
    dt: float,
    noise: float,
) -> Estimate:
    """Return the error of a step, and the rate of growth, from the velocities of its three states.

    Collective.

    Args:
        rhs: the right-hand side.
        masses: of own cells, after the step.
        patches: beside them.
        velocities: of the state before the step, in its middle, after it.
        dt: length of the step.
        noise: change of velocities in a unit of time, relative to their bound, that is none.
    """
    volumes = rhs.transport.volumes
    first, middle, last = velocities
    bent = first.flux - 2 * middle.flux + last.flux
    change = np.empty(volumes.owned)
    rhs.transport.rate_of_change(masses, bent, change)
    outflow = (volumes.cell_signs * bent[volumes.cell_facets]).sum(axis=1)
    moved = np.abs(last.flux - first.flux)
    own = volumes.volume[: volumes.owned]
    sums = np.array(
        [np.abs(one).sum() for one in (change, outflow, own, bent, moved, volumes.facet_length)]
    )
    shifted, tail, surface, bend, move, length = totals(volumes.comm, sums)
    error = (shifted + tail / surface) / 6
    if patches:
        centres = np.array([patch.centre for patch in patches])
        mass = np.array([patch.mass for patch in patches])
        fields = [one.field(centres) for one in velocities if one.field is not None]
        way = np.linalg.norm(fields[0] - 2 * fields[1] + fields[2], axis=1)
        error += float(mass @ way) / 6 * inverse_kernel_width_squared(rhs.layer) ** 0.5
    still = move <= noise * rhs.speed * length * dt
    return Estimate(error, 0.0 if still else 4 * bend / (move * dt))


def longest_crossing(
    rhs: RightHandSide, masses: np.ndarray, velocity: Velocity, cluster: float, crossed: float
) -> float:
    """Return the time in which a cell of a cluster gives its mass away a few times. Collective.

    Args:
        rhs: the right-hand side.
        masses: of own cells.
        velocity: of the state.
        cluster: the mass from which on a cell belongs to one.
        crossed: how many times.
    """
    volumes = rhs.transport.volumes
    outflow = volumes.outflow(velocity.flux).sum(axis=1)
    most = float(np.max(outflow, where=masses > cluster, initial=0.0))
    return crossed / max(largest(volumes.comm, most), 1e-300)
