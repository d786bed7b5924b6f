"""Integrators: masses after steps of transport by a velocity that stands still.

`SSPRungeKutta` is PETSc's strong-stability-preserving method rks3, compiled, of order three. With
s = n^2 stages a step of length dt is s forward Euler steps of length dt / C, C = n^2 - n, the state
after number l = n (n + 1) / 2 mixed with that after number j = (n - 1) (n - 2) / 2:

    M_k = M_(k-1) + dt / C d/dt M_(k-1),     w M_j + (1 - w) M_l in the place of M_l,

w = n / (2 n - 1) (Ketcheson, SIAM J. Sci. Comput. 30, 2008).

`PetscIntegrator` is PETSc's TS as its options choose it (`-ts_...`), of the same interface. Either
is a convex combination of forward Euler steps of length dt / C, C the SSP coefficient, and keeps
masses non-negative as long as each of these does:

    dt / C x outflow rate <= the limit of the scheme (a CFL condition).

How the velocity follows the density is no matter of theirs: see `step_control`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from mpi4py import MPI
from petsc4py import PETSc

import numpy as np
from numba.extending import register_jitable

from meanfield_pde.amr.patches import Field
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.solver.masses import Doubles, Masses, flush_and_check
from meanfield_pde.solver.transport import Transport, euler_alone
from meanfield_pde.support.kernels import kernel
from meanfield_pde.support.ranks import largest
from meanfield_pde.support.timings import timed

MOST_STAGES = 1000  # (1000 - 1) / 1000 of the best that more of them could give
# Cells times steps that are taken at once, before Python has a look at signals again: 0.1 s.
_AT_ONCE = 500_000


@dataclass(frozen=True, eq=False)
class Velocity:
    """The velocity of a state, as transport and patches take it.

    Attributes:
        flux: q through the facets of this rank, facets x points: the part that belongs to each
            point of a facet.
        rate: largest outflow rate of all ranks.
        field: the velocity at any points; None if nobody asks.
        time: at which it is that of the state, for monitors.
    """

    flux: np.ndarray
    rate: float
    field: Field | None = None
    time: float = 0.0


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps that were taken at once.

    Attributes:
        masses: of own cells after them.
        steps: how many there were.
        time: after them.
        last: length of the last.
        smallest: -log of the smallest mass then.
    """

    masses: Masses
    steps: int
    time: float
    last: float = 0.0
    smallest: float = 0.0


class Integrator(ABC):
    """Steps of transport on one mesh. Everything is collective.

    Attributes:
        coefficient: SSP coefficient C.
        extended: whether it takes masses in the extended range, too.
        many_at_once: whether `many` takes more than one step.
        checks_stages: whether it refuses a step in which a cell gives away more than it holds;
            others are given no steps in which that could be (`Scheme.positive`).
    """

    coefficient: float
    extended: ClassVar[bool] = True
    many_at_once: ClassVar[bool] = False
    checks_stages: ClassVar[bool] = False

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @classmethod  # noqa: B027 (most have none)
    def check_options(cls) -> None:
        """Read its own options of PETSc, before any work: InputError if one will not do."""

    @abstractmethod
    def step(self, masses: Masses, velocity: Velocity, dt: float) -> tuple[Masses, float] | None:
        """Return the masses after a step, with -log of the smallest; None if it is too long.

        Args:
            masses: of own cells.
            velocity: stands still.
            dt: length of the step.
        """

    def many(
        self, masses: Masses, velocity: Velocity, time: float, until: float, limit: float
    ) -> Steps:
        """Return what steps lead to, as many as are taken at once.

        It stops before a step that is too long, and from time to time.

        Args:
            masses: of own cells.
            velocity: stands still.
            time: where they begin.
            until: where to end.
            limit: the longest step.
        """
        dt = fitting_step(until - time, limit)
        found = self.step(masses, velocity, dt)
        if found is None:
            return Steps(masses, 0, time)
        return Steps(found[0], 1, time_after(time, dt, until), dt, found[1])

    def close(self) -> None:  # noqa: B027 (most have nothing to give back)
        """Give PETSc's objects back."""


# n of rks3. 9 stages, as in PETSc, cost 9 / 6 of a forward Euler step of the same length; 4 cost
# 4 / 2, with half the error; 5 of rks2 cost 5 / 4, with thirty times the error (of log masses).
_ROOT = 3
_STAGES, _COEFFICIENT = _ROOT**2, float(_ROOT**2 - _ROOT)
_KEPT, _MIXED = (_ROOT - 1) * (_ROOT - 2) // 2, _ROOT * (_ROOT + 1) // 2
_SHARE = _ROOT / (2 * _ROOT - 1)


class SSPRungeKutta(Integrator):
    """The compiled rks3."""

    coefficient = _COEFFICIENT
    many_at_once = True
    checks_stages = True

    def step(self, masses: Masses, velocity: Velocity, dt: float) -> tuple[Masses, float] | None:
        """Return the masses after a step; see `Integrator`."""
        found = self.many(masses, velocity, 0.0, dt, dt)
        return (found.masses, found.smallest) if found.steps else None

    @timed("Transport")
    def many(
        self, masses: Masses, velocity: Velocity, time: float, until: float, limit: float
    ) -> Steps:
        """Return what steps lead to; see `Integrator`."""
        transport, comm = self._transport, self._transport.volumes.comm
        after = masses.copy()
        begin, kept = np.empty_like(after.values), np.empty_like(after.values)
        given = after.values, begin, kept, velocity.flux, time, until, limit
        most = max(1, _AT_ONCE * comm.size // transport.volumes.global_cells)
        if comm.size == 1:
            found = _steps(*given, most, transport.facets, *transport.arrays)
        else:
            found = _steps_of_ranks(transport, *given, most)
        return Steps(after, *found)


class PetscIntegrator(Integrator):
    """PETSc's TS, as its options choose it, for doubles.

    Attributes:
        coefficient: SSP coefficient of the method.
    """

    extended = False

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        volumes = transport.volumes
        self._masses = np.zeros(volumes.owned)
        own: Any = self._masses
        sizes = (volumes.owned, volumes.global_cells)
        self._state = PETSc.Vec().createWithArray(own, sizes, comm=volumes.comm)
        self._slopes = self._state.duplicate()
        self._ts = ts = configured_ts(volumes.comm)
        ts.setRHSFunction(self._right_hand_side, self._slopes)
        ts.setSolution(self._state)
        ts.setMaxTime(1e300)  # PETSc wants a limit; ours is the controller's
        ts.setExactFinalTime(PETSc.TS.ExactFinalTime.STEPOVER)
        self.coefficient = ssp_coefficient(ts)
        self._flux = np.zeros(0)
        self._failure: BaseException | None = None

    @classmethod
    def check_options(cls) -> None:
        """Configure a TS as for a run."""
        configured_ts(MPI.COMM_SELF).destroy()

    def step(self, masses: Masses, velocity: Velocity, dt: float) -> tuple[Masses, float] | None:
        """Return the masses after a step; see `Integrator`."""
        if not isinstance(masses, Doubles):
            raise InputError(
                "masses below the range of doubles are evolved by the compiled rks3 only; leave "
                "the options -ts_... of PETSc out, or say solver.log_masses = 'off'"
            )
        if not velocity.rate * dt / self.coefficient <= self._transport.scheme.positive:
            return None
        self._masses[:] = masses.values
        self._flux = velocity.flux
        self._ts.setTime(velocity.time)
        self._ts.setTimeStep(dt)
        try:
            self._ts.step()
        except PETSc.Error as error:
            # PETSc reports an exception in the right-hand side as an opaque error of its own.
            raise self._failure or SolverError(f"PETSc TS failed: {error}") from error
        return checked(Doubles(self._masses.copy()), self._transport.volumes.comm)

    def close(self) -> None:
        """Give PETSc's objects back."""
        for own in (self._ts, self._state, self._slopes):
            own.destroy()

    def _right_hand_side(self, ts: PETSc.TS, time: float, state: PETSc.Vec, out: PETSc.Vec) -> None:
        try:
            # A copy can be written, as elsewhere: what reads it is compiled once.
            self._transport.rate_of_change(state.array_r.copy(), self._flux, out.array)
        except BaseException as error:  # PETSc would hide it; `step` raises it
            self._failure = error
            raise


def checked(masses: Masses, comm: MPI.Comm) -> tuple[Masses, float] | None:
    """Return masses with -log of the smallest of all ranks; None if one is negative. Collective."""
    smallest = largest(comm, masses.flush_and_check())
    return None if math.isinf(smallest) else (masses, smallest)


def configured_ts(comm: MPI.Comm) -> Any:
    """Return PETSc's TS as its options choose it; InputError if that cannot work here."""
    ts: Any = PETSc.TS()
    ts.create(comm)
    ts.setProblemType(PETSc.TS.ProblemType.NONLINEAR)
    ts.setType(PETSc.TS.Type.SSP)
    try:
        ts.setFromOptions()
        ssp_coefficient(ts)
    except PETSc.Error as error:
        # The last line of PETSc's stack says what is wrong, after the number of the rank.
        reason = str(error).splitlines()[-1].removeprefix(f"[{comm.rank}] ")
        raise InputError(f"PETSc refuses its options: {reason}") from error
    return ts


def ssp_coefficient(ts: PETSc.TS) -> float:
    """Return the SSP coefficient C of the method that PETSc's options have chosen."""
    if ts.getType() == PETSc.TS.Type.EULER:
        return 1.0
    if ts.getType() != PETSc.TS.Type.SSP:
        raise InputError(
            f"-ts_type {ts.getType()}: only ssp and euler keep the density positive; choose one"
        )
    options = PETSc.Options()
    method = options.getString("ts_ssp_type", "rks2")
    default = {"rks2": 5, "rks3": 9, "rk104": 10}.get(method, 5)
    stages = options.getInt("ts_ssp_num_stages", default)
    if stages > MOST_STAGES:
        raise InputError(f"-ts_ssp_num_stages {stages}: choose at most {MOST_STAGES} stages")
    if method == "rks2" and stages >= 2:
        return stages - 1.0
    if method == "rks3" and stages >= 4 and math.isqrt(stages) ** 2 == stages:
        return stages - math.sqrt(stages)
    if method == "rk104" and stages == 10:
        return 6.0
    raise InputError(
        f"-ts_ssp_type {method} -ts_ssp_num_stages {stages}: choose rks2 with at least 2 "
        "stages, rks3 with 4, 9, 16, ... stages, or rk104, which has 10"
    )


@register_jitable
def fitting_step(remaining: float, limit: float) -> float:
    """Return the step to take: no sliver is left before the end."""
    if remaining <= limit:
        return remaining
    return remaining / 2 if remaining < 2 * limit else limit


@register_jitable
def time_after(time: float, dt: float, until: float) -> float:
    """Return the time after a step; the end exactly, if only rounding is left before it."""
    left = until - time - dt
    return until if left <= 1e-14 * max(1.0, until) else time + dt


def _steps_of_ranks(
    transport: Transport,
    values: np.ndarray,
    begin: np.ndarray,
    kept: np.ndarray,
    flux: np.ndarray,
    time: float,
    until: float,
    limit: float,
    most: int,
) -> tuple[int, float, float, float]:
    """`_steps` with an exchange before each stage. Collective."""
    taken, last, smallest = 0, 0.0, 0.0
    while taken < most and time < until:
        dt = fitting_step(until - time, limit)
        begin[...] = kept[...] = values
        held = True
        for stage in range(1, _STAGES + 1):
            share = _SHARE if stage == _MIXED else 0.0
            held = transport.euler(values, flux, dt / _COEFFICIENT, kept, share) and held
            if stage == _KEPT:
                kept[...] = values
        own = float(flush_and_check(values)) if held else math.inf
        found = largest(transport.volumes.comm, own)
        if math.isinf(found):
            values[...] = begin
            break
        smallest, last = found, dt
        taken, time = taken + 1, time_after(time, dt, until)
    return taken, time, last, smallest


@kernel
def _steps(values, begin, kept, flux, time, until, limit, most, facets, *arrays):
    """Steps in place, up to one in which a cell gives away more than it holds.

    Returned are their number, the time after them, the last length, and -log of the smallest mass.
    """
    taken, last, smallest = 0, 0.0, 0.0
    flat, first, before = values.reshape(-1), begin.reshape(-1), kept.reshape(-1)
    while taken < most and time < until:
        dt = fitting_step(until - time, limit)
        for c in range(flat.size):  # assigned as a whole, it would take a second to compile
            first[c] = before[c] = flat[c]
        held = True
        for stage in range(1, _STAGES + 1):
            share = _SHARE if stage == _MIXED else 0.0
            held = (
                euler_alone(values, flux, dt / _COEFFICIENT, kept, share, facets, *arrays) and held
            )
            if stage == _KEPT:
                for c in range(flat.size):
                    before[c] = flat[c]
        found = flush_and_check(values)
        if not held or found == np.inf:
            for c in range(flat.size):
                flat[c] = first[c]
            break
        smallest, last = found, dt
        taken, time = taken + 1, time_after(time, dt, until)
    return taken, time, last, smallest
