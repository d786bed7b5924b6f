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

from meanfield_pde.attention.head import Attention
from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import real

MATRICES = ("query", "key", "value")
# A time this part of a layer away from the end of one is meant to be there: 7 * 0.7 < 4.9.
_BOUNDARY = 1e-9


@dataclass(frozen=True, eq=False)
class Layers:
    """A sequence of attentions, each of which acts for the same length of time.

    Attributes:
        attentions: the layers in order.
        duration: the length of time for which each acts.
    """

    attentions: Sequence[Attention]
    duration: float

    def __post_init__(self) -> None:
        layers = tuple(self.attentions)
        if not layers:
            raise InputError("attention needs at least one layer")
        dimensions = sorted({layer.dimension for layer in layers})
        if len(dimensions) > 1:
            raise InputError(f"all layers must have the same dimension, got d = {dimensions}")
        if len({layer.normalise for layer in layers}) > 1:
            raise InputError("all layers must have the same choice of attention.normalise")
        betas = sorted({layer.beta for layer in layers})
        if len(betas) > 1:
            raise InputError(
                f"all layers must have the same beta, got {betas}; scale their keys instead"
            )
        duration = real(
            self.duration, "attention.layer_duration", "a number > 0", lambda length: length > 0
        )
        object.__setattr__(self, "attentions", layers)
        object.__setattr__(self, "duration", duration)

    @property
    def dimension(self) -> int:
        """Dimension d of the space; tokens live on the sphere S^(d-1)."""
        return self.attentions[0].dimension

    @property
    def beta(self) -> float:
        """Inverse temperature of all layers."""
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


AttentionLike = Attention | Layers


def pieces(
    attention: AttentionLike, start: float, until: float
) -> list[tuple[Attention, float, float]]:
    """The attentions that act between two times, each with the times at which it begins and ends.

    InputError if the layers end before `until`.
    """
    if isinstance(attention, Attention):
        return [(attention, start, until)]
    layers, duration = attention.attentions, attention.duration
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


def acting(attention: AttentionLike, time: float) -> Attention:
    """The attention that acts up to a time."""
    if isinstance(attention, Attention):
        return attention
    return attention.attentions[_layer_up_to(attention, time)]


def _layer_from(layers: Layers, time: float) -> int:
    """Number of the layer that acts from a time on; a time next to a boundary is one."""
    return min(math.floor(time / layers.duration + _BOUNDARY), len(layers.attentions) - 1)


def _layer_up_to(layers: Layers, time: float) -> int:
    """Number of the layer that acts up to a time."""
    number = math.ceil(time / layers.duration - _BOUNDARY) - 1
    return min(max(number, 0), len(layers.attentions) - 1)


def layers_of(attention: AttentionLike) -> Sequence[Attention]:
    """The layers, of which a single attention is one."""
    return attention.attentions if isinstance(attention, Layers) else (attention,)


def single(attention: AttentionLike, what: str) -> Attention:
    """The attention, for what makes no sense with layers; InputError if there are several."""
    layers = layers_of(attention)
    if len(layers) > 1:
        raise InputError(
            f"{what} needs an attention that does not change, got {len(layers)} layers"
        )
    return layers[0]


def from_arrays(
    arrays: Mapping[str, Any],
    beta: float,
    *,
    normalise: bool = True,
    layer_duration: float | None = None,
) -> AttentionLike:
    """The attention of arrays query, key and value; `Layers` if these have a leading layer axis.

    A matrix without that axis is the same in all layers.
    """
    depth = {name: _depth(arrays[name], name) for name in MATRICES}
    counts = sorted({count for count in depth.values() if count is not None})
    if not counts:
        if layer_duration is not None:
            raise InputError(
                "attention.layer_duration applies to matrices with a leading layer axis only"
            )
        return Attention(arrays["query"], arrays["key"], arrays["value"], beta, normalise)
    if len(counts) > 1:
        found = ", ".join(f"{name} {count}" for name, count in depth.items() if count is not None)
        raise InputError(f"attention: the numbers of layers differ: {found}")
    if layer_duration is None:
        raise InputError(
            f"attention.layer_duration is missing: for how long does each of the {counts[0]} "
            "layers act?"
        )
    layers = []
    for i in range(counts[0]):
        query, key, value = (
            arrays[name] if depth[name] is None else arrays[name][i] for name in MATRICES
        )
        try:
            layers.append(Attention(query, key, value, beta, normalise))
        except InputError as error:
            raise InputError(f"layer {i}: {error}") from None
    return Layers(layers, layer_duration)


def _depth(array: Any, name: str) -> int | None:
    """Number of layers along a leading axis; None without one."""
    try:
        shape = np.shape(array)
    except ValueError:
        raise InputError(
            f"attention.{name} must be a matrix of numbers whose rows have equal length"
        ) from None
    if len(shape) > 3 or (len(shape) == 3 and not shape[0]):
        raise InputError(f"attention.{name} must be a matrix, or one for each layer, got {shape}")
    return shape[0] if len(shape) == 3 else None


def stack(attention: AttentionLike, name: str) -> np.ndarray:
    """The matrices of this name: as they are, or with a leading layer axis."""
    if isinstance(attention, Attention):
        return getattr(attention, name)
    return np.stack([getattr(layer, name) for layer in attention.attentions])
