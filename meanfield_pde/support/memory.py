"""Memory: what a process has had, what a machine has, and what would not fit is refused before."""

from __future__ import annotations

import ctypes
import os
import resource
from pathlib import Path

from meanfield_pde.errors import InputError

# Data that claim more than this many times the bytes they are stored in, and more than this many
# bytes, are refused: real numbers hardly compress.
MOST_EXPANSION, ALWAYS_ALLOWED = 100, 64e6

# Of glibc: arrays from 4 MB on are returned to the system when they are freed, others once 64 MB
# are free at the end of the heap, the most that it comes to by itself. By itself it also keeps all
# freed arrays of up to 32 MB: a tenth of the peak with 327,680 cells on one rank.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = (-3, 1 << 22), (-1, 1 << 26)


def give_back_freed() -> None:
    """Have this process return the memory of large arrays to the system when they are freed."""
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for threshold in (_MMAP_THRESHOLD, _TRIM_THRESHOLD):
            library.mallopt(*threshold)


def peak_memory() -> float:
    """The most memory that this process has had, in bytes.

    Linux counts in `getrusage` what the process that started this one had; `VmHWM` does not.
    """
    return _status("VmHWM")


def present_memory() -> float:
    """The memory that this process has now, in bytes; the most where the system does not say."""
    return _status("VmRSS")


def _status(name: str) -> float:
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        status = ""
    for line in status.splitlines():
        if line.startswith(f"{name}:"):
            return 1024.0 * float(line.split()[1])
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def machine_memory() -> float:
    """Memory of the machine, or of what this process may use of it, in bytes."""
    total = float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, float(limit)) if limit.isdigit() else total


def free_memory() -> float:
    """Memory that nobody uses now, in bytes; that of the machine where the system does not say."""
    there = machine_memory()
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return there
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return min(there, 1024.0 * float(found[0])) if found else there


def check_fits(wanted: float, what: str, remedy: str) -> None:
    """InputError if n bytes, `wanted`, are more than this machine has."""
    there = machine_memory()
    if wanted > there:
        raise InputError(
            f"{what} needs about {wanted / 1e9:.3g} GB, and this machine has {there / 1e9:.3g} GB; "
            f"{remedy}"
        )


def check_claim(claimed: float, stored: float) -> None:
    """InputError if a header claims far more bytes than are stored."""
    if claimed > ALWAYS_ALLOWED and claimed > MOST_EXPANSION * stored:
        raise InputError(f"its header claims {claimed:.3g} bytes, of which {stored:.3g} are there")
