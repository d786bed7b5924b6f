"""The p-value of a comparison, from features made up here."""

from __future__ import annotations

import numpy as np
import pytest

from meanfield_pde.verification.statistic import Features, rank


def clouds(count, seed, near=0.0, times=2):
    """Features on the circle; in each degree the second moment is close to the first."""
    generator = np.random.default_rng(seed)
    moments = generator.normal(size=(count, times, 8))
    if near:
        moments[..., 1::2] = moments[..., ::2] + near * moments[..., 1::2]
    return Features(generator.gamma(3.0, size=(count, times, 2)), moments)


def one_of(found, number):
    return Features(found.distances[number], found.moments[number])


@pytest.mark.parametrize("near", [0.02, 1.0])
def test_ranks_of_samples_among_samples_are_uniform(near):
    """Each of 100 clouds against the 99 others: every rank is taken once."""
    every = clouds(100, 0, near)
    p_values = []
    for number in range(100):
        others = np.arange(100) != number
        rest = Features(every.distances[others], every.moments[others])
        p_values.append(rank(one_of(every, number), rest))
    np.testing.assert_allclose(np.sort(p_values), np.arange(1, 101) / 100, atol=1e-12)


def test_what_hardly_varies_does_not_decide():
    """Steps of a right code shift moments by little, and their differences by many deviations."""
    samples = clouds(400, 1, 0.01)
    observed = Features(
        np.full((2, 2), 2.5), np.tile([0.2, 0.25, -0.1, -0.15, 0.3, 0.27, 0.0, 0.05], (2, 1))
    )
    assert rank(observed, samples) > 0.1


@pytest.mark.parametrize("which", ["distances", "moments"])
def test_a_shift_of_one_feature_is_seen(which):
    samples, observed = clouds(400, 2), one_of(clouds(1, 4), 0)
    assert rank(observed, samples) > 0.05
    getattr(observed, which)[1, 0] += 12.0
    assert rank(observed, samples) == pytest.approx(1 / 401)
