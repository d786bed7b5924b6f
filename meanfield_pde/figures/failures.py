"""Figures that cannot be drawn: said in one line, and no reason to lose the numbers.

matplotlib reads settings of the user's, a `matplotlibrc` say, and raises whatever it meets when it
follows them: with `text.usetex` and no LaTeX a RuntimeError with all that was to be set.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

from meanfield_pde.errors import InputError, MeanfieldError, SolverError

LOG = logging.getLogger("meanfield_pde")
_LONGEST = 160  # characters of what a library says


def drawing[**P, R](draw: Callable[P, R]) -> Callable[P, R]:
    """The function, with a SolverError in one line for what the libraries raise that it uses."""

    @functools.wraps(draw)
    def drawn(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return draw(*arguments, **options)
        except (MeanfieldError, MemoryError):
            raise
        except Exception as error:  # matplotlib, FreeType and plotly raise nothing narrower
            reason = " ".join(str(error).split())[:_LONGEST] or "no reason is given"
            raise SolverError(f"a figure cannot be drawn ({reason})") from error

    return drawn


def drawn_if_possible[**P, R](
    draw: Callable[P, R], *arguments: P.args, **options: P.kwargs
) -> R | None:
    """What `draw` returns, or None after a line that says why there are no figures."""
    try:
        return draw(*arguments, **options)
    except (SolverError, InputError) as error:  # the numbers are safe, and `plot` draws them again
        LOG.warning("no figures: %s", error)
        return None
