"""Figures of a result: the density on the circle against time, and on the sphere as maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from meanfield_pde.attention.layers import Layers
from meanfield_pde.figures import mollweide
from meanfield_pde.figures.insets import draw_inset
from meanfield_pde.history.history import History
from meanfield_pde.results.names import FIGURES
from meanfield_pde.support.files import make_folder, replace_file
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.spectrum import EigenSpace

DECADES = 6  # below the largest density, for colours
PROFILE_DECADES = 12  # for the profiles
PROFILES = 4
ROWS = 400  # angles of the heat map, where cells move
FRAMES = 6
MOST_COLUMNS = 1000  # of the heat map: more are not to be seen
FEWEST_FOR_HISTORY = 4  # with fewer times a heat map would show blocks that mean nothing
COLOURS = "cividis"  # even in brightness, and safe for the colour blind


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
    nearest = {int(np.abs(history.times - time).argmin()) for time in times}
    figure = draw(history, projection, np.array(sorted(nearest), dtype=int))
    return save(figure, directory / FIGURES / f"density.{form}")


def evenly(count: int, most: int) -> np.ndarray:
    """Numbers of at most so many of `count` saved times, the first and the last among them."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).round().astype(int))


def save(figure: Figure, path: Path) -> Path:
    """Write a figure in the format that the path asks for."""
    make_folder(path.parent)
    FigureCanvasAgg(figure)
    replace_file(path, lambda temporary: figure.savefig(temporary, dpi=150))
    return path


def title(history: History, what: str = "Density of tokens") -> str:
    """One line that says what the figure shows."""
    beta = history.attention.beta
    temperature = "zero temperature" if math.isinf(beta) else f"β = {beta:g}"
    if math.isnan(beta):
        temperature = "several β"
    place = "circle" if history.dimension == 2 else "sphere"
    counts = {len(history.store.read(index)) for index in range(len(history.store))}
    cells = str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"
    return f"{what} on the {place}, {temperature}, {cells} cells"


def colour_norm(density: np.ndarray) -> LogNorm:
    """Colours for densities: logarithmic, over `DECADES` below the largest."""
    largest = float(density.max())
    smallest = float(density[density > 0].min())
    return LogNorm(max(smallest, largest * 10.0**-DECADES) * (1 - 1e-12), largest * (1 + 1e-12))


def _clipped(density: np.ndarray, norm: LogNorm) -> str:
    """Which end of the colour bar stands for more than its last colour."""
    return "min" if density.min() < (norm.vmin or 0) else "neither"


@dataclass(frozen=True)
class Mark:
    """Where the density is predicted to be: points, or a curve on the sphere."""

    points: np.ndarray
    label: str
    style: str
    marker: str


def marks(history: History, projection: ProjectionLimit) -> list[Mark]:
    """The limit measure's place, the dominant eigenspace of A, and the terminal one, of V."""
    if isinstance(history.attention, Layers):
        return []
    spaces = [(projection.terminal, "V", "-.", "+")]
    if projection.exists:
        spaces.insert(0, (projection.eigenspace, "A = VBᵀ", ":", "x"))
    found: list[Mark] = []
    for space, matrix, style, marker in spaces:
        place = _place(space)
        if place is None:
            continue
        what = "eigenvector" if space.dimension == 1 else "eigenspace"
        label = f"± dominant {what} of {matrix}"
        limit = history.limit
        if space is projection.eigenspace and limit is not None and space.dimension == 1:
            weights = limit.masses[np.argsort(-(limit.points @ place[0]))]
            label += f" (limit masses {weights[0]:.3f}, {weights[1]:.3f})"
        if found and found[0].points.shape == place.shape and np.allclose(found[0].points, place):
            found[0] = replace(found[0], label=f"{found[0].label} and of V")
        else:
            found.append(Mark(place, label, style, marker))
    return found


def _place(space: EigenSpace) -> np.ndarray | None:
    """The points ±e, or a great circle as a closed curve; None for no or all directions."""
    if space.basis is None or space.dimension not in (1, 2) or space.dimension == len(space.basis):
        return None
    if space.dimension == 1:
        axis = space.basis[:, 0] * np.sign(space.basis[np.abs(space.basis[:, 0]).argmax(), 0])
        return np.array([axis, -axis])
    turn = np.linspace(0, 2 * math.pi, 361)
    return np.column_stack([np.cos(turn), np.sin(turn)]) @ space.basis.T


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
    for shade, index in zip(np.linspace(0.9, 0, len(chosen)), chosen, strict=True):
        place, order = angles(history, index)
        values = history.density_at(index)[order]
        largest, smallest = max(largest, values.max()), min(smallest, values.min())
        values = np.where(values > 0, values, np.nan)
        colour = colormaps[COLOURS](shade)
        profile.semilogy(place, values, color=colour, label=f"t = {history.times[index]:g}")
    profile.set_ylim(max(smallest, largest * 10.0**-PROFILE_DECADES) / 2, largest * 3)
    for mark in marks(history, projection):
        for place, label in zip(mark.points, (mark.label, None), strict=False):
            position = math.degrees(math.atan2(place[1], place[0]))
            profile.axvline(position, ls=mark.style, color="k", lw=0.9, label=label)
    profile.set_ylabel("density (mass per radian)")
    _angle_axis(profile, "x")
    figure.legend(loc="outside lower center", ncols=6 if evolving else 4, fontsize="small")
    return figure


def _common_grid(history: History, shown: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Angles, and the density there at the times shown: those of the cells, if they stay.

    Cells that move are drawn on `ROWS` equal angles, fewer than there are pixels, each with the
    largest density of the cells that meet it: a spot far narrower than a pixel is seen.
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
    columns = min(3, len(chosen))
    rows = math.ceil(len(chosen) / columns)
    width = 6.4 if columns == 1 else 4.2
    size = (width * columns + 0.6, (width / 2 + 0.25) * rows + 1.2)
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(title(history))
    panels = figure.subplots(rows, columns, squeeze=False)
    density = [history.density_at(i) for i in chosen]
    norm = colour_norm(np.concatenate(density))
    shown = marks(history, projection)
    cell, inside = mollweide.pixel_cells(history.cells_at(0))
    for panel in panels.flat:
        panel.set_axis_off()
    for panel, i, values in zip(panels.flat, chosen, density, strict=False):
        if history.store.moves:
            cell, inside = mollweide.pixel_cells(history.cells_at(i))
        picture = np.full(inside.shape, np.nan)
        picture[inside] = np.maximum(values[cell], norm.vmin or 0)
        panel.imshow(picture, origin="lower", extent=mollweide.EXTENT, norm=norm, cmap=COLOURS)
        panel.margins(0.01)
        panel.set_title(f"t = {history.times[i]:g}", fontsize="medium")
        mollweide.draw_outline(panel)
        for mark in shown:
            draw_mark(panel, mark)
        avoid = np.vstack([np.empty((0, 3)), *(mark.points for mark in shown)])
        draw_inset(panel, history.cells_at(i), values, norm, colormaps[COLOURS], avoid)
    figure.colorbar(
        ScalarMappable(norm, COLOURS),
        ax=panels,
        label="density (mass per unit area)",
        extend=_clipped(np.concatenate(density), norm),
        shrink=0.8,
    )
    handles, labels = panels[0, 0].get_legend_handles_labels()
    note = "Mollweide maps: z up, longitude 0 (the x axis) in the middle, lines every 60°"
    figure.legend(
        handles, labels, loc="outside lower center", ncols=2, title=note, fontsize="small"
    )
    return figure


def draw_mark(panel: Axes, mark: Mark) -> None:
    """Draw a mark on a Mollweide map."""
    x, y = mollweide.project(mark.points)
    if len(mark.points) == 2:
        panel.plot(x, y, mark.marker, color="w", ms=9, mew=3, clip_on=False)
        panel.plot(x, y, mark.marker, color="k", ms=8, mew=1.3, label=mark.label, clip_on=False)
        return
    x[np.abs(np.diff(x, append=x[-1])) > 1] = np.nan  # where the curve leaves the map's edge
    panel.plot(x, y, color="w", lw=2.2)
    panel.plot(x, y, mark.style, color="k", lw=1.1, label=mark.label)
