"""The user's trajectories against a hypothesis on what made them: free of sampling noise.

The saved times are cut into a few intervals. From where the user's tokens stand at the beginning of
each, a hypothesis is run to its end; what it misses them by is its defect there,

    D_k = (x(t_k+1) - Phi(x(t_k))) / a,

in which a, token by token and at least 1, is by how much the equation magnifies a small error on
the way. A right code has defects of its discretisation and its rounding only, and an honest
discretisation leaves a trace that gives away its order and step: D is close to h^p F, with F the
error of the same method at a known step. The method is then run at the step found.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.integrate import solve_ivp

from meanfield_pde.attention.layers import AttentionLike, pieces
from meanfield_pde.errors import SolverError
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.tokens.cloud import TokenCloud
from meanfield_pde.verification.codes import Code, Scheme, TooCostlyError, has_jumps
from meanfield_pde.verification.steppers import ORDERS, TITLES

# A mean defect of this much is left to rounding in single precision and to error control.
UNEXPLAINED = 2e-5
MOST_INTERVALS = 8  # a bound on the cost
_NUDGE = 1e-6  # to see by how much the equation magnifies errors: far above those of our steps
_DRAWS = 2  # nudges of each token: a factor is wanted, not digits
_ITERATIONS = 3  # in which the step of a method is found, by a law that holds to leading order
# A method that leaves this part of what may be left is the one, and the number of steps is known
# to this part of one.
_SURE = 0.1
# Hypotheses are fitted on the first interval, where tokens are spread out best, if the defect of
# the equation is this part of the largest one there.
_FIRST = 0.3
# Few steps may be off by this part of the defect of the equation in screening, and by this much
# where only the magnification of errors is wanted.
_ROUGH, _ROUGHER = 0.02, 0.01
_ROUGH_COUNTS = (4, 8, 16)  # steps; beyond, error control is used
# Adaptive methods of scipy as they come, without a tolerance given, and with a better one.
ADAPTIVE = tuple((name, rtol) for name in ("RK45", "RK23", "DOP853") for rtol in (1e-3, 1e-4, 1e-5))
# Beyond this mean defect no method with error control is at work: 50 times the largest `rtol`.
LARGEST_ADAPTIVE = 0.05


@dataclass(frozen=True, eq=False)
class Fit:
    """A hypothesis and what it leaves.

    Attributes:
        code: the hypothesis.
        size: mean defect that is left, the largest over the intervals.
        title: what it is, for a reader.
    """

    code: Code
    size: float
    title: str


class Trajectories:
    """The tokens of a file as trajectories.

    Attributes:
        right: the equation itself, in continuous time.
        defect: mean defect of the equation.
        limit: what may be left by a hypothesis that explains the tokens.
        magnified: by how much the equation magnifies a small error, K x N.
        telling: the intervals, those with the largest defects first.
        fitted: the interval on which hypotheses are screened and fitted.
        rough: how they are stepped in screening.
        distance: mean distance of the tokens from what the equation makes of the first of them.
    """

    def __init__(self, cloud: TokenCloud, attention: AttentionLike) -> None:
        inside = cloud.times <= attention.end * (1 + 1e-9)  # tokens may go on after the layers
        cloud = replace(cloud, times=cloud.times[inside], tokens=cloud.tokens[inside])
        last = len(cloud.times) - 1
        chosen = np.unique(np.linspace(0, last, min(last, MOST_INTERVALS) + 1).round().astype(int))
        self.times, self.tokens = cloud.times[chosen], cloud.tokens[chosen]
        masses = cloud.masses
        self.weights = np.ones(self.tokens.shape[1]) if masses is None else masses
        self.weights = self.weights / self.weights.sum()
        self.right = Code(attention, masses)
        self.magnified = np.ones(self.tokens[1:].shape[:2])
        self.right_ends = self.ends(self.right)
        missed = np.linalg.norm(self.tokens[1:] - self.right_ends, axis=2) @ self.weights
        self.fitted = 0 if missed[0] >= _FIRST * missed.max() else int(missed.argmax())
        self.rough, rougher = self._rough_schemes(float(missed[self.fitted]))
        self.magnified = self._magnification(rougher)
        self.limit = max(UNEXPLAINED, self._own_error())
        sizes = [self.size(self.scaled(self.right_ends)[[k]]) for k in range(len(missed))]
        self.defect = max(sizes, default=0.0)
        self.telling = sorted(range(len(sizes)), key=lambda k: -sizes[k])
        path = [self.tokens[0], self.right_ends[0]]
        for begin, end in zip(self.times[1:-1], self.times[2:], strict=True):
            path.append(self.right.advance(path[-1], begin, end))
        apart = np.linalg.norm(np.array(path[1:]) - self.tokens[1:], axis=2) @ self.weights
        self.distances = np.concatenate([[0.0], apart])
        self.distance = float(apart.mean())

    @property
    def shortest(self) -> float:
        """Length of the shortest interval."""
        return float(np.diff(self.times).min())

    def ends(self, code: Code, intervals: Sequence[int] | None = None) -> np.ndarray:
        """Where a hypothesis takes the user's tokens in each interval, K x N x d."""
        chosen = range(len(self.times) - 1) if intervals is None else intervals
        found = []
        for k in chosen:
            begin, end = float(self.times[k]), float(self.times[k + 1])
            before = 0
            if code.scheme.step > 0:
                before = round((begin - float(self.times[0])) / code.scheme.step)
            found.append(code.advance(self.tokens[k], begin, end, before))
        return np.array(found)

    def scaled(self, ends: np.ndarray, intervals: Sequence[int] | None = None) -> np.ndarray:
        """The defects of a hypothesis that ends there."""
        chosen = list(range(len(self.times) - 1) if intervals is None else intervals)
        return (self.tokens[1:][chosen] - ends) / self.magnified[chosen][..., None]

    def size(self, defects: np.ndarray) -> float:
        """The mean defect, the largest over the intervals."""
        return float((np.linalg.norm(defects, axis=2) @ self.weights).max())

    def fit(self, code: Code, title: str = "", most: float = math.inf) -> Fit:
        """What a hypothesis leaves; everything, if it cannot be computed.

        Beyond `most` the intervals that are left over are not looked at; those on which the
        equation misses the tokens by most come first.
        """
        left = 0.0
        try:
            for k in self.telling:
                with np.errstate(all="ignore"):
                    here = self.size(self.scaled(self.ends(code, [k]), [k]))
                left = max(left, here if math.isfinite(here) else math.inf)
                if left > most:
                    break
        except (TooCostlyError, SolverError):
            left = math.inf
        return Fit(code, left, title)

    def with_steps(
        self, code: Code, names: Sequence[str] = tuple(ORDERS), step: float | None = None
    ) -> Fit:
        """The method and the step by which this equation leaves the least.

        Args:
            code: the equation.
            names: the methods that are tried.
            step: where to start from, if that is known.
        """
        exact, k, title = replace(code, scheme=Scheme()), self.telling[0], "no error of steps"
        try:
            flow = self.right_ends[[k]] if code is self.right else self.ends(exact, [k])
        except (TooCostlyError, SolverError):
            return Fit(exact, math.inf, title)
        best = Fit(exact, self.size(self.scaled(flow, [k])), title)
        if best.size <= self.limit:
            best = self.fit(exact, title)
        if not math.isfinite(best.size) or best.size <= self.limit:
            return best
        for name in names:
            found = self._with_method(exact, name, flow, step)
            if found is not None and found.size < best.size:
                best = found
            if best.size < _SURE * self.limit:
                break
        return best

    def adaptive(self) -> Fit | None:
        """A method with error control from scipy that the tokens are those of, if one is."""
        if self.defect > LARGEST_ADAPTIVE or has_jumps(self.right.attention):
            return None
        for name, rtol in ADAPTIVE:
            for back in (False, True):
                path = self._solve_ivp(name, rtol, back=back)
                if path is None:
                    continue
                apart = np.linalg.norm(path - self.tokens[1:], axis=2) / self.magnified
                if float((apart @ self.weights).max()) <= self.limit:
                    return Fit(self.right, self.limit, f"solve_ivp ({name}, rtol = {rtol:g})")
        return None

    def _solve_ivp(self, name: str, rtol: float, *, back: bool) -> np.ndarray | None:
        shape = self.tokens[0].shape
        layer, begin, end = pieces(self.right.attention, self.times[0], self.times[-1])[0]
        if end < self.times[-1]:
            return None
        velocity = self.right.stepped(Scheme("euler", 1.0)).velocity(layer)

        def rate(_: float, y: np.ndarray) -> np.ndarray:
            x = y.reshape(shape)
            return velocity(normalised(x) if back else x).ravel()

        try:
            with np.errstate(all="ignore"):
                found = solve_ivp(
                    rate,
                    (begin, end),
                    self.tokens[0].ravel(),
                    name,
                    t_eval=self.times[1:],
                    rtol=rtol,
                    atol=1e-6,
                )
        except TooCostlyError:
            return None
        return normalised(found.y.T.reshape(-1, *shape)) if found.success else None

    def _with_method(
        self, exact: Code, name: str, flow: np.ndarray, step: float | None
    ) -> Fit | None:
        """The best step of one method."""
        order = ORDERS[name]
        if name == "layers":
            if exact.push != "tangent":
                return None
            exact = replace(exact, push="whole")
        where = self.telling[:1]
        defects = self.scaled(flow, where)
        h = step or self.shortest / (8 if order > 1 else 20)
        best: Fit | None = None
        for _ in range(_ITERATIONS):
            before = h
            code = exact.stepped(Scheme(name, h))
            try:
                trace = defects - self.scaled(self.ends(code, where), where)
            except (TooCostlyError, SolverError):
                return best
            size = float((trace**2).sum())
            factor = float((defects * trace).sum()) / size if size > 0 else 0.0
            if factor <= 0 or self.size(defects - factor * trace) > 0.7 * self.size(defects):
                return best
            h = min(h * factor ** (1 / order), self.shortest)
            h = max(h, self.shortest / 5000)
            if abs(self.shortest / h - self.shortest / before) < _SURE:
                break
        tried = set()
        exact_count = self.shortest / h
        for count in (round(exact_count), math.floor(exact_count), math.ceil(exact_count)):
            if count < 1 or count in tried:
                continue
            tried.add(count)
            step = self.shortest / count
            most = math.inf if best is None else best.size
            found = self.fit(exact.stepped(Scheme(name, step)), TITLES[name].format(step), most)
            if best is None or found.size < best.size:
                best = found
            if best.size <= _SURE * self.limit:
                break
        return best

    def _rough_schemes(self, missed: float) -> tuple[Scheme, Scheme]:
        """How to step in screening, and where only magnification is wanted."""
        k = self.fitted
        length = float(self.times[k + 1] - self.times[k])
        rougher = Scheme()
        if has_jumps(self.right.attention):
            return rougher, rougher
        for count in _ROUGH_COUNTS:
            scheme = Scheme("rough", length / count)
            ends = self.ends(self.right.stepped(scheme), [k])[0]
            apart = float(np.linalg.norm(ends - self.right_ends[k], axis=1) @ self.weights)
            if rougher.step == 0 and apart <= _ROUGHER:
                rougher = scheme
            if apart <= _ROUGH * missed:
                return scheme, rougher
        return Scheme(), rougher

    def _magnification(self, scheme: Scheme) -> np.ndarray:
        generator = np.random.default_rng(0)
        squares = np.zeros(self.magnified.shape)
        code = self.right.stepped(scheme)
        before = self.right_ends if scheme.step == 0 else self.ends(code)
        for _ in range(_DRAWS):
            kicks = _NUDGE * generator.normal(size=self.tokens.shape)
            moved = normalised(self.tokens + kicks)
            for k, end in enumerate(before):
                other = code.advance(moved[k], float(self.times[k]), float(self.times[k + 1]))
                squares[k] += ((other - end) ** 2).sum(axis=1)
        return np.maximum(np.sqrt(squares / _DRAWS) / _NUDGE, 1.0)

    def _own_error(self) -> float:
        """What our own steps leave where there is no error control."""
        if not has_jumps(self.right.attention):
            return 0.0
        step = 2 * self.right.own_step
        other = self.ends(self.right.stepped(Scheme("heun", step)))
        return 3 * self.size(self.scaled(other) - self.scaled(self.right_ends))
