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
from meanfield_pde.results.folder import FIGURES, Result
from meanfield_pde.support.files import replace_file

NAME = "density.gif"
MOST_FRAMES = 120
FRAMES_PER_SECOND = 12
_DPI = 90

Update = Callable[[int], None]


def animate(result: Result) -> Path:
    """Write figures/density.gif in the result folder and return its path."""
    if len(result.times) < 2:
        raise InputError(
            f"{result.directory}: an animation needs two saved times or more, got "
            f"{len(result.times)}; set time.save_every"
        )
    draw = circle_frames if result.dimension == 2 else sphere_frames
    figure, update = draw(result)
    FigureCanvasAgg(figure)
    count = min(MOST_FRAMES, len(result.times))
    chosen = np.unique(np.linspace(0, len(result.times) - 1, count).round().astype(int))
    moving = FuncAnimation(figure, update, frames=chosen.tolist(), init_func=lambda: None)
    path = result.directory / FIGURES / NAME
    path.parent.mkdir(exist_ok=True)
    writer = PillowWriter(fps=FRAMES_PER_SECOND)
    replace_file(path, lambda temporary: moving.save(temporary, writer, dpi=_DPI))
    return path


def circle_frames(result: Result) -> tuple[Figure, Update]:
    """A figure of the density against the angle, and what moves it to a saved time."""
    angle = np.degrees(np.arctan2(result.points[:, 1], result.points[:, 0]))
    order = np.argsort(angle)
    density = result.density[:, order]
    figure = Figure(figsize=(7.0, 4.4), layout="constrained")
    figure.suptitle(figures.title(result))
    axes = figure.subplots()
    (line,) = axes.semilogy(angle[order], density[0], color="#0072B2")
    largest = float(density.max())
    lowest = max(
        float(density[density > 0].min()), largest * 10.0 ** (-2 * figures.PROFILE_DECADES)
    )
    axes.set_ylim(lowest / 2, largest * 3)
    for mark in figures.marks(result):
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
        line.set_ydata(np.where(density[index] > 0, density[index], np.nan))
        clock.set_text(f"t = {result.times[index]:.4g}")

    return figure, update


def sphere_frames(result: Result) -> tuple[Figure, Update]:
    """A Mollweide map of the density, and what moves it to a saved time."""
    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    figure.suptitle(figures.title(result))
    axes = figure.subplots()
    axes.set_axis_off()
    norm = figures.colour_norm(result.density)
    cell, inside = mollweide.pixel_cells(result.points)
    picture = np.full(inside.shape, np.nan)
    image = axes.imshow(
        picture, origin="lower", extent=mollweide.EXTENT, norm=norm, cmap=figures.COLOURS
    )
    axes.margins(0.01)
    mollweide.draw_outline(axes)
    for mark in figures.marks(result):
        figures.draw_mark(axes, mark)
    figure.colorbar(image, ax=axes, label="density (mass per unit area)", shrink=0.8)
    figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    clock = axes.set_title("", fontsize="medium")

    def update(index: int) -> None:
        picture[inside] = np.maximum(result.density[index][cell], norm.vmin or 0)
        image.set_data(picture)
        clock.set_text(f"t = {result.times[index]:.4g}")

    return figure, update
