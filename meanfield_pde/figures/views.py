"""The sphere from outside, from two sides: the density as colour, its logarithm as relief.

An orthographic view along -a shows the hemisphere <x, a> > 0. The first is of +e, e the predicted
place of the clusters, the second of -e; z is up. Densities are those between the cells, as the
scheme reconstructs them (`History.log_at`), with light from above on the left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LightSource, LogNorm
from matplotlib.figure import Figure
from scipy.ndimage import gaussian_filter

from meanfield_pde.figures.density import COLOURS, DECADES, evenly, nearest_saved, save, title
from meanfield_pde.figures.failures import drawing
from meanfield_pde.figures.marks import MARKER_SIZES, Mark, marks
from meanfield_pde.history.history import History
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.mesh.point_density import PointDensity
from meanfield_pde.results.names import FIGURES
from meanfield_pde.theory.projection_limit import ProjectionLimit

# Across a view, a pixel and a half of 2.6 inches at 150 dpi: finding cells takes most of the time.
PIXELS = 240
TIMES = 4  # columns of a page
# The relief of a view rises by this part of the radius to its largest density, from its least or
# from this many decades below it (chosen by eye).
_RISE, _DEEPEST = 0.35, 12.0
# Pixels over which it is smoothed (chosen by eye): densities that are not resolved jump between
# cells, and look like cracks.
_SMOOTH = 3.0
_LIGHT = LightSource(azdeg=315, altdeg=50)
NOTE = "z up; the relief is the logarithm of the density; lines every 30°"
_SEEN = 1e-3  # of the radius, from the edge on: points there are not on the sphere to rounding


@lru_cache(maxsize=1)
def _disc() -> tuple[np.ndarray, ...]:
    """To the right, up and towards the eye at the pixels of a view, and which are inside it."""
    line = (np.arange(PIXELS) + 0.5) / PIXELS * 2 - 1
    right, up = np.meshgrid(line, line)
    squared = right**2 + up**2
    return right, up, np.sqrt(np.maximum(1 - squared, 0)), squared < (1 - _SEEN) ** 2


@dataclass(frozen=True)
class View:
    """An orthographic view.

    Attributes:
        axes: rows to the right, up, and towards the eye: orthonormal.
    """

    axes: np.ndarray

    @classmethod
    def towards(cls, eye: np.ndarray) -> View:
        """From the direction of the eye, with z up, or x where that is the direction itself."""
        up = np.array([0.0, 0.0, 1.0]) if abs(eye[2]) < 0.95 else np.array([1.0, 0.0, 0.0])
        up = normalised(up - (up @ eye) * eye)
        return cls(np.array([np.cross(up, eye), up, eye]))

    def points(self) -> np.ndarray:
        """The points of the sphere under the pixels inside the view."""
        right, up, ball, inside = _disc()
        return np.column_stack([one[inside] for one in (right, up, ball)]) @ self.axes

    def seen(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coordinates of points, nan where they are on the other side."""
        x, y, towards = self.axes @ points.T
        hidden = towards < 0
        return np.where(hidden, np.nan, x), np.where(hidden, np.nan, y)


@drawing
def draw_views(
    directory: Path,
    history: History,
    projection: ProjectionLimit,
    form: str = "png",
    times: Sequence[float] = (),
) -> Path | None:
    """Draw figures/views.png in a result folder and return its path; None for the circle.

    Args:
        directory: the result folder.
        history: what to draw.
        projection: where the density is predicted to be.
        form: of the file, "png", "pdf" or "svg".
        times: for each the nearest saved time is drawn; by default a few, evenly chosen.
    """
    if history.dimension == 2:
        return None
    chosen = nearest_saved(history, times)
    if not len(chosen):
        chosen = evenly(len(history.times), TIMES)
    figure = _figure(history, projection, chosen)
    return save(figure, directory / FIGURES / f"views.{form}")


def _figure(history: History, projection: ProjectionLimit, chosen: np.ndarray) -> Figure:
    views = two_sides(projection)
    logs = log_densities(history, chosen, list(views.values()))
    most = max(float(one.max()) for column in logs for one in column) / math.log(10)
    least = min(float(one.min()) for column in logs for one in column) / math.log(10)
    norm = LogNorm(10.0 ** max(least, most - DECADES), 10.0**most)
    figure = Figure(figsize=(max(6.0, 2.7 * len(chosen) + 0.9), 6.3), layout="constrained")
    figure.suptitle(title(history))
    panels = figure.subplots(2, len(chosen), squeeze=False)
    shown = marks(history, projection)
    for column, index in enumerate(chosen):
        for row, view in enumerate(views.values()):
            panel = panels[row, column]
            draw_view(panel, view, logs[column][row], norm, shown)
            if row == 0:
                panel.set_title(f"t = {history.times[index]:g}", fontsize="medium")
    for panel, name in zip(panels[:, 0], views, strict=True):
        panel.text(-1.15, 0, name, rotation=90, va="center", fontsize="small")
    figure.colorbar(
        ScalarMappable(norm, COLOURS),
        ax=panels,
        label="density (mass per unit area)",
        extend="min" if least < most - DECADES else "neither",
        shrink=0.8,
    )
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=2,
        title=NOTE,
        fontsize="small",
        title_fontsize="small",
    )
    return figure


def two_sides(projection: ProjectionLimit) -> dict[str, View]:
    """Views of +e and of -e, the predicted places of clusters, or of +x and -x, by their names."""
    eye, place = np.array([1.0, 0.0, 0.0]), "x"
    if projection.exists and projection.dimension == 1:
        axis, place = projection.basis[:, 0], "e"
        eye = axis * np.sign(axis[np.abs(axis).argmax()])  # as the marks and `limit` have it
    return {
        f"from +{place}": View.towards(eye),
        f"from -{place}": View.towards(-eye),
    }


def log_densities(
    history: History, chosen: Sequence[int] | np.ndarray, views: Sequence[View]
) -> list[list[np.ndarray]]:
    """Log rho under the pixels of each view, at each time."""
    found: list[list[np.ndarray]] = [[] for _ in chosen]
    for view in views:  # one after the other, since a place holds its fits, for all times
        points, places = view.points(), None
        for logs, index in zip(found, chosen, strict=True):
            if places is None or history.store.moves:
                places = PointDensity(history.cells_at(int(index)).vertices, points)
            logs.append(history.log_density_on(places, int(index)))
    return found


def draw_view(
    panel: Axes, view: View, logs: np.ndarray, norm: LogNorm, shown: Sequence[Mark]
) -> None:
    """Draw a view of the density, its logarithm given under the pixels, and marks."""
    _paint(panel, view, logs / math.log(10), norm)
    for mark in shown:
        _draw_mark(panel, view, mark)


def _paint(panel: Axes, view: View, decades: np.ndarray, norm: LogNorm) -> None:
    """The view of a density with relief, and a grid."""
    _, _, ball, inside = _disc()
    height = np.full(inside.shape, max(float(decades.min()), float(decades.max()) - _DEEPEST))
    height[inside] = np.maximum(decades, height[0, 0])
    colour = colormaps[COLOURS](norm(np.maximum(10.0**height, norm.vmin or 0.0)))
    rise = _RISE / max(float(height.max() - height.min()), 1.0)
    height = gaussian_filter(np.where(inside, height, 0.0), _SMOOTH)
    height /= np.maximum(gaussian_filter(inside.astype(float), _SMOOTH), 1e-3)
    # The ball itself is curved: relief on it and its shape are lit together.
    shade = _LIGHT.hillshade(0.35 * ball + rise * height, dx=2 / PIXELS, dy=-2 / PIXELS)
    colour[..., :3] = _LIGHT.blend_soft_light(colour[..., :3], shade[..., None])
    colour[..., 3] = inside
    panel.imshow(colour, origin="lower", extent=(-1, 1, -1, 1), interpolation="bilinear")
    panel.set_axis_off()
    panel.set_xlim(-1.05, 1.05)
    panel.set_ylim(-1.05, 1.05)
    turn = np.linspace(0, 2 * math.pi, 361)
    panel.plot(np.cos(turn), np.sin(turn), color="0.3", lw=0.9)
    for degrees in range(-60, 90, 30):
        latitude = math.radians(degrees)
        ring = np.column_stack([np.cos(turn), np.sin(turn), np.full(361, math.tan(latitude))])
        panel.plot(*view.seen(normalised(ring)), color="0.3", lw=0.3)
    for degrees in range(0, 180, 30):
        east = np.array([math.cos(math.radians(degrees)), math.sin(math.radians(degrees)), 0.0])
        ring = np.outer(np.cos(turn), east) + np.outer(np.sin(turn), [0.0, 0.0, 1.0])
        panel.plot(*view.seen(ring), color="0.3", lw=0.3)


def _draw_mark(panel: Axes, view: View, mark: Mark) -> None:
    """Draw a mark: points by open markers, or a curve."""
    x, y = view.seen(mark.points)
    for colour, width, label in (("w", 2.6, None), ("k", 1.1, mark.label)):
        if len(mark.points) == 2:
            (drawn,) = panel.plot(x, y, mark.marker, color=colour, mew=width, label=label)
            drawn.set(markersize=MARKER_SIZES[mark.marker], markerfacecolor="none", clip_on=False)
        else:
            style = mark.style if label else "-"
            panel.plot(x, y, style, color=colour, lw=width, label=label)
