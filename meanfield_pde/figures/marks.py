"""Marks on figures of densities: where the density is predicted to be."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from matplotlib.axes import Axes

from meanfield_pde.figures import mollweide
from meanfield_pde.history.history import History
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.spectrum import EigenSpace

# Points of open markers: both as wide, and wider than a cluster seen.
MARKER_SIZES = {"o": 9.0, "D": 7.0}


@dataclass(frozen=True)
class Mark:
    """Where the density is predicted to be: points, or a curve on the sphere."""

    points: np.ndarray
    label: str
    style: str
    marker: str


def marks(history: History, projection: ProjectionLimit) -> list[Mark]:
    """The limit measure's place, the dominant eigenspace of A, and the terminal one, of V."""
    if len(history.attention.layers) > 1:
        return []
    spaces = [(projection.terminal, "V", "-.", "D")]
    if projection.exists:
        spaces.insert(0, (projection.eigenspace, "A = VBᵀ", ":", "o"))
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


def draw_mark(panel: Axes, mark: Mark) -> None:
    """Draw a mark on a Mollweide map: points by open markers, so that what is there is seen."""
    if len(mark.points) == 2:
        x, y = mollweide.project_twice(mark.points)
        for colour, width, label in (("w", 2.6, None), ("k", 1.1, mark.label)):
            (drawn,) = panel.plot(x, y, mark.marker, color=colour, mew=width, label=label)
            drawn.set(markersize=MARKER_SIZES[mark.marker], markerfacecolor="none", clip_on=False)
        return
    x, y = mollweide.curve(mark.points)
    panel.plot(x, y, color="w", lw=2.2)
    panel.plot(x, y, mark.style, color="k", lw=1.1, label=mark.label)
