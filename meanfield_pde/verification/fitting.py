"""The one fit: numbers and steps of a hypothesis that leave the least of the user's trajectories.

With r(p) the defects of a hypothesis of numbers p in continuous time (`Trajectories.residual`), a
method of order q and step h leaves to leading order

    r(p) - h^q E,        E the error of the method per h^q, seen at a known step,

which gives p and h away together. A fit goes in two stages, both by `scipy.optimize.least_squares`:

    rough      r of a few Runge-Kutta steps, all E projected out: p, then h for each method
    settled    r of the code itself, whose steps divide the intervals: p; then h by the law above,
               until the number of steps stays what it is

A hypothesis without numbers goes the same way, with nothing to fit but its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import least_squares

from meanfield_pde.errors import InputError
from meanfield_pde.verification.codes import STEPPERS, Code, Scheme
from meanfield_pde.verification.trajectories import COMMON_METHODS, Trajectories

Residual = Callable[[np.ndarray], np.ndarray]
# The step of a difference, in units of a number: near the cube root of the rounding of doubles.
_DIFFERENCE = 1e-5
# Guesses that a fit begins at, the best ones first: one, and another if that fails.
_GUESSES = 2
# Evaluations of the two stages, bounds on the cost. The first has only to start the second.
_ROUGH_EVALUATIONS, _EVALUATIONS = 15, 8
# A step of the second that leaves more than half of the defect (so a quarter of its square) is the
# last one, and so is one that moves numbers by less than rounding does over many steps.
_SLOWEST, _SHORTEST = 0.75, 1e-8
# A number of steps that leaves more than this part of what the one before it left is the last one:
# where the law holds, each gains a digit.
_LAW = 0.5
# Where the velocity jumps the law holds to some percent only: numbers of steps that are then tried
# around the best, up to a tenth off where there are a hundred.
_NEIGHBOURS = 21
# A token further off than this many times what is common has no more say: it stands where the flow
# is about to part, and is linear in nothing.
_FAR_OFF = 3.0
# A method whose trace leaves more than this part of the defect is not the one; the right one leaves
# a few percent, by the next order.
_NO_TRACE = 0.7


@dataclass(frozen=True, eq=False)
class Number:
    """A number that was fitted, with the half width of its 95 % interval and the case's."""

    name: str
    value: float
    error: float
    case: float

    @property
    def half_width(self) -> str:
        """The half width in a sentence, at least that of rounding."""
        return f"{max(self.error, 1e-9):.1g}"


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """What a code may do in the place of what it should.

    Attributes:
        name: what it is called, or what is in common to the names of its numbers.
        code: the code of given numbers, in continuous time if `scheme` is None.
        scheme: the steps, where they are part of it.
        case: its numbers in the right code; none if it is empty.
        labels: their names.
        unit: their size, for what is a small change.
        guesses: where a fit begins, the case if there are none.
        says: the sentence for the user about a number.
    """

    name: str
    code: Callable[[np.ndarray], Code]
    scheme: Scheme | None = None
    case: np.ndarray = field(default_factory=lambda: np.zeros(0))
    labels: tuple[str, ...] = ()
    unit: float = 1.0
    guesses: tuple[np.ndarray, ...] = ()
    says: Callable[[Number], str] | None = None

    def keeping(self, kept: np.ndarray) -> Hypothesis:
        """The same with these numbers alone; the others are the case's."""

        def code(values: np.ndarray) -> Code:
            every = self.case.copy()
            every[kept] = values
            return self.code(every)

        labels = tuple(self.labels[i] for i in kept)
        return replace(self, code=code, case=self.case[kept], labels=labels, guesses=())


@dataclass(frozen=True, eq=False)
class Fit:
    """The best code of a hypothesis.

    Attributes:
        hypothesis: the hypothesis.
        code: the code.
        left: the mean defect that it leaves.
        values, errors: its numbers, and half widths of their 95 % intervals.
        residual, slopes: what it leaves on the interval fitted, and by what its numbers change it.
    """

    hypothesis: Hypothesis
    code: Code
    left: float
    values: np.ndarray
    errors: np.ndarray
    residual: np.ndarray
    slopes: np.ndarray

    @property
    def numbers(self) -> list[Number]:
        """The numbers fitted."""
        own = self.hypothesis
        pairs = zip(own.labels, self.values, self.errors, own.case, strict=True)
        return [Number(label, float(v), float(e), float(c)) for label, v, e, c in pairs]

    def differing(self, part: float) -> np.ndarray:
        """Which numbers are other than the case's, by more than their intervals and a part."""
        least = np.maximum(2 * self.errors, part * self.hypothesis.unit)
        return np.flatnonzero(np.abs(self.values - self.hypothesis.case) > least)


@dataclass(frozen=True, eq=False)
class _Start:
    """Numbers to a part of the defect, what they change it by, a method and its number of steps."""

    values: np.ndarray
    slopes: np.ndarray
    method: str
    count: float
    left: float = math.inf


def fit(
    trajectories: Trajectories,
    hypothesis: Hypothesis,
    methods: Sequence[str] = COMMON_METHODS,
    most: float = math.inf,
) -> Fit | None:
    """The code of a hypothesis that leaves the least; None if nothing near it is worth a look.

    Args:
        trajectories: the tokens.
        hypothesis: what their code may do.
        methods: whose steps are looked for, keys of `STEPPERS`.
        most: what a code may leave that is wanted; how much more others leave is not looked at.
    """
    if hypothesis.scheme is not None:
        code = hypothesis.code(hypothesis.case).stepped(hypothesis.scheme)
        none = np.zeros(0)
        return Fit(hypothesis, code, trajectories.left(code, most), none, none, none, none)
    flow = _residual_of(trajectories, hypothesis, Scheme())
    known = hypothesis.code(hypothesis.case) is trajectories.right
    if not hypothesis.labels and (known or trajectories.right.has_jumps):
        starts = _default_starts(trajectories, hypothesis, methods)
    else:
        starts = _rough_starts(trajectories, hypothesis)
    best: Fit | None = None
    for start in starts:
        found = _settled(trajectories, hypothesis, start, flow)
        if found is None:
            continue
        bound = most if best is None else min(most, best.left)
        if found.left <= bound:
            found = replace(found, left=trajectories.left(found.code, bound))
        if best is None or found.left < best.left:
            best = found
        if best.left <= trajectories.settings.sure * trajectories.limit:
            break
    return best


def refined(
    trajectories: Trajectories,
    hypothesis: Hypothesis,
    scheme: Scheme,
    values: np.ndarray,
    slopes: np.ndarray,
) -> Fit | None:
    """The numbers that leave the least in these steps, on the interval that is fitted.

    None if they make no code, such as a negative beta.

    Args:
        trajectories: the tokens.
        hypothesis: what their code may do.
        scheme: the steps.
        values: where to begin.
        slopes: by what they change the defects there, about; brought up to date on the way.
    """
    residual = _residual_of(trajectories, hypothesis, scheme)
    here = residual(values)
    if hypothesis.labels and trajectories.mean_of_residual(here) <= trajectories.promising:
        say = _say(trajectories, here + slopes @ _linear_step(trajectories, slopes, here))
        secant = _Secant(residual, slopes)
        values = least_squares(
            lambda p: say * residual(p),
            values,
            jac=lambda p: say[:, None] * secant(p),
            x_scale=hypothesis.unit,
            ftol=_SLOWEST,
            xtol=_SHORTEST,
            gtol=None,
            max_nfev=_EVALUATIONS,
        ).x
        slopes = secant(values)
    here = residual(values)
    variance = float(here @ here) / max(here.size - len(values), 1)
    covariance = np.linalg.pinv(slopes.T @ slopes, rcond=1e-14, hermitian=True) * variance
    errors = 1.96 * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    try:
        code = hypothesis.code(values).stepped(scheme)
    except InputError:
        return None
    left = trajectories.mean_of_residual(here)
    return Fit(hypothesis, code, left, values, errors, here, slopes)


def _settled(
    trajectories: Trajectories, hypothesis: Hypothesis, start: _Start, flow: Residual
) -> Fit | None:
    """The fit whose steps divide the intervals, near those of the start."""
    settings, shortest = trajectories.settings, trajectories.shortest
    if start.method == "exact":
        return refined(trajectories, hypothesis, Scheme(), start.values, start.slopes)
    order = STEPPERS[start.method][1]
    values, slopes, estimate = start.values, start.slopes, start.count
    best: Fit | None = None
    tried = set[int]()
    for _ in range(settings.counts):
        if estimate > settings.most_count:
            break
        estimate = max(estimate, 1.0)
        near = (round(estimate), math.floor(estimate), math.ceil(estimate))
        counts = [n for n in near if n not in tried and abs(n - estimate) < 0.6]
        if not counts:
            break
        tried.add(counts[0])
        scheme = Scheme(start.method, shortest / counts[0])
        found = refined(trajectories, hypothesis, scheme, values, slopes)
        if found is None:
            break
        before = math.inf if best is None else best.left
        if best is None or found.left < before:
            best = found
        if best.left <= settings.sure * trajectories.limit or found.left > _LAW * before:
            break
        exact = flow(found.values)
        trace = exact - found.residual
        columns = np.column_stack([found.slopes, -trace])
        change = _linear_step(trajectories, columns, exact)
        left = trajectories.mean_of_residual(exact + columns @ change)
        if change[-1] <= 0 or left > _NO_TRACE * trajectories.mean_of_residual(exact):
            # What fits no number is given up at once; numbers may have taken in the steps.
            return best if hypothesis.labels or best.left <= trajectories.limit else None
        values, slopes = found.values + change[:-1], found.slopes
        estimate = counts[0] / change[-1] ** (1 / order)
    if best is None or not best.code.has_jumps or best.left <= settings.single:
        return best
    middle = round(shortest / best.code.scheme.step)
    for count in sorted(range(1, 2 * middle), key=lambda n: abs(n - middle))[:_NEIGHBOURS]:
        if count not in tried:
            scheme = Scheme(start.method, shortest / count)
            found = refined(trajectories, hypothesis, scheme, best.values, best.slopes)
            if found is not None and found.left <= settings.single:
                return found
    return best


def _default_starts(
    trajectories: Trajectories, hypothesis: Hypothesis, methods: Sequence[str]
) -> list[_Start]:
    """The equation itself, and all methods with steps of a usual number."""
    none = np.zeros((trajectories.tokens[0].size, 0))
    push = hypothesis.code(hypothesis.case).push
    starts = [_Start(none[0], none, "exact", 0.0)]
    for method in methods:
        if method != "layers" or push == "tangent":
            count = 20.0 if STEPPERS[method][1] == 1 else 8.0
            starts.append(_Start(none[0], none, method, count))
    return starts


def _rough_starts(trajectories: Trajectories, hypothesis: Hypothesis) -> list[_Start]:
    """Numbers and steps from the rough flow, for the methods worth a run.

    The errors of steps that are projected out are those of the right code: either the hypothesis is
    close to it, and so are its errors, or these are small against what it leaves.
    """
    known = _residual_of(trajectories, hypothesis, trajectories.rough)
    slopes = _remembered(lambda values: _differences(known, values, hypothesis.unit))
    basis = trajectories.errors_of_right

    def without_steps(array: np.ndarray) -> np.ndarray:
        return np.asarray(array - basis @ (basis.T @ array))

    def left(values: np.ndarray) -> float:
        return trajectories.mean_of_residual(without_steps(known(values)))

    for values in sorted(hypothesis.guesses or (hypothesis.case,), key=left)[:_GUESSES]:
        if hypothesis.labels:
            values = least_squares(
                lambda p: without_steps(known(p)),
                values,
                jac=lambda p: without_steps(slopes(p)),
                x_scale=hypothesis.unit,
                max_nfev=_ROUGH_EVALUATIONS,
                xtol=1e-6,
                ftol=1e-2,
            ).x
        if left(values) <= trajectories.promising:
            break
    else:
        return []
    here, slope = known(values), slopes(values)
    try:
        errors = trajectories.errors_of_steps(hypothesis.code(values))
    except InputError:
        return []
    starts = []
    for method, error in {"exact": None, **errors}.items():
        columns = slope if error is None else np.column_stack([slope, -error])
        if not np.isfinite(columns).all():
            continue
        change = _linear_step(trajectories, columns, here)
        size = trajectories.mean_of_residual(here + columns @ change)
        step = 0.0 if error is None else float(change[-1])
        if size <= trajectories.promising and (error is None or step > 0):
            count = trajectories.shortest / step if step > 0 else 0.0
            moved = values + change[: len(values)]
            starts.append(_Start(moved, slope, method, count, size))
    most = trajectories.settings.rivals * min((one.left for one in starts), default=0.0)
    starts.sort(key=lambda one: (one.method != "exact", one.left))  # the flow costs least
    return [one for one in starts if one.left <= most]


def _linear_step(trajectories: Trajectories, slopes: np.ndarray, here: np.ndarray) -> np.ndarray:
    """What removes the defects to first order."""
    if slopes.shape[1] == 0:
        return np.zeros(0)
    say = _say(trajectories, here)
    return np.asarray(np.linalg.lstsq(say[:, None] * slopes, -say * here, rcond=1e-12)[0])


def _say(trajectories: Trajectories, here: np.ndarray) -> np.ndarray:
    """Weights of defects in a fit: a token far off the others has no more say than they have."""
    count = len(trajectories.weights)
    sizes = np.linalg.norm(here.reshape(count, -1), axis=1)
    sizes /= np.sqrt(np.maximum(trajectories.weights, 1e-300))
    common = _FAR_OFF * max(float(np.median(sizes)), 0.1 * float(sizes.mean()), 1e-300)
    return np.repeat(np.minimum(1.0, common / np.maximum(sizes, common)), here.size // count)


def _residual_of(trajectories: Trajectories, hypothesis: Hypothesis, scheme: Scheme) -> Residual:
    """The defects of a hypothesis as a function of its numbers."""

    def residual(values: np.ndarray) -> np.ndarray:
        try:
            code = hypothesis.code(values)
        except InputError:  # a negative beta, say
            return trajectories.impossible
        return trajectories.residual(code.stepped(scheme))

    return _remembered(residual)


def _remembered(function: Residual) -> Residual:
    """The function, which knows the last value asked for: slopes start from it."""
    last: dict[bytes, np.ndarray] = {}

    def known(values: np.ndarray) -> np.ndarray:
        key = values.tobytes()
        if key not in last:
            found = function(values)
            last.clear()
            last[key] = found
        return last[key]

    return known


def _differences(function: Residual, values: np.ndarray, unit: float) -> np.ndarray:
    """Differences of the function in each number."""
    here = function(values)
    columns = np.empty((len(here), len(values)))
    for i, step in enumerate(_DIFFERENCE * unit * np.eye(len(values))):
        columns[:, i] = (function(values + step) - here) / (_DIFFERENCE * unit)
    return columns


class _Secant:
    """Slopes that are brought up to date by Broyden's rule, at the cost of no evaluation."""

    def __init__(self, residual: Residual, slopes: np.ndarray) -> None:
        self._residual, self._slopes = residual, slopes
        self._last: tuple[np.ndarray, np.ndarray] | None = None

    def __call__(self, values: np.ndarray) -> np.ndarray:
        here = self._residual(values)
        if self._last is not None:
            change = values - self._last[0]
            missed = here - self._last[1] - self._slopes @ change
            square = max(float(change @ change), 1e-300)
            self._slopes = self._slopes + np.outer(missed, change) / square
        self._last = values.copy(), here
        return self._slopes
