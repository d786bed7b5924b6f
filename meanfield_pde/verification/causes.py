"""Why trajectories are not those of the equation: the smallest change of it that explains them.

A change explains the tokens if what it leaves is left to rounding, and a small part of what the
equation with honest steps leaves. Changes are tried in the order of how many numbers they fit, and
the first number that suffices ends the search: all changes with no more than that many that explain
the tokens cannot be distinguished, and are named together. Steps are found anew for each change.

    none    masks, projections, V transposed or negative, Q and K swapped, with or without the
            denominator, tokens that do not move
    one     beta; the scale of V, which is that of time
    some    V, and then only those of its entries that differ; beta Q^T K
    steps   stale means, a denominator left out now and then (`stepping`)

With several heads, or a perceptron, numbers could be fitted that are those of no code: only the
changes without any are tried, a head or the perceptron left out among them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.verification.codes import Code, changed, has_jumps
from meanfield_pde.verification.fitting import Fitted, first_value, fit_with_steps, refined
from meanfield_pde.verification.hypotheses import hypotheses
from meanfield_pde.verification.rough_fit import Parameters
from meanfield_pde.verification.screening import Screen, most_left
from meanfield_pde.verification.stepping import faulty_steps
from meanfield_pde.verification.trajectories import Trajectories

# A change explains the tokens if it leaves at most this part of what honest steps leave (chosen,
# not tuned, as all numbers to the end of this list).
FITS = 0.05
# Steps have no fault where honest ones explain all but this part of the defect.
HONEST = 0.1
# A token that came no further than this while it should have come this far does not move.
STILL, MOVED = 1e-9, 1e-3
# An entry differs if it does by more than this part of the largest one, and its interval.
DIFFERS = 1e-3
# A number whose interval is wider than this part of the largest is none that explains tokens.
VAGUE = 1e-3
# Methods whose steps are looked for with each change: those of most codes, a bound on the cost.
_FIT_METHODS = ("euler", "layers")


@dataclass(frozen=True, eq=False)
class Cause:
    """What explains the tokens.

    Attributes:
        name: in words, with values and intervals; alternatives are joined by "or".
        left: mean defect that it leaves.
        fitted: what was fitted: name, value, half width of the interval, value of the case.
    """

    name: str
    left: float
    fitted: tuple[dict[str, Any], ...] = field(default=())


def find_cause(trajectories: Trajectories, left: float) -> Cause | None:
    """The smallest change that explains the tokens, or None.

    Args:
        trajectories: the tokens.
        left: the mean defect that honest steps leave.
    """
    most = min(trajectories.limit, FITS * left)
    fits = (_one_number, _matrices) if one_head(trajectories) else ()
    stepping = (_faulty_steps,) if left > HONEST * trajectories.defect else ()
    for search in (_plain, *fits, *stepping):
        found = [one for one in search(trajectories) if one.left <= most and not _vague(one)]
        if found:
            names = " or ".join(dict.fromkeys(one.name for one in found))
            fitted = tuple(number for one in found for number in one.fitted)
            return Cause(names, min(one.left for one in found), fitted)
    return None


def _vague(cause: Cause) -> bool:
    """Whether the tokens leave open what was fitted, though it explains them to rounding.

    Tokens that have come together are explained by any number that brings them together.
    """
    sizes = [max(abs(number["value"]), abs(number["case"])) for number in cause.fitted]
    return any(number["error"] > VAGUE * max(sizes) for number in cause.fitted)


def one_head(trajectories: Trajectories) -> list[Attention]:
    """The heads of the layers, if each layer is one head; else none, and no number is fitted."""
    layers = trajectories.right.attention.layers
    return [layer for layer in layers if isinstance(layer, Attention)]


def _plain(trajectories: Trajectories) -> Iterator[Cause]:
    """Changes that fit no number."""
    right, screen = trajectories.right, Screen(trajectories)
    still = frozen_tokens(trajectories)
    if still.any():
        name = f"{still.sum()} of {len(still)} tokens do not move"
        yield _stepped(screen, replace(right, frozen=still), name)
    for name, code in hypotheses(right):
        yield _stepped(screen, code, name)


def _stepped(screen: Screen, code: Code, name: str) -> Cause:
    """A change with the steps that go with it best."""
    trajectories = screen.trajectories
    rough = screen(code)
    jumps = has_jumps(code.attention)  # then our own steps are no better than those of the tokens
    if rough.left > most_left(trajectories) and not jumps:
        return Cause(name, math.inf)
    found = trajectories.with_steps(code, _FIT_METHODS, None if jumps else rough.step or None)
    return Cause(name, found.size)


def frozen_tokens(trajectories: Trajectories) -> np.ndarray:
    """Which tokens stay where they are at all times, though the equation moves them."""
    tokens = trajectories.tokens
    came = np.linalg.norm(tokens - tokens[0], axis=2).max(axis=0)
    should = np.linalg.norm(trajectories.right_ends - tokens[:-1], axis=2).max(axis=0)
    return (came < STILL) & (should > MOVED)


def _faulty_steps(trajectories: Trajectories) -> Iterator[Cause]:
    """Faults that hang on the number of steps."""
    if not has_jumps(trajectories.right.attention):
        for name, fit in faulty_steps(trajectories):
            yield Cause(name, fit.size)


def _one_number(trajectories: Trajectories) -> Iterator[Cause]:
    """Changes that fit one number: the scale of V, beta."""
    right = trajectories.right
    start = first_value(trajectories, right)
    layers = one_head(trajectories)
    value = layers[0].value
    scale = 1 + float((start * value).sum() / (value**2).sum())
    for guess in dict.fromkeys((scale, 1.0)):
        family = Parameters(np.array([guess]), lambda p: _scaled_value(right, float(p[0])))
        fitted = fit_with_steps(trajectories, family)
        if fitted is None:
            continue
        factor, error = float(fitted.values[0]), float(fitted.errors[0])
        name = (
            f"time runs {factor:.4g} ± {_error(error)} times as fast as the file says, or value is "
            "that many times the case's"
        )
        cause = Cause(name, fitted.size, (_number("time or value", factor, error, 1.0),))
        if abs(factor - 1) > max(DIFFERS, 2 * error):
            yield cause
        if cause.left <= trajectories.limit:
            break
    beta = right.attention.beta
    if not 0 < beta < math.inf:
        return
    guesses = [0.0, 0.5 * math.log(1 / beta), -0.5 * math.log(len(layers[0].query)), -1.0, 1.0]
    screen = Screen(trajectories)
    left = [screen(replace(right, attention=_with_beta(right, guess))).left for guess in guesses]
    family = Parameters(
        np.array([guesses[int(np.argmin(left))]]),
        lambda p: replace(right, attention=_with_beta(right, float(p[0]))),
    )
    fitted = fit_with_steps(trajectories, family)
    if fitted is None:
        return
    other = beta * math.exp(float(fitted.values[0]))
    error = other * float(fitted.errors[0])
    name = f"beta (or the scale of query^T key) is {other:.4g} ± {_error(error)}, the case has "
    name += f"{beta:g}{_meaning(other, beta, len(layers[0].query))}"
    if abs(other - beta) > max(DIFFERS * beta, 2 * error):
        yield Cause(name, fitted.size, (_number("beta", other, error, beta),))


def _matrices(trajectories: Trajectories) -> Iterator[Cause]:
    """Changes that fit a matrix."""
    right = trajectories.right
    d = right.attention.dimension
    layers = one_head(trajectories)
    value = layers[0].value
    one_layer = len(layers) == 1

    def code(change: np.ndarray, entries: np.ndarray) -> Code:
        matrix = np.zeros(d * d)
        matrix[entries] = change
        added = matrix.reshape(d, d)
        return replace(
            right,
            attention=changed(
                right.attention, lambda head: replace(head, value=head.value + added)
            ),
        )

    every = np.arange(d * d)
    start = first_value(trajectories, right).ravel()
    best = fit_with_steps(trajectories, Parameters(start, lambda p: code(p, every)))
    if best is not None and best.size <= trajectories.limit:
        entries, differs = every, _differing(best, value)
        if not differs.any():  # what is left to rounding in half precision, say, is no other V
            return
        if not differs.all():
            few = np.flatnonzero(differs)
            family = Parameters(best.values[few], lambda p: code(p, few))
            scheme, slopes = best.code.scheme, best.jacobian[:, few]
            fewer = refined(trajectories, family, scheme, family.start, slopes)
            if fewer is not None and fewer.size <= trajectories.limit:
                best, entries = fewer, few
        base = value.ravel() if one_layer else np.zeros(d * d)
        yield _entries("value" if one_layer else "the change of value", best, entries, base, d)
        return
    beta = right.attention.beta
    if not 0 < beta < math.inf or not one_layer:
        return
    key_query = layers[0].key_query

    def scores(change: np.ndarray) -> Code:
        query = key_query + change.reshape(d, d)
        head = replace(layers[0], query=query, key=np.eye(d))
        return replace(right, attention=head)

    best = fit_with_steps(trajectories, Parameters(np.zeros(d * d), scores))
    if best is not None and _differing(best, key_query).any():
        yield _entries("(key^T query)", best, np.arange(d * d), key_query.ravel(), d)


def _differing(best: Fitted, matrix: np.ndarray) -> np.ndarray:
    """Which entries were changed by more than their intervals, and by more than a trifle."""
    trifle = DIFFERS * max(float(np.abs(matrix).max()), 1e-300)
    return np.abs(best.values) > np.maximum(2 * best.errors, trifle)


def _entries(name: str, best: Fitted, entries: np.ndarray, base: np.ndarray, d: int) -> Cause:
    """The entries of a matrix that were fitted, in words and numbers."""
    numbers, words = [], []
    for change, error, entry in zip(best.values, best.errors, entries, strict=True):
        label = f"{name}[{entry // d}][{entry % d}]"
        value, before = float(base[entry] + change), float(base[entry])
        numbers.append(_number(label, value, float(error), before))
        words.append(f"{label} is {value:.4g} ± {_error(float(error))}, the case has {before:.4g}")
    return Cause("; ".join(words), best.size, tuple(numbers))


def _number(name: str, value: float, error: float, case: float) -> dict[str, Any]:
    return {"name": name, "value": value, "error": error, "case": case}


def _error(error: float) -> str:
    return f"{max(error, 1e-9):.1g}"


def _meaning(other: float, beta: float, rows: int) -> str:
    """What a wrong beta may come from."""
    for value, meaning in (
        (math.sqrt(beta), "its square root"),
        (beta / math.sqrt(rows), f"divided by the square root of the dimension {rows}"),
        (beta**2, "its square"),
        (2 * beta, "twice"),
        (beta / 2, "half"),
    ):
        if abs(other - value) <= 1e-3 * value:
            return f" ({meaning})"
    return ""


def _scaled_value(right: Code, factor: float) -> Code:
    attention = changed(right.attention, lambda head: replace(head, value=factor * head.value))
    return replace(right, attention=attention)


def _with_beta(right: Code, log_factor: float) -> AttentionLike:
    return right.attention.with_beta(right.attention.beta * math.exp(log_factor))
