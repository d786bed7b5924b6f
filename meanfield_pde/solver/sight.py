"""Where tokens are about to lose sight of what they attend to, for `mesh_error`.

A token at x attends to y with the share

    p_x(y) = M(y) exp(<w, y>) / Z(x),     w = beta B^T x,

of width |w|^(-1/2) where log rho is flat or bends down. Where it bends up, in a dip of the tail,
the shares are wider, and where D^2 log rho comes to |w| they fall apart in two: the tokens on both
sides of x then look away from the dip and leave it, so that it deepens the faster the deeper it is.
Cells that do not show the dip let this begin too early, and the tail behind it is lost. With

    s(x) = |w| times the largest variance of p_x along a direction

(1 for a flat log rho) the tokens that see less and less are those with s > `UNSURE`.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from meanfield_pde.attention.head import Attention
from meanfield_pde.mesh.surface import circle_surface, sphere_surface

UNSURE = 1.5
# Places x at which it is looked for: vertices of these meshes of the circle and the sphere.
_PLACES = {2: 200, 3: 1280}
_CHUNK = 128  # places at once


def attended(
    points: np.ndarray, log_masses: np.ndarray, heads: tuple[Attention, ...]
) -> np.ndarray:
    """The largest share that each cell has in the attention of a token that loses sight.

    Args:
        points: centres of the cells.
        log_masses: of the cells.
        heads: those that act; at zero temperature tokens attend to no mass.
    """
    largest = np.zeros(len(points))
    dimension = points.shape[1]
    products = (points[:, :, None] * points[:, None, :]).reshape(len(points), -1)
    for head in heads:
        if head.zero_temperature or head.beta == 0:
            continue
        scores = head.scores(_places(dimension))
        for begin in range(0, len(scores), _CHUNK):
            score = scores[begin : begin + _CHUNK]
            share = score @ points.T + log_masses
            share -= share.max(axis=1, keepdims=True)
            np.exp(share, out=share)
            share /= share.sum(axis=1, keepdims=True)
            mean = share @ points
            second = (share @ products).reshape(-1, dimension, dimension)
            spread = np.linalg.eigvalsh(second - mean[:, :, None] * mean[:, None, :])[:, -1]
            unsure = np.linalg.norm(score, axis=1) * spread > UNSURE
            if unsure.any():
                largest = np.maximum(largest, share[unsure].max(axis=0))
    return largest


@cache
def _places(dimension: int) -> np.ndarray:
    surface = {2: circle_surface, 3: sphere_surface}[dimension]
    return surface(_PLACES[dimension]).points
