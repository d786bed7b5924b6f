"""How far N tokens are from a density by chance: the distances of samples of the density itself.

The number decides whether a cloud deviates. A sample is N independent points of the density at its
first time, a cell by its mass and then a point of the cell, moved by the reference code. Were the
samples drawn anew at each time, what the mean field makes of their fluctuations would be missing:
it can damp them, or let them grow as the modes of the density do.

The distances W_1 of the samples to the density follow, closely enough, a gamma law: positive,
skewed, with normal tails. Its mean and variance are those of the samples, and the variance has the
width of the cells added, below which the density is not known. The score z of a distance has the
tail probability of that law under the standard normal one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from mpi4py import MPI

import numpy as np
from scipy.special import gammaln, log1p, ndtri_exp
from scipy.stats import gamma

from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.geometry import geodesic_distance, normalised
from meanfield_pde.support.ranks import shared_errors
from meanfield_pde.tokens.code import Velocity, evolve, fixed_step, token_velocity
from meanfield_pde.wasserstein import wasserstein
from meanfield_pde.wasserstein.measure import Measure

# In units of the root mean square distance of a cell's points from its centre: a cluster somewhere
# in one cell is at most 1.7 of them away from the centre on the circle.
CELL_WIDTHS = 2.0
# More tokens than this take too long to be simulated many times.
MOST_TOKENS = 1000
# Samples are compared with each other; the last digits of their distances do not matter.
_RTOL = 1e-3
_TOLERANCE = 1e-4


class Densities(Protocol):
    """A density at several times: a `Solution`, or the `Result` read from a folder."""

    @property
    def attention(self) -> AttentionLike:
        """What drove it."""

    @property
    def dimension(self) -> int:
        """Dimension d of the space around."""

    @property
    def times(self) -> np.ndarray:
        """The times."""

    def cells_at(self, index: int) -> Cells:
        """The cells at one of the times."""

    def measure(self, index: int) -> Measure:
        """The density at one of the times, as atoms in its cells."""


@dataclass(frozen=True, eq=False)
class SamplingBand:
    """The distances W_1 that samples of N tokens have to their density, at several times.

    Attributes:
        times: the times.
        expected: their mean, at each time.
        deviation: their standard deviation, the width of the cells included.
        moment_deviation: standard deviation of the first moments from those of the density,
            times x d, likewise.
    """

    times: np.ndarray
    expected: np.ndarray
    deviation: np.ndarray
    moment_deviation: np.ndarray

    def score(self, distances: np.ndarray) -> np.ndarray:
        """The score z of a distance at each time, standard normal for independent samples."""
        return _score(self._log_tail(distances))

    def joint_score(self, distances: np.ndarray) -> float:
        """One score for all times: that of the largest z, given how many times there are."""
        return float(_joint(self._log_tail(distances)).max())

    def first_beyond(self, distances: np.ndarray, score: float) -> float | None:
        """The first time at which a distance has a joint score of at least this; None if never."""
        late = np.flatnonzero(_joint(self._log_tail(distances)) >= score)
        return float(self.times[late[0]]) if len(late) else None

    def quantile(self, probability: float) -> np.ndarray:
        """The distance that is not exceeded with this probability, at each time."""
        shape = (self.expected / self.deviation) ** 2
        return gamma.ppf(probability, shape, scale=self.expected / shape)

    def _log_tail(self, distances: np.ndarray) -> np.ndarray:
        """Logarithm of the probability of a larger distance, at each time."""
        shape = (self.expected / self.deviation) ** 2
        x = distances * shape / self.expected
        with np.errstate(divide="ignore"):
            exact = gamma.logsf(x, shape)
            # Where the probability itself is too small for a double.
            asymptotic = (shape - 1) * np.log(np.maximum(x, 1e-300)) - x - gammaln(shape)
        return np.where(np.isfinite(exact), exact, asymptotic)


def sampling_band(
    result: Densities,
    at: np.ndarray,
    count: int,
    *,
    samples: int,
    seed: int = 0,
    weights: np.ndarray | None = None,
    comm: MPI.Comm = MPI.COMM_SELF,
) -> SamplingBand:
    """The band of N tokens for a density at several of its times. Collective.

    Args:
        result: the density.
        at: indices of the times wanted.
        count: N. From 1000 tokens on, samples of 1000 are taken and their distances scaled.
        samples: how many samples are drawn.
        seed: of the draws.
        weights: the weights of the tokens; equal if left out.
        comm: the ranks that share the work; the result does not depend on their number.
    """
    scale = 1.0
    if count > MOST_TOKENS:
        effective = count if weights is None else weights.sum() ** 2 / (weights**2).sum()
        scale = _sampling_error(effective, result) / _sampling_error(MOST_TOKENS, result)
        count, weights = MOST_TOKENS, None
    densities = [_probability(result.measure(int(i))) for i in at]
    means = np.array([one.masses @ one.points for one in densities])
    distances = np.zeros((samples, len(at)))
    moments = np.zeros((samples, *means.shape))
    with shared_errors(comm):
        for sample in range(comm.rank, samples, comm.size):
            generator = np.random.default_rng([seed, sample])
            clouds = _sample(generator, result, at, count, weights)
            moments[sample] = [cloud.masses @ cloud.points for cloud in clouds]
            distances[sample] = [
                wasserstein(cloud, one, 1, rtol=_RTOL).value
                for cloud, one in zip(clouds, densities, strict=True)
            ]
    comm.Allreduce(MPI.IN_PLACE, distances)
    comm.Allreduce(MPI.IN_PLACE, moments)
    distances *= scale
    moments = (moments - means) * scale
    cell_width = CELL_WIDTHS * np.array([one.width for one in densities])
    return SamplingBand(
        result.times[at],
        np.maximum(distances.mean(axis=0), cell_width / CELL_WIDTHS),
        np.hypot(distances.std(axis=0, ddof=1), cell_width),
        np.hypot(np.sqrt((moments**2).mean(axis=0)), cell_width[:, None] / CELL_WIDTHS),
    )


def _probability(measure: Measure) -> Measure:
    return Measure(measure.points, measure.masses / measure.masses.sum(), measure.spread)


def _sample(
    generator: np.random.Generator,
    result: Densities,
    at: np.ndarray,
    count: int,
    weights: np.ndarray | None,
) -> list[Measure]:
    """One sample at the times wanted, as probability measures."""
    attention = result.attention
    tokens = sample_cells(generator, result.cells_at(0), result.measure(0).masses, count)
    times = np.unique(np.concatenate([result.times[:1], result.times[at]]))

    def velocity(layer: Attention) -> Velocity:
        return token_velocity(layer, weights, tolerance=_TOLERANCE)

    step = fixed_step(attention)
    paths = evolve(tokens, attention, list(times), velocity, step=step, tolerance=_TOLERANCE)
    masses = np.ones(count) if weights is None else weights
    chosen = np.searchsorted(times, result.times[at])
    return [Measure(paths[k], masses / masses.sum()) for k in chosen]


def _sampling_error(count: float, result: Densities) -> float:
    """How W_1 of N independent points depends on N, in one dimension and in two."""
    logarithm = 1.0 if result.dimension == 2 else math.log(count)
    return math.sqrt(logarithm / count)


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


def _joint(log_tail: np.ndarray) -> np.ndarray:
    """Scores with the probability that any of K independent times has a smaller tail."""
    with np.errstate(divide="ignore"):
        exact = np.log(-np.expm1(len(log_tail) * log1p(-np.exp(log_tail))))
    return _score(np.where(log_tail < -30, log_tail + math.log(len(log_tail)), exact))


def _score(log_tail: np.ndarray) -> np.ndarray:
    return -ndtri_exp(np.minimum(log_tail, -1e-16))
