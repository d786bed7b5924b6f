"""How numba compiles functions: kernels, which Python calls, and parts, which only kernels call.

A first start waits for this, and much of it would be for callers that there are none of: C code,
and, for parts, a cache of their own. A kernel that is kept holds its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

from meanfield_pde import _platform

_platform.settle_cache()  # before a kernel looks for its place in it

# The same for all, since what numba's own functions are compiled to is shared between equals: no
# wrapper for C, Python's lock let go, and divisions without a check that keeps loops from vectors.
_ALL = {"no_cfunc_wrapper": True, "nogil": True, "error_model": "numpy"}


def kernel(function: Callable | None = None, **options: Any) -> Callable:
    """Compile a function, with options of numba's or without, for the arguments that it meets."""
    make: Callable = numba.njit(cache=True, **_ALL, **options)
    return make if function is None else make(function)


def part(function: Callable | None = None, **options: Any) -> Callable:
    """The same for a function that kernels call."""
    make: Callable = numba.njit(**_ALL, **options)
    return make if function is None else make(function)
