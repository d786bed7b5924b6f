"""The figure of a history: every column against time, those that belong together in one panel."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from meanfield_pde.figures.density import save, title
from meanfield_pde.figures.failures import drawing
from meanfield_pde.history.history import History
from meanfield_pde.results.names import FIGURES
from meanfield_pde.solver.observables import Observable, column_named

_WIDE = 3  # panels side by side (chosen, not tuned)
_STYLES = ("-", "--", "-.", ":")  # in turn, so that columns differ in grey
_DECADES = 4  # from which on a column of positive numbers is drawn logarithmically (chosen)


@drawing
def draw_history(directory: Path, history: History, form: str = "png") -> Path | None:
    """Draw figures/history.png, if there are two saved times or more."""
    if len(history.times) < 2:
        return None
    panels = _panels(history)
    rows = math.ceil(len(panels) / _WIDE)
    figure = Figure(figsize=(3.7 * _WIDE, 2.3 * rows + 0.5), layout="constrained")
    figure.suptitle(title(history, "History of the density"))
    grid = figure.subplots(rows, _WIDE, squeeze=False, sharex=True).ravel()
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    for axes, (heading, columns) in zip(grid, panels.items(), strict=False):
        shown = [history.history[column.name] for column in columns]
        several = len(columns) > 1
        for i, (column, values) in enumerate(zip(columns, shown, strict=True)):
            style = _STYLES[i % len(_STYLES)]
            (line,) = axes.plot(history.times, values, style, lw=1.1, label=column.name)
            if all(bound in history.history for bound in _bounds(column.name)):
                low, high = (history.history[bound] for bound in _bounds(column.name))
                below = np.where(low > 0, low, np.nan)
                axes.fill_between(history.times, below, high, color=line.get_color(), alpha=0.3)
        if any(column.logarithmic for column in columns) or _spans_decades(shown):
            axes.set_yscale("log", nonpositive="mask")
        axes.set_title(heading, fontsize="small")
        axes.set_ylabel(columns[0].unit, fontsize="x-small")
        axes.tick_params(which="both", labelsize="x-small", labelbottom=True)
        axes.yaxis.get_offset_text().set_size("x-small")
        if several:
            axes.legend(fontsize=5.5, ncols=2 if len(columns) > 3 else 1)
    for axes in grid[: len(panels)][-_WIDE:]:
        axes.set_xlabel("time t", fontsize="small")
    return save(figure, directory / FIGURES / f"history.{form}")


def _bounds(name: str) -> tuple[str, str]:
    """The names of the columns between which that of a value lies, drawn as a band about it."""
    return f"{name}_low", f"{name}_high"


def _panels(history: History) -> dict[str, list[Observable]]:
    """The columns of each panel by its title, in the order of the history."""
    panels: dict[str, list[Observable]] = {}
    bands = {bound for name in history.history for bound in _bounds(name)}
    for name in history.history:
        if name != "time" and name not in bands:
            one = column_named(name, history.dimension, history.cost)
            panels.setdefault(one.title, []).append(one)
    return panels


def _spans_decades(columns: list[np.ndarray]) -> bool:
    values = np.concatenate(columns)
    if not (np.isfinite(values).all() and (values > 0).all()):
        return False
    return bool(values.max() > 10.0**_DECADES * values.min())
