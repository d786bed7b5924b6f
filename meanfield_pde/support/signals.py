"""Signals that ask a run to stop: a scheduler's SIGTERM, SIGUSR1 some time before it, SIGHUP.

They are noted and asked for between two steps, so that what is being computed or written is done
first. Ranks may get them at different times, and some not at all: who asks has to ask all of them.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from mpi4py import MPI

from meanfield_pde._signals import NOTED, heeded, note
from meanfield_pde.errors import StoppedError


@contextmanager
def signals_noted() -> Iterator[None]:
    """Note the signals while the body runs, instead of ending the program."""
    if threading.current_thread() is not threading.main_thread():  # Python allows it there only
        yield
        return
    before = {number: signal.signal(number, note) for number in heeded()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        NOTED.clear()


def stop_if_noted(comm: MPI.Comm) -> None:
    """StoppedError if a signal came to one of the ranks. Collective."""
    if comm.allreduce(bool(noted()), MPI.LOR):
        raise StoppedError("stopped by a signal before the first step; nothing is lost")


def noted() -> str:
    """The name of the signal that came to this rank, or nothing."""
    return NOTED[-1] if NOTED else ""
