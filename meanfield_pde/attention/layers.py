"""Layers: attention that is piecewise constant in time, as in a network of different layers.

    layer l acts for   l duration <= t < (l + 1) duration.

Whoever integrates in time asks for `pieces`, and thereby stops at every change of the matrices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meanfield_pde.attention.head import MATRICES, Attention
from meanfield_pde.attention.heads import Heads, Layer, is_one_head
from meanfield_pde.errors import InputError
from meanfield_pde.support.arguments import check_fields
from meanfield_pde.support.checks import real

# A time this part of a layer away from the end of one is meant to be there, as 7 * 0.7 < 4.9: a
# million layers still come to it with their roundings.
_BOUNDARY = 1e-9


@dataclass(frozen=True, eq=False)
class Layers:
    """A sequence of attentions, each of which acts for the same length of time.

    Attributes:
        attentions: the layers in order, each an `Attention` or several `Heads`.
        duration: the length of time for which each acts.
    """

    attentions: Sequence[Layer]
    duration: float

    def __post_init__(self) -> None:
        check_fields(self, "attention.")
        layers = tuple(self.attentions)
        if not layers:
            raise InputError("attention needs at least one layer")
        dimensions = sorted({layer.dimension for layer in layers})
        if len(dimensions) > 1:
            raise InputError(f"all layers must have the same dimension, got d = {dimensions}")
        if len({layer.normalise for layer in layers}) > 1:
            raise InputError("all layers must have the same choice of attention.normalise")
        counts = sorted({len(layer.heads) for layer in layers})
        if len(counts) > 1:
            raise InputError(f"all layers must have the same number of heads, got {counts}")
        betas = sorted({tuple(head.beta for head in layer.heads) for layer in layers})
        if len(betas) > 1:
            found = [one[0] if len(one) == 1 else list(one) for one in betas]
            raise InputError(
                f"all layers must have the same beta, got {found}; scale their keys instead"
            )
        duration = real(
            self.duration, "attention.layer_duration", "a number > 0", lambda length: length > 0
        )
        object.__setattr__(self, "attentions", layers)
        object.__setattr__(self, "duration", duration)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers."""
        return tuple(self.attentions)

    @property
    def dimension(self) -> int:
        """Dimension d of the space; tokens live on the sphere S^(d-1)."""
        return self.attentions[0].dimension

    @property
    def beta(self) -> float:
        """Inverse temperature of all layers; nan where that of their heads differs."""
        return self.attentions[0].beta

    @property
    def normalise(self) -> bool:
        """Whether the softmax of all layers has its denominator."""
        return self.attentions[0].normalise

    @property
    def end(self) -> float:
        """The time at which the last layer ends."""
        return len(self.attentions) * self.duration

    def with_beta(self, beta: float) -> Layers:
        """The same matrices at another inverse temperature."""
        return Layers([layer.with_beta(beta) for layer in self.attentions], self.duration)


AttentionLike = Layer | Layers


def pieces(
    attention: AttentionLike, start: float, until: float
) -> list[tuple[Layer, float, float]]:
    """The attentions that act between two times, each with the times at which it begins and ends.

    InputError if the layers end before `until`.
    """
    layers, duration = attention.layers, attention.duration
    if math.isinf(duration):
        return [(layers[0], start, until)]
    if until > attention.end * (1 + 1e-12):
        raise InputError(
            f"time.until = {until:g} is beyond the last of the {len(layers)} layers, which ends at "
            f"t = {attention.end:g}; give more layers or a longer attention.layer_duration"
        )
    if start < 0:
        raise InputError(f"layers act from t = 0 on, got the time {start:g}")
    first, last = _layer_from(attention, start), _layer_up_to(attention, until)
    if first > last:  # nothing left to do: `start` is `until`, where a layer ends
        return [(layers[last], start, until)]
    times = [start, *(i * duration for i in range(first + 1, last + 1)), until]
    return list(zip(layers[first : last + 1], times[:-1], times[1:], strict=True))


def acting(attention: AttentionLike, time: float) -> Layer:
    """The attention that acts up to a time."""
    return attention.layers[_layer_up_to(attention, time)]


def _layer_from(attention: AttentionLike, time: float) -> int:
    """Number of the layer that acts from a time on; a time next to a boundary is one."""
    number = math.floor(time / attention.duration + _BOUNDARY)
    return min(number, len(attention.layers) - 1)


def _layer_up_to(attention: AttentionLike, time: float) -> int:
    """Number of the layer that acts up to a time."""
    number = math.ceil(time / attention.duration - _BOUNDARY) - 1
    return min(max(number, 0), len(attention.layers) - 1)


def with_layers(attention: AttentionLike, layers: Sequence[Layer]) -> AttentionLike:
    """The same schedule of other layers."""
    return layers[0] if math.isinf(attention.duration) else Layers(layers, attention.duration)


def single(attention: AttentionLike, what: str) -> Attention:
    """The attention, for what makes no sense with layers or heads; InputError if several."""
    layers = attention.layers
    if len(layers) > 1:
        raise InputError(
            f"{what} needs an attention that does not change, got {len(layers)} layers"
        )
    if not is_one_head(layers[0]):
        several = [f"{len(layers[0].heads)} heads"] if len(layers[0].heads) > 1 else []
        found = " and ".join([*several, *(term.noun for term in layers[0].beside)])
        raise InputError(f"{what} needs one head alone, got {found}")
    return layers[0].heads[0]


def from_arrays(
    arrays: Mapping[str, Any],
    beta: float | Sequence[float],
    *,
    normalise: bool = True,
    layer_duration: float | None = None,
) -> AttentionLike:
    """The attention of arrays query, key and value.

    With three axes these are layers x k x d, with four layers x heads x k x d; heads alone have a
    first axis of length one. A matrix without these axes is the same in all layers and heads.

    Args:
        arrays: query, key and value.
        beta: inverse temperature, or that of each head.
        normalise: whether the softmax has its denominator.
        layer_duration: for how long each layer acts.
    """
    axes = {name: _axes(arrays[name], name) for name in MATRICES}
    layers = _common(axes, 0, "layers")
    heads = _common(axes, 1, "heads")
    if isinstance(beta, Sequence) and not heads:
        raise InputError(
            f"attention.beta must be one number, got {list(beta)}; a list is for matrices of "
            "several heads, layers x heads x k x d"
        )
    betas = [*beta] if isinstance(beta, Sequence) else [beta] * (heads or 1)
    if len(betas) != (heads or 1):
        raise InputError(
            f"attention.beta must be one number, or one for each of the {heads or 1} heads, "
            f"got {len(betas)}"
        )

    def layer(i: int) -> Layer:
        found = []
        for h in range(heads or 1):
            query, key, value = (_at(arrays[name], (i, h)[: len(axes[name])]) for name in MATRICES)
            found.append(Attention(query, key, value, betas[h], normalise))
        return Heads(found) if heads else found[0]

    if layer_duration is None and (layers is None or (heads and layers == 1)):
        return layer(0)
    if layers is None:
        raise InputError(
            "attention.layer_duration applies to matrices with a leading layer axis only"
        )
    if layer_duration is None:
        raise InputError(
            f"attention.layer_duration is missing: for how long does each of the {layers} "
            "layers act?"
        )
    stacked = []
    for i in range(layers):
        try:
            stacked.append(layer(i))
        except InputError as error:
            raise InputError(f"layer {i}: {error}") from None
    return Layers(stacked, layer_duration)


def _at(array: Any, index: Sequence[int]) -> Any:
    """An entry of an array or of a nested list."""
    for i in index:
        array = array[i]
    return array


def _axes(array: Any, name: str) -> tuple[int, ...]:
    """Lengths of the axes before those of the matrix: none, layers, or layers and heads."""
    try:
        shape = np.shape(array)
    except ValueError:
        raise InputError(
            f"attention.{name} must be a matrix of numbers whose rows have equal length"
        ) from None
    if len(shape) > 4 or 0 in shape[:-2]:
        raise InputError(
            f"attention.{name} must be a matrix, or one for each layer (and each head), got {shape}"
        )
    return tuple(shape[:-2])


def _common(axes: Mapping[str, tuple[int, ...]], axis: int, what: str) -> int | None:
    """The length of an axis in the matrices that have it; None if none has."""
    found = {name: lengths[axis] for name, lengths in axes.items() if len(lengths) > axis}
    if len(set(found.values())) > 1:
        counts = ", ".join(f"{name} {count}" for name, count in found.items())
        raise InputError(f"attention: the numbers of {what} differ: {counts}")
    return next(iter(found.values()), None)


def stack(attention: AttentionLike, name: str) -> np.ndarray:
    """The matrices of this name: as they are, or with the axes that `from_arrays` reads.

    Where heads differ in their number of rows, query and key get rows of zeros, which change
    nothing.
    """
    layers = attention.layers
    table = [[getattr(head, name) for head in layer.heads] for layer in layers]
    if len(table[0]) == 1:
        matrices = [row[0] for row in table]
        return matrices[0] if math.isinf(attention.duration) else np.stack(matrices)
    rows = max(len(matrix) for row in table for matrix in row)
    return np.array(
        [[np.pad(matrix, ((0, rows - len(matrix)), (0, 0))) for matrix in row] for row in table]
    )
