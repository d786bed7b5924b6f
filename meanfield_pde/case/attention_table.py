"""The section [attention], and those of terms beside it: tables in, an attention out, and back."""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from meanfield_pde.attention.field import ConstantField
from meanfield_pde.attention.head import Attention, read_weights
from meanfield_pde.attention.heads import Heads
from meanfield_pde.attention.layers import (
    MATRICES,
    AttentionLike,
    from_arrays,
    stack,
    with_layers,
)
from meanfield_pde.attention.perceptron import Perceptron
from meanfield_pde.attention.term import TermBeside
from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import input_path, known_keys, matrix_rows, real

Table = dict[str, Any]

HEAD_KEYS = (*MATRICES, "beta")
ATTENTION_KEYS = (*HEAD_KEYS, "heads", "weights", "normalise", "layer_duration")
# Terms beside the heads, by their sections: a new one is a class, and a line here.
TERMS: dict[str, type[TermBeside]] = {one.section: one for one in (Perceptron, ConstantField)}


def attention_of(
    table: Table | None, folder: Path, beside: Mapping[str, Table] | None = None
) -> AttentionLike:
    """The attention of a section [attention], in each layer with the terms beside it.

    Args:
        table: the section; None for the terms alone.
        folder: files are named relative to it.
        beside: the sections of the terms beside it, such as [perceptron].
    """
    terms = [TERMS[name].from_table(section) for name, section in (beside or {}).items()]
    if table is None:
        return Heads((), None, terms)
    attention = _attention(table, folder)
    if not terms:
        return attention
    for term in terms:
        if term.dimension not in (None, attention.dimension):
            raise InputError(
                f"[{term.section}] is in dimension {term.dimension}, but attention.value is "
                f"{attention.dimension} x {attention.dimension}"
            )
    return with_layers(attention, [Heads(layer.heads, None, terms) for layer in attention.layers])


def attention_table(attention: AttentionLike) -> Table:
    """The section [attention] that `attention_of` reads."""
    first = attention.layers[0]
    normalise = {"normalise": attention.normalise}
    if math.isfinite(attention.duration):
        betas = [_plain(head.beta) for head in first.heads]
        several = len(betas) > 1
        return (
            {name: stack(attention, name).tolist() for name in MATRICES}
            | {"beta": betas if several else betas[0]}
            | normalise
            | {"layer_duration": attention.duration}
        )
    if len(first.heads) > 1:
        return {"heads": [_head_table(head) for head in first.heads]} | normalise
    return _head_table(first.heads[0]) | normalise


def tables_beside(attention: AttentionLike) -> dict[str, Table]:
    """The sections of the terms beside the heads, which all layers share; InputError unless so."""
    first, *others = (layer.beside for layer in attention.layers)
    for beside in others:
        if len(beside) != len(first) or any(map(operator.is_not, first, beside)):
            raise InputError(
                "a case file has the same terms beside the heads in all layers; these have several"
            )
    tables = {term.section: term.table() for term in first}
    if len(tables) < len(first):
        raise InputError(
            "a case file has one section for each kind of term beside the heads, got "
            f"{' and '.join(term.noun for term in first)}"
        )
    return tables


def _attention(table: Table, folder: Path) -> AttentionLike:
    if "heads" in table:
        _exclude(table, "heads", (*HEAD_KEYS, "weights", "layer_duration"))
        return _heads(table["heads"], table.get("normalise", True))
    matrices: Table
    if "weights" in table:
        _exclude(table, "weights", MATRICES)
        matrices = read_weights(input_path(table["weights"], "attention.weights", folder))
    else:
        matrices = {name: _matrices(table[name], f"attention.{name}") for name in MATRICES}
    return from_arrays(
        matrices,
        _betas(table["beta"]),
        normalise=table.get("normalise", True),
        layer_duration=table.get("layer_duration"),
    )


def _heads(given: Any, normalise: Any) -> AttentionLike:
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise InputError(
            "attention.heads must be a list of tables, a section [[attention.heads]] in double "
            "brackets for each, with query, key, value and beta, "
            f"got {reprlib.repr(given)}"
        )
    heads = []
    for i, table in enumerate(given):
        name = f"attention.heads[{i}]"
        known_keys(table, HEAD_KEYS, name)
        for key in HEAD_KEYS:
            if key not in table:
                raise InputError(f"{name}.{key} is missing")
        matrices: Table = {key: matrix_rows(table[key], f"{name}.{key}") for key in MATRICES}
        beta = _beta(table["beta"], f"{name}.beta")
        try:
            heads.append(Attention(**matrices, beta=beta, normalise=normalise))
        except InputError as error:
            raise InputError(str(error).replace("attention", name, 1)) from None
    return heads[0] if len(heads) == 1 else Heads(heads)


def _exclude(table: Table, key: str, others: tuple[str, ...]) -> None:
    for other in others:
        if other in table:
            raise InputError(f"[attention] give {key} or {other}, not both")


def _matrices(given: Any, name: str) -> Any:
    """A matrix, a list of them for each layer, or a list of lists for each layer and head."""
    first, axes = given, 0
    while isinstance(first, list) and first:
        first, axes = first[0], axes + 1
    if axes <= 2:
        return matrix_rows(given, name)
    if axes > 4 or not isinstance(given, list):
        raise InputError(f"{name} must be a matrix, or one for each layer (and head)")
    return [_matrices(one, f"{name}[{i}]") for i, one in enumerate(given)]


def _betas(given: Any) -> float | list[float]:
    if isinstance(given, list):
        return [_beta(one, f"attention.beta[{i}]") for i, one in enumerate(given)]
    return _beta(given, "attention.beta")


def _beta(given: Any, name: str) -> float:
    if given in ("inf", math.inf):
        return math.inf
    return real(given, name, 'a number >= 0 or "inf"', lambda beta: beta >= 0)


def _head_table(head: Attention) -> Table:
    matrices = {name: getattr(head, name).tolist() for name in MATRICES}
    return matrices | {"beta": _plain(head.beta)}


def _plain(beta: float) -> float | str:
    return "inf" if math.isinf(beta) else beta
