"""Insets below a map of the sphere: each narrow cluster from above, north up and east right.

An inset is an azimuthal map about its cluster: distances from its centre are true, so that it shows
[-half, half]^2 radians. The edge of that window is drawn on the map, and a number says which is
which. Colours are those of the map.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, Normalize
from matplotlib.patheffects import withStroke

from meanfield_pde.figures import mollweide
from meanfield_pde.figures.clusters import Cluster
from meanfield_pde.mesh.cells import Cells

MOST = 6  # insets of a map: below a width of 1/6 of it they show less than the map
SIZE = 0.24  # of an inset at most, in widths of the map: four in a row (chosen, not tuned)
# Above an inset, and below it for its name, in widths of the map (chosen, not tuned).
GAP, LABEL = 0.03, 0.07
# A window narrower than this, in radians, is a point of the map, which its edge would hide.
_SEEN = 0.05
_AWAY = 0.3  # of a number from the place it names, in units of the map (chosen, not tuned)
_CLEAR = (
    5.0  # points of the page at each end of the line from a number to its place, half of its height
)
# Points, of the edges of windows: a halo makes them seen on any colour (chosen, not tuned).
_LINE = 0.7
# Dark, about bright numbers, so that they are read on any colour; points of the page.
_HALO = [withStroke(linewidth=1.6, foreground="0.15")]


def row_height(count: int) -> float:
    """Return the height of a row of `count` insets, in widths of the map above."""
    return GAP + _size(count) + LABEL if count else 0.0


def make_room(panel: Axes, count: int) -> None:
    """Set the limits of a panel: a map, and below it room for `count` insets."""
    left, right, bottom, top = mollweide.EXTENT
    panel.set_xlim(1.01 * left, 1.01 * right)
    panel.set_ylim(1.02 * bottom - row_height(count) * (right - left), 1.02 * top)
    panel.set_aspect("equal")


def draw_insets(
    panel: Axes,
    cells: Cells,
    density: np.ndarray,
    clusters: Sequence[Cluster],
    norm: Normalize,
    colours: Colormap,
    avoid: np.ndarray,
    places: int,
) -> list[Artist]:
    """Draw an inset for each of the heaviest clusters, and return what was drawn.

    Args:
        panel: the map.
        cells: of the sphere.
        density: in each of them.
        clusters: the heaviest first.
        norm: of the colours.
        colours: of the map.
        avoid: points on the sphere, N x 3, that numbers should not hide.
        places: how many insets the map has room for.
    """
    drawn: list[Artist] = []
    avoid = np.vstack([avoid, *(_edge(one) for one in clusters)])
    left, right, bottom, _ = mollweide.EXTENT
    wide = right - left
    size = _size(places) * wide
    for number, cluster in enumerate(clusters[:places], 1):
        begin = left + (number - 0.5) / places * wide - size / 2
        corner = (begin, bottom - GAP * wide - size)
        inset = panel.inset_axes((*corner, size, size), transform=panel.transData)
        inset.set_in_layout(False)  # it lies within the panel
        _draw_cells(inset, cells, density, cluster, norm, colours)
        name = f"{number}: ±{cluster.half:.2g} rad"
        inset.set_xlabel(name, fontsize="x-small" if places < MOST else "xx-small", labelpad=2)
        drawn += [inset, *_draw_place(panel, cluster, number, avoid)]
    return drawn


def _size(count: int) -> float:
    """The width of one of `count` insets, in widths of the map."""
    return min(SIZE, 0.95 / max(count, 1))


def _draw_cells(
    inset: Axes,
    cells: Cells,
    density: np.ndarray,
    cluster: Cluster,
    norm: Normalize,
    colours: Colormap,
) -> None:
    """All cells that reach into the window, wide ones whose centres lie outside among them."""
    centre = cluster.local(cells.points)
    radius = np.linalg.norm(cells.vertices - cells.points[:, None], axis=2).max(axis=1)
    shown = np.linalg.norm(centre, axis=1) < 2**0.5 * cluster.half + 1.2 * radius
    inset.add_collection(
        PolyCollection(
            list(cluster.local(cells.vertices[shown])),
            array=np.maximum(density[shown], norm.vmin or 0),
            norm=norm,
            cmap=colours,
            edgecolors="face",
            linewidths=0.2,
            rasterized=True,
        )
    )
    inset.set_xlim(-cluster.half, cluster.half)
    inset.set_ylim(-cluster.half, cluster.half)
    inset.set_aspect("equal")
    inset.set_xticks([])
    inset.set_yticks([])


def _draw_place(panel: Axes, cluster: Cluster, number: int, avoid: np.ndarray) -> list[Artist]:
    """The edge of the window on the map, and the number of its inset beside it."""
    drawn: list[Artist] = []
    if cluster.half >= _SEEN:
        x, y = mollweide.curve(cluster.outline())
        drawn += panel.plot(x, y, color="w", lw=_LINE, path_effects=_HALO, label="_window")
    (place,) = np.column_stack(mollweide.project(cluster.centre[None]))
    edge = np.column_stack(mollweide.project(_edge(cluster)))
    label = _free_place(place, _AWAY + cluster.half, np.column_stack(mollweide.project(avoid)))
    end = edge[np.linalg.norm(edge - label, axis=1).argmin()]
    clear = 0.0 if len(edge) > 1 else _CLEAR
    drawn.append(
        panel.annotate(
            str(number),
            (end[0], end[1]),
            (label[0], label[1]),
            color="w",
            fontsize="small",
            ha="center",
            va="center",
            path_effects=_HALO,
            arrowprops={
                "arrowstyle": "-",
                "color": "w",
                "lw": _LINE,
                "shrinkA": _CLEAR,
                "shrinkB": clear,
            },
        )
    )
    return drawn


def _edge(cluster: Cluster) -> np.ndarray:
    """Points of the edge of its window, or its centre if the map shows no more of it."""
    return cluster.outline(20) if cluster.half >= _SEEN else cluster.centre[None]


def _free_place(place: np.ndarray, away: float, others: np.ndarray) -> np.ndarray:
    """The point of the map, at this distance from the place, that is farthest from the others."""
    turn = np.linspace(0, 2 * np.pi, 16, endpoint=False)
    candidates = place + away * np.column_stack([np.cos(turn), np.sin(turn)])
    apart = np.linalg.norm(candidates[:, None] - others, axis=2).min(axis=1)
    width, height = mollweide.EXTENT[1], mollweide.EXTENT[3]
    # The edge is where this is 1; a number needs a tenth of the height.
    inside = np.hypot(candidates[:, 0] / width, candidates[:, 1] / height) < 0.9
    return np.asarray(candidates[np.where(inside, apart, apart - 10).argmax()])
