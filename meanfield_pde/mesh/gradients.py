"""Least-squares gradients of cell values in the tangent planes of the cells' centres."""

from __future__ import annotations

import numpy as np

from meanfield_pde.mesh import geometry


def gradient_weights(centres: np.ndarray, around: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Frames F and weights G: the gradient of u in cell c is F^T G (u_j - u_c).

    It solves the least-squares problem <gradient, way to x_j> = u_j - u_c over the neighbours j.

    Args:
        centres: points x_c of the cells, N x d.
        around: points x_j of their neighbours, N x k x d.

    Returns:
        Orthonormal frames of the tangent planes, N x (d - 1) x d, and weights, N x (d - 1) x k.
    """
    x = centres[:, None]
    ways = geometry.tangent_vector(x, around)
    # The gradient does not depend on which frame is taken.
    frame = geometry.normalised(ways[:, :1])
    if centres.shape[1] == 3:
        frame = np.concatenate([frame, np.cross(x, frame)], axis=1)
    return frame, np.linalg.pinv(np.einsum("cjd,ctd->cjt", ways, frame))
