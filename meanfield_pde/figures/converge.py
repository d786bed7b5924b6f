"""The figure of a convergence study: each number on each mesh, and its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meanfield_pde.figures.bars import draw_bars
from meanfield_pde.figures.density import save
from meanfield_pde.figures.failures import drawing
from meanfield_pde.results.names import FIGURES
from meanfield_pde.theory.richardson import LARGE

COLOUR = "#0072B2"
_COLUMNS = 4  # panels side by side (chosen, not tuned)
# Size of a panel in inches.
_WIDTH, _HEIGHT = 2.9, 2.1


@drawing
def draw_convergence(
    directory: Path,
    numbers: Mapping[str, Mapping[str, Any]],
    levels: Sequence[str],
    form: str = "png",
) -> Path:
    """Draw figures/converge.png, or the same in another format.

    A panel for each number: its values on the meshes, from the coarsest on, and at the last the
    interval as a bar; markers are hollow where the values do not converge.

    Args:
        directory: the folder of the experiment.
        numbers: intervals by name, as in summary.json.
        levels: what the meshes are called.
        form: "png", "pdf" or "svg".
    """
    count = max(1, len(numbers))
    columns = min(_COLUMNS, count)
    rows = -(-count // columns)
    size = (_WIDTH * columns, _HEIGHT * rows + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle("Values on the meshes, and the interval at the finest", fontsize="medium")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, (name, one) in zip(panels, numbers.items(), strict=False):
        _draw(axes, name, one, levels)
    for axes in panels[len(numbers) :]:
        axes.set_axis_off()
    return save(figure, directory / FIGURES / f"converge.{form}")


def _draw(axes: Axes, name: str, one: Mapping[str, Any], levels: Sequence[str]) -> None:
    values = np.array([np.nan if v is None else v for v in one["values"]], dtype=float)
    place = np.arange(len(values))
    inside = COLOUR if one["converging"] else "none"
    axes.plot(place, values, "-", color="0.75", lw=0.8, zorder=1)
    axes.plot(place, values, "o", color=COLOUR, mfc=inside, ms=5)
    draw_bars(axes, place[-1:], values[-1:], [one["low"]], [one["high"]], COLOUR)
    order = "" if one["order"] is None else f"order {one['order']:.2f}"
    axes.set_title(f"{name}\n{order if one['converging'] else 'not converging'}", fontsize="small")
    axes.set_xticks(place, levels, fontsize="x-small")
    axes.set_xlim(-0.4, len(values) - 0.6)
    axes.tick_params(axis="y", labelsize="x-small")
    large = bool(np.nanmax(np.abs(values), initial=0.0) >= LARGE)
    axes.ticklabel_format(axis="y", useOffset=False, style="sci" if large else "plain")
    axes.yaxis.get_offset_text().set_fontsize("x-small")
    axes.margins(y=0.15)
