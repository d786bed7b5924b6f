"""What a run will cost, said before it begins: steps and memory; what cannot end is refused."""

from __future__ import annotations

import logging

from mpi4py import MPI

from meanfield_pde.case.case import MeshCase
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.support.memory import check_fits, peak_memory

LOG = logging.getLogger("meanfield_pde")

# A run of more steps than this does not end: at ten microseconds a step it takes three hours, on a
# mesh of any use weeks to years.
MOST_STEPS = 1e9
# Peak memory of a rank in bytes, an estimate: what the program takes, and for each cell of a mesh,
# from `python -m tests.benchmarks.growth` on one rank; rank 0 makes the mesh and holds the most.
BYTES_AT_REST, BYTES_PER_CELL = 2.5e8, 1.6e3


def check_memory(mesh: MeshCase, comm: MPI.Comm) -> None:
    """Refuse a mesh that the memory of this machine cannot hold; nothing is made yet."""
    if mesh.cells is None:
        return
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = node.size
    node.Free()
    wanted = ranks * (BYTES_AT_REST + BYTES_PER_CELL * mesh.cells)
    check_fits(wanted, f"mesh.cells = {mesh.cells}", "take fewer cells, or fewer ranks")


def check_steps(simulation: Simulation, until: float, *, however_long: bool) -> None:
    """Say how many steps there will be, and refuse too many of them. Collective."""
    evolutions = simulation.evolutions.values()
    try:
        first = min(one.longest_step() for one in evolutions)
        steps = max((until - one.time) / one.longest_step() for one in evolutions)
    except SolverError as error:  # nothing has been computed yet: it is what was asked for
        raise InputError(str(error)) from None
    if steps > MOST_STEPS and not however_long:
        raise InputError(
            f"time.until = {until:.6g} is about {steps:.1e} steps of {first:.1e} away, which does "
            "not end; make it less, take larger cells, or say that it is meant",
            "--however-long",
        )
    peak = simulation.comm.allreduce(peak_memory(), MPI.MAX)
    if steps > 0:
        LOG.info(
            "first step %.2e, at this pace %.4g steps; memory of a rank %.0f MB so far",
            first,
            max(1.0, steps),
            peak / 1e6,
        )
