"""The sphere to be turned by hand: the density at the saved times, as figures/density.html.

One file that holds the library which draws it, so that it opens without a network. Colours are
those of the maps: log10 of the density of each cell, over the same decades at all times.
"""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.figures import density as figures
from meanfield_pde.figures.failures import drawing
from meanfield_pde.figures.marks import Mark, marks
from meanfield_pde.history.history import History
from meanfield_pde.results.folder import Result
from meanfield_pde.results.names import FIGURES
from meanfield_pde.support.files import make_folder, replace_text
from meanfield_pde.theory.projection_limit import ProjectionLimit

NAME = "density.html"
INSTALL_HINT = "pip install 'meanfield_pde[interactive]'"
MOST_TIMES = 24  # stops of a slider that a hand can find (chosen, not tuned)
# The numbers of all times together, in bytes: what a browser opens at once (chosen, not tuned); and
# the bytes that a cell takes at one: as float32 or int32 three corners, the density, and three
# coordinates of every second cell, in base64.
LARGEST, PER_CELL = 40e6, 4 * (3 + 1 + 1.5) * 4 / 3
_SYMBOLS = {"o": "circle-open", "D": "diamond-open"}
# How far away the sphere is first seen from, over the highest peak of the last time (chosen, not
# tuned).
_EYE = 1.5
_DASHES = {":": "dot", "-.": "dashdot"}
_ABOVE = 1.06  # radius at which marks are drawn, so that no cell hides them (chosen, not tuned)


@drawing
def draw_interactive(result: Result, directory: Path) -> Path:
    """Write figures/density.html in a folder and return its path."""
    if result.dimension != 3:
        raise InputError(
            f"{result.directory}: the interactive view is one of the sphere, this is a circle; "
            "figures/density.png shows all its angles and times at once"
        )
    try:
        plotly = importlib.import_module("plotly.graph_objects")
    except ModuleNotFoundError:
        raise InputError(
            f"an interactive view needs the package plotly: {INSTALL_HINT}", "--interactive"
        ) from None
    figure = sphere_figure(plotly, result, ProjectionLimit(result.attention))
    path = directory / FIGURES / NAME
    make_folder(path.parent)
    options = {"displaylogo": False, "scrollZoom": True}
    replace_text(path, figure.to_html(include_plotlyjs=True, config=options))
    return path


def sphere_figure(plotly: ModuleType, history: History, projection: ProjectionLimit) -> Any:
    """The figure: a surface for each time, one of which is seen, marks, and a slider."""
    cells = len(history.store.read(len(history.times) - 1))
    most = int(np.clip(LARGEST / (PER_CELL * cells), 2, MOST_TIMES))
    chosen = figures.evenly(len(history.times), most)
    densities = [history.density_at(index) for index in chosen]
    norm = figures.colour_norm(np.concatenate(densities))
    low, high = math.log10(norm.vmin or 0), math.log10(norm.vmax or 1)
    surfaces = [
        plotly.Mesh3d(
            **triangles(history.cells_at(index).vertices),
            intensity=np.log10(np.maximum(density, norm.vmin or 0)).astype(np.float32),
            intensitymode="cell",
            cmin=low,
            cmax=high,
            colorscale=figures.COLOURS,
            colorbar=_colour_bar(low, high),
            lighting={"ambient": 1, "diffuse": 0, "specular": 0, "fresnel": 0},
            hoverinfo="x+y+z",
            visible=index == chosen[-1],
        )
        for index, density in zip(chosen, densities, strict=True)
    ]
    places = [_mark(plotly, mark) for mark in marks(history, projection)]
    figure = plotly.Figure([*surfaces, *places])
    steps = [
        {
            "method": "restyle",
            "label": f"{history.times[index]:.4g}",
            # The marks, which come after the surfaces, stay.
            "args": [{"visible": (chosen == index).tolist()}, list(range(len(chosen)))],
        }
        for index in chosen
    ]
    hidden = {"visible": False}
    peak = history.cells_at(int(chosen[-1])).points[densities[-1].argmax()]
    figure.update_layout(
        title={"text": figures.title(history), "x": 0.5},
        scene={"xaxis": hidden, "yaxis": hidden, "zaxis": hidden, "aspectmode": "data"},
        scene_camera={"eye": dict(zip("xyz", (_EYE * peak).tolist(), strict=True))},
        sliders=[{"active": len(chosen) - 1, "currentvalue": {"prefix": "t = "}, "steps": steps}],
        legend={"x": 0, "y": 1},
    )
    return figure


def triangles(vertices: np.ndarray) -> dict[str, np.ndarray]:
    """Corners of triangles, each once, by coordinate, and the three of each triangle."""
    points, number = np.unique(vertices.reshape(-1, 3), axis=0, return_inverse=True)
    coordinates = points.astype(np.float32).T
    corners = number.reshape(-1, 3).astype(np.int32).T
    return dict(zip("xyzijk", (*coordinates, *corners), strict=True))


def _colour_bar(low: float, high: float) -> dict[str, Any]:
    """Powers of ten, or the ends and the middle of a narrow range."""
    powers = range(math.ceil(low), math.floor(high) + 1)
    if len(powers) > 1:
        places: list[float] = [*powers]
        labels = [f"10<sup>{power}</sup>" for power in powers]
    else:
        places = [low, (low + high) / 2, high]
        labels = [f"{10**place:.3g}" for place in places]
    title = {"text": "density (mass per unit area)", "side": "right"}
    return {"title": title, "tickvals": places, "ticktext": labels}


def _mark(plotly: ModuleType, mark: Mark) -> Any:
    x, y, z = _ABOVE * mark.points.T
    points = len(mark.points) == 2
    style: dict[str, Any] = (
        {"mode": "markers", "marker": {"symbol": _SYMBOLS[mark.marker], "size": 6, "color": "red"}}
        if points
        else {"mode": "lines", "line": {"dash": _DASHES[mark.style], "width": 4, "color": "red"}}
    )
    return plotly.Scatter3d(x=x, y=y, z=z, name=mark.label, hoverinfo="name", **style)
