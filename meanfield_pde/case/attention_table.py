"""The sections [attention] and [perceptron]: their tables in, an attention out, and back."""

from __future__ import annotations

import math
import reprlib
from pathlib import Path
from typing import Any

from meanfield_pde.attention.head import Attention, read_weights
from meanfield_pde.attention.heads import Heads, heads_of, perceptron_of, with_perceptron
from meanfield_pde.attention.layers import (
    MATRICES,
    AttentionLike,
    Layers,
    from_arrays,
    layers_of,
    stack,
)
from meanfield_pde.attention.perceptron import Perceptron
from meanfield_pde.errors import InputError
from meanfield_pde.support.checks import choice, input_path, known_keys, real

Table = dict[str, Any]

HEAD_KEYS = (*MATRICES, "beta")
ATTENTION_KEYS = (*HEAD_KEYS, "heads", "weights", "normalise", "layer_duration")
PERCEPTRON_KEYS = ("weights_in", "bias_in", "weights_out", "bias_out", "activation")


def attention_of(table: Table, folder: Path, perceptron: Table | None = None) -> AttentionLike:
    """The attention of a section [attention], in each layer with that of [perceptron].

    Args:
        table: the section.
        folder: files are named relative to it.
        perceptron: the section [perceptron], if there is one.
    """
    attention = _attention(table, folder)
    if perceptron is None:
        return attention
    beside = _perceptron(perceptron)
    if beside.dimension != attention.dimension:
        raise InputError(
            f"perceptron.weights_in must have as many columns as attention.value "
            f"({attention.dimension}), got {beside.dimension}"
        )
    layers = [with_perceptron(layer, beside) for layer in layers_of(attention)]
    return Layers(layers, attention.duration) if isinstance(attention, Layers) else layers[0]


def attention_table(attention: AttentionLike) -> Table:
    """The section [attention] that `attention_of` reads."""
    first = layers_of(attention)[0]
    normalise = {"normalise": attention.normalise}
    if isinstance(attention, Layers):
        betas = [_plain(head.beta) for head in heads_of(first)]
        several = isinstance(first, Heads) and len(betas) > 1
        return (
            {name: stack(attention, name).tolist() for name in MATRICES}
            | {"beta": betas if several else betas[0]}
            | normalise
            | {"layer_duration": attention.duration}
        )
    if len(heads_of(first)) > 1:
        return {"heads": [_head_table(head) for head in heads_of(first)]} | normalise
    return _head_table(heads_of(first)[0]) | normalise


def perceptron_table(attention: AttentionLike) -> Table:
    """The section [perceptron]; empty without one. That of all layers, if these have the same."""
    found = [perceptron_of(layer) for layer in layers_of(attention)]
    if any(one is not found[0] for one in found):
        raise InputError("a case file has one perceptron for all layers; these have several")
    if found[0] is None:
        return {}
    arrays = {name: getattr(found[0], name).tolist() for name in PERCEPTRON_KEYS[:-1]}
    return arrays | {"activation": found[0].activation}


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
            "attention.heads must be a list of tables "
            "{ query = ..., key = ..., value = ..., beta = ... }, " + f"got {reprlib.repr(given)}"
        )
    heads = []
    for i, table in enumerate(given):
        name = f"attention.heads[{i}]"
        known_keys(table, HEAD_KEYS, name)
        for key in HEAD_KEYS:
            if key not in table:
                raise InputError(f"{name}.{key} is missing")
        matrices: Table = {key: _matrix(table[key], f"{name}.{key}") for key in MATRICES}
        beta = _beta(table["beta"], f"{name}.beta")
        try:
            heads.append(Attention(**matrices, beta=beta, normalise=normalise))
        except InputError as error:
            raise InputError(str(error).replace("attention", name, 1)) from None
    return heads[0] if len(heads) == 1 else Heads(heads)


def _perceptron(table: Table) -> Perceptron:
    for key in ("weights_in", "weights_out"):
        if key not in table:
            raise InputError(f"perceptron.{key} is missing")
        _matrix(table[key], f"perceptron.{key}")
    for key in ("bias_in", "bias_out"):
        if key in table:
            _matrix([table[key]], f"perceptron.{key}")
    if "activation" in table:
        choice(table["activation"], "perceptron.activation", ("relu", "gelu", "tanh"))
    return Perceptron(**table)


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
        return _matrix(given, name)
    if axes > 4 or not isinstance(given, list):
        raise InputError(f"{name} must be a matrix, or one for each layer (and head)")
    return [_matrices(one, f"{name}[{i}]") for i, one in enumerate(given)]


def _matrix(given: Any, name: str) -> list[list[float]]:
    if not isinstance(given, list) or not all(isinstance(row, list) for row in given):
        raise InputError(
            f"{name} must be a matrix [[...], [...]], a list of rows, got {reprlib.repr(given)}"
        )
    rows = [
        [real(entry, f"{name}[{i}][{j}]", "a finite number") for j, entry in enumerate(row)]
        for i, row in enumerate(given)
    ]
    for i, row in enumerate(rows):
        if len(row) != len(rows[0]):
            raise InputError(
                f"{name} must have rows of equal length, got {len(rows[0])} entries in row 0 "
                f"and {len(row)} in row {i}"
            )
    return rows


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
