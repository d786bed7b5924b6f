"""PETSc's TS as its options choose it, and the coefficient that says how long its steps may be."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpi4py import MPI
from petsc4py import PETSc

import numpy as np
from numba.extending import register_jitable

from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.solver.transport import Transport


def configured_stepper(comm: MPI.Comm) -> PETSc.TS:
    """PETSc's TS as its options choose it; InputError if they ask for what cannot work here."""
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


class Stepper:
    """Steps of the array of a state. Making one, `step` and `close` are collective.

    PETSc's TS says by its options which method it is to be, and takes the steps if they say
    anything of it, its methods or its monitors. Otherwise it is rks2, whose stages are compiled.

    Attributes:
        coefficient: SSP coefficient of the method.
        rks2, stages: whether the method is rks2, and its number of stages then.
        alone: whether stages are compiled, and there are no other ranks.
    """

    def __init__(
        self,
        transport: Transport,
        masses: np.ndarray,
        stage_flux: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        """The last gives the fluxes for the masses of a stage."""
        volumes = transport.volumes
        own: Any = masses
        sizes = (volumes.owned, volumes.global_cells)
        self._state = PETSc.Vec().createWithArray(own, sizes, comm=volumes.comm)
        self._slopes = self._state.duplicate()
        self._masses, self._transport, self._stage_flux = masses, transport, stage_flux
        self._failure: BaseException | None = None
        ts: Any = configured_stepper(volumes.comm)
        ts.setRHSFunction(self._right_hand_side, self._slopes)
        ts.setSolution(self._state)
        ts.setMaxTime(1e300)  # PETSc wants a limit; ours is `until`
        ts.setExactFinalTime(PETSc.TS.ExactFinalTime.STEPOVER)
        self._ts = ts
        self.coefficient = ssp_coefficient(ts)
        options = PETSc.Options()
        method = options.getString("ts_ssp_type", "rks2")
        self.rks2 = ts.getType() == PETSc.TS.Type.SSP and method == "rks2"
        self.stages = round(self.coefficient) + 1
        self._by_petsc = any(name.startswith("ts_") for name in options.getAll())
        self.alone = volumes.comm.size == 1 and not self._by_petsc

    def step(self, time: float, dt: float, before: np.ndarray) -> None:
        """Take a step from a time; `before` are the masses then."""
        if self._by_petsc:
            self._ts.setTime(time)
            self._ts.setTimeStep(dt)
            try:
                self._ts.step()
            except PETSc.Error as error:
                # PETSc reports an exception in the right-hand side as an opaque error of its own.
                raise self._failure or SolverError(f"PETSc TS failed: {error}") from error
            return
        for stage in range(1, self.stages + 1):
            flux = self._stage_flux(self._masses)
            share = 1.0 / stage if stage == self.stages else 0.0
            self._transport.euler(self._masses, flux, dt / (self.stages - 1), before, share)

    def close(self) -> None:
        """Give PETSc's objects back."""
        for own in (self._ts, self._state, self._slopes):
            own.destroy()

    def _right_hand_side(self, ts: PETSc.TS, time: float, state: PETSc.Vec, out: PETSc.Vec) -> None:
        try:
            masses = state.array_r
            self._transport.rate_of_change(masses, self._stage_flux(masses), out.array)
        except BaseException as error:
            self._failure = error
            raise


def ssp_coefficient(ts: PETSc.TS) -> float:
    """SSP coefficient C of the method that PETSc's options have chosen."""
    if ts.getType() == PETSc.TS.Type.EULER:
        return 1.0
    if ts.getType() != PETSc.TS.Type.SSP:
        raise InputError(
            f"-ts_type {ts.getType()}: only ssp and euler keep the density positive; choose one"
        )
    options = PETSc.Options()
    method = options.getString("ts_ssp_type", "rks2")
    stages = options.getInt("ts_ssp_num_stages", {"rks2": 5, "rks3": 9, "rk104": 10}.get(method, 5))
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
    """The step to take: no sliver is left before the end."""
    if remaining <= limit:
        return remaining
    return remaining / 2 if remaining < 2 * limit else limit


@register_jitable
def time_after(time: float, dt: float, until: float) -> float:
    """The time after a step; the end exactly, if only rounding is left before it."""
    left = until - time - dt
    return until if left <= 1e-14 * max(1.0, until) else time + dt
