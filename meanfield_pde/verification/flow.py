"""The token sums of a comparison: means under N tokens, masked if wanted.

    m(x_i) = sum_j w_j exp(<s_i, x_j>) x_j / sum_j w_j exp(<s_i, x_j>),     s_i = beta B^T x_i,

over all j, over j <= i (a causal mask) or over j != i. N is small here, and the sums are plain.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np

from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.heads import Layer, push_beside
from meanfield_pde.attention.sum.exponential import power_of_two
from meanfield_pde.support.kernels import kernel, part
from meanfield_pde.support.threads import in_parts, useful_threads

LOG2_E = 1.4426950408889634  # log2(e): scores in powers of two
# Sums over tokens may be reordered: a verdict does not hang on the last digit.
FAST = {"contract", "nsz", "nnan", "ninf", "reassoc"}
Mask = Literal["none", "causal", "no self"]
MASKS: dict[Mask, int] = {"none": 0, "causal": 1, "no self": 2}
# Stands for log2(0): finite, since compiled sums may not meet infinities (`FAST`).
NO_SCORE = -1e290
TERM = 1.6  # nanoseconds of a token under another, about


@part(fastmath=FAST)
def mean_at(i, scores, points, log_masses, buffer, mask, hard, out):
    """M of target i, points and scores d x N (d = 3, padded by zero); returns log of the sum."""
    stop = i + 1 if mask == 1 else points.shape[1]
    a, b, c = scores[0, i] * LOG2_E, scores[1, i] * LOG2_E, scores[2, i] * LOG2_E
    largest = NO_SCORE
    for j in range(stop):
        buffer[j] = a * points[0, j] + b * points[1, j] + c * points[2, j] + log_masses[j]
    if mask == 2:
        buffer[i] = NO_SCORE
    for j in range(stop):
        largest = max(largest, buffer[j])
    total, x, y, z = 0.0, 0.0, 0.0, 0.0
    if hard:
        slack = 1e-12 * math.sqrt(a * a + b * b + c * c)
        for j in range(stop):
            if buffer[j] >= largest - slack:
                total += 1.0
                x += points[0, j]
                y += points[1, j]
                z += points[2, j]
    else:
        for j in range(stop):
            weight = power_of_two(buffer[j] - largest)
            total += weight
            x += weight * points[0, j]
            y += weight * points[1, j]
            z += weight * points[2, j]
    out[0], out[1], out[2] = x / total, y / total, z / total
    return (largest + math.log2(total)) / LOG2_E


@kernel(fastmath=FAST)
def _means(part, scores, points, log_masses, mask, hard, unnormalised, mean):
    """M of a part of the tokens of all clouds, to clouds x N x 3.

    Scores and points are clouds x 3 x N.
    """
    count = points.shape[2]
    buffer = np.empty(count)
    for row in range(part[0], part[1]):
        cloud, i = row // count, row % count
        out = mean[cloud, i]
        log_z = mean_at(i, scores[cloud], points[cloud], log_masses, buffer, mask, hard, out)
        if unnormalised:
            factor = math.exp(log_z)
            for k in range(3):
                out[k] *= factor


def token_push(
    layer: Layer, x: np.ndarray, masses: np.ndarray | None = None, mask: Mask = "none"
) -> np.ndarray:
    """The sum of V m over all heads, and g of the terms beside them, at the tokens, ... x N x d."""
    push = push_beside(layer, x, masses)
    for head in layer.heads:
        push += token_means(head, x, masses, mask) @ head.value.T
    return push


def token_means(
    head: Attention, x: np.ndarray, masses: np.ndarray | None = None, mask: Mask = "none"
) -> np.ndarray:
    """M at each of the tokens, ... x N x d, under the tokens of its own cloud."""
    hard = head.zero_temperature
    z = x @ head.key_query.T if hard else head.scores(x)
    scores, points = _padded(z), _padded(x)
    log_masses = _log_weights(masses, x.shape[-2], hard=hard)
    mean = np.empty((len(points), x.shape[-2], 3))

    def do(part: tuple[int, int]) -> None:
        _means(part, scores, points, log_masses, MASKS[mask], hard, not head.normalise, mean)

    rows = math.prod(x.shape[:-1])
    in_parts(do, rows, useful_threads(rows * x.shape[-2] * TERM))
    return mean[..., : x.shape[-1]].reshape(x.shape)


def _log_weights(masses: np.ndarray | None, count: int, *, hard: bool) -> np.ndarray:
    """Binary logarithms of the normalised weights; at zero temperature, whether there is one."""
    if masses is None:
        return np.full(count, 0.0 if hard else -math.log2(count))
    if hard:
        return np.where(masses > 0, 0.0, NO_SCORE)
    with np.errstate(divide="ignore"):
        return np.maximum(np.log2(masses / masses.sum()), NO_SCORE)


def _padded(x: np.ndarray) -> np.ndarray:
    """Clouds ... x N x d as clouds x 3 x N."""
    clouds = x.reshape(-1, *x.shape[-2:])
    padded = np.zeros((len(clouds), 3, x.shape[-2]))
    padded[:, : x.shape[-1]] = clouds.swapaxes(1, 2)
    return padded
