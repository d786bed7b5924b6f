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
# From the third on, a number of steps that leaves more than this part of what the best one before
# it left is the last: where the law holds, each gains a digit, and the first two are far off.
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
        says: the sentence for the user about a number, asked for each that differs from the case's;
            the sentences are joined by "; ".
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
    method: str = "exact"
    count: float = 0.0
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
    search, best = _Search(trajectories, hypothesis), None
    for start in search.starts(methods):
        found = search.settled(start)
        if found is None:
            continue
        bound = most if best is None else min(most, best.left)
        if found.left <= bound:
            found = replace(found, left=trajectories.left(found.code, bound))
        if best is None or found.left < best.left:
            best = found
        if best.left <= search.sure:
            break
    return best


def with_fewer_numbers(trajectories: Trajectories, best: Fit, kept: np.ndarray, most: float) -> Fit:
    """The fit with these numbers alone, if that leaves no more than `most`; else as it is."""
    hypothesis, scheme = best.hypothesis.keeping(kept), best.code.scheme
    search = _Search(trajectories, hypothesis)
    found = search.refined(scheme, best.values[kept], best.slopes[:, kept])
    left = math.inf if found is None else trajectories.left(found.code, most)
    return best if found is None or left > most else replace(found, left=left)


class _Search:
    """A hypothesis on its way through the stages of a fit.

    Attributes:
        sure: what is left by a code that is taken without trying others.
    """

    def __init__(self, trajectories: Trajectories, hypothesis: Hypothesis) -> None:
        self._hypothesis, self._trajectories = hypothesis, trajectories
        self._settings, self._size = trajectories.settings, trajectories.mean_of_residual
        self._flow = self._residual(Scheme())
        self.sure = trajectories.settings.sure * trajectories.limit

    def starts(self, methods: Sequence[str]) -> list[_Start]:
        """The equation itself and methods, with numbers and steps to begin at."""
        code, right = self._hypothesis.code(self._hypothesis.case), self._trajectories.right
        if self._hypothesis.labels or not (code is right or right.has_jumps):
            return self._rough_starts()
        none = np.zeros((self._trajectories.tokens[0].size, 0))
        counts = {name: 20.0 if STEPPERS[name][1] == 1 else 8.0 for name in methods}  # usual ones
        if code.push != "tangent":
            counts.pop("layers", None)
        steps = [_Start(none[0], none, name, count) for name, count in counts.items()]
        return [_Start(none[0], none), *steps]

    def _rough_starts(self) -> list[_Start]:
        """Those of methods worth a run, with numbers and steps from the rough flow.

        The errors of steps that are projected out are those of the right code: either the
        hypothesis is close to it, and so are its errors, or these are small against what it leaves.
        """
        trajectories, unit = self._trajectories, self._hypothesis.unit
        known = self._residual(trajectories.rough)
        slopes = _remembered(lambda values: _differences(known, values, unit))
        basis = trajectories.errors_of_right

        def without_steps(array: np.ndarray) -> np.ndarray:
            return np.asarray(array - basis @ (basis.T @ array))

        def left(values: np.ndarray) -> float:
            return self._size(without_steps(known(values)))

        guesses = self._hypothesis.guesses or (self._hypothesis.case,)
        for values in sorted(guesses, key=left)[:_GUESSES]:
            if self._hypothesis.labels:
                values = least_squares(
                    lambda p: without_steps(known(p)),
                    values,
                    jac=lambda p: without_steps(slopes(p)),
                    x_scale=unit,
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
            errors = trajectories.errors_of_steps(self._hypothesis.code(values))
        except InputError:
            return []
        starts = []
        for method, error in {"exact": None, **errors}.items():
            columns = slope if error is None else np.column_stack([slope, -error])
            if not np.isfinite(columns).all():
                continue
            change = self._linear_step(columns, here)
            size = self._size(here + columns @ change)
            step = 0.0 if error is None else float(change[-1])
            if size <= trajectories.promising and (error is None or step > 0):
                count = trajectories.shortest / step if step > 0 else 0.0
                moved = values + change[: len(values)]
                starts.append(_Start(moved, slope, method, count, size))
        most = self._settings.rivals * min((one.left for one in starts), default=0.0)
        starts.sort(key=lambda one: (one.method != "exact", one.left))  # the flow costs least
        return [one for one in starts if one.left <= most]

    def settled(self, start: _Start) -> Fit | None:
        """The fit whose steps divide the intervals, near those of the start."""
        if start.method == "exact":
            return self.refined(Scheme(), start.values, start.slopes)
        values, slopes, estimate = start.values, start.slopes, start.count
        best: Fit | None = None
        tried = set[int]()
        while estimate <= self._settings.most_count and len(tried) < self._settings.counts:
            estimate = max(estimate, 1.0)
            near = (round(estimate), math.floor(estimate), math.ceil(estimate))
            counts = [n for n in near if n not in tried and abs(n - estimate) < 0.6]
            if not counts:
                break
            found = self.refined(self._steps(start, counts[0]), values, slopes)
            if found is None:
                break
            tried.add(counts[0])
            before = math.inf if best is None else best.left
            if best is None or found.left < before:
                best = found
            if best.left <= self.sure or (len(tried) > 2 and found.left > _LAW * before):
                break
            # With the trace of the method r_0 - r_h, how it goes on: r_0 + J dp - f (r_0 - r_h).
            flow = self._flow(found.values)
            columns = np.column_stack([found.slopes, found.residual - flow])
            change = self._linear_step(columns, flow)
            left = self._size(flow + columns @ change)
            if change[-1] <= 0 or left > _NO_TRACE * self._size(flow):
                # What fits no number is given up; numbers may have taken in the steps.
                known = self._hypothesis.labels or best.left <= self._trajectories.limit
                return best if known else None
            values, slopes = found.values + change[:-1], found.slopes
            estimate = counts[0] / change[-1] ** (1 / STEPPERS[start.method][1])
        if best is None or not best.code.has_jumps:
            return best
        return self._among_neighbours(start, best, tried)

    def _among_neighbours(self, start: _Start, best: Fit, tried: set[int]) -> Fit:
        """The fit with one of the numbers of steps around the best, if one leaves but rounding."""
        if best.left <= self._settings.single:
            return best
        middle = round(self._trajectories.shortest / best.code.scheme.step)
        near = sorted(range(1, 2 * middle), key=lambda n: abs(n - middle))[:_NEIGHBOURS]
        for count in [n for n in near if n not in tried]:
            found = self.refined(self._steps(start, count), best.values, best.slopes)
            if found is not None and found.left <= self._settings.single:
                return found
        return best

    def refined(self, scheme: Scheme, values: np.ndarray, slopes: np.ndarray) -> Fit | None:
        """The numbers that leave the least in these steps, on the interval that is fitted.

        None if they make no code, such as a negative beta.

        Args:
            scheme: the steps.
            values: where to begin.
            slopes: by what they change the defects there, about; brought up to date on the way.
        """
        residual = self._residual(scheme)
        here = residual(values)
        if self._hypothesis.labels and self._size(here) <= self._trajectories.promising:
            say = self._say(here + slopes @ self._linear_step(slopes, here))
            secant = _Secant(residual, slopes)
            values = least_squares(
                lambda p: say * residual(p),
                values,
                jac=lambda p: say[:, None] * secant(p),
                x_scale=self._hypothesis.unit,
                ftol=_SLOWEST,
                xtol=_SHORTEST,
                gtol=None,
                max_nfev=_EVALUATIONS,
            ).x
            here, slopes = residual(values), secant(values)
        try:
            code = self._hypothesis.code(values).stepped(scheme)
        except InputError:
            return None
        variance = float(here @ here) / max(here.size - len(values), 1)
        covariance = np.linalg.pinv(slopes.T @ slopes, rcond=1e-14, hermitian=True) * variance
        errors = 1.96 * np.sqrt(np.maximum(np.diag(covariance), 0.0))
        return Fit(self._hypothesis, code, self._size(here), values, errors, here, slopes)

    def _steps(self, start: _Start, count: int) -> Scheme:
        return Scheme(start.method, self._trajectories.shortest / count)

    def _residual(self, scheme: Scheme) -> Residual:
        """The defects in these steps as a function of the numbers."""

        def residual(values: np.ndarray) -> np.ndarray:
            try:
                code = self._hypothesis.code(values)
            except InputError:  # a negative beta, say
                return self._trajectories.impossible
            return self._trajectories.residual(code.stepped(scheme))

        return _remembered(residual)

    def _linear_step(self, slopes: np.ndarray, here: np.ndarray) -> np.ndarray:
        """What removes the defects to first order."""
        if slopes.shape[1] == 0:
            return np.zeros(0)
        say = self._say(here)
        return np.asarray(np.linalg.lstsq(say[:, None] * slopes, -say * here, rcond=1e-12)[0])

    def _say(self, here: np.ndarray) -> np.ndarray:
        """Weights of defects: a token far off the others has no more say than they have."""
        weights = self._trajectories.weights
        sizes = np.linalg.norm(here.reshape(len(weights), -1), axis=1)
        sizes /= np.sqrt(np.maximum(weights, 1e-300))
        common = _FAR_OFF * max(float(np.median(sizes)), 0.1 * float(sizes.mean()), 1e-300)
        say = np.minimum(1.0, common / np.maximum(sizes, common))
        return np.repeat(say, here.size // len(weights))


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
