"""PETSc's TS as the options of a run choose it, and how long a step of it may be."""

from __future__ import annotations

import math
from typing import Any

from mpi4py import MPI
from petsc4py import PETSc

from meanfield_pde.errors import InputError


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


def fitting_step(remaining: float, limit: float) -> float:
    """The step to take: no sliver is left before the end."""
    if remaining <= limit:
        return remaining
    return remaining / 2 if remaining < 2 * limit else limit
