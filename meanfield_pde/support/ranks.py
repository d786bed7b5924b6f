"""What ranks have to agree on: work done by the first rank, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from meanfield_pde.errors import MeanfieldError, SolverError


def on_root[Result](comm: MPI.Comm, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function on rank 0 and give its result, or the error it raised, to all. Collective."""
    result: Any = None
    error: Exception | None = None
    if comm.rank == 0:
        try:
            result = function(*arguments)
        except Exception as caught:
            error = caught
    result, told = comm.bcast((result, _told(comm, error)), root=0)
    if told is not None:
        raise error or told
    return result


def total(comm: MPI.Comm, value: float) -> float:
    """The sum over the ranks; a rank alone asks nobody. Collective."""
    return value if comm.size == 1 else float(comm.allreduce(value))


def largest(comm: MPI.Comm, value: float) -> float:
    """The largest over the ranks. Collective."""
    return value if comm.size == 1 else float(comm.allreduce(value, MPI.MAX))


@contextmanager
def shared_errors(comm: MPI.Comm) -> Iterator[None]:
    """An error in the block on one rank is raised by all, at its end. Collective.

    If several ranks have one, it is that of the lowest. The block itself must not be collective on
    `comm`. Errors other than the package's own are raised as they are where they happened, and
    elsewhere as a `SolverError` that names them.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:
        error = caught
    errors = [one for one in comm.allgather(_told(comm, error)) if one is not None]
    if errors:
        foreign = error is not None and not isinstance(error, MeanfieldError)
        raise error if error is not None and foreign else errors[0]


def _told(comm: MPI.Comm, error: Exception | None) -> MeanfieldError | None:
    """The error as other ranks are told of it; not all can travel between them."""
    if error is None or isinstance(error, MeanfieldError):
        return error
    return SolverError(f"rank {comm.rank} failed: {type(error).__name__}: {error}")
