"""Samples of N tokens of a density, drawn from its cells and moved in bulk.

    dx_i = P_x ( sum_h V_h m_h(x_i) + g(x_i) ) dt + sqrt(2 sigma) dW_i

Samples are moved as the reference code moves tokens (`tokens.code`), many side by side, with an
error per step that is far below 1/sqrt(N).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from scipy.integrate import RK23

from meanfield_pde.attention.heads import Layer
from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.geometry import geodesic_distance, normalised
from meanfield_pde.tokens.code import evolve, fixed_step
from meanfield_pde.tokens.noise import Velocity
from meanfield_pde.verification.flow import token_push
from meanfield_pde.verification.steppers import tangent

# Root mean square error of one step, in units of 1/sqrt(N): far below the noise of a sample.
SAMPLE_TOLERANCE = 0.005
_BLOCK = 16_000  # tokens that are moved side by side: a bound on memory


def sample_cells(
    generator: np.random.Generator, cells: Cells, masses: np.ndarray, count: int
) -> np.ndarray:
    """N independent points of a density that is constant in each cell, N x d."""
    chosen = generator.choice(len(masses), count, p=masses / masses.sum())
    corners = cells.vertices[chosen]
    if corners.shape[-1] == 2:
        share = generator.random(count)
        length = geodesic_distance(corners[:, 0], corners[:, 1])
        ends = np.stack([np.sin((1 - share) * length), np.sin(share * length)], axis=1)
        return normalised(np.einsum("nk,nkd->nd", ends, corners))
    # Uniform in the flat triangle and put on the sphere, which is uniform up to O(h^2).
    root, share = np.sqrt(generator.random((count, 1))), generator.random((count, 1))
    barycentric = np.concatenate([1 - root, root * (1 - share), root * share], axis=1)
    return normalised(np.einsum("nk,nkd->nd", barycentric, corners))


def follow_samples(
    samples: np.ndarray,
    attention: AttentionLike,
    times: np.ndarray,
    masses: np.ndarray | None = None,
    *,
    noise: float = 0.0,
    seed: int = 0,
    done: Callable[[int], None] = lambda _: None,
) -> np.ndarray:
    """Positions S x T x N x d of samples S x N x d, given at the first of the times.

    Args:
        samples: the tokens of each sample.
        attention: what moves them.
        times: increasing.
        masses: the weights of the tokens, in each sample.
        noise: its strength.
        seed: of the noise.
        done: called with how many samples have been moved, now and then.
    """

    def velocity(layer: Layer) -> Velocity:
        return lambda x: tangent(x, token_push(layer, x, masses))

    count, tokens, d = samples.shape
    paths = np.empty((count, len(times), tokens, d))
    side_by_side = max(1, _BLOCK // tokens)
    for first in range(0, count, side_by_side):
        rows = slice(first, first + side_by_side)
        x = samples[rows]
        paths[rows] = evolve(
            x,
            attention,
            times.tolist(),
            velocity,
            step=None if noise else fixed_step(attention),
            # In `evolve` it bounds the largest error, by a root mean square of it / 2 sqrt(size).
            tolerance=2 * SAMPLE_TOLERANCE * math.sqrt(x.size / tokens),
            method=RK23,
            noise=noise,
            # The first of the samples makes the numbers those of the block.
            seed=seed + first,
        ).swapaxes(0, 1)
        done(len(x))
    return paths
