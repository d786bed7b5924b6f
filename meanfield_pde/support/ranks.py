"""What ranks have to agree on: work done by the first rank, and its errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mpi4py import MPI

from meanfield_pde.errors import MeanfieldError


def on_root[Result](comm: MPI.Comm, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function on rank 0 and give its result, or the error it raised, to all. Collective.

    Errors other than the package's own are not caught: the command line ends all ranks then, in a
    script the other ranks wait.
    """
    outcome: tuple[Any, MeanfieldError | None] = (None, None)
    if comm.rank == 0:
        try:
            outcome = (function(*arguments), None)
        except MeanfieldError as caught:
            outcome = (None, caught)
    result, error = comm.bcast(outcome, root=0)
    if error is not None:
        raise error
    return result


@contextmanager
def shared_errors(comm: MPI.Comm) -> Iterator[None]:
    """An error in the block on one rank is raised by all, at its end. Collective.

    If several ranks have one, it is that of the lowest. The block itself must not be collective on
    `comm`.
    """
    error: MeanfieldError | None = None
    try:
        yield
    except MeanfieldError as caught:
        error = caught
    errors = [one for one in comm.allgather(error) if one is not None]
    if errors:
        raise errors[0]
