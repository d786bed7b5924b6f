"""The weights of an encoder, layer by layer, and `.npz` files of them.

A head is Q = query, K = key (d_head x d), and V = output value through d_head, or V = value, d x d.
The tokens of an encoder are layer-normalised, x = |x| u with u on the unit sphere, and its scores
are <Q x, K y> / sqrt(d_head). In the equation for u these are beta <Q u, K u'>, with

    beta = |x|^2 / sqrt(d_head),     |x|^2 = sum of the squared gains of the layer norm,

which is d where all gains are one. A layer adds V m(u) to u, and is the unit of time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde.attention.head import read_with_weights
from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import magnitudes
from meanfield_pde.support.npz import unused_arrays

ARRAYS = ("query", "key", "value", "output", "beta")


@dataclass(frozen=True, eq=False)
class HeadWeights:
    """One head.

    Attributes:
        query: Q, d_head x d.
        key: K, d_head x d.
        value: W_V, d_head x d, or V itself, d x d, where `output` is None.
        output: W_O, d x d_head, so that V = W_O W_V; or None.
        beta: inverse temperature, from 0 to infinity.
    """

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    output: np.ndarray | None
    beta: float

    @property
    def dimension(self) -> int:
        """Dimension d of the tokens."""
        return int(self.query.shape[1])

    @property
    def dense_value(self) -> np.ndarray:
        """V, d x d."""
        return self.value if self.output is None else self.output @ self.value


@dataclass(frozen=True, eq=False)
class Encoder:
    """The weights of all layers, each of which is read and converted when it is asked for.

    Attributes:
        path: the file or folder.
        family: what wrote it: "npz", "BERT", "RoBERTa", "DistilBERT".
        layers, heads: how many; heads are those of one layer.
        dimension: d.
        head_dimension: d_head.
        beta_from: where the inverse temperatures come from, in a sentence.
        notes: what of the encoder is left out, a sentence each.
        read: the heads of a layer, in double precision.
        positions: the largest number of tokens that the encoder takes, if it says so.
    """

    path: Path
    family: str
    layers: int
    heads: int
    dimension: int
    head_dimension: int
    beta_from: str
    notes: tuple[str, ...] = ()
    read: Callable[[int], list[HeadWeights]] = field(repr=False, kw_only=True)
    positions: int | None = None

    def layer(self, number: int) -> list[HeadWeights]:
        """The heads of a layer; InputError if its numbers are not finite."""
        heads = self.read(number)
        for i, head in enumerate(heads):
            for name in ("query", "key", "value", "output"):
                matrix = getattr(head, name)
                if matrix is None:
                    continue
                where = f"{self.path}: {name} of layer {number}, head {i}"
                try:
                    magnitudes(matrix, where)
                except InputError as error:
                    raise InputError(f"{error} (damaged, or the training diverged)") from None
        return heads


def default_beta(squared_norm: float, head_dimension: int) -> float:
    """The inverse temperature of tokens of this squared norm, scores being over sqrt(d_head)."""
    return squared_norm / math.sqrt(head_dimension)


def read_npz(path: Path) -> Encoder:
    """Weights from an `.npz` file; the leading axes, layers and heads, may be missing.

    Arrays of three axes are the heads of one layer.
    """
    arrays = read_with_weights(path)
    given: dict[str, np.ndarray] = {
        n: _checked(arrays[n], n, path) for n in ("query", "key", "value", "output") if n in arrays
    }
    head_dimension, d = given["query"].shape[-2:]
    shared, leading = _fitting(given, path)
    beta, source = _beta(arrays, leading, head_dimension, d, path)

    def read(layer: int) -> list[HeadWeights]:
        matrices = {name: array[layer].astype(float) for name, array in shared.items()}
        return [
            HeadWeights(
                matrices["query"][h],
                matrices["key"][h],
                matrices["value"][h],
                matrices["output"][h] if "output" in matrices else None,
                float(beta[layer, h]),
            )
            for h in range(leading[1])
        ]

    return Encoder(
        path,
        "npz",
        leading[0],
        leading[1],
        d,
        head_dimension,
        source,
        _unused(arrays),
        read=read,
    )


def _fitting(
    given: dict[str, np.ndarray], path: Path
) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
    """The arrays with all layers and heads each, and the numbers of these."""
    head_dimension, d = given["query"].shape[-2:]
    if d < 2:
        raise InputError(f"{path}: tokens have at least 2 coordinates, query has {d} columns")
    square = "output" not in given
    expected = {
        "query": (head_dimension, d),
        "key": (head_dimension, d),
        "value": (d, d) if square else (given["value"].shape[-2], d),
        "output": (d, given["value"].shape[-2]),
    }
    for name, matrix in given.items():
        if matrix.shape[-2:] != expected[name]:
            raise InputError(
                f"{path}: {name} must be {_x(expected[name])} for each head, as query is "
                f"{head_dimension} x {d}{' and there is no output' if square else ''}, "
                f"got {_x(matrix.shape[-2:])}"
            )
    try:
        leading = np.broadcast_shapes(*(matrix.shape[:2] for matrix in given.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {_x(matrix.shape)}" for name, matrix in given.items())
        raise InputError(
            f"{path}: the arrays differ in their numbers of layers or heads: {shapes}"
        ) from None
    if 0 in leading:
        raise InputError(f"{path}: the arrays hold no head")
    shared = {name: np.broadcast_to(m, leading + m.shape[2:]) for name, m in given.items()}
    return shared, leading


def _checked(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """The array with four axes, its numbers as they are stored."""
    if array.dtype.kind not in "iuf":
        raise InputError(f"{path}: {name} must hold real numbers, got type {array.dtype}")
    if not 2 <= array.ndim <= 4 or 0 in array.shape[-2:]:
        raise InputError(
            f"{path}: {name} must be a matrix for each head, [layers x [heads x]] rows x columns, "
            f"got shape {_x(array.shape)}"
        )
    return array.reshape((1,) * (4 - array.ndim) + array.shape)


def _beta(
    arrays: dict[str, np.ndarray], leading: tuple[int, ...], head_dimension: int, d: int, path: Path
) -> tuple[np.ndarray, str]:
    if "beta" not in arrays:
        value = default_beta(d, head_dimension)
        source = (
            f"beta = d / sqrt(d_head) = {value:.6g}, the squared norm of layer-normalised tokens "
            "(gain 1, as the file has none) over sqrt(d_head)"
        )
        return np.full(leading, value), source
    beta = arrays["beta"]
    if beta.dtype.kind not in "iuf" or not (beta >= 0).all():
        raise InputError(f"{path}: beta must be numbers >= 0 (or infinite)")
    try:
        return np.broadcast_to(beta.astype(float), leading), "beta as given in the file"
    except ValueError:
        raise InputError(
            f"{path}: beta must be one number, one for each head, or layers x heads "
            f"({_x(leading)}), got shape {_x(beta.shape)}"
        ) from None


def _unused(arrays: dict[str, np.ndarray]) -> tuple[str, ...]:
    unused = unused_arrays(arrays, ARRAYS)
    return (unused,) if unused else ()


def _x(shape: tuple[Any, ...]) -> str:
    return " x ".join(map(str, shape)) or "()"
