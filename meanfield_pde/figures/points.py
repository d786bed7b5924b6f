"""The figure of a case at the points of a grid: a curve for one key, maps for two and more."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.figure import Figure

from meanfield_pde.errors import InputError
from meanfield_pde.figures.bars import draw_rows
from meanfield_pde.figures.density import save
from meanfield_pde.figures.failures import drawing
from meanfield_pde.results.names import FIGURES
from meanfield_pde.results.tables import Row
from meanfield_pde.support.checks import did_you_mean

# Drawn unless another is asked for: the order r = |∫ x dmu|, of every run.
DEFAULT = "end.mean_norm"
MOST_MAPS = 12  # that can be read on a page
_COLOUR, _MISSING = "#0072B2", "0.85"


@drawing
def draw_table(
    directory: Path,
    varied: Mapping[str, Sequence[Any]],
    rows: Sequence[Row],
    name: str | None = None,
    form: str = "png",
) -> Path:
    """Draw figures/points.png, or the same in another format.

    Points that have no such number are left out of a curve, and grey on a map.

    Args:
        directory: the folder of the experiment.
        varied: the values by key. The first two are the axes; of the others, each combination has a
            map of its own.
        rows: of the table, one for each point.
        name: the column that is drawn.
        form: "png", "pdf" or "svg".
    """
    name = name or DEFAULT
    known = [one for one in rows[0] if one not in varied]
    if name not in known:
        raise InputError(
            f"there is no column '{name}' in the table{did_you_mean(name, known)}, or name another "
            "to show"
        )
    keys = list(varied)
    others = list(itertools.product(*(varied[key] for key in keys[2:])))
    if len(others) > MOST_MAPS:
        raise InputError(
            f"{len(others)} maps are more than {MOST_MAPS}; give the keys with most values first"
        )
    columns = min(3, len(others))
    lines = -(-len(others) // columns)
    figure = Figure(figsize=(1.4 + 4.6 * columns, 0.6 + 3.8 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    if len(keys) == 1:
        _curve(panels[0], keys[0], varied[keys[0]], rows, name)
        return save(figure, directory / FIGURES / f"points.{form}")
    shown = [row[name] for row in rows if isinstance(row[name], int | float)]
    limits = (min(shown), max(shown)) if shown else (0.0, 1.0)
    drawn: QuadMesh | None = None
    for axes, rest in itertools.zip_longest(panels, others):
        if rest is None:
            axes.set_axis_off()
            continue
        at = dict(zip(keys[2:], rest, strict=True))
        own = [row for row in rows if all(row[key] == value for key, value in at.items())]
        drawn = _map(axes, keys, varied, own, name, limits)
        axes.set_title(", ".join(f"{key} = {value}" for key, value in at.items()))
    if drawn is not None:
        figure.colorbar(drawn, ax=panels, label=name)
    return save(figure, directory / FIGURES / f"points.{form}")


def _curve(axes: Axes, key: str, values: Sequence[Any], rows: Sequence[Row], name: str) -> None:
    """The number against the values of one key."""
    place = _places(values)
    seen = [(x, row) for x, row in zip(place, rows, strict=True) if row[name] is not None]
    order = np.argsort([x for x, _ in seen])
    x, own = [seen[i][0] for i in order], [seen[i][1] for i in order]
    axes.plot(x, [row[name] for row in own], "-", color=_COLOUR, lw=0.8)
    draw_rows(axes, x, own, name, "o", _COLOUR)
    _label(axes, "x", key, values)
    axes.set_ylabel(name)


def _map(
    axes: Axes,
    keys: Sequence[str],
    varied: Mapping[str, Sequence[Any]],
    rows: Sequence[Row],
    name: str,
    limits: tuple[float, float],
) -> QuadMesh:
    """The number over the values of two keys, a box about each point."""
    first, second = keys[:2]
    shape = len(varied[first]), len(varied[second])
    values = np.array([row[name] for row in rows], dtype=float).reshape(shape)
    orders = [np.argsort(_places(varied[key])) for key in (first, second)]
    values = values[np.ix_(*orders)]
    edges = [_edges(np.sort(_places(varied[key])), _log(varied[key])) for key in (first, second)]
    axes.set_facecolor(_MISSING)
    drawn = axes.pcolormesh(
        edges[0],
        edges[1],
        np.ma.masked_invalid(values.T),
        cmap="cividis",
        vmin=limits[0],
        vmax=limits[1],
        rasterized=True,
    )
    _label(axes, "x", first, varied[first])
    _label(axes, "y", second, varied[second])
    return drawn


def _places(values: Sequence[Any]) -> np.ndarray:
    """Where values stand on their axis: finite numbers where they are, others by their number."""
    return np.array(values, dtype=float) if _numeric(values) else np.arange(float(len(values)))


def _numeric(values: Sequence[Any]) -> bool:
    return all(
        isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one)
        for one in values
    )


def _log(values: Sequence[Any]) -> bool:
    """Whether an axis is logarithmic: for values whose ratios are nearer to each other."""
    if not _numeric(values) or min(values) <= 0 or len(values) < 3:
        return False
    found = np.sort(np.array(values, dtype=float))
    steps, ratios = np.diff(found), np.diff(np.log(found))
    return bool(ratios.max() / ratios.min() < steps.max() / steps.min())


def _edges(places: np.ndarray, logarithmic: bool) -> np.ndarray:
    """The edges of boxes about increasing places: half way between them, and as far beyond."""
    x = np.log(places) if logarithmic else places
    middle = (x[1:] + x[:-1]) / 2
    edges = np.concatenate([[2 * x[0] - middle[0]], middle, [2 * x[-1] - middle[-1]]])
    return np.exp(edges) if logarithmic else edges


def _label(axes: Axes, which: str, key: str, values: Sequence[Any]) -> None:
    """The name of an axis, its scale, and the values that are no numbers."""
    getattr(axes, f"set_{which}label")(key)
    if _log(values):
        getattr(axes, f"set_{which}scale")("log")
    if not _numeric(values):
        getattr(axes, f"set_{which}ticks")(range(len(values)), [str(one) for one in values])
