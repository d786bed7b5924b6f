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
FEWEST_CELLS = 4.0  # half the inset, in widths of the cell at the peak


def draw_inset(
    panel: Axes, cells: Cells, density: np.ndarray, norm: Normalize, colours: Colormap
) -> Axes | None:
    """Draw an inset in the lower left corner of a Mollweide map, if the highest peak is narrow."""
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
    inset = panel.inset_axes((-0.04, -0.06, 0.22, 0.44))
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
    inset.set_title(f"±{half:.2g} rad", fontsize="x-small", pad=2)
    x, y = mollweide.project(peak[None])
    panel.plot(x, y, "s", color="0.2", mfc="none", ms=6, mew=0.8, clip_on=False)
    return inset
