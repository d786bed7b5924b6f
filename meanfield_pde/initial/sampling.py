"""Tokens drawn from an initial density, independent of each other; a seed decides which."""

from __future__ import annotations

import numpy as np
from scipy.stats import vonmises_fisher

from meanfield_pde.errors import InputError
from meanfield_pde.initial.formula import (
    Component,
    ExpressionDensity,
    Initial,
    Tokens,
    Uniform,
    VonMises,
    probes,
)
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.support.checks import whole

# Candidates of one round of rejection, and the rounds after which a formula is given up.
_CANDIDATES = 65_536
_MOST_ROUNDS = 2_000
# How far a formula may exceed its largest value at the probes before its tokens are drawn anew.
_HEADROOM = 1.05


def sample_tokens(initial: Initial | str, count: int, seed: int, dimension: int) -> np.ndarray:
    """N independent tokens of an initial density, N x d.

    A uniform density and a mixture of von Mises-Fisher densities are sampled in any dimension, a
    formula on the circle and the sphere by rejection. Tokens are drawn with replacement.

    Args:
        initial: the density, or a formula in x, y, z.
        count: N.
        seed: a whole number >= 0; the same seed gives the same tokens.
        dimension: d.
    """
    count = whole(count, "the number of tokens", 1)
    generator = np.random.default_rng(whole(seed, "the seed", 0))
    if isinstance(initial, str):
        initial = ExpressionDensity(initial)
    if isinstance(initial, ExpressionDensity) and dimension not in (2, 3):
        raise InputError(
            f"initial.density is a formula in x, y, z, but the tokens live in dimension "
            f"{dimension}; give kind 'uniform' or 'von-mises'"
        )
    initial.check(dimension)
    match initial:
        case Uniform():
            return _uniform(generator, count, dimension)
        case VonMises(components=components):
            return _mixture(generator, components, count)
        case ExpressionDensity():
            return _by_rejection(generator, initial, count, dimension)
        case Tokens():
            measure = initial.measure()
            return measure.points[generator.choice(len(measure.points), count, p=measure.masses)]


def _uniform(generator: np.random.Generator, count: int, dimension: int) -> np.ndarray:
    return normalised(generator.normal(size=(count, dimension)))


def _mixture(
    generator: np.random.Generator, components: tuple[Component, ...], count: int
) -> np.ndarray:
    weights = np.array([component.weight for component in components])
    weights /= weights.max()
    chosen = generator.choice(len(components), count, p=weights / weights.sum())
    dimension = len(components[0].mean)
    tokens = np.empty((count, dimension))
    for i, component in enumerate(components):
        own = chosen == i
        if not own.any():
            continue
        if component.concentration == 0:
            tokens[own] = _uniform(generator, int(own.sum()), dimension)
            continue
        law = vonmises_fisher(component.direction, component.concentration)
        tokens[own] = normalised(law.rvs(int(own.sum()), random_state=generator))
    return tokens


def _by_rejection(
    generator: np.random.Generator, density: ExpressionDensity, count: int, dimension: int
) -> np.ndarray:
    bound = _HEADROOM * float(density.density(probes(dimension)).max())
    accepted: list[np.ndarray] = []
    for _ in range(_MOST_ROUNDS):
        candidates = _uniform(generator, _CANDIDATES, dimension)
        values = density.density(candidates)
        if values.max() > bound:
            # What was accepted so far is short of the peak that the probes missed.
            bound = _HEADROOM * float(values.max())
            accepted.clear()
            continue
        accepted.append(candidates[generator.random(_CANDIDATES) * bound < values])
        if sum(map(len, accepted)) >= count:
            return np.concatenate(accepted)[:count]
    raise InputError(
        f"initial.density is too concentrated to draw {count} tokens from: only "
        f"{sum(map(len, accepted))} of {_MOST_ROUNDS * _CANDIDATES} candidates were accepted; "
        "give it as kind 'von-mises'"
    )
