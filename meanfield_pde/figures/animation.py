"""Animations of a result: the density in time, as figures/density.gif."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from meanfield_pde.errors import InputError
from meanfield_pde.figures import density as figures
from meanfield_pde.figures import mollweide
from meanfield_pde.history.history import History
from meanfield_pde.results.folder import Result
from meanfield_pde.results.names import FIGURES
from meanfield_pde.support.files import make_folder, replace_file
from meanfield_pde.theory.projection_limit import ProjectionLimit

NAME = "density.gif"
MOST_FRAMES = 120
FRAMES_PER_SECOND = 12
_DPI = 90

Update = Callable[[int], None]


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
    for mark in figures.marks(result, projection):
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
    """A Mollweide map of the density, and what moves it to a saved time."""
    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    figure.suptitle(figures.title(result))
    axes = figure.subplots()
    axes.set_axis_off()
    norm = figures.colour_norm(np.array(_extremes(result)))
    still = mollweide.pixel_cells(result.cells)
    inside = still[1]
    picture = np.full(inside.shape, np.nan)
    image = axes.imshow(
        picture, origin="lower", extent=mollweide.EXTENT, norm=norm, cmap=figures.COLOURS
    )
    axes.margins(0.01)
    mollweide.draw_outline(axes)
    for mark in figures.marks(result, projection):
        figures.draw_mark(axes, mark)
    figure.colorbar(image, ax=axes, label="density (mass per unit area)", shrink=0.8)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    clock = axes.set_title("", fontsize="medium")

    def update(index: int) -> None:
        moves = result.store.moves
        cell, _ = mollweide.pixel_cells(result.cells_at(index)) if moves else still
        picture[inside] = np.maximum(result.density_at(index)[cell], norm.vmin or 0)
        image.set_data(picture)
        clock.set_text(f"t = {result.times[index]:.4g}")

    return figure, update


def _extremes(result: History) -> tuple[float, float]:
    """The smallest positive and the largest density at any saved time."""
    extremes = []
    for index in range(len(result.times)):
        density = result.density_at(index)
        extremes.append((density.min(initial=math.inf, where=density > 0), density.max()))
    smallest, largest = np.array(extremes).T
    return float(smallest.min()), float(largest.max())
