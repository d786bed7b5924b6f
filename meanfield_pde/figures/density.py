"""Figures of a result: the density on the circle against time, and on the sphere as maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from meanfield_pde.figures import mollweide
from meanfield_pde.figures.clusters import find_clusters
from meanfield_pde.figures.colours import distinct
from meanfield_pde.figures.failures import drawing
from meanfield_pde.figures.insets import MOST, draw_insets, make_room, row_height
from meanfield_pde.figures.marks import draw_mark, marks
from meanfield_pde.history.history import History
from meanfield_pde.results.names import FIGURES
from meanfield_pde.support.files import make_folder, replace_file
from meanfield_pde.theory.projection_limit import ProjectionLimit

DECADES = 6  # below the largest density, for colours (chosen, not tuned)
PROFILE_DECADES = 12  # for the profiles (chosen, not tuned)
PROFILES = 4  # lines in one panel that can be followed
# Angles of the heat map where cells move, fewer than its pixels: 4.8 inches at 150 dpi are 720.
ROWS = 400
FRAMES = 6  # maps on a page: two rows of three
# Of the heat map, more than its pixels: 1.15 / 2.15 of 11 inches at 150 dpi are 880.
MOST_COLUMNS = 1000
FEWEST_FOR_HISTORY = 4  # with fewer times a heat map would show blocks that mean nothing
COLOURS = "cividis"  # even in brightness, and safe for the colour blind


@drawing
def draw_density(
    directory: Path,
    history: History,
    projection: ProjectionLimit,
    form: str = "png",
    times: Sequence[float] = (),
) -> Path:
    """Draw figures/density.png in a result folder and return its path.

    Args:
        directory: the result folder.
        history: what to draw.
        projection: where the density is predicted to be.
        form: of the file, "png", "pdf" or "svg".
        times: for each the nearest saved time is drawn; by default a few, evenly chosen.
    """
    draw = _draw_circle if history.dimension == 2 else _draw_sphere
    figure = draw(history, projection, nearest_saved(history, times))
    return save(figure, directory / FIGURES / f"density.{form}")


def nearest_saved(history: History, times: Sequence[float]) -> np.ndarray:
    """Numbers of the saved times next to those wanted, each once, in order."""
    nearest = {int(np.abs(history.times - time).argmin()) for time in times}
    return np.array(sorted(nearest), dtype=int)


def evenly(count: int, most: int) -> np.ndarray:
    """Numbers of at most `most` of `count` saved times, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))


def save(figure: Figure, path: Path) -> Path:
    """Write a figure in the format that the path asks for."""
    make_folder(path.parent)
    FigureCanvasAgg(figure)
    # Type 3 fonts, the default, are refused by some journals.
    with rc_context({"pdf.fonttype": 42}):
        replace_file(path, lambda temporary: figure.savefig(temporary, dpi=150))
    return path


def title(history: History, what: str = "Density of tokens") -> str:
    """One line that says what the figure shows."""
    beta = history.attention.beta
    temperature = "zero temperature" if math.isinf(beta) else f"β = {beta:g}"
    if math.isnan(beta):
        temperature = "several β"
    place = "circle" if history.dimension == 2 else "sphere"
    return f"{what} on the {place}, {temperature}, {cell_counts([history])}"


def cell_counts(histories: Sequence[History]) -> str:
    """How many cells the densities have: one number, or the least and the most of all times."""
    counts = {
        len(history.store.read(index))
        for history in histories
        for index in range(len(history.store) if history.store.moves else 1)
    }
    cells = str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"{cells} cells"


def colour_norm(density: np.ndarray) -> LogNorm:
    """Colours for densities: logarithmic, over `DECADES` below the largest."""
    largest = float(density.max())
    smallest = float(density[density > 0].min())
    return LogNorm(max(smallest, largest * 10.0**-DECADES) * (1 - 1e-12), largest * (1 + 1e-12))


def _clipped(density: np.ndarray, norm: LogNorm) -> str:
    """Which end of the colour bar stands for more than its last colour."""
    return "min" if density.min() < (norm.vmin or 0) else "neither"


def angles(history: History, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Angles of the cells of the circle at a saved time, in degrees and sorted, and the order."""
    points = history.cells_at(index).points
    angle = np.degrees(np.arctan2(points[:, 1], points[:, 0]))
    order = np.argsort(angle)
    return angle[order], order


def _draw_circle(history: History, projection: ProjectionLimit, wanted: np.ndarray) -> Figure:
    shown = evenly(len(history.times), MOST_COLUMNS)
    times = history.times[shown]
    angle, density = _common_grid(history, shown)
    evolving = len(times) >= FEWEST_FOR_HISTORY
    figure = Figure(figsize=(11 if evolving else 8, 4.8), layout="constrained")
    figure.suptitle(title(history))
    if evolving:
        heat, profile = figure.subplots(1, 2, width_ratios=(1.15, 1))
        norm = colour_norm(density)
        time_edges = np.concatenate([times[:1], (times[1:] + times[:-1]) / 2, times[-1:]])
        gap = (angle[0] + 360 - angle[-1]) / 2
        angle_edges = np.concatenate(
            [[angle[0] - gap], (angle[1:] + angle[:-1]) / 2, [angle[-1] + gap]]
        )
        image = heat.pcolormesh(
            time_edges,
            angle_edges,
            np.maximum(density.T, norm.vmin or 0),
            norm=norm,
            cmap=COLOURS,
            rasterized=True,
        )
        figure.colorbar(
            image, ax=heat, label="density (mass per radian)", extend=_clipped(density, norm)
        )
        heat.set_title(f"saved at {len(history.times)} times", fontsize="medium")
        heat.set_xlabel("time t")
        _angle_axis(heat, "y")
    else:
        profile = figure.subplots()

    chosen = wanted if len(wanted) else shown[evenly(len(shown), PROFILES)]
    largest, smallest = 0.0, math.inf
    for look, index in zip(distinct(len(chosen)), chosen, strict=True):
        place, order = angles(history, index)
        values = history.density_at(index)[order]
        largest, smallest = max(largest, values.max()), min(smallest, values.min())
        values = np.where(values > 0, values, np.nan)
        profile.semilogy(place, values, **look, label=f"t = {history.times[index]:g}")
    profile.set_ylim(max(smallest, largest * 10.0**-PROFILE_DECADES) / 2, largest * 3)
    for mark in marks(history, projection):
        for place, label in zip(mark.points, (mark.label, None), strict=False):
            position = math.degrees(math.atan2(place[1], place[0]))
            # Below the curves, which end in narrow clusters at the marks.
            profile.axvline(position, ls=mark.style, color="k", lw=0.9, label=label, zorder=1)
    profile.set_ylabel("density (mass per radian)")
    _angle_axis(profile, "x")
    figure.legend(loc="outside lower center", ncols=6 if evolving else 4, fontsize="small")
    return figure


def _common_grid(history: History, shown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Angles, and the density there at the times shown: those of the cells, if they stay.

    Cells that move are drawn on `ROWS` equal angles, fewer than there are pixels, each with the
    largest density of the cells that meet it: a cluster far narrower than a pixel is seen.
    """
    if not history.store.moves:
        angle, order = angles(history, 0)
        return angle, np.array([history.density_at(index)[order] for index in shown])
    angle = (np.arange(ROWS) + 0.5) / ROWS * 360 - 180
    density = np.empty((len(shown), ROWS))
    for row, index in zip(density, shown, strict=True):
        corners = history.cells_at(index).vertices
        ends = np.sort(np.arctan2(corners[..., 1], corners[..., 0]), axis=1)
        over = ends[:, 1] - ends[:, 0] > math.pi  # the arc over 180 degrees
        begin = np.degrees(np.where(over, ends[:, 1], ends[:, 0]))
        order = np.argsort(begin)
        cell = order[np.searchsorted(begin[order], angle, "right") - 1]
        values = history.density_at(index)
        row[:] = values[cell]
        first = np.minimum((begin + 180) % 360 * (ROWS / 360), ROWS - 1).astype(int)
        np.maximum.at(row, first, values)
    return angle, density


def _angle_axis(axes: Axes, which: str) -> None:
    getattr(axes, f"set_{which}label")("angle on the circle (degrees)")
    getattr(axes, f"set_{which}lim")(-180, 180)
    getattr(axes, f"set_{which}ticks")(range(-180, 181, 60))


def _draw_sphere(history: History, projection: ProjectionLimit, wanted: np.ndarray) -> Figure:
    chosen = wanted if len(wanted) else evenly(len(history.times), FRAMES)
    density = [history.density_at(i) for i in chosen]
    clusters = [
        find_clusters(history.cells_at(i), values)
        for i, values in zip(chosen, density, strict=True)
    ]
    places = min(MOST, max(map(len, clusters)))
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    width = 6.4 if columns == 1 else 4.2
    # The places below the maps of each row, and the heights of rows in widths of a map.
    insets = [places * any(clusters[columns * row :][:columns]) for row in range(rows)]
    heights = [0.5 + 0.25 / width + row_height(number) for number in insets]
    size = (width * columns + 0.6, (width - 0.3) * sum(heights) + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title(history))
    panels = figure.subplots(rows, columns, squeeze=False, height_ratios=heights)
    norm = colour_norm(np.concatenate(density))
    shown = marks(history, projection)
    avoid = np.vstack([np.empty((0, 3)), *(mark.points for mark in shown)])
    for panel in panels.flat:
        panel.set_axis_off()
    for k, (i, values, found) in enumerate(zip(chosen, density, clusters, strict=True)):
        panel = panels.flat[k]
        cells = history.cells_at(i)
        picture = np.maximum(mollweide.paint(cells, values), norm.vmin or 0)
        panel.imshow(picture, origin="lower", extent=mollweide.EXTENT, norm=norm, cmap=COLOURS)
        make_room(panel, insets[k // columns])
        panel.set_title(map_title(history.times[i], len(found)), fontsize="medium")
        mollweide.draw_outline(panel)
        for mark in shown:
            draw_mark(panel, mark)
        draw_insets(panel, cells, values, found, norm, colormaps[COLOURS], avoid, places)
    figure.colorbar(
        ScalarMappable(norm, COLOURS),
        ax=panels,
        label="density (mass per unit area)",
        extend=_clipped(np.concatenate(density), norm),
        shrink=0.8,
    )
    handles, labels = panels[0, 0].get_legend_handles_labels()
    sizes = {"fontsize": "small", "title_fontsize": "small"}
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, title=map_note(places), **sizes
    )
    return figure


def map_note(places: int) -> str:
    """What maps are, and their insets, if there is a place for one."""
    insets = "\nbelow them clusters from above, north up, east right" if places else ""
    return f"Mollweide maps: z up, longitude 0 (the x axis) in the middle, lines every 60°{insets}"


def map_title(time: float, clusters: int) -> str:
    """The time, and how many clusters have an inset where not all of them have."""
    few = f", insets of the heaviest {MOST} of {clusters} clusters" if clusters > MOST else ""
    return f"t = {time:g}{few}"
