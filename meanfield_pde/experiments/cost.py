"""What a run will cost, said before it begins: steps and memory; what cannot end is refused."""

from __future__ import annotations

import logging
from collections.abc import Collection

from mpi4py import MPI

from meanfield_pde.case.case import MeshCase
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.solver.evolution import Evolution
from meanfield_pde.support.checks import check_ends
from meanfield_pde.support.memory import check_fits, free_memory, peak_memory

LOG = logging.getLogger("meanfield_pde")

# Peak memory of a rank in bytes, an estimate: what the program takes, and for each cell of a mesh,
# from `python -m tests.benchmarks.growth` on one rank; rank 0 makes the mesh and holds the most.
BYTES_AT_REST, BYTES_PER_CELL = 2.5e8, 1.6e3
# From so much memory on it is said before the mesh is made, which then takes a while.
WORTH_SAYING = 2e9


def check_memory(mesh: MeshCase, comm: MPI.Comm) -> None:
    """Say what a large mesh needs, and refuse one that this machine cannot hold. Collective.

    Nothing is made yet.
    """
    if mesh.cells is None:
        return
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = node.size
    node.Free()
    wanted = ranks * (BYTES_AT_REST + BYTES_PER_CELL * mesh.cells)
    check_fits(wanted, f"mesh.cells = {mesh.cells}", "take fewer cells, or fewer ranks")
    if wanted > WORTH_SAYING:
        free = free_memory()
        LOG.log(
            logging.WARNING if wanted > free else logging.INFO,
            "mesh.cells = %d needs about %.3g GB, %g bytes a cell on each rank of this machine; "
            "%.3g GB are free",
            mesh.cells,
            wanted / 1e9,
            BYTES_PER_CELL,
            free / 1e9,
        )


def check_steps(
    evolutions: Collection[Evolution], until: float, what: str, *, however_long: bool
) -> None:
    """Say how many steps there will be, and refuse too many of them. Collective.

    Args:
        evolutions: as they begin; all of one communicator.
        until: how far they go.
        what: its name.
        however_long: refuse nothing.
    """
    try:
        first = min(one.longest_step() for one in evolutions)
        steps = max((until - one.time) / one.longest_step() for one in evolutions)
    except SolverError as error:  # nothing has been computed yet: it is what was asked for
        raise InputError(str(error)) from None
    if not however_long:
        remedy = "make it less, take larger cells, or say that it is meant"
        check_ends(steps, f"{what} = {until:.6g}", remedy, "--however-long")
    comm = next(iter(evolutions)).equation.volumes.comm
    peak = comm.allreduce(peak_memory(), MPI.MAX)
    if steps > 0:
        LOG.info(
            "first step %.2e, at this pace %.4g steps; memory of a rank %.0f MB so far",
            first,
            max(1.0, steps),
            peak / 1e6,
        )
