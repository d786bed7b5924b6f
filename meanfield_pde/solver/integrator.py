"""Integrators: masses after a step of transport, by velocities that follow the state or are frozen.

`SSPRungeKutta` is PETSc's strong-stability-preserving method rks2, compiled. With s stages, a step
of length dt is s forward Euler steps of length dt / (s - 1), the last of them mixed with the state
before, of second order in dt:

    M_0 = M,     M_k = M_(k-1) + dt / (s - 1) d/dt M_(k-1),     M_new = M / s + (1 - 1/s) M_s.

`PetscIntegrator` is PETSc's TS as its options choose it (`-ts_...`), of the same interface. Either
is a convex combination of forward Euler steps of length dt / C, C the SSP coefficient, and keeps
masses non-negative as long as each of these does:

    dt / C x outflow rate <= the limit of the scheme (a CFL condition).

The velocity changes with the density, so the rate is looked at before every stage, and a step in
which it exceeds the limit has no result; the controller tries a shorter one.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
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
STAGES = 5  # of rks2 by default, as in PETSc: C = 4 of 5, the more the better, but 5 fit a step
# Cells times steps that are taken at once, before Python has a look at signals again: 0.1 s.
_AT_ONCE = 1_000_000


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


VelocityOf = Callable[[Masses], Velocity]


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
    """

    coefficient: float
    extended: ClassVar[bool] = True
    many_at_once: ClassVar[bool] = False

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @classmethod  # noqa: B027 (most have none)
    def check_options(cls) -> None:
        """Read its own options of PETSc, before any work: InputError if one will not do."""

    @abstractmethod
    def step(
        self, masses: Masses, velocity: Velocity, velocity_of: VelocityOf | None, dt: float
    ) -> tuple[Masses, float] | None:
        """Return the masses after a step, with -log of the smallest; None if it is too long.

        Args:
            masses: of own cells.
            velocity: that of these masses.
            velocity_of: gives the velocity of the masses of a stage; None to freeze it.
            dt: length of the step.
        """

    def many(
        self, masses: Masses, velocity: Velocity, time: float, until: float, limit: float
    ) -> Steps:
        """Return what steps with a frozen velocity lead to, as many as are taken at once.

        It stops before a step that is too long, and from time to time.

        Args:
            masses: of own cells.
            velocity: frozen.
            time: where they begin.
            until: where to end.
            limit: the longest step.
        """
        dt = fitting_step(until - time, limit)
        found = self.step(masses, velocity, None, dt)
        if found is None:
            return Steps(masses, 0, time)
        return Steps(found[0], 1, time_after(time, dt, until), dt, found[1])

    def close(self) -> None:  # noqa: B027 (most have nothing to give back)
        """Give PETSc's objects back."""


class SSPRungeKutta(Integrator):
    """The compiled rks2.

    Attributes:
        coefficient: s - 1.
        stages: s.
    """

    many_at_once = True

    def __init__(self, transport: Transport, stages: int = STAGES) -> None:
        super().__init__(transport)
        self.stages = stages
        self.coefficient = stages - 1.0

    def step(
        self, masses: Masses, velocity: Velocity, velocity_of: VelocityOf | None, dt: float
    ) -> tuple[Masses, float] | None:
        """Return the masses after a step; see `Integrator`."""
        transport, length = self._transport, dt / self.coefficient
        before, masses = masses, masses.copy()
        for stage in range(1, self.stages + 1):
            if stage > 1 and velocity_of is not None:
                velocity = velocity_of(masses)
            if not velocity.rate * length <= transport.scheme.positive:
                return None
            share = 1.0 / stage if stage == self.stages else 0.0
            masses.euler(transport, velocity.flux, length, before, share)
        return checked(masses, transport.volumes.comm)

    @timed("Transport")
    def many(
        self, masses: Masses, velocity: Velocity, time: float, until: float, limit: float
    ) -> Steps:
        """Return what steps with a frozen velocity lead to; see `Integrator`."""
        transport = self._transport
        if not (isinstance(masses, Doubles) and transport.volumes.comm.size == 1):
            return super().many(masses, velocity, time, until, limit)
        if not velocity.rate * limit / self.coefficient <= transport.scheme.positive:
            return Steps(masses, 0, time)
        masses = masses.copy()
        most = max(1, _AT_ONCE // len(transport.volumes.volume))
        room = np.empty_like(masses.values)
        arrays = masses.values, room, velocity.flux
        span = time, until, limit
        taken, now, last, smallest = _steps(
            *arrays, *span, self.stages, most, transport.facets, *transport.arrays
        )
        return Steps(masses, taken, now, last, smallest)


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
        self._velocity: Velocity | None = None
        self._velocity_of: VelocityOf | None = None
        self._rate = 0.0
        self._failure: BaseException | None = None

    @classmethod
    def check_options(cls) -> None:
        """Configure a TS as for a run."""
        configured_ts(MPI.COMM_SELF).destroy()

    def step(
        self, masses: Masses, velocity: Velocity, velocity_of: VelocityOf | None, dt: float
    ) -> tuple[Masses, float] | None:
        """Return the masses after a step; see `Integrator`."""
        if not isinstance(masses, Doubles):
            raise InputError(
                "masses below the range of doubles are evolved by the compiled rks2 only; leave "
                "the options -ts_... of PETSc out, or say solver.log_masses = 'off'"
            )
        self._masses[:] = masses.values
        self._velocity, self._velocity_of, self._rate = velocity, velocity_of, velocity.rate
        self._ts.setTime(velocity.time)
        self._ts.setTimeStep(dt)
        try:
            self._ts.step()
        except PETSc.Error as error:
            # PETSc reports an exception in the right-hand side as an opaque error of its own.
            raise self._failure or SolverError(f"PETSc TS failed: {error}") from error
        if not self._rate * dt / self.coefficient <= self._transport.scheme.positive:
            return None
        return checked(Doubles(self._masses.copy()), self._transport.volumes.comm)

    def close(self) -> None:
        """Give PETSc's objects back."""
        for own in (self._ts, self._state, self._slopes):
            own.destroy()

    def _right_hand_side(self, ts: PETSc.TS, time: float, state: PETSc.Vec, out: PETSc.Vec) -> None:
        try:
            # A stage of a step that is too long may be negative; the step has no result then.
            masses = state.array_r
            velocity = self._velocity
            if velocity is None:
                velocity = self._next_velocity(np.maximum(masses, 0.0))
            self._rate = max(self._rate, velocity.rate)
            if self._velocity_of is not None:
                self._velocity = None  # it was that of the first stage
            self._transport.rate_of_change(masses, velocity.flux, out.array)
        except BaseException as error:  # PETSc would hide it; `step` raises it
            self._failure = error
            raise

    def _next_velocity(self, masses: np.ndarray) -> Velocity:
        assert self._velocity_of is not None
        return self._velocity_of(Doubles(masses))


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
    default = {"rks2": STAGES, "rks3": 9, "rk104": 10}.get(method, STAGES)
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


@kernel
def _steps(
    masses, before, flux, time, until, limit, stages, most, facets, *arrays
):  # fmt: skip
    taken, last, smallest = 0, 0.0, 0.0
    while taken < most and time < until:
        dt = fitting_step(until - time, limit)
        for c in range(masses.size):  # assigned as a whole, it would take a second to compile
            before[c] = masses[c]
        for stage in range(1, stages + 1):
            share = 1.0 / stage if stage == stages else 0.0
            euler_alone(masses, flux, dt / (stages - 1), before, share, facets, *arrays)
        smallest = flush_and_check(masses)
        if smallest == np.inf:
            for c in range(masses.size):
                masses[c] = before[c]
            break
        taken += 1
        last, time = dt, time_after(time, dt, until)
    return taken, time, last, smallest
