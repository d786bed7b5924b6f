"""The table of what a particle code may do wrong, each with its numbers and its sentence.

`TABLE` has levels, by how many numbers they fit. The first level that explains the tokens ends the
search, whatever later ones would say: all its hypotheses that explain them cannot be distinguished,
and are named together.

    no number        tokens that do not move, masks, projections, weights, a head or a term left
                     out, matrices transposed or negative, with or without the denominator
    one number       the scale of V, which is that of time; beta
    entries of V     of which only those that differ are named
    entries of K^T Q likewise
    faults of steps  stale means, a denominator left out now and then: tried one by one

A level has rows, a row is a function of the trajectories that gives hypotheses: by
`change_of_code` or `change_of_heads`, or one of its own. With several heads, or terms beside them,
numbers could be fitted that are those of no code: levels that are `of_one_head` are not tried.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.heads import Heads, Layer, with_heads
from meanfield_pde.attention.layers import acting, with_layers
from meanfield_pde.errors import InputError
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.verification.codes import Code, Scheme, tangent
from meanfield_pde.verification.fitting import Hypothesis, Number
from meanfield_pde.verification.flow import token_means
from meanfield_pde.verification.trajectories import COMMON_METHODS, Trajectories

Row = Callable[[Trajectories], Iterable[Hypothesis]]


@dataclass(frozen=True)
class Level:
    """Hypotheses of which none is a smaller change than another.

    Attributes:
        rows: what gives them.
        of_one_head: whether they are those of layers of one head alone, and not tried of others.
        of_steps: whether they are those of steps that are not honest, and not tried where honest
            steps explain most of the defect.
    """

    rows: tuple[Row, ...]
    of_one_head: bool = False
    of_steps: bool = False

    def hypotheses(self, trajectories: Trajectories) -> Iterator[Hypothesis]:
        """The hypotheses of these trajectories, each made when it is asked for."""
        if self.of_one_head and not trajectories.of_one_head:
            return
        for row in self.rows:
            yield from row(trajectories)


# Intervals whose moves start a fit of V: some for each entry, however few the tokens.
_FIRST_INTERVALS = 3
# Chords longer than this, 40 degrees, are no first moves: one velocity does not stand for them.
_FAR = 0.7
# Steps in an interval and how often a fault occurs, round numbers first: what codes are written
# with.
_STEP_COUNTS = (5, 10, 20, 25, 50, 100, 2, 4, 8, 16, 32, 40, 64, 80, 128, 200)
_STALE_MEANS, _LAGS, _UNNORMALISED = (2, 4, 5, 8, 10, 20), (1, 2, 5, 10), (2, 5, 10, 20)
# The error of a late mean is seen with this many steps: as that of a method (`Trajectories`).
_LATE_STEPS = 20
# How late a mean is is found to this factor: to first order only.
_NEAR = 2.0
_FAULTS = {
    "stale mean": "a mean that is computed anew in every {} steps only",
    "stale tokens": "a mean of where tokens were {} steps ago",
    "unnormalised": "a softmax without its denominator in one step of {}",
    "shifted": "a softmax without its denominator in one step of {}",
}


def _fixed(name: str, code: Code) -> Hypothesis:
    """A hypothesis without numbers."""
    return Hypothesis(name, lambda _: code)


def change_of_code(name: str, change: Callable[[Code], Code]) -> Row:
    """A row for a change of the right code."""
    return lambda trajectories: [_fixed(name, change(trajectories.right))]


def change_of_heads(name: str, change: Callable[[Attention], Attention]) -> Row:
    """A row for a change of every head; none where it changes nothing or cannot be made."""

    def row(trajectories: Trajectories) -> Iterator[Hypothesis]:
        right = trajectories.right
        try:
            code = right.with_heads(change)
        except InputError:  # a transposed matrix that is not square, say
            return
        if not _same(code, right):
            yield _fixed(name, code)

    return row


def _same(one: Code, other: Code) -> bool:
    return all(
        a.beta == b.beta
        and a.normalise == b.normalise
        and np.allclose(a.key_query, b.key_query, rtol=0, atol=1e-12)
        and np.allclose(a.value, b.value, rtol=0, atol=1e-12)
        for before, after in zip(one.attention.layers, other.attention.layers, strict=True)
        for a, b in zip(before.heads, after.heads, strict=True)
    )


def frozen_tokens(trajectories: Trajectories) -> Iterator[Hypothesis]:
    """Tokens that stay where they are at all times, though the equation moves them."""
    tokens, settings = trajectories.tokens, trajectories.settings
    came = np.linalg.norm(tokens - tokens[0], axis=2).max(axis=0)
    should = np.linalg.norm(trajectories.right_ends - tokens[:-1], axis=2).max(axis=0)
    frozen = (came < settings.still) & (should > settings.moved)
    if frozen.any():
        name = f"{frozen.sum()} of {len(frozen)} tokens do not move"
        yield _fixed(name, replace(trajectories.right, frozen=frozen))


def weights_left_out(trajectories: Trajectories) -> Iterator[Hypothesis]:
    """All tokens of one weight, where the file gives weights."""
    if trajectories.right.masses is not None:
        equal = replace(trajectories.right, masses=None)
        yield _fixed("weights of the tokens that are left out", equal)


def terms_left_out(trajectories: Trajectories) -> Iterator[Hypothesis]:
    """One of several heads that is left out, or one of the terms beside them."""
    layers = trajectories.right.attention.layers

    def without(name: str, fewer: list[Layer]) -> Hypothesis:
        attention = with_layers(trajectories.right.attention, fewer)
        name = f"{name} that is left out"
        return _fixed(name, replace(trajectories.right, attention=attention))

    count = len(layers[0].heads)
    for h in range(count if count > 1 else 0):
        fewer = [with_heads(one, [*one.heads[:h], *one.heads[h + 1 :]]) for one in layers]
        yield without(f"head {h} (from 0)", fewer)
    for k, term in enumerate(layers[0].beside):
        others = [Heads(one.heads, None, [*one.beside[:k], *one.beside[k + 1 :]]) for one in layers]
        yield without(f"the {term.noun.split(' ', 1)[1]}", list(others))


def time_or_value(trajectories: Trajectories) -> Iterator[Hypothesis]:
    """V, or time, times a factor."""
    value = trajectories.right.attention.layers[0].heads[0].value
    scale = 1 + float((first_value(trajectories) * value).sum() / max((value**2).sum(), 1e-300))
    yield Hypothesis(
        "time or value",
        lambda p: trajectories.right.with_heads(lambda h: replace(h, value=p[0] * h.value)),
        case=np.ones(1),
        labels=("time or value",),
        guesses=(np.array([scale]), np.ones(1)),
        says=lambda found: (
            f"time runs {found.value:.4g} ± {found.half_width} times as fast as the file says, or "
            f"V is too {'large' if found.value > 1 else 'small'} by that factor"
        ),
    )


def other_beta(trajectories: Trajectories) -> Iterator[Hypothesis]:
    """Another beta."""
    beta = trajectories.right.attention.beta
    if not 0 < beta < math.inf:
        return
    rows = len(trajectories.right.attention.layers[0].heads[0].query)
    usual = (beta, math.sqrt(beta), beta / math.sqrt(rows), beta / math.e, beta * math.e)

    def says(found: Number) -> str:
        name = f"beta (or the scale of query^T key) is {found.value:.4g} ± {found.half_width}"
        return f"{name}, the case has {beta:g}{_meaning(found.value, beta, rows)}"

    yield Hypothesis(
        "beta",
        lambda p: trajectories.right.with_heads(lambda head: head.with_beta(float(p[0]))),
        case=np.array([beta]),
        labels=("beta",),
        unit=beta,
        guesses=tuple(np.array([guess]) for guess in usual),
        says=says,
    )


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


def other_value(trajectories: Trajectories) -> Iterator[Hypothesis]:
    """Another V, or one more matrix in the V of all layers."""
    layers = trajectories.right.attention.layers
    value = layers[0].heads[0].value
    name, case = "value", value
    if len(layers) > 1:
        name, case = "the change of value", np.zeros(value.shape)

    def code(p: np.ndarray) -> Code:
        added = p.reshape(value.shape) - case
        return trajectories.right.with_heads(lambda head: replace(head, value=head.value + added))

    start = case + first_value(trajectories)
    yield _matrix(name, code, case, start, unit=float(np.abs(value).max()))


def other_scores(trajectories: Trajectories) -> Iterator[Hypothesis]:
    """Another K^T Q."""
    layers = trajectories.right.attention.layers
    beta = trajectories.right.attention.beta
    if len(layers) > 1 or not 0 < beta < math.inf:
        return
    case = layers[0].heads[0].key_query
    key = np.eye(len(case))

    def code(p: np.ndarray) -> Code:
        query = p.reshape(case.shape)
        return trajectories.right.with_heads(lambda head: replace(head, query=query, key=key))

    yield _matrix("(key^T query)", code, case, case, unit=float(np.abs(case).max()))


def _matrix(
    name: str,
    code: Callable[[np.ndarray], Code],
    case: np.ndarray,
    start: np.ndarray,
    *,
    unit: float,
) -> Hypothesis:
    """A hypothesis whose numbers are the entries of a matrix."""
    return Hypothesis(
        name,
        code,
        case=case.ravel(),
        labels=tuple(f"{name}[{i}][{j}]" for i, j in np.ndindex(case.shape)),
        unit=max(unit, 1e-300),
        guesses=(start.ravel(),),
        says=lambda found: (
            f"{found.name} is {found.value:.4g} ± {found.half_width}, the case has {found.case:.4g}"
        ),
    )


def first_value(trajectories: Trajectories) -> np.ndarray:
    """What to add to V for the first moves to be explained, d x d; of several, the least.

    Velocities are linear in V. Between two times the mean velocity is taken for that at the
    midpoint, log_x(y) / dt = P V m there, with m under the midpoints of all tokens.
    """
    right = trajectories.right
    rows: list[np.ndarray] = []
    sides: list[np.ndarray] = []
    for k in range(min(_FIRST_INTERVALS, len(trajectories.times) - 1)):
        begin, end = float(trajectories.times[k]), float(trajectories.times[k + 1])
        x, y = trajectories.tokens[k], trajectories.tokens[k + 1]
        length = np.linalg.norm(y - x, axis=1, keepdims=True)
        if length.mean() > _FAR and rows:
            break
        half = np.clip(length / 2, 0, 1)
        velocity = (y - x) * (np.arcsin(half) / np.maximum(half, 1e-300)) / (end - begin)
        middle = normalised(x + y)
        (head,) = acting(right.attention, 0.5 * (begin + end)).heads
        mean = token_means(head, middle, right.masses, right.mask)
        missing = velocity - tangent(middle, mean @ head.value.T)
        projections = np.eye(x.shape[1]) - middle[:, :, None] * middle[:, None]
        # (P V m)_i = sum_jk P_ij V_jk m_k
        rows.append(np.einsum("nij,nk->nijk", projections, mean).reshape(missing.size, -1))
        sides.append(missing.ravel())
    change, *_ = np.linalg.lstsq(np.concatenate(rows), np.concatenate(sides), rcond=1e-6)
    return np.asarray(change.reshape(x.shape[1], -1))


def faults_of_steps(trajectories: Trajectories) -> Iterator[Hypothesis]:
    """Euler's steps with a fault of their own: what is stale as it is late, then all others.

    They hang on the number of steps, which is found by trying. A stale mean is late by tau, on
    average, and to first order leaves r - h E - tau L, with L the error of a mean late by one unit
    of time: that gives tau away, and only few numbers of steps go with it.
    """
    if trajectories.right.has_jumps:
        return
    length = float(trajectories.times[1] - trajectories.times[0])
    pairs, spent = trajectories.tokens.shape[1] ** 2, 0.0
    # Tokens that have come together do not say how often steps have a fault, nor how stale a mean.
    places = np.round(trajectories.tokens[1] / trajectories.limit)
    together = len(np.unique(places, axis=0)) < len(places) / 2
    stale = [] if together else _stale(trajectories)
    others = [
        (fault, every, count)
        for count in _STEP_COUNTS
        for every in _UNNORMALISED
        for fault in ("unnormalised", "shifted")
    ]
    for (fault, every, count), method in itertools.product([*stale, *others], COMMON_METHODS):
        step = trajectories.shortest / count
        spent += pairs * length / step
        if spent > trajectories.settings.budget:
            return
        yield Hypothesis(
            "a softmax without its denominator in some of the steps"
            if together
            else _FAULTS[fault].format(every),
            lambda _: trajectories.right,
            scheme=Scheme(method, step, fault, every),
        )


def _stale(trajectories: Trajectories) -> list[tuple[str, int, int]]:
    """Means that are as late as the tokens say: fault, how often, steps in an interval."""
    late = _lateness(trajectories)
    near = []
    for fault, every, mean_lag in (
        *(("stale mean", n, (n - 1) / 2) for n in _STALE_MEANS),
        *(("stale tokens", n, float(n)) for n in _LAGS),
    ):
        for count in _STEP_COUNTS:
            if late[fault] > 0:
                off = abs(math.log(mean_lag * trajectories.shortest / count / late[fault]))
                near.append((off, fault, every, count))
    return [(fault, n, count) for off, fault, n, count in sorted(near) if off <= math.log(_NEAR)]


def _lateness(trajectories: Trajectories) -> dict[str, float]:
    """By how much time means are late that explain the tokens best; 0 if none do."""
    right, k = trajectories.right, trajectories.fitted
    step = float(trajectories.times[k + 1] - trajectories.times[k]) / _LATE_STEPS
    here = trajectories.residual(right)
    plain = trajectories.residual(right.stepped(Scheme("euler", step)))
    found = {}
    for fault, every, mean_lag in (("stale mean", 2, 0.5), ("stale tokens", 1, 1.0)):
        late = trajectories.residual(right.stepped(Scheme("euler", step, fault, every)))
        columns = np.stack([here - plain, (plain - late) / mean_lag], axis=1) / step
        numbers = np.linalg.lstsq(columns, here, rcond=None)[0]
        left = trajectories.mean_of_residual(here - columns @ numbers)
        found[fault] = float(numbers[1]) if left <= trajectories.promising else 0.0
    return found


# The projection of a push v is v - <x, v> x.
TABLE: dict[str, Level] = {
    "no number": Level(
        (
            frozen_tokens,
            change_of_code("a causal mask", lambda code: replace(code, mask="causal")),
            change_of_code(
                "tokens that do not attend to themselves",
                lambda code: replace(code, mask="no self"),
            ),
            change_of_code(
                "the projection v - <x, v> v in the place of v - <x, v> x",
                lambda code: replace(code, push="onto itself"),
            ),
            change_of_code(
                "the projection v + <x, v> x in the place of v - <x, v> x",
                lambda code: replace(code, push="plus"),
            ),
            change_of_code(
                "a projection with <x, v> summed over all tokens",
                lambda code: replace(code, push="mixed"),
            ),
            weights_left_out,
            terms_left_out,
            change_of_heads(
                "Q and K swapped, <x, B y> with B transposed",
                lambda head: replace(head, query=head.key, key=head.query),
            ),
            change_of_heads("Q transposed", lambda head: replace(head, query=head.query.T)),
            change_of_heads("K transposed", lambda head: replace(head, key=head.key.T)),
            change_of_heads(
                "Q and K both transposed",
                lambda head: replace(head, query=head.query.T, key=head.key.T),
            ),
            change_of_heads("V transposed", lambda head: replace(head, value=head.value.T)),
            change_of_heads("-V instead of V", lambda head: replace(head, value=-head.value)),
            change_of_heads(
                "a softmax without its denominator", lambda head: replace(head, normalise=False)
            ),
            change_of_heads(
                "a softmax with its denominator", lambda head: replace(head, normalise=True)
            ),
            change_of_heads("zero temperature", lambda head: head.with_beta(math.inf)),
        )
    ),
    "one number": Level((time_or_value, other_beta), of_one_head=True),
    "entries of V": Level((other_value,), of_one_head=True),
    "entries of K^T Q": Level((other_scores,), of_one_head=True),
    "faults of steps": Level((faults_of_steps,), of_steps=True),
}
