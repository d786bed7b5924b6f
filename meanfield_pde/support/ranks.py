"""What ranks have to agree on: work done by the first rank, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

import numpy as np

from meanfield_pde.errors import MeanfieldError, SolverError


def on_root[Result](comm: MPI.Comm, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function on rank 0 and give its result, or the error it raised, to all. Collective."""
    result: Any = None
    error: BaseException | None = None
    if comm.rank == 0:
        try:
            result = function(*arguments)
        except BaseException as caught:  # the others wait to hear of this one, too
            error = caught
    result, shared = comm.bcast((result, _shareable(comm, error)), root=0)
    if shared is not None:
        raise error or shared
    return result


def total(comm: MPI.Comm, value: float) -> float:
    """The sum over the ranks; a rank alone asks nobody. Collective."""
    return value if comm.size == 1 else float(comm.allreduce(value))


def totals(comm: MPI.Comm, values: np.ndarray) -> np.ndarray:
    """The sums over the ranks of several numbers. Collective."""
    return values if comm.size == 1 else np.asarray(comm.allreduce(values))


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
    error: BaseException | None = None
    try:
        yield
    except BaseException as caught:  # SystemExit, say, from a function of the user's
        error = caught
    errors = [one for one in comm.allgather(_shareable(comm, error)) if one is not None]
    if errors:
        foreign = error is not None and not isinstance(error, MeanfieldError)
        raise error if error is not None and foreign else errors[0]


def _shareable(comm: MPI.Comm, error: BaseException | None) -> MeanfieldError | None:
    """The error in a form that can travel to other ranks; not all can."""
    if error is None or isinstance(error, MeanfieldError):
        return error
    return SolverError(f"rank {comm.rank} failed: {type(error).__name__}: {error}")
