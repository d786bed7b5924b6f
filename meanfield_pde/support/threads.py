"""Threads: how many a rank may use, ranks x threads not exceeding the cores, and their use.

The threads are Python's, for compiled loops that let go of its lock (`nogil`). Numba's own would
have it compile each loop twice, and with passes that take longer than all others.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

from mpi4py import MPI

from meanfield_pde.errors import InputError

VARIABLE = "MEANFIELD_PDE_THREADS"
_MOST_DIGITS = 9
_MOST_EACH = 100  # threads to a core: more are a slip, fewer are what another machine has
# To wake a thread, and to wait for it, is worth while for this much work each [ns].
WORK_PER_THREAD = 500_000.0
# Parts of the work for each thread, since some take longer than others (chosen, not tuned).
_PARTS = 8


def available_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


_allowed = [available_cores()]


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
        elif given.isdecimal() and len(given) <= _MOST_DIGITS and int(given) > 0:
            threads = int(given)
            if threads > _MOST_EACH * available_cores():
                raise InputError(
                    f"{VARIABLE} = {threads}, and there are {available_cores()} cores; no more are "
                    "used"
                )
        else:
            raise InputError(f"{VARIABLE} must be a positive whole number, got '{given[:80]}'")
    elif threads < 1:
        raise InputError(f"the number of threads must be positive, got {threads}")
    _allowed[0] = min(threads, available_cores())
    return _allowed[0]


def allowed_threads() -> int:
    """The number of threads set last; at first all cores."""
    return _allowed[0]


def useful_threads(work: float, per_thread: float = WORK_PER_THREAD) -> int:
    """Return how many threads `work` [ns] keeps busy, at `per_thread` [ns] for each."""
    return max(1, min(allowed_threads(), int(work / per_thread)))


@functools.cache
def _helpers() -> ThreadPoolExecutor:
    """Threads beside the one that calls; they start when there is work for them, and stay."""
    return ThreadPoolExecutor(available_cores())


# A forked process has none of the threads.
os.register_at_fork(after_in_child=_helpers.cache_clear)


def in_parts(work: Callable[[tuple[int, int]], None], count: int, threads: int) -> None:
    """Call work((begin, end)) for parts that make up range(count), on `threads` threads.

    The thread that calls does its share; with one thread it is one call for everything.
    """
    threads = min(threads, count)
    if threads <= 1:
        work((0, count))
        return
    size = -(-count // (_PARTS * threads))
    waiting = iter(range(0, count, size))

    def work_off() -> None:
        try:
            for begin in waiting:
                work((begin, min(begin + size, count)))
        finally:
            for _ in waiting:  # after an error nothing more is begun
                pass

    helpers = [_helpers().submit(work_off) for _ in range(threads - 1)]
    try:
        work_off()
    finally:
        begun = [helper for helper in helpers if not helper.cancel()]
        wait(begun)
    for helper in begun:
        helper.result()
