"""Intervals as bars about what was measured, and hollow markers where there are none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from meanfield_pde.results.tables import Row


def draw_bars(
    axes: Axes,
    x: Sequence[float] | np.ndarray,
    y: Sequence[float] | np.ndarray,
    low: Sequence[float | None],
    high: Sequence[float | None],
    colour: str,
) -> None:
    """Draw intervals as bars about values; None where there is no interval."""
    ends = np.array([low, high], dtype=float)
    known = np.isfinite(ends).all(axis=0)
    if known.any():
        middle = np.asarray(y, dtype=float)[known]
        errors = np.maximum([middle - ends[0, known], ends[1, known] - middle], 0.0)
        place = np.asarray(x, dtype=float)[known]
        axes.errorbar(place, middle, errors, fmt="none", ecolor=colour, elinewidth=1.2, capsize=3)


def draw_rows(
    axes: Axes,
    x: Sequence[float] | np.ndarray,
    rows: Sequence[Row],
    name: str,
    marker: str,
    colour: str,
    label: str | None = None,
) -> None:
    """Draw a column of a table, with bars where the rows have intervals of it.

    Markers are hollow where values do not converge.
    """
    x, y = np.asarray(x), np.array([row[name] for row in rows], dtype=float)
    sure = np.array([row.get(f"{name}_converging") is not False for row in rows], dtype=bool)
    axes.plot(x[sure], y[sure], marker, color=colour, label=label)
    axes.plot(x[~sure], y[~sure], marker, color=colour, mfc="none")
    draw_bars(axes, x, y, *ends_of(rows, name), colour)


def ends_of(rows: Sequence[Row], name: str) -> tuple[list[float | None], list[float | None]]:
    """The lower and upper ends of the intervals of a column, None where rows have none."""
    return [row.get(f"{name}_low") for row in rows], [row.get(f"{name}_high") for row in rows]
