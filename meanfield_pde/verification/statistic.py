"""One p-value for a whole comparison: the rank of the tokens among samples.

Let T_0 be a number computed from the features of the tokens, T_s the same
for sample s, by a rule that treats all S + 1 clouds alike. If the tokens are a sample like the
others, each rank of T_0 is equally likely, whatever the law of the features is, so that

    p = (1 + #{s: T_s >= T_0}) / (S + 1)

is uniform. The rule: for each time, sliced W_1 and W_2 and the moments of each degree, the latter
by their Mahalanobis distance from the mean of all S + 1, with a floor under the variances; likewise
all moments of degree 1 and 2 at all times together. Each of these is given the tail probability of
a gamma law of its mean and variance, and T = log of the sum of their inverses, which is large as
soon as one of them is small.
"""

from __future__ import annotations

import itertools

import numpy as np
from scipy.special import log_ndtr, logsumexp

from meanfield_pde.verification.features import DEGREES, Features, harmonics_of_degree

# The moments at all times together are compared in their principal directions, one for n = 20
# samples, so that covariances are known (chosen, not tuned).
SAMPLES_PER_DIRECTION = 20
# Where tokens gather, moments nearly depend on each other, and what hardly varies from sample to
# sample shows the steps of a right code. This is added to the variance in each direction, in units
# of that of a moment (chosen, not tuned).
FLOOR = 0.02


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
