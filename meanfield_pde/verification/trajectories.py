"""The user's trajectories against a code that may have made them: free of sampling noise.

The saved times are cut into a few intervals. From where the user's tokens stand at the beginning of
each, a code is run to its end; what it misses them by is its defect there,

    D_k = (x(t_k+1) - Phi(x(t_k))) / a,

in which a, token by token and at least 1, is by how much the equation magnifies a small error on
the way. A right code has defects of its discretisation and its rounding only. Codes are compared by
one number, the mean of |D_k| over the tokens, the largest over the intervals: the mean defect.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meanfield_pde.attention.heads import is_one_head
from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.tokens.cloud import TokenCloud
from meanfield_pde.verification.codes import Code, Scheme, TooCostlyError

# Methods whose steps are looked for with each hypothesis: those of most codes, a bound on the cost.
COMMON_METHODS = ("euler", "layers")
# Defect of a code that cannot be run; those of codes are 2 at most.
IMPOSSIBLE = 1e3
# Steps with which the error of a method is seen: a twentieth of an interval, where leading order
# holds to some percent.
_STEPS = 20


@dataclass(frozen=True)
class DiagnosisSettings:
    """What a diagnosis takes for an explanation, and what it may cost.

    Attributes:
        unexplained: a mean defect of this much is left to rounding in single precision and to error
            control: 160 roundings of 1.2e-7, or a tolerance of 1e-5.
        single, single_step: a method of fixed steps is met to this mean defect in single precision:
            25 roundings, or single_step sqrt(steps) of an interval, since roundings add up at
            random. Sharper than `unexplained`, since nothing but rounding is left.
        largest_adaptive: beyond this mean defect no method with error control is at work: 50 times
            the largest tolerance that is tried.
        fits: a wrong code explains the tokens if it leaves at most this part of what honest steps
            leave: planted faults in double precision leave 1e-8, codes that are none of them a
            tenth and more.
        honest: steps have no fault where honest ones explain all but this part of the defect.
        differs: a fitted number is another than the case's if it differs by more than this part of
            the largest of its matrix, and by more than its interval: 0.1 %, less than which nobody
            gets wrong by a slip.
        vague: a number whose interval is wider than this part of it is none that explains tokens:
            the same 0.1 %.
        no_noise: neighbours that part by less than this part of what noise would part them by may
            have none: of those with noise half part by more than 0.6 of it.
        still, moved: a token that came no further than the first while it should have come as far
            as the second does not move: rounding, and far more than rounding.
        intervals: their largest number, a bound on the cost.
        promising: a code that leaves more than this part of the defect on one interval, roughly, is
            given up: of those that explain the tokens the rough flow leaves 2 % (`rough`).
        rough, rougher: the rough flow may be off by the first part of the defect of the equation,
            and by the second length where only the magnification of errors is wanted, to a percent.
        rough_counts: steps of order 4 that the rough flow may have; beyond, error control is used.
        sure: a code that leaves this part of what may be left is taken without trying others.
        rivals: methods are tried that leave at most this many times what the best one leaves,
            roughly: first-order errors are off by tens of percent in steps of a tenth.
        counts: numbers of steps that are tried one after the other: each costs a fit, and
            the law that gives the next one gains a digit each time.
        most_count: steps in an interval, a bound on the cost.
        budget: terms of token sums that may be spent on faults of steps: 6 s at 1.6 ns each.
        close: hypotheses are fitted on the first interval, where tokens are spread out best, if the
            defect there is this part of the largest one: the signal is then not much weaker.
    """

    unexplained: float = 2e-5
    single: float = 3e-6
    single_step: float = 2e-7
    largest_adaptive: float = 0.05
    fits: float = 0.05
    honest: float = 0.1
    differs: float = 1e-3
    vague: float = 1e-3
    no_noise: float = 0.2
    still: float = 1e-9
    moved: float = 1e-3
    intervals: int = 8
    promising: float = 0.5
    rough: float = 0.02
    rougher: float = 0.01
    rough_counts: tuple[int, ...] = (4, 8, 16)
    sure: float = 0.1
    rivals: float = 3.0
    counts: int = 5
    most_count: int = 5000
    budget: float = 4e9
    close: float = 0.3


class Trajectories:
    """The tokens of a file as trajectories, cut into intervals.

    Attributes:
        settings: the numbers of the diagnosis.
        right: the equation itself, in continuous time.
        times, tokens: ends of the intervals, K + 1, and the tokens there.
        weights: of the tokens, of sum 1.
        right_ends: where the equation takes the tokens in each interval, K x N x d.
        magnified: by how much the equation magnifies a small error, K x N.
        defect: mean defect of the equation.
        limit: what may be left by a code that explains the tokens.
        telling: the intervals, those with the largest defects first.
        fitted: the interval on which hypotheses are fitted.
        promising: mean defect there beyond which a rough fit is not worth another.
        rough: the scheme of rough fits.
        distances, distance: mean distance of the tokens from what the equation makes of the first
            of them, at each time and over all after the first.
    """

    def __init__(
        self,
        cloud: TokenCloud,
        attention: AttentionLike,
        settings: DiagnosisSettings | None = None,
    ) -> None:
        settings = settings or DiagnosisSettings()
        inside = cloud.times <= attention.end * (1 + 1e-9)  # tokens may go on after the layers
        cloud = replace(cloud, times=cloud.times[inside], tokens=cloud.tokens[inside])
        last = len(cloud.times) - 1
        count = min(last, settings.intervals) + 1
        chosen = np.unique(np.linspace(0, last, count).round().astype(int))
        self.settings = settings
        self.times, self.tokens = cloud.times[chosen], cloud.tokens[chosen]
        masses = np.ones(self.tokens.shape[1]) if cloud.masses is None else cloud.masses
        self.weights = masses / masses.sum()
        self.right = Code(attention, cloud.masses)
        self.magnified = np.ones(self.tokens[1:].shape[:2])
        self.right_ends = self.ends(self.right, range(len(self.times) - 1))
        missed = np.linalg.norm(self.tokens[1:] - self.right_ends, axis=2) @ self.weights
        near = missed.size and missed[0] >= settings.close * missed.max()
        self.fitted = 0 if near or not missed.size else int(missed.argmax())
        self.rough, rougher = self._rough_schemes(float(missed[self.fitted]))
        self.magnified = self._magnification(rougher)
        sizes = [self.mean(self.defects(self.right_ends[k], k)) for k in range(len(missed))]
        self.defect = max(sizes, default=0.0)
        self.limit = max(settings.unexplained, self._own_error())
        self.telling = sorted(range(len(sizes)), key=lambda k: -sizes[k])
        self.promising = max(settings.promising * sizes[self.fitted], self.limit)
        path = [self.tokens[0], self.right_ends[0]]
        for begin, end in zip(self.times[1:-1], self.times[2:], strict=True):
            path.append(self.right.advance(path[-1], begin, end))
        self.distances = np.linalg.norm(np.array(path) - self.tokens, axis=2) @ self.weights
        self.distance = float(self.distances[1:].mean())

    @property
    def shortest(self) -> float:
        """Length of the shortest interval."""
        return float(np.diff(self.times).min())

    @property
    def of_one_head(self) -> bool:
        """Whether each layer is one head alone, the only ones of which numbers are fitted."""
        return all(is_one_head(layer) for layer in self.right.attention.layers)

    @property
    def impossible(self) -> np.ndarray:
        """The residual of a code that cannot be run."""
        return np.full(self.tokens[0].size, IMPOSSIBLE)

    @functools.cached_property
    def errors_of_right(self) -> np.ndarray:
        """An orthonormal basis of the errors of the right code's steps."""
        errors = self.errors_of_steps(self.right)
        return np.linalg.qr(np.stack(list(errors.values()), axis=1))[0]

    def ends(self, code: Code, intervals: Sequence[int]) -> np.ndarray:
        """Where a code takes the user's tokens in these intervals, K x N x d."""
        found = []
        for k in intervals:
            begin, end = float(self.times[k]), float(self.times[k + 1])
            before = 0
            if code.scheme.step > 0:
                before = round((begin - float(self.times[0])) / code.scheme.step)
            with np.errstate(all="ignore"):
                found.append(code.advance(self.tokens[k], begin, end, before))
        return np.array(found)

    def defects(self, ends: np.ndarray, k: int) -> np.ndarray:
        """The defects in an interval of a code that ends there, N x d."""
        return np.asarray((self.tokens[k + 1] - ends) / self.magnified[k][:, None])

    def mean(self, defects: np.ndarray) -> float:
        """The mean defect; infinite where one is not finite."""
        size = float(np.linalg.norm(defects, axis=1) @ self.weights)
        return size if math.isfinite(size) else math.inf

    def residual(self, code: Code) -> np.ndarray:
        """The defects sqrt(w_i) D_i of a code in the interval that is fitted, in one row."""
        k = self.fitted
        try:
            ends = self.right_ends[k] if code is self.right else self.ends(code, [k])[0]
        except (InputError, SolverError, TooCostlyError):
            return self.impossible
        found = np.sqrt(self.weights)[:, None] * self.defects(ends, k)
        return np.clip(np.nan_to_num(found.ravel(), nan=IMPOSSIBLE), -IMPOSSIBLE, IMPOSSIBLE)

    def errors_of_steps(self, code: Code) -> dict[str, np.ndarray]:
        """What steps take from the residual of a code, to first order and per unit of step."""
        flow = self.residual(code if code is self.right else code.stepped(self.rough))
        step = float(self.times[self.fitted + 1] - self.times[self.fitted]) / _STEPS
        return {
            method: (flow - self.residual(code.stepped(Scheme(method, step)))) / step
            for method in COMMON_METHODS
            if method != "layers" or code.push == "tangent"
        }

    def mean_of_residual(self, residual: np.ndarray) -> float:
        """The mean defect there."""
        sizes = np.linalg.norm(residual.reshape(len(self.weights), -1), axis=1)
        return float(sizes @ np.sqrt(self.weights))

    def left(self, code: Code, most: float = math.inf) -> float:
        """The mean defect of a code; infinite if it cannot be run.

        Beyond `most` the intervals that are left over are not looked at; those on which the
        equation misses the tokens by most come first, but faults of steps are counted from the
        first step on.
        """
        if code is self.right:
            return self.defect
        left = 0.0
        order = sorted(self.telling, key=lambda k: k > 0) if code.scheme.fault else self.telling
        try:
            for k in order:
                left = max(left, self.mean(self.defects(self.ends(code, [k])[0], k)))
                if left > most:
                    break
        except (InputError, SolverError, TooCostlyError):
            return math.inf
        return left

    def _rough_schemes(self, missed: float) -> tuple[Scheme, Scheme]:
        """How to step in rough fits, and where only magnification is wanted."""
        k, rougher = self.fitted, Scheme()
        length = float(self.times[k + 1] - self.times[k])
        if self.right.has_jumps:
            return rougher, rougher
        for count in self.settings.rough_counts:
            scheme = Scheme("rough", length / count)
            ends = self.ends(self.right.stepped(scheme), [k])[0]
            apart = float(np.linalg.norm(ends - self.right_ends[k], axis=1) @ self.weights)
            if rougher.step == 0 and apart <= self.settings.rougher:
                rougher = scheme
            if apart <= self.settings.rough * missed:
                return scheme, rougher
        return Scheme(), rougher

    def _magnification(self, scheme: Scheme) -> np.ndarray:
        """The root mean square over nudges of 1e-6, far above the errors of our own steps.

        Of two for each token: a factor is wanted, not digits.
        """
        nudge, draws = 1e-6, 2
        generator = np.random.default_rng(0)
        squares = np.zeros(self.magnified.shape)
        code = self.right.stepped(scheme)
        ends = self.right_ends if scheme.step == 0 else self.ends(code, range(len(squares)))
        for _ in range(draws):
            kicks = nudge * generator.normal(size=self.tokens.shape)
            moved = normalised(self.tokens + kicks)
            for k, end in enumerate(ends):
                other = code.advance(moved[k], float(self.times[k]), float(self.times[k + 1]))
                squares[k] += ((other - end) ** 2).sum(axis=1)
        return np.maximum(np.sqrt(squares / draws) / nudge, 1.0)

    def _own_error(self) -> float:
        """What our own steps leave where there is no error control.

        Steps twice as long show four times the error, three times more than our own: that, thrice.
        """
        if not self.right.has_jumps:
            return 0.0
        code = self.right.stepped(Scheme("heun", 2 * self.right.own_step))
        others = self.ends(code, range(len(self.right_ends)))
        pairs = zip(others, self.right_ends, strict=True)
        return 3 * max(
            self.mean((other - ours) / a[:, None])
            for (other, ours), a in zip(pairs, self.magnified, strict=True)
        )
