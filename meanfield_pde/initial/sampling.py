"""Tokens drawn from an initial density, independent of each other; a seed decides which."""

from __future__ import annotations

import numpy as np

from meanfield_pde.initial.given import InitialLike, as_initial
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.checks import whole
from meanfield_pde.support.memory import check_fits


@typed
def sample_tokens(initial: InitialLike, count: int, seed: int, dimension: int) -> np.ndarray:
    """N independent tokens of an initial density, N x d.

    A uniform density, a Poisson kernel and a mixture of von Mises-Fisher densities are sampled in
    any dimension, a formula, a function or a noisy uniform density on the circle and the sphere by
    rejection. Tokens are drawn with replacement, but as many of one mass as are given are taken as
    they are.

    Args:
        initial: the density, a formula in x, y, z, or a function of points.
        count: N.
        seed: a whole number >= 0; the same seed gives the same tokens.
        dimension: d.
    """
    count = whole(count, "the number of tokens", 1)
    dimension = whole(dimension, "the dimension", 2)
    # The draws of a round, the tokens accepted, and these put together.
    check_fits(24.0 * count * dimension, f"drawing {count} tokens", "take fewer")
    generator = np.random.default_rng(whole(seed, "the seed", 0))
    density = as_initial(initial)
    density.check(dimension)
    return density.sample(generator, count, dimension)
