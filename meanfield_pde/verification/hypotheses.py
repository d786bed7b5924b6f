"""Wrong codes that differ from the right one by no number: masks, projections, mixed matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.heads import Heads, Layer, with_heads
from meanfield_pde.attention.layers import AttentionLike, with_layers
from meanfield_pde.errors import InputError
from meanfield_pde.verification.codes import Code, changed

_CHANGES: tuple[tuple[str, Callable[[Attention], Attention]], ...] = (
    (
        "Q and K swapped, <x, B y> with B transposed",
        lambda head: replace(head, query=head.key, key=head.query),
    ),
    ("V transposed", lambda head: replace(head, value=head.value.T)),
    ("-V instead of V", lambda head: replace(head, value=-head.value)),
    ("a softmax without its denominator", lambda head: replace(head, normalise=False)),
    ("a softmax with its denominator", lambda head: replace(head, normalise=True)),
    ("zero temperature", lambda head: head.with_beta(math.inf)),
)


def hypotheses(right: Code) -> Iterator[tuple[str, Code]]:
    """Codes that differ from the right one by no number, and what they are called."""
    yield "a causal mask", replace(right, mask="causal")
    yield "tokens that do not attend to themselves", replace(right, mask="no self")
    yield (
        "the projection v - <x, v> v in the place of v - <x, v> x",
        replace(right, push="onto itself"),
    )
    yield "the projection v + <x, v> x in the place of v - <x, v> x", replace(right, push="plus")
    yield "a projection with <x, v> summed over all tokens", replace(right, push="mixed")
    if right.masses is not None:
        yield "weights of the tokens that are left out", replace(right, masses=None)
    yield from _left_out(right)
    for name, change in _CHANGES:
        try:
            attention = changed(right.attention, change)
        except InputError:
            continue
        if not _same(attention, right.attention):
            yield name, replace(right, attention=attention)


def _left_out(right: Code) -> Iterator[tuple[str, Code]]:
    """Codes in which one of several heads is left out, or the perceptron."""
    layers = right.attention.layers

    def without(change: Callable[[Layer], Layer]) -> Code:
        fewer = with_layers(right.attention, [change(layer) for layer in layers])
        return replace(right, attention=fewer)

    count = len(layers[0].heads)
    for h in range(count if count > 1 else 0):
        yield (
            f"head {h} (from 0) that is left out",
            without(lambda one, h=h: with_heads(one, [*one.heads[:h], *one.heads[h + 1 :]])),  # type: ignore[misc]
        )
    for k, term in enumerate(layers[0].beside):
        yield (
            f"the {term.noun.split(' ', 1)[1]} that is left out",
            without(lambda one, k=k: Heads(one.heads, None, _but(one.beside, k))),  # type: ignore[misc]
        )


def _but[T](items: Sequence[T], k: int) -> list[T]:
    """All items but that of this number."""
    return [*items[:k], *items[k + 1 :]]


def _same(one: AttentionLike, other: AttentionLike) -> bool:
    return all(
        a.beta == b.beta
        and a.normalise == b.normalise
        and np.allclose(a.key_query, b.key_query, rtol=0, atol=1e-12)
        and np.allclose(a.value, b.value, rtol=0, atol=1e-12)
        for before, after in zip(one.layers, other.layers, strict=True)
        for a, b in zip(before.heads, after.heads, strict=True)
    )
