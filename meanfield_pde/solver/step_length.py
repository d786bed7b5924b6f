"""How long a step may be, and for how long velocities may be held.

A step moves mass by less than a cell, and resolves the growth of a density that hardly moves yet,
whose outflow rate says nothing: rates of growth are of the order |V|.

Where a mesh follows the mass, cells in a spot are far narrower than the kernel of the attention.
What moves among them changes no velocity, so these are held while transport alone takes as many
steps as the cells want. With L(M) the transport by the velocities that M has,

    M_half = exp(dt/2 L(M)) M,     M_new = exp(dt L(M_half)) M,

of second order in dt. A token at x attends to y with the share p_x(y) ~ M(y) exp(<w, y>),
w = beta B^T x, and while y moves at the speed s the logarithm of its share changes by at most
|w| s dt. That is kept below `CHANGE`, s being the mean (sum M |v|^4)^(1/4): near the largest speed,
but not that of a trace of mass. And no cell with more than `SPOT` of the mass gives it away more
than `CROSSED` times, so that the mesh can follow a spot that travels.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.attention.heads import sharpness
from meanfield_pde.errors import SolverError
from meanfield_pde.solver.equation import RightHandSide
from meanfield_pde.solver.mesh_error import SPOT
from meanfield_pde.solver.spots import NONE, Field, Spots
from meanfield_pde.support.ranks import largest, total

GROWTH_PER_STEP = 0.1  # dt |V| is kept below this
SMALLEST_STEP = 1e-12
CHANGE = 0.5
CROSSED = 4.0


def longest_step(terms: RightHandSide, coefficient: float, rate: float, time: float) -> float:
    """How long a step of transport may be.

    Args:
        terms: the right-hand side.
        coefficient: SSP coefficient of the method.
        rate: outflow rate, the largest of all cells.
        time: at which it starts.
    """
    limit = longest_growth(terms)
    if rate > 0:
        limit = min(limit, coefficient * terms.transport.scheme.accurate / rate)
    if limit < SMALLEST_STEP * max(1.0, time):
        raise SolverError(
            f"at t = {time:.6g} tokens move so fast that steps would have to be as short "
            f"as {limit:.1e}; scale attention.value down, or take larger cells"
        )
    return limit


def longest_growth(terms: RightHandSide) -> float:
    """How long a step may be wherever the mass is."""
    return GROWTH_PER_STEP / max(terms.speed, 1e-300)


def longest_hold(
    terms: RightHandSide,
    masses: np.ndarray,
    flux: np.ndarray,
    spots: Spots = NONE,
    field: Field | None = None,
) -> float:
    """For how long velocities may be held. Collective.

    Args:
        terms: the right-hand side.
        masses: of own cells.
        flux: through the facets of this rank.
        spots: beside the cells.
        field: the velocities at these.
    """
    volumes = terms.transport.volumes
    fourth = total(volumes.comm, float(masses @ volumes.speed(flux) ** 4))
    if field is not None:
        speeds = (field(np.array([spot.centre for spot in spots])) ** 2).sum(axis=1)
        fourth += float(np.array([spot.mass for spot in spots]) @ speeds**2)
    mean = fourth**0.25
    crossed = np.max(volumes.outflow(flux).sum(axis=1), where=masses > SPOT, initial=0.0)
    change = sharpness(terms.layer) * mean / CHANGE
    crossing = largest(volumes.comm, float(crossed)) / CROSSED
    return min(longest_growth(terms), 1 / max(change, crossing, 1e-300))
