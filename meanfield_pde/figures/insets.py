"""Clusters on the sphere that are too narrow for a map: an inset that shows them from above.

    p = (<x, a>, <x, b>),   a, b, peak orthonormal

The inset is as wide as the cluster asks for, its cells are drawn as they are, and its colours are
those of the map.
"""

from __future__ import annotations

import math

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import Colormap, Normalize

from meanfield_pde.figures import mollweide
from meanfield_pde.mesh.cells import Cells

# A cluster is the mass within this angle of the peak; narrower ones than NARROW get an inset.
NEAR, NARROW = 0.6, 0.2
WIDTHS = 4.0  # half the inset, in widths of the cluster
_SIZE = 0.2  # of the inset, in widths of the map; the map is half as high
FEWEST_CELLS = 4.0  # half the inset, in widths of the cell at the peak


def draw_inset(
    panel: Axes,
    cells: Cells,
    density: np.ndarray,
    norm: Normalize,
    colours: Colormap,
    avoid: np.ndarray,
) -> Axes | None:
    """Draw an inset in a corner of a Mollweide map, if the highest peak is narrow.

    Args:
        panel: the map.
        cells: of the sphere.
        density: in each of them.
        norm: of the colours.
        colours: of the map.
        avoid: points on the sphere, N x 3, that the inset should not hide.
    """
    masses = density * cells.volumes
    top = int(density.argmax())
    peak = cells.points[top]
    angle = 2 * np.arcsin(np.minimum(1, np.linalg.norm(cells.points - peak, axis=1) / 2))
    near = angle < NEAR
    width = math.sqrt((masses[near] * angle[near] ** 2).sum() / masses[near].sum())
    if width > NARROW:
        return None
    half = max(WIDTHS * width, FEWEST_CELLS * math.sqrt(cells.volumes[top]))
    across = np.linalg.svd(peak[None])[2][1:]
    shown = angle < 2 * half
    place = _corner(np.vstack([peak, avoid]))
    inset = panel.inset_axes(place)
    inset.add_collection(
        PolyCollection(
            cells.vertices[shown] @ across.T,
            array=np.maximum(density[shown], norm.vmin or 0),
            norm=norm,
            cmap=colours,
            edgecolors="face",
            linewidths=0.2,
            rasterized=True,
        )
    )
    inset.set_xlim(-half, half)
    inset.set_ylim(-half, half)
    inset.set_aspect("equal")
    inset.set_xticks([])
    inset.set_yticks([])
    # Where the map is not.
    name = inset.set_title if place[1] > 0 else inset.set_xlabel
    name(f"±{half:.2g} rad", fontsize="x-small")
    x, y = mollweide.project(peak[None])
    panel.plot(x, y, "s", color="0.2", mfc="none", ms=6, mew=0.8, clip_on=False)
    return inset


def _corner(avoid: np.ndarray) -> tuple[float, float, float, float]:
    """The place, in fractions of the map, of the corner that is farthest from all the points."""
    x, y = mollweide.project(avoid)
    left, right, bottom, top = mollweide.EXTENT
    corners = [(right, bottom), (right, top), (left, top), (left, bottom)]
    a, b = max(corners, key=lambda corner: np.hypot(x - corner[0], y - corner[1]).min())
    return (
        -0.04 if a == left else 1.04 - _SIZE,
        -0.08 if b == bottom else 1.08 - 2 * _SIZE,
        _SIZE,
        2 * _SIZE,
    )
