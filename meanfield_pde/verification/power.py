"""What N tokens can tell where no trajectories decide: how often faults have a small p-value."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.verification.band import Densities, SamplingBand
from meanfield_pde.verification.codes import changed
from meanfield_pde.verification.features import Features, features
from meanfield_pde.verification.samples import follow_samples, sample_cells


def power_of_faults(
    result: Densities,
    at: np.ndarray,
    quantiles: np.ndarray,
    band: SamplingBand,
    count: int,
    level: float,
) -> tuple[tuple[str, float], ...]:
    """Faults of a stated size, and how often N tokens show them at these times.

    `quantiles` are those of the density there (`densities_at`).
    """
    attention = result.attention
    noise = result.noise
    faults: list[tuple[str, AttentionLike, float]] = []
    for name, factor in (("V too large by 20%", 1.2), ("by half", 1.5)):

        def larger(head: Attention, factor: float = factor) -> Attention:
            return replace(head, value=factor * head.value)

        faults.append((name, changed(attention, larger), noise))
    if any(0 < head.beta < math.inf for layer in attention.layers for head in layer.heads):

        def warmer(head: Attention) -> Attention:
            return replace(head, beta=head.beta / 2)

        faults.append(("half of beta", changed(attention, warmer), noise))
    if noise:
        faults.append(("half of the noise", attention, noise / 2))  # sqrt(sigma) for sqrt(2 sigma)
    return tuple(
        (name, power(result, at, quantiles, other, band, count, level, noise=strength))
        for name, other, strength in faults
    )


def power(
    result: Densities,
    at: np.ndarray,
    quantiles: np.ndarray,
    attention: AttentionLike,
    band: SamplingBand,
    count: int,
    level: float,
    *,
    noise: float,
    trials: int = 40,
) -> float:
    """How often N tokens of another attention or noise have a p-value below the level."""
    times = np.unique(np.concatenate([result.times[:1], result.times[at]]))
    first = result.cells_at(0), result.measure(0).masses
    start = np.stack(
        [
            # Seeds that no band uses: those have two numbers.
            sample_cells(np.random.default_rng([0, 0, i]), *first, count)
            for i in range(trials)
        ]
    )
    paths = follow_samples(start, attention, times, noise=noise, seed=2**31)[
        :, np.searchsorted(times, result.times[at])
    ]
    found = features(paths, None, quantiles)
    seen = [
        band.p_value(Features(one, moments)) < level
        for one, moments in zip(found.distances, found.moments, strict=True)
    ]
    return float(np.mean(seen))
