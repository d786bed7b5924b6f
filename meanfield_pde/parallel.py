"""What ranks have to agree on: work done by the first rank, and its errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mpi4py import MPI

from meanfield_pde.errors import MeanfieldError


def on_root[Result](comm: MPI.Comm, function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function on rank 0 and give its result, or the error it raised, to all. Collective.

    Errors other than the package's own are not caught: they end the program.
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


def raise_first(comm: MPI.Comm, error: MeanfieldError | None) -> None:
    """Raise on every rank the error of the lowest rank that has one. Collective."""
    errors = [one for one in comm.allgather(error) if one is not None]
    if errors:
        raise errors[0]
