"""Tokens of each layer, as they were measured, and the steps that heads make of them."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from meanfield_pde.attention.sum import softmax
from meanfield_pde.audit.weights import Encoder, HeadWeights
from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import numbers
from meanfield_pde.support.npz import read_arrays, unused_arrays

LOG = logging.getLogger("meanfield_pde")

# Below this cosine (beyond 78 degrees) a step is far, and its chord is taken instead of its end on
# the tangent plane, which would be about 5 long or longer.
_FAR = 0.2


@dataclass(frozen=True, eq=False)
class MeasuredTokens:
    """Clouds by layers.

    Attributes:
        tokens: layers x N x d, on the unit sphere.
        sequences: the sequence of each token, 0, 1, ...; tokens attend to those of their own.
        independent: whether the sequences were given; otherwise all tokens are one sequence, but
            are taken for independent where they are shuffled.
    """

    tokens: np.ndarray
    sequences: np.ndarray
    independent: bool

    @property
    def units(self) -> np.ndarray:
        """The unit of each token that is shuffled: its sequence, or itself."""
        return self.sequences if self.independent else np.arange(self.tokens.shape[1])


def read_layers(path: str | Path) -> MeasuredTokens:
    """Tokens from an `.npz`: `tokens` (layers x N x d, any norm) and, optional, `sequence` (N)."""
    try:
        arrays = read_arrays(path)
        if "tokens" not in arrays:
            raise InputError(f"the array 'tokens' is missing; found {sorted(arrays)}")
        if unused := unused_arrays(arrays, ("tokens", "sequence")):
            LOG.warning("%s: %s", path, unused)
        return measured(arrays["tokens"], arrays.get("sequence"))
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def measured(given: np.ndarray, sequence: np.ndarray | None = None) -> MeasuredTokens:
    """Tokens (layers x N x d) of any norm, put on the unit sphere."""
    tokens = numbers(given, "tokens")
    if tokens.ndim != 3 or min(tokens.shape) < 2:
        raise InputError(
            f"tokens must be layers x N x d, two or more of each, got shape {tokens.shape}"
        )
    largest = np.abs(tokens).max(axis=2, keepdims=True)
    wrong = np.argwhere(~(np.isfinite(largest) & (largest > 0)))
    if len(wrong):
        raise InputError(
            f"token {wrong[0][1]} of layer {wrong[0][0]} has no direction, zero or not finite"
        )
    tokens = tokens / largest  # squares of very large or small numbers would be lost
    tokens /= np.linalg.norm(tokens, axis=2, keepdims=True)
    if sequence is None:
        return MeasuredTokens(tokens, np.zeros(tokens.shape[1], dtype=int), False)
    sequence = np.asarray(sequence)
    if sequence.shape != tokens.shape[1:2] or sequence.dtype.kind not in "iu":
        raise InputError(
            f"sequence must be {tokens.shape[1]} whole numbers, one for each token, got shape "
            f"{sequence.shape} of type {sequence.dtype}"
        )
    numbered = np.unique(sequence, return_inverse=True)[1]
    return MeasuredTokens(tokens, numbered, bool(numbered.max() > 0))


def velocity(heads: Sequence[HeadWeights], x: np.ndarray, sequences: np.ndarray) -> np.ndarray:
    """P_x sum_h V_h m_h(x) at each token, through the thin matrices of each head."""
    push = np.zeros_like(x)
    for sequence in range(int(sequences.max()) + 1):
        own = sequences == sequence
        cloud = x[own]
        equal = np.full(len(cloud), -math.log(len(cloud)))
        for head in heads:
            mean, _ = softmax(head.beta * ((cloud @ head.query.T) @ head.key), cloud, equal)
            pushed = mean @ head.value.T
            push[own] += pushed if head.output is None else pushed @ head.output.T
    return _tangent(push, x)


def unexplained_steps(
    encoder: Encoder, measured: MeasuredTokens, tolerance: float
) -> tuple[list[np.ndarray], list[float]]:
    """Of each step from a cloud to the next: what no length of time explains, and its share.

    The first is relative to the length of the steps; both are small where a cloud moves by less
    than the tolerance.
    """
    residuals, shares = [], []
    heads: list[HeadWeights] = []
    for t in range(len(measured.tokens) - 1):
        if t == 0 or encoder.layers > 1:
            heads = encoder.layer(t)
            if any(math.isinf(head.beta) for head in heads):
                raise InputError("measured tokens need a finite beta; give that of the encoder")
        x, y = measured.tokens[t], measured.tokens[t + 1]
        cosine = (x * y).sum(axis=1, keepdims=True)
        near = cosine > _FAR
        step = np.where(near, y / np.where(near, cosine, 1.0) - x, _tangent(y - x, x))
        end = _tangent(velocity(heads, y, measured.sequences), x)
        columns = np.stack([velocity(heads, x, measured.sequences).ravel(), end.ravel()], axis=1)
        times, _ = nnls(columns, step.ravel())
        residual = step - (columns @ times).reshape(step.shape)
        size = (step**2).sum() + len(x) * tolerance**2
        residuals.append(residual / math.sqrt(size / len(x)))
        shares.append(float((residual**2).sum() / size))
    return residuals, shares


def _tangent(vectors: np.ndarray, x: np.ndarray) -> np.ndarray:
    return vectors - (vectors * x).sum(axis=1, keepdims=True) * x
