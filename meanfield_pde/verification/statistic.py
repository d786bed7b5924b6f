"""One p-value for a cloud of tokens: its rank among samples of the density, by their features.

Features, for each time, relative to the density there:

    W_1, W_2      sliced: the mean over fixed axes u of the transport of <u, x> to its law under
                  the density, whose quantiles are those of the cells' own points (`fine_atoms`),
                  so that the width of the cells does not enter;
    moments       of degree 1 to 4: means of all harmonic polynomials of the degree.

These are numbers that cost microseconds a sample. The same atoms serve the tokens and the samples:
whatever error they have is in both.

Let T_0 be a number computed from the features of the tokens, T_s the same for sample s, by a rule
that treats all S + 1 clouds alike. If the tokens are a sample like the others, each rank of T_0 is
equally likely, whatever the law of the features is, so that

    p = (1 + #{s: T_s >= T_0}) / (S + 1)

is uniform. The rule: for each time, sliced W_1 and W_2 and the moments of each degree, the latter
by their Mahalanobis distance from the mean of all S + 1, with a floor under the variances; likewise
all moments of degree 1 and 2 at all times together. Each of these is given the tail probability of
a gamma law of its mean and variance, and T = log of the sum of their inverses, which is large as
soon as one of them is small.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import log_ndtr, logsumexp

from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.geometry import geodesic_distance, normalised

# Directions of the sliced distances, by dimension: a sort each. All polynomials up to degree 4 are
# sums of functions of 5 such directions on the circle, and of 15 on the sphere.
AXES = {2: 8, 3: 16}
DEGREES = (1, 2, 3, 4)  # of the moments; higher ones show in the sliced distances
_POINTS = {2: 8, 3: 16}  # points that replace a cell, on the sphere those of n^2 small triangles
_LEVELS = 4096  # of the quantiles: four for each of 1000 tokens
_BLOCK = 4_000_000  # projections that are sorted at once: 32 MB
# The moments at all times together are compared in their principal directions, one for n = 20
# samples: their variances are then known to 45 %, 2 / sqrt(20) (Marchenko and Pastur).
SAMPLES_PER_DIRECTION = 20
# Where tokens gather, moments nearly depend on each other, and what hardly varies from sample to
# sample shows the steps of a right code. This is added to the variance in each direction, in units
# of that of a moment: what varies by less than a seventh of it, its root, does not decide.
FLOOR = 0.02


@dataclass(frozen=True, eq=False)
class Features:
    """Features of clouds at several times.

    Attributes:
        distances: ... x times x 2, sliced W_1 and W_2.
        moments: ... x times x number of harmonics, by degree.
    """

    distances: np.ndarray
    moments: np.ndarray

    def at(self, chosen: np.ndarray) -> Features:
        """The features at some of the times."""
        return Features(self.distances[..., chosen, :], self.moments[..., chosen, :])


def harmonics_of_degree(dimension: int, degree: int) -> int:
    """How many harmonic polynomials of a degree there are."""
    return 2 if dimension == 2 else 2 * degree + 1


def density_quantiles(densities: Sequence[tuple[Cells, np.ndarray]]) -> np.ndarray:
    """Quantiles of <u, x> under each density, for each axis u: times x axes x levels."""
    axes = _axes(densities[0][0].points.shape[1])
    table = np.empty((len(densities), len(axes), _LEVELS))
    for k, (cells, masses) in enumerate(densities):
        points, each = fine_atoms(cells)
        for a, axis in enumerate(axes):
            along = points @ axis
            order = np.argsort(along, kind="stable")
            total = np.cumsum((masses / masses.sum() / each)[order // each])
            table[k, a] = np.interp(_levels() * total[-1], total, along[order])
    return table


def features(paths: np.ndarray, masses: np.ndarray | None, quantiles: np.ndarray) -> Features:
    """Features of clouds ... x times x N x d against densities.

    Args:
        paths: positions of the tokens.
        masses: their weights; equal if left out.
        quantiles: of the densities (`density_quantiles`).
    """
    clouds, (times, count, d) = paths.shape[:-3], paths.shape[-3:]
    flat = paths.reshape(-1, times, count, d)
    weights = np.ones(count) if masses is None else masses
    weights = weights / weights.sum()
    axes = _axes(d)
    distances = np.zeros((len(flat), times, 2))
    moments = np.stack([_harmonics(one, weights) for one in flat])
    rows = max(1, _BLOCK // count)
    for k in range(times):
        for a, axis in enumerate(axes):
            for first in range(0, len(flat), rows):
                along = flat[first : first + rows, k] @ axis
                gaps = _gaps(along, weights, quantiles[k, a], equal=masses is None)
                distances[first : first + rows, k] += gaps.T / len(axes)
    distances[..., 1] = np.sqrt(distances[..., 1])
    return Features(
        distances.reshape(*clouds, times, 2), moments.reshape(*clouds, times, moments.shape[-1])
    )


def rank(observed: Features, samples: Features) -> float:
    """The p-value of tokens with these features among samples."""
    pooled = Features(
        np.concatenate([observed.distances[None], samples.distances]),
        np.concatenate([observed.moments[None], samples.moments]),
    )
    statistic = _statistic(pooled)
    return float((1 + (statistic[1:] >= statistic[0]).sum()) / len(statistic))


def _statistic(pooled: Features) -> np.ndarray:
    """T of every cloud, the first of which is that of the tokens."""
    count, times = pooled.distances.shape[:2]
    dimension = 2 if pooled.moments.shape[-1] == 2 * len(DEGREES) else 3
    scores = [pooled.distances[:, k, i] for k in range(times) for i in range(2)]
    ends = np.cumsum([0, *(harmonics_of_degree(dimension, degree) for degree in DEGREES)])
    for k in range(times):
        for begin, end in itertools.pairwise(ends):
            scores.append(_mahalanobis(pooled.moments[:, k, begin:end]))
    if times > 1:
        low = pooled.moments[..., : ends[2]].reshape(count, -1)
        scores.append(_mahalanobis(low, max(1, count // SAMPLES_PER_DIRECTION)))
    return np.asarray(logsumexp(-_log_tails(np.array(scores)), axis=0))


def _mahalanobis(values: np.ndarray, most: int | None = None) -> np.ndarray:
    """Squared distances from the mean in units of the covariance, in its first directions."""
    centred = values - values.mean(axis=0)
    centred /= np.maximum(centred.std(axis=0), 1e-300)
    variances, directions = np.linalg.eigh(centred.T @ centred / len(values))
    first = 0 if most is None else max(0, len(variances) - most)
    scale = np.sqrt(np.maximum(variances[first:], 0.0) + FLOOR)
    return np.asarray(((centred @ directions[:, first:] / scale) ** 2).sum(axis=1))


def _log_tails(values: np.ndarray) -> np.ndarray:
    """Logarithms of tail probabilities, each row under the gamma law of its mean and variance.

    By Wilson and Hilferty the cube root of a gamma variable of shape k and mean 1 is close to a
    normal one of mean 1 - 1/(9 k) and variance 1/(9 k).
    """
    mean, variance = values.mean(axis=1), values.var(axis=1)
    # Rows that are all alike, such as zero, hold no information.
    varying = (mean > 0) & (variance > 1e-24 * mean**2)
    found = np.zeros_like(values)
    mean, spread = mean[varying, None], variance[varying, None] / (9 * mean[varying, None] ** 2)
    found[varying] = log_ndtr((1 - spread - np.cbrt(values[varying] / mean)) / np.sqrt(spread))
    return found


def _levels() -> np.ndarray:
    return (np.arange(_LEVELS) + 0.5) / _LEVELS


def _gaps(
    along: np.ndarray, weights: np.ndarray, quantiles: np.ndarray, *, equal: bool
) -> np.ndarray:
    """Mean distance and mean squared distance to the quantiles, of each row of `along`."""
    if equal:
        count = len(weights)
        own = np.interp((np.arange(count) + 0.5) / count, _levels(), quantiles)
        gap = np.abs(np.sort(along, axis=1) - own)
        return np.array([gap.mean(axis=1), (gap**2).mean(axis=1)])
    order = np.argsort(along, axis=1)
    sorted_weights = weights[order]
    level = np.cumsum(sorted_weights, axis=1) - 0.5 * sorted_weights
    gap = np.take_along_axis(along, order, axis=1) - np.interp(level, _levels(), quantiles)
    return np.array([(sorted_weights * np.abs(gap)).sum(1), (sorted_weights * gap**2).sum(1)])


def fine_atoms(cells: Cells) -> tuple[np.ndarray, int]:
    """Points of the cells, n of each cell in a row, and n."""
    corners = cells.vertices
    if corners.shape[-1] == 2:
        share = (np.arange(_POINTS[2]) + 0.5) / _POINTS[2]
        length = geodesic_distance(corners[:, 0], corners[:, 1])[:, None]
        ends = np.stack([np.sin((1 - share) * length), np.sin(share * length)], axis=-1)
        return normalised(np.einsum("csk,ckd->csd", ends, corners).reshape(-1, 2)), _POINTS[2]
    n = math.isqrt(_POINTS[3])
    centres = [  # of the n^2 small triangles, upright ones and those between
        (3 * i + shift, 3 * j + shift, 3 * n - 3 * i - 3 * j - 2 * shift)
        for shift, most in ((1, n), (2, n - 1))
        for i in range(most)
        for j in range(most - i)
    ]
    barycentric = np.array(centres) / (3 * n)
    return normalised(np.einsum("sk,ckd->csd", barycentric, corners).reshape(-1, 3)), n * n


def _axes(dimension: int) -> np.ndarray:
    """Axes spread evenly over half of the circle or the sphere."""
    count = AXES[dimension]
    if dimension == 2:
        angle = np.pi * (np.arange(count) + 0.5) / count
        return np.column_stack([np.cos(angle), np.sin(angle)])
    z = (np.arange(count) + 0.5) / count
    turn = np.pi * (3 - math.sqrt(5)) * np.arange(count)
    radius = np.sqrt(1 - z**2)
    return np.column_stack([radius * np.cos(turn), radius * np.sin(turn), z])


def _harmonics(paths: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Means of the harmonic polynomials of degrees 1 to 4, T x N x d to T x count.

    On the sphere those of degree l are spanned by the real parts of (<x, a> + i <x, b>)^l for
    orthonormal a, b: as many pairs are taken as there are harmonics.
    """
    d = paths.shape[-1]
    means = list(np.moveaxis(weights @ paths, -1, 0))  # degree 1: the coordinates
    for degree in DEGREES[1:]:
        for real, imaginary, part in _null_directions(d, degree):
            point = paths @ real + 1j * (paths @ imaginary)
            power = point
            for _ in range(degree - 1):
                power = power * point
            means.append((power.real if part == 0 else power.imag) @ weights)
    return np.stack(means, axis=-1)


@functools.cache
def _null_directions(d: int, degree: int) -> list[tuple[np.ndarray, np.ndarray, int]]:
    if d == 2:
        e = np.eye(2)
        return [(e[0], e[1], 0), (e[0], e[1], 1)]
    pairs = []
    count = harmonics_of_degree(d, degree)
    for i in range(count):
        z = (i + 0.5) / count
        angle = np.pi * (3 - math.sqrt(5)) * i
        pole = np.array(
            [math.sqrt(1 - z * z) * math.cos(angle), math.sqrt(1 - z * z) * math.sin(angle), z]
        )
        first = normalised(np.cross(pole, np.eye(3)[np.argmin(np.abs(pole))])[None])[0]
        turn = math.cos(i) * first + math.sin(i) * np.cross(pole, first)
        pairs.append((turn, np.cross(pole, turn), i % 2))
    return pairs
