"""One p-value for a whole comparison: the rank of the tokens among samples.

Let T_0 be a number computed from the features of the tokens, T_s the same
for sample s, by a rule that treats all S + 1 clouds alike. If the tokens are a sample like the
others, each rank of T_0 is equally likely, whatever the law of the features is, so that

    p = (1 + #{s: T_s >= T_0}) / (S + 1)

is uniform. The rule: for each time, sliced W_1 and W_2 and the moments of each degree, the latter
by their Mahalanobis distance from the mean of all S + 1; likewise all moments of degree 1 and 2 at
all times together. Each of these is given the tail probability of a gamma law of its mean and
variance, and T = log of the sum of their inverses, which is large as soon as one of them is small.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy.special import gammaln, logsumexp
from scipy.stats import gamma

from meanfield_pde.judging.features import DEGREES, Features, harmonics_of_degree

# The moments at all times together are judged by their principal directions, one for so many
# samples.
SAMPLES_PER_DIRECTION = 20


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
    return logsumexp([-_log_tail(score) for score in scores], axis=0)


def _mahalanobis(values: np.ndarray, most: int | None = None) -> np.ndarray:
    """Squared distances from the mean in units of the covariance, in its first directions."""
    centred = values - values.mean(axis=0)
    scale = np.maximum(centred.std(axis=0), 1e-300)
    left, size, _ = np.linalg.svd(centred / scale, full_matrices=False)
    kept = size > 1e-9 * max(float(size[0]), 1e-300)
    if most is not None:
        kept[most:] = False
    return len(values) * (left[:, kept] ** 2).sum(axis=1)


def _log_tail(values: np.ndarray) -> np.ndarray:
    """Logarithm of the tail probabilities under the gamma law of their mean and variance."""
    mean, variance = float(values.mean()), float(values.var())
    if not (mean > 0 and variance > 1e-24 * mean**2):  # all alike, such as zero: no information
        return np.zeros(len(values))
    shape = mean**2 / variance
    x = values * (mean / variance)
    with np.errstate(divide="ignore"):
        exact = gamma.logsf(x, shape)
        # Where the probability itself is too small for a double.
        asymptotic = (shape - 1) * np.log(np.maximum(x, 1e-300)) - x - gammaln(shape)
    return np.where(np.isfinite(exact), exact, asymptotic)
