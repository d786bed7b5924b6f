"""Events of our own in PETSc's timings, which `-log_view` prints: attention, transport, output."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

from petsc4py import PETSc


@cache
def _event(name: str) -> Any:
    return PETSc.Log.Event(name)


def timed[**Arguments, Result](
    name: str,
) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """Count the calls of a function, and their time, as an event of that name."""

    def decorate(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def counted(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
            with _event(name):
                return function(*arguments, **options)

        return counted

    return decorate
