"""Steps in time: a Lie group method of order three, and the error by which their length is chosen.

With exp(t k) the flow of a velocity k that stands still (`flow`), a step is

    k1 = v(M),    M' = exp(dt/3 k1) M,    k2 = v(M'),    k3 = v(exp(2 dt/3 k2) M),
    M_new = exp(2 dt/3 (9 k3 - k1) / 8) M',

the commutator-free method of Celledoni, Marthinsen and Owren (Future Gener. Comput. Syst. 19,
2003): three attention sums, however many substeps transport takes for the cells. With k2 in the
place of k3 the last velocity would be (9 k2 - 5 k1) / 4, and the step of order two. Both differ by

    9/8 d,    d = k1 - 2 k2 + k3,

so that a step of order two would have an error per unit of time of

    3/4 ( sum over cells and patches M |d| / l  +  mean over the surface |div d| ),

which is kept below the tolerance. The first term is how far the mass is from its place, in widths
of the attention kernel l <= 1, which is what velocities see of it. The second is the error of
log rho along characteristics: it counts tails, which hold no mass, but decide when the metastable
phase ends. The step itself, of order three, errs by less.

Where a density hardly moves yet, as the uniform one, the error is small whatever the step, but what
grows is to grow at the right rate. Velocities that change at the rate s have
|d| = s dt/3 |k2 - k1|; dt s is kept below a bound.

On an adaptive mesh no cell of a cluster gives its mass away more than a few times in a step, so
that the mesh can follow a cluster that travels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meanfield_pde.amr.patches import Patches
from meanfield_pde.attention.heads import kernel_width
from meanfield_pde.solver.diffusion import ERROR_PER_STEP
from meanfield_pde.solver.equation import RightHandSide
from meanfield_pde.solver.integrator import Velocity
from meanfield_pde.support.arguments import check_settings
from meanfield_pde.support.ranks import largest, totals


@dataclass(frozen=True)
class StepSettings:
    """What steps are allowed to do, beside `solver.step_tolerance`.

    Attributes:
        growth: bound on dt times the rate of growth s: the relative error of such a rate is
            (dt s)^3 / 24, 3e-4.
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

    growth: float = 0.2
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
    """What the velocities of a step say of it.

    Attributes:
        error: of order two, per unit of time.
        growth: the rate at which velocities change the faster the more they have changed; 0 where
            they stand still.
    """

    error: float = 0.0
    growth: float = 0.0


def estimate(
    rhs: RightHandSide,
    masses: np.ndarray,
    patches: Patches,
    stages: Sequence[Velocity],
    dt: float,
    still: float,
) -> Estimate:
    """Return the error of a step, and the rate of growth. Collective.

    Args:
        rhs: the right-hand side.
        masses: of own cells.
        patches: beside them.
        stages: k1, k2 and k3.
        dt: length of the step.
        still: relative change of velocities in a unit of time that counts as none.
    """
    volumes = rhs.transport.volumes
    first, second, third = (stage.flux for stage in stages)
    bend = first - 2 * second + third
    outflow = (volumes.cell_signs * bend.sum(axis=1)[volumes.cell_facets]).sum(axis=1)
    own = masses @ volumes.speed(bend), np.abs(outflow).sum(), volumes.volume[: volumes.owned].sum()
    # Over the facets of own cells: those of a rank overlap with those of others.
    changes = bend, second - first, volumes.facet_length
    sizes = (np.abs(one)[volumes.cell_facets].sum() for one in changes)
    found = totals(volumes.comm, np.array([*own, *sizes]))
    shifted, squeezed, surface, bent, changed, length = (float(one) for one in found)
    if patches:
        centres = np.array([patch.centre for patch in patches])
        k = [stage.field(centres) for stage in stages if stage.field is not None]
        mass = np.array([patch.mass for patch in patches])
        shifted += float(mass @ np.linalg.norm(k[0] - 2 * k[1] + k[2], axis=1))
    error = 3 / 4 * (shifted / kernel_width(rhs.layer) + squeezed / surface)
    if changed <= still * rhs.speed * length * dt:
        return Estimate(error)
    return Estimate(error, bent / changed / (dt / 3))


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
