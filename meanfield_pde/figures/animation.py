"""Animations of a result: the density in time, as figures/density.gif."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from meanfield_pde.errors import InputError
from meanfield_pde.figures import density as figures
from meanfield_pde.figures import mollweide
from meanfield_pde.figures.clusters import find_clusters
from meanfield_pde.figures.failures import drawing
from meanfield_pde.figures.insets import MOST, draw_insets, make_room, row_height
from meanfield_pde.figures.marks import draw_mark, marks
from meanfield_pde.figures.views import NOTE, draw_view, two_sides
from meanfield_pde.history.history import History
from meanfield_pde.mesh.point_density import PointDensity
from meanfield_pde.results.folder import Result
from meanfield_pde.results.names import FIGURES
from meanfield_pde.support.files import make_folder, replace_file
from meanfield_pde.theory.projection_limit import ProjectionLimit

NAME = "density.gif"
# Frames at the most: ten seconds, as long as one looks (chosen, not tuned).
MOST_FRAMES = 120
FRAMES_PER_SECOND = 12  # ten seconds of them, as above
SIDE = 2.7  # inches of a view of the sphere
MAP_WIDTH = 5.8  # inches of a map of the sphere, beside its colour bar
# A map of MAP_WIDTH inches has 522 pixels, of the 720 that it is made of.
_DPI = 90

Update = Callable[[int], None]


@drawing
def animate(result: Result, directory: Path) -> Path:
    """Write figures/density.gif in a folder and return its path."""
    if len(result.times) < 2:
        raise InputError(
            f"{result.directory}: an animation needs two saved times or more, got "
            f"{len(result.times)}; set time.save_every"
        )
    draw = circle_frames if result.dimension == 2 else sphere_frames
    figure, update = draw(result, ProjectionLimit(result.attention))
    FigureCanvasAgg(figure)
    chosen = figures.evenly(len(result.times), MOST_FRAMES)
    moving = FuncAnimation(figure, update, frames=chosen.tolist(), init_func=lambda: None)
    path = directory / FIGURES / NAME
    make_folder(path.parent)
    writer = PillowWriter(fps=FRAMES_PER_SECOND)
    replace_file(path, lambda temporary: moving.save(temporary, writer, dpi=_DPI))
    return path


def circle_frames(result: History, projection: ProjectionLimit) -> tuple[Figure, Update]:
    """A figure of the density against the angle, and what moves it to a saved time."""
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    figure.suptitle(figures.title(result))
    axes = figure.subplots()
    angle, order = figures.angles(result, 0)
    (line,) = axes.semilogy(angle, result.density_at(0)[order], color="#0072B2")
    smallest, largest = _extremes(result)
    lowest = max(smallest, largest * 10.0 ** (-2 * figures.PROFILE_DECADES))
    axes.set_ylim(lowest / 2, largest * 3)
    for mark in marks(result, projection):
        for place, label in zip(mark.points, (mark.label, None), strict=False):
            position = math.degrees(math.atan2(place[1], place[0]))
            axes.axvline(position, ls=mark.style, color="k", lw=0.9, label=label)
    axes.set_xlim(-180, 180)
    axes.set_xticks(range(-180, 181, 60))
    axes.set_xlabel("angle on the circle (degrees)")
    axes.set_ylabel("density (mass per radian)")
    figure.legend(loc="outside lower center", fontsize="small")
    clock = axes.set_title("", fontsize="medium")

    def update(index: int) -> None:
        angle, order = figures.angles(result, index)
        density = result.density_at(index)[order]
        line.set_data(angle, np.where(density > 0, density, np.nan))
        clock.set_text(f"t = {result.times[index]:.4g}")

    return figure, update


def sphere_frames(result: History, projection: ProjectionLimit) -> tuple[Figure, Update]:
    """Two sides and a map of the density, with an inset for each cluster, and what moves them."""
    clusters = {
        int(index): find_clusters(result.cells_at(index), result.density_at(index))
        for index in figures.evenly(len(result.times), MOST_FRAMES)
    }
    places = min(MOST, max(map(len, clusters.values())))
    below = MAP_WIDTH * (0.5 + row_height(places))
    figure = Figure(figsize=(7.0, SIDE + below + 1.6), layout="constrained")
    figure.suptitle(figures.title(result))
    grid = figure.add_gridspec(2, 2, height_ratios=(SIDE, below))
    axes = figure.add_subplot(grid[1, :])
    axes.set_axis_off()
    views = two_sides(projection)
    panels = [figure.add_subplot(grid[0, column]) for column in range(len(views))]
    norm = figures.colour_norm(np.array(_extremes(result)))
    picture = np.full((mollweide.HIGH, mollweide.WIDE), np.nan)
    image = axes.imshow(
        picture, origin="lower", extent=mollweide.EXTENT, norm=norm, cmap=figures.COLOURS
    )
    make_room(axes, places)
    mollweide.draw_outline(axes)
    shown = marks(result, projection)
    for mark in shown:
        draw_mark(axes, mark)
    avoid = np.vstack([np.empty((0, 3)), *(mark.points for mark in shown)])
    figure.colorbar(image, ax=[*panels, axes], label="density (mass per unit area)", shrink=0.6)
    sizes = {"fontsize": "small", "title_fontsize": "small"}
    note = f"Above: {NOTE}\n{figures.map_note(places)}"
    figure.legend(loc="outside lower center", ncols=2, title=note, **sizes)
    clock = axes.set_title("", fontsize="medium")
    drawn: list[Artist] = []
    pixels: list[PointDensity] = []  # of each view, with their fits, which a mesh that stays keeps

    def update(index: int) -> None:
        while drawn:
            drawn.pop().remove()
        cells, density = result.cells_at(index), result.density_at(index)
        found = clusters[index] if index in clusters else find_clusters(cells, density)
        if not pixels or result.store.moves:
            pixels[:] = (PointDensity(cells.vertices, view.points()) for view in views.values())
        logs = [result.log_density_on(one, index) for one in pixels]
        for panel, (name, view), side in zip(panels, views.items(), logs, strict=True):
            panel.clear()
            draw_view(panel, view, side, norm, shown)
            panel.set_title(name, fontsize="medium")
        image.set_data(np.maximum(mollweide.paint(cells, density), norm.vmin or 0))
        colours = colormaps[figures.COLOURS]
        drawn.extend(draw_insets(axes, cells, density, found, norm, colours, avoid, places))
        clock.set_text(figures.map_title(result.times[index], len(found)))

    return figure, update


def _extremes(result: History) -> tuple[float, float]:
    """The smallest positive and the largest density at any saved time."""
    extremes = []
    for index in range(len(result.times)):
        density = result.density_at(index)
        extremes.append((density.min(initial=math.inf, where=density > 0), density.max()))
    smallest, largest = np.array(extremes).T
    return float(smallest.min()), float(largest.max())
