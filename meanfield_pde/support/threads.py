"""How many threads a rank may use, so that ranks x threads does not exceed the cores."""

from __future__ import annotations

import os

from mpi4py import MPI

import numba

from meanfield_pde.errors import InputError

VARIABLE = "MEANFIELD_PDE_THREADS"


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def set_threads(comm: MPI.Comm, threads: int | None = None) -> int:
    """Set and return the number of threads of this rank. Collective.

    Args:
        comm: the communicator whose ranks share the machine.
        threads: the number wanted; by default that in the environment variable
            MEANFIELD_PDE_THREADS, or else the cores of a machine divided by its ranks.
    """
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    ranks = node.size
    node.Free()
    if threads is None:
        given = os.environ.get(VARIABLE)
        if given is None:
            threads = max(1, available_cores() // ranks)
        elif given.isdigit() and int(given) > 0:
            threads = int(given)
        else:
            raise InputError(f"{VARIABLE} must be a positive whole number, got '{given}'")
    elif threads < 1:
        raise InputError(f"the number of threads must be positive, got {threads}")
    threads = min(threads, numba.config.NUMBA_NUM_THREADS)
    numba.set_num_threads(threads)
    return threads
