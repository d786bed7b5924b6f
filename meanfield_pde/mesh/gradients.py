"""Least-squares gradients of cell values in the tangent planes of the cells' centres."""

from __future__ import annotations

import numpy as np

from meanfield_pde.mesh import geometry

# Bound on |g_f|: a factor e from the centre to a facet; what is steeper is not resolved. Series of
# exponentials, error bounds and the positivity limit (`solver.schemes`) are made for it.
STEEPEST = 1.0
# Of the square of the second column, what is left of it: neighbours on one line to 1e-12, where
# Gram and Schmidt would divide by rounding and the SVD is taken.
_DEPENDENT = 1e-24


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
    return frame, _pseudoinverse(ways @ np.swapaxes(frame, 1, 2))


def _pseudoinverse(matrices: np.ndarray) -> np.ndarray:
    """Of N matrices of one or two columns, by Gram and Schmidt, which is quicker than by SVD."""
    first = matrices[..., 0]
    row = first / (first**2).sum(axis=1, keepdims=True)
    if matrices.shape[2] == 1:
        return row[:, None]
    second = matrices[..., 1]
    rest = second - (row * second).sum(axis=1, keepdims=True) * first
    square = (rest**2).sum(axis=1, keepdims=True)
    dependent = square[:, 0] <= _DEPENDENT * (second**2).sum(axis=1)
    other = rest / np.where(dependent[:, None], 1.0, square)
    result = np.stack([row - (row * second).sum(axis=1, keepdims=True) * other, other], axis=1)
    result[dependent] = np.linalg.pinv(matrices[dependent])
    return result
