"""What is said of one cloud of tokens, and of its way to the next."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meanfield_pde.audit.heads import HeadAudit
from meanfield_pde.wasserstein import wasserstein
from meanfield_pde.wasserstein.measure import Measure

_BOOTSTRAPS = 400
_TIME_LIMIT = 10.0  # seconds for one distance; its interval holds whenever it is stopped
_RTOL = 1e-6
_NEAREST = 1e-12


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
