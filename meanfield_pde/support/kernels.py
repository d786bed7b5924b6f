"""How numba compiles functions: kernels, which Python calls, and parts, which only kernels call.

A first start waits for this, and much of it would be for callers that there are none of: C code,
and, for parts, a cache of their own. A kernel that is kept holds its parts, and those that it
calls: all are compiled again when a module with one changes. Ranks of one machine compile a kernel
in turn, so that the first does it and the others find it in the cache.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numba
from numba.core.compiler_lock import global_compiler_lock
from numba.core.event import Event, Listener, register

LOG = logging.getLogger("meanfield_pde")

# The package, whose kernels call one another.
PACKAGE = Path(__file__).parents[1]
# The same for all, since what numba's own functions are compiled to is shared between equals: no
# wrapper for C, Python's lock let go, and divisions without a check that keeps loops from vectors.
_ALL = {"no_cfunc_wrapper": True, "nogil": True, "error_model": "numpy"}
# Seconds: twice what the kernel that takes longest, `block_sums`, is compiled in on an idle core
# (10.6 s). On a loaded one the warning comes though nobody was stopped.
_PATIENCE = 20.0
# The functions that `kernel` has been given.
_KERNELS: set[Callable] = set()


def kernel(function: Callable | None = None, **options: Any) -> Callable:
    """Compile a function, with options of numba's or without, for the arguments that it meets."""
    if function is None:
        return functools.partial(kernel, **options)
    folder, before = kernel_folder(), numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder or "")  # read as a function is decorated
    try:
        compiled: Callable = numba.njit(cache=folder is not None, **_ALL, **options)(function)
    finally:
        numba.config.CACHE_DIR = before
    _KERNELS.add(function)
    if folder is not None:
        _compile_in_turn(compiled, f"{function.__module__}.{function.__qualname__}")
    return compiled


def part(function: Callable | None = None, **options: Any) -> Callable:
    """The same for a function that kernels call."""
    make: Callable = numba.njit(**_ALL, **options)
    return make if function is None else make(function)


@functools.cache
def kernel_folder() -> Path | None:
    """Return the folder where kernels are kept; None if nothing can be written anywhere.

    It lies in that of NUMBA_CACHE_DIR, or else beside the package, in the user's cache, or, on
    compute nodes say, in a temporary folder. Kernels of another text are in a folder of their own.
    """
    given = os.environ.get("NUMBA_CACHE_DIR")
    user = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    places = [Path(given)] if given else [PACKAGE / "__pycache__", user / PACKAGE.name]
    for place in (*places, own_folder()):
        if place is None:
            continue
        try:
            folder = place.expanduser() / f"kernels-{_digest_of_kernels()}"
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except (OSError, RuntimeError):  # RuntimeError: there is no home
            continue
    return None


def _digest_of_kernels() -> str:
    """A digest of all modules of the package that name numba, or this module."""
    texts = (path.read_bytes() for path in sorted(PACKAGE.rglob("*.py")))
    compiled = (text for text in texts if b"numba" in text or b"support.kernels" in text)
    return hashlib.sha256(b"".join(compiled)).hexdigest()[:16]


def own_folder() -> Path | None:
    """A folder for temporary files that is this user's alone, since what is in it is executed."""
    for parent in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm"):
        if not parent:
            continue
        folder = Path(parent) / f"meanfield_pde-{os.getuid()}"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            found = folder.lstat()
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError:
            continue
        private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
        if private and found.st_uid == os.getuid():
            return folder
    return None


def _compile_in_turn(compiled: Any, name: str) -> None:
    """Have a kernel compiled by one process of the machine at a time.

    A lock is taken before numba looks for what is kept, and until it has kept it: of two processes
    that compile a kernel for other arguments at once, each would give what it keeps the same name.
    """
    compile_it = compiled.compile

    def in_turn(signature: Any) -> Any:
        # Numba's own lock first, as it is when a kernel compiles another: threads cannot meet.
        with global_compiler_lock, _turn(name):
            return compile_it(signature)

    compiled.compile = in_turn


@contextmanager
def _turn(name: str) -> Iterator[None]:
    folder = _lock_folder()
    if folder is None or name in _HELD:  # it calls itself
        yield
        return
    with (folder / f"{name}.lock").open("w") as lock:
        _HELD.add(name)
        try:
            _take(lock, name)
            yield
        finally:
            _HELD.remove(name)


# Kernels that this process compiles; numba's lock is held where it is looked at.
_HELD: set[str] = set()


def _take(lock: IO[str], name: str) -> None:
    """Wait for a lock, and say so where that takes longer than to compile any kernel."""
    since = time.monotonic()
    while time.monotonic() < since + _PATIENCE:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.02)
    LOG.warning("waits for another process to compile %s; end that if it has been stopped", name)
    fcntl.flock(lock, fcntl.LOCK_EX)


@functools.cache
def _lock_folder() -> Path | None:
    """Return a folder for locks, on the machine itself: file systems of many may have none."""
    own, kept = own_folder(), kernel_folder()
    if own is None or kept is None:
        return None
    folder = own / f"locks-{kept.name.removeprefix('kernels-')}"
    folder.mkdir(exist_ok=True)
    return folder


class _WithItsKernel(Listener):
    """What a kernel calls is optimised with it, and hardly by itself, as numba has it in full.

    The sum by clusters compiles in 13.9 s of a core instead of 18.4 s, and is as fast as before, as
    are steps and distances, within the 5 % by which their times differ.
    """

    def __init__(self) -> None:
        self._full, self._kernels = numba.config.OPT, 0
        self._before: list[int] = []  # numba compiles in one thread at a time

    def on_start(self, event: Event) -> None:
        """Leave it to the kernel, unless it is another that Python may call, too."""
        self._before.append(numba.config.OPT)
        if event.data["dispatcher"].py_func in _KERNELS:
            self._kernels += 1
            numba.config.OPT = self._full
        elif self._kernels:
            numba.config.OPT = 1

    def on_end(self, event: Event) -> None:
        """Go on with what this was compiled for."""
        self._kernels -= event.data["dispatcher"].py_func in _KERNELS
        numba.config.OPT = self._before.pop()


def _settle_cache() -> None:
    """Have kernels compile by these rules, and matplotlib write beside those in no cache."""
    register("numba:compile", _WithItsKernel())
    folder, own = kernel_folder(), own_folder()
    if folder is not None and folder.parent == own:
        os.environ.setdefault("MPLCONFIGDIR", str(own / "matplotlib"))  # would warn


_settle_cache()
