"""What a run will cost, said before it begins: steps and memory; what cannot end is refused."""

from __future__ import annotations

import logging
from collections.abc import Collection

from mpi4py import MPI

from meanfield_pde.case.case import MeshCase
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.solver.controller import Controller
from meanfield_pde.support.checks import check_ends
from meanfield_pde.support.memory import check_fits, free_memory, peak_memory

LOG = logging.getLogger("meanfield_pde.cost")  # with --log alone

# Peak memory in bytes: what the program takes on each rank, and a cell of the mesh on each rank,
# and on all together. The fit of `python -m tests.benchmarks.memory` to 1, 2 and 4 ranks: 0.32 GB,
# 333 and 2,183. Figures of the first rank, 0.13 GB and 130 bytes a cell (`forecast`), come when
# steps have freed as much, but for small meshes: hence 0.35 GB.
BYTES_AT_REST, BYTES_REPEATED, BYTES_SHARED = 3.5e8, 335.0, 2200.0
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
    each = ranks * BYTES_REPEATED + BYTES_SHARED
    wanted = ranks * BYTES_AT_REST + each * mesh.cells
    check_fits(wanted, f"mesh.cells = {mesh.cells}", "take fewer cells, or fewer ranks")
    if wanted > WORTH_SAYING:
        free = free_memory()
        LOG.log(
            logging.WARNING if wanted > free else logging.INFO,
            "mesh.cells = %d needs about %.3g GB, %g bytes a cell; %.3g GB are free",
            mesh.cells,
            wanted / 1e9,
            each,
            free / 1e9,
        )


def check_steps(
    evolutions: Collection[Controller], until: float, what: str, *, allow_long: bool
) -> None:
    """Say how many steps there will be, and refuse too many of them. Collective.

    Args:
        evolutions: as they begin; all of one communicator.
        until: how far they go.
        what: its name.
        allow_long: refuse nothing.
    """
    try:
        first = min(one.longest_step() for one in evolutions)
        steps = max((until - one.time) / one.longest_step() for one in evolutions)
    except SolverError as error:  # nothing has been computed yet: it is what was asked for
        raise InputError(str(error)) from None
    if not allow_long:
        remedy = "make it less, take larger cells, or say that it is meant"
        check_ends(steps, f"{what} = {until:.6g}", remedy, "--allow-long")
    comm = next(iter(evolutions)).equation.volumes.comm
    peak = comm.allreduce(peak_memory(), MPI.MAX)
    if steps > 0:
        LOG.debug(
            "transport alone begins with steps of %.2e, %.4g of them to the end; "
            "memory of a rank %.0f MB so far",
            first,
            max(1.0, steps),
            peak / 1e6,
        )
