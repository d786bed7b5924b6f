"""Measured tokens against what is predicted, layer by layer.

`tokens[t]` is the cloud that enters layer t; all is said of tokens / |tokens|. Of each cloud: its
distance to the predicted subspace, its rank, its cosines, the certified distance W_1 to the next.
Of each step to the next: what of it is not explained by

    x' = P_x sum_h V_h m_h(x),      the heads of the layer together,

for any length of time, with the velocities at both ends (for Euler steps and, to second order, for
the flow). A cloud is flagged where more than `UNEXPLAINED` of the step that led to it (mean square)
is left, and the rest is no noise: what is left points the same way for tokens that are near each
other. A perceptron between attentions is a reason for that, too.

Against a baseline: the clouds that enter the first layer, and what the heads leave of each step,
are compared by a permutation test; where the heads explain the steps of both there is no drift. Not
the clouds themselves: in a cloud that gathers, the place where it does varies more from one run to
the next than its tokens do among each other, and all runs would differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meanfield_pde.audit import TOLERANCE
from meanfield_pde.audit.heads import HeadAudit
from meanfield_pde.audit.measured import MeasuredTokens, unexplained_steps
from meanfield_pde.audit.permutations import LEVEL, symmetric, two_sample
from meanfield_pde.audit.weights import Encoder
from meanfield_pde.errors import InputError
from meanfield_pde.wasserstein import wasserstein
from meanfield_pde.wasserstein.measure import Measure

# Share of a step that the heads may leave unexplained: discretisation leaves a few percent.
UNEXPLAINED = 0.1
# Larger clouds are thinned: transport and shuffles take the square of this.
MOST_TOKENS = 1000
# Files of the same inputs have tokens that are equal to single precision before the first layer.
SAME = 1e-5


# Samples for an interval of 95 %: each of its ends is a quantile to 0.8 % of the samples.
_BOOTSTRAPS = 400
_TIME_LIMIT = 10.0  # seconds for one distance; its interval holds whenever it is stopped
_RTOL = 1e-6  # of W_1, which is shown to three digits
_NEAREST = 1e-12  # radians: angles below have no digit left for a rate


def spread(cloud: np.ndarray) -> dict[str, Any]:
    """Effective rank and mean cosine."""
    count = len(cloud)
    share = np.linalg.svd(cloud, compute_uv=False) ** 2 / count
    share = share[share > 0]
    total = float((cloud.sum(axis=0) ** 2).sum())
    return {
        "effective_rank": float(np.exp(-(share * np.log(share)).sum())),
        "mean_cosine": (total - count) / (count * (count - 1)),
    }


def change(cloud: np.ndarray, following: np.ndarray) -> tuple[float, float, float]:
    """W_1 from a cloud to the next, with its certified interval."""
    masses = np.full(len(cloud), 1 / len(cloud))
    found = wasserstein(
        Measure(cloud, masses), Measure(following, masses), 1, rtol=_RTOL, time_limit=_TIME_LIMIT
    )
    return found.value, found.low, found.high


def distances(cloud: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Geodesic distance of each token to a subspace, d x k."""
    inside = cloud @ basis
    outside = cloud - inside @ basis.T
    return np.arctan2(np.linalg.norm(outside, axis=1), np.linalg.norm(inside, axis=1))


def concentration(
    heads: Sequence[HeadAudit], cloud: np.ndarray, following: np.ndarray | None, seed: int
) -> dict[str, Any]:
    """Distance to the nearest predicted subspace, and how fast it falls."""
    empty: dict[str, Any] = {"head": None, "distance": None, "rate": None, "predicted_rate": None}
    known = [(distances(cloud, h.basis), h) for h in heads if h.limit and h.basis is not None]
    if not known:
        return empty
    before, head = min(known, key=lambda pair: float(pair[0].mean()))
    found: dict[str, Any] = {"head": head.head, "distance": float(before.mean()), "rate": None}
    assert head.basis is not None
    assert head.rate is not None
    assert head.unsettled_rate is not None
    found["predicted_rate"] = min(head.rate, head.unsettled_rate)
    if following is not None and before.mean() > _NEAREST:
        after = np.maximum(distances(following, head.basis), _NEAREST)
        chosen = np.random.default_rng(seed).integers(len(before), size=(_BOOTSTRAPS, len(before)))
        sampled = np.log(before[chosen].mean(axis=1) / after[chosen].mean(axis=1))
        low, high = np.quantile(sampled, [0.025, 0.975])
        found["rate"] = (math.log(before.mean() / after.mean()), float(low), float(high))
    return found


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerAudit:
    """The cloud that enters a layer.

    Attributes:
        layer: its number; the last cloud is that which leaves the last layer.
        head: the head of the layer whose subspace is nearest, or None if none has a limit.
        distance: mean geodesic distance of the tokens to that subspace.
        effective_rank: exp of the entropy of the eigenvalues of the second moments.
        mean_cosine: over all pairs of different tokens.
        change: W_1 to the next cloud, with its certified interval; None for the last.
        rate: -log(distance after / before) to this subspace in the layer, with a 95 % interval.
        predicted_rate: that of W_1 to the limit, for this head.
        unexplained: share of the step into this cloud that its heads do not explain.
        p_value: of that share being noise, corrected for the number of layers.
        flagged: whether the cloud deviates from what the heads predict.
        baseline_p: p-value of being like the baseline, corrected: the first cloud itself, of the
            others what the heads leave of the step into them; None without a baseline.
        drifted: whether it is not.
    """

    layer: int
    head: int | None
    distance: float | None
    effective_rank: float
    mean_cosine: float
    change: tuple[float, float, float] | None
    rate: tuple[float, float, float] | None
    predicted_rate: float | None
    unexplained: float | None
    p_value: float | None
    flagged: bool
    baseline_p: float | None = None
    drifted: bool = False


@dataclass(frozen=True)
class LifetimeEnd:
    """Where the lifetimes of the layers are used up.

    Attributes:
        depth: in layers; infinite if not before the last layer. None if no head has a limit.
        heads: over which it is taken, (layer, head): of each layer up to there the one with the
            longest lifetime among those with a limit.
    """

    depth: float | None
    heads: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, eq=False)
class TokenAudit:
    """All layers, and what they say together.

    Attributes:
        layers: the clouds.
        stop_depth: the first cloud from which on none changes by more than the tolerance.
        lifetime: where the predicted lifetime of the density ends.
        token_lifetime: the same for as many tokens as there are.
        tolerance: in radians.
        level: of the tests.
        count: the number of tokens.
        paired: whether the baseline has the same inputs; None without a baseline.
        notes: what else is to be said.
    """

    layers: tuple[LayerAudit, ...]
    stop_depth: int | None
    lifetime: LifetimeEnd
    token_lifetime: LifetimeEnd
    tolerance: float
    level: float
    count: int
    paired: bool | None
    notes: tuple[str, ...]


def audit_layers(
    encoder: Encoder,
    heads: Sequence[HeadAudit],
    given: MeasuredTokens,
    *,
    baseline: MeasuredTokens | None = None,
    tolerance: float = TOLERANCE,
    level: float = LEVEL,
    seed: int = 0,
) -> TokenAudit:
    """Hold measured tokens against the predictions.

    Args:
        encoder: the weights.
        heads: `audit_heads` of it.
        given: the tokens.
        baseline: tokens of the same layers when all was well.
        tolerance: in radians; a cloud that moves by less has stopped.
        level: of the tests.
        seed: of their shuffles.
    """
    tokens, count = given.tokens, given.tokens.shape[1]
    _check(encoder, tokens)
    by_layer = [[h for h in heads if h.layer == layer] for layer in range(encoder.layers)]
    residuals, shares = unexplained_steps(encoder, given, tolerance)
    kept = _kept(given, seed)
    units = _numbered(given.units[kept])
    p_values = symmetric([r[kept] for r in residuals], list(tokens[:-1, kept]), units, seed=seed)
    compared, paired = np.full(len(tokens), np.nan), None
    if baseline is not None:
        compared, paired = _against(encoder, given, baseline, residuals, shares, tolerance, seed)
    layers = []
    for t, cloud in enumerate(tokens):
        following = tokens[t + 1] if t + 1 < len(tokens) else None
        share, p = (shares[t - 1], float(p_values[t - 1])) if t else (None, None)
        layers.append(
            LayerAudit(
                layer=t,
                **concentration(by_layer[min(t, encoder.layers - 1)], cloud, following, seed),
                **spread(cloud),
                change=None if following is None else change(cloud[kept], following[kept]),
                unexplained=share,
                p_value=p,
                flagged=bool(share and p and share > UNEXPLAINED and p <= level),
                baseline_p=None if baseline is None else float(compared[t]),
                drifted=bool(compared[t] <= level),
            )
        )
    return TokenAudit(
        tuple(layers),
        _stop_depth(layers, tolerance),
        _lifetime_end(by_layer, lambda head: head.lifetime),
        _lifetime_end(by_layer, lambda head: head.token_lifetime(count)),
        tolerance,
        level,
        count,
        paired,
        _notes(encoder, given, baseline),
    )


def _against(
    encoder: Encoder,
    given: MeasuredTokens,
    baseline: MeasuredTokens,
    residuals: list[np.ndarray],
    shares: list[float],
    tolerance: float,
    seed: int,
) -> tuple[np.ndarray, bool]:
    """The p-value of each cloud being like the baseline's, and whether the inputs are the same."""
    tokens, others = given.tokens, baseline.tokens
    if others.shape[::2] != tokens.shape[::2]:
        raise InputError(
            f"the baseline must have as many layers and coordinates as the tokens, "
            f"{tokens.shape[0]} and {tokens.shape[2]}, got {others.shape[0]} and {others.shape[2]}"
        )
    paired = (
        others.shape == tokens.shape
        and np.array_equal(given.units, baseline.units)
        and bool(np.abs(others[0] - tokens[0]).max() <= SAME)
    )
    expected, other_shares = unexplained_steps(encoder, baseline, tolerance)
    kept, theirs = _kept(given, seed), _kept(baseline, seed)
    p_values = two_sample(
        [tokens[0, kept], *(r[kept] for r in residuals)],
        [others[0, theirs], *(r[theirs] for r in expected)],
        (_numbered(given.units[kept]), _numbered(baseline.units[theirs])),
        paired=paired,
        seed=seed,
    )
    explained = np.maximum(shares, other_shares) <= UNEXPLAINED
    p_values[1:][explained] = 1.0
    return p_values, paired


def _notes(
    encoder: Encoder, given: MeasuredTokens, baseline: MeasuredTokens | None
) -> tuple[str, ...]:
    notes = []
    if encoder.layers > 1 and len(given.tokens) == encoder.layers:
        notes.append("the tokens that leave the last layer are not given; its step is not judged")
    if given.tokens.shape[1] > MOST_TOKENS:
        notes.append(f"transport and shuffles take about {MOST_TOKENS} of the tokens, at random")
    if not given.independent:
        notes.append(
            "all tokens are taken for one sequence whose tokens attend to each other, and for "
            "independent where they are shuffled; the array 'sequence' says which belong together"
        )
    if baseline is not None and given.independent and given.sequences.max() < 20:
        notes.append("with fewer than 20 sequences the permutation test can find little")
    return tuple(notes)


def _check(encoder: Encoder, tokens: np.ndarray) -> None:
    if tokens.shape[2] != encoder.dimension:
        raise InputError(
            f"the tokens have {tokens.shape[2]} coordinates, those of the encoder "
            f"{encoder.dimension}"
        )
    if encoder.layers > 1 and len(tokens) not in (encoder.layers, encoder.layers + 1):
        raise InputError(
            f"tokens must be those that enter each of the {encoder.layers} layers, and those that "
            f"leave the last if they are known, got {len(tokens)} layers"
        )


def _kept(given: MeasuredTokens, seed: int) -> np.ndarray:
    """Which tokens transport and shuffles take: all, or whole units at random."""
    units = given.units
    if len(units) <= MOST_TOKENS:
        return np.arange(len(units))
    sizes = np.bincount(units)
    order = np.random.default_rng(seed).permutation(len(sizes))
    chosen = order[: max(1, int((np.cumsum(sizes[order]) <= MOST_TOKENS).sum()))]
    return np.flatnonzero(np.isin(units, chosen))


def _numbered(units: np.ndarray) -> np.ndarray:
    return np.unique(units, return_inverse=True)[1]


def _stop_depth(layers: Sequence[LayerAudit], tolerance: float) -> int | None:
    depth = None
    for layer in reversed(layers):
        if layer.change is not None:
            if layer.change[2] > tolerance:
                break
            depth = layer.layer
    return depth


def _lifetime_end(
    by_layer: Sequence[Sequence[HeadAudit]], lifetime: Callable[[HeadAudit], float | None]
) -> LifetimeEnd:
    """Where the lifetimes are used up.

    Each layer uses 1 / (the longest lifetime of its heads with a limit), and 0 if none has one.
    """
    longest: list[tuple[float, HeadAudit]] = []
    for layer in by_layer:
        known = [(life, h) for h in layer if h.limit and (life := lifetime(h)) is not None]
        if known:
            longest.append(max(known, key=lambda one: one[0]))
    heads = tuple((head.layer, head.head) for _, head in longest)
    if not longest:
        return LifetimeEnd(None)
    if len(by_layer) == 1:
        return LifetimeEnd(longest[0][0], heads)
    used = 0.0
    for number, (life, head) in enumerate(longest):
        rate = 0.0 if math.isinf(life) else 1 / max(life, 1e-300)
        if used + rate >= 1:
            return LifetimeEnd(head.layer + (1 - used) / rate, heads[: number + 1])
        used += rate
    return LifetimeEnd(math.inf, heads)
