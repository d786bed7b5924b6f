"""Parameters of the equation fitted to the user's trajectories, with intervals.

Velocities are linear in V: the first moves give it by least squares, up to the error of a midpoint
rule. From there the fit goes through the flow, all matrices and beta by Gauss and Newton, until the
defects of `Trajectories` are as small as they get, first roughly (`screening`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from meanfield_pde.attention.heads import heads_of
from meanfield_pde.attention.layers import acting
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.judging.codes import Code, Scheme, TooCostlyError
from meanfield_pde.judging.flow import token_means
from meanfield_pde.judging.screening import (
    Screened,
    errors_of_steps,
    most_left,
    rough_ends,
    stepped_as,
)
from meanfield_pde.judging.steppers import TITLES
from meanfield_pde.judging.trajectories import Trajectories
from meanfield_pde.mesh.geometry import normalised

_DIFFERENCE = 1e-5
_ROUGH_EVALUATIONS = 8
_MOST_STEPS = 10
# A step of Newton's method that leaves more than this part of the defect is the last one.
_SLOWEST = 0.5
_ROUNDING = 1e-10
_FAR_OFF = 3.0  # times what is common
FIRST_INTERVALS = 3
# Moves longer than this are no first moves.
_FAR = 0.7
# Methods are tried that leave at most so many times what the best one leaves, roughly.
_RIVAL = 3.0
_MOST_SNAPS = 4
MOST_COUNT = 5000  # steps in an interval
_BAD = 1e3  # defect of parameters that make no code


@dataclass(frozen=True, eq=False)
class Parameters:
    """A family of codes.

    Attributes:
        start: the first guess.
        code: the code of given parameters.
    """

    start: np.ndarray
    code: Callable[[np.ndarray], Code]


@dataclass(frozen=True, eq=False)
class Fitted:
    """The best of a family.

    Attributes:
        code: the code.
        values: its parameters.
        errors: half widths of their 95% intervals.
        size: mean defect that is left over all intervals.
        title: its steps, in words; empty if it is the flow itself.
        residual, jacobian: weighted defects on the interval fitted, and what they change by.
    """

    code: Code
    values: np.ndarray
    errors: np.ndarray
    size: float
    title: str
    residual: np.ndarray
    jacobian: np.ndarray


def fit_with_steps(trajectories: Trajectories, family: Parameters) -> Fitted | None:
    """The best of a family, its steps included; None if nothing near it explains the tokens.

    A rough fit finds the parameters and the steps together, from which Newton's method goes on with
    the code itself, as long as it stays worth it.
    """
    best: Fitted | None = None
    for rough in _rough_fit(trajectories, family):
        found = _snapped(trajectories, family, rough)
        if found is not None and (best is None or found.size < best.size):
            best = found
        if best is not None and best.size <= 0.1 * trajectories.limit:
            break
    return best


@dataclass(frozen=True, eq=False)
class _Rough:
    """Parameters to a part of the defect, what the defects change by, and the steps."""

    values: np.ndarray
    jacobian: np.ndarray
    steps: Screened


def _rough_fit(trajectories: Trajectories, family: Parameters) -> list[_Rough]:
    """Least squares through the rough flow, the errors of Euler's steps projected out.

    With them, one more step of Newton's method gives the parameters and the steps; the best first.
    """
    k = trajectories.fitted
    root = np.sqrt(trajectories.weights)[:, None]
    bad = np.full(trajectories.tokens[0].size, _BAD)

    def defects(values: np.ndarray) -> np.ndarray:
        try:
            ends = rough_ends(trajectories, family.code(values))
        except (InputError, SolverError, TooCostlyError):
            return bad
        found = (root * trajectories.scaled(ends, [k])[0]).ravel()
        return np.clip(np.nan_to_num(found, nan=_BAD), -_BAD, _BAD)

    def columns(code: Code, ends: np.ndarray) -> dict[str, np.ndarray]:
        errors = errors_of_steps(trajectories, code, ends)
        return {name: (root * error[0]).ravel() for name, error in errors.items()}

    known = _remembered(defects)
    slopes = _remembered(lambda values: _slopes(known, values))
    right = columns(trajectories.right, trajectories.right_ends[[k]])
    basis = np.linalg.qr(np.stack(list(right.values()), axis=1))[0]
    found = least_squares(
        lambda p: known(p) - basis @ (basis.T @ known(p)),
        family.start,
        jac=lambda p: slopes(p) - basis @ (basis.T @ slopes(p)),
        max_nfev=_ROUGH_EVALUATIONS,
        xtol=1e-6,
        ftol=1e-2,
    )
    most = most_left(trajectories)
    if _mean(trajectories, found.fun) > most:
        return []
    here, jacobian = known(found.x), slopes(found.x)
    try:
        code = family.code(found.x)
        errors = columns(code, rough_ends(trajectories, code))
    except (InputError, SolverError, TooCostlyError):
        return []
    starts = []
    for method in ("exact", *errors):
        both = jacobian
        if method != "exact":
            both = np.column_stack([jacobian, -errors[method]])
        if not np.isfinite(both).all():
            continue
        change = _newton(trajectories, both, here)
        left = _mean(trajectories, here + both @ change)
        step = 0.0 if method == "exact" else float(change[-1])
        if left <= most and (method == "exact" or step > 0):
            values = found.x + change[: len(found.x)]
            starts.append(_Rough(values, jacobian, Screened(left, method, step)))
    starts.sort(key=lambda one: one.steps.left)
    return [one for one in starts if one.steps.left <= _RIVAL * starts[0].steps.left]


def _mean(trajectories: Trajectories, defects: np.ndarray) -> float:
    """The mean of weighted defects."""
    sizes = np.linalg.norm(defects.reshape(len(trajectories.weights), -1), axis=1)
    return float(sizes @ np.sqrt(trajectories.weights))


def _newton(trajectories: Trajectories, slopes: np.ndarray, defects: np.ndarray) -> np.ndarray:
    """What removes the defects to first order; a token far off the others has no more say.

    Such a token stands where the flow is about to part, and is not linear in anything.
    """
    count = len(trajectories.weights)
    sizes = np.linalg.norm(defects.reshape(count, -1), axis=1)
    sizes /= np.sqrt(np.maximum(trajectories.weights, 1e-300))
    common = _FAR_OFF * max(float(np.median(sizes)), 0.1 * float(sizes.mean()), 1e-300)
    say = np.repeat(np.minimum(1.0, common / np.maximum(sizes, common)), defects.size // count)
    found = np.linalg.lstsq(say[:, None] * slopes, -say * defects, rcond=1e-12)[0]
    return np.asarray(found)


def _remembered(function: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
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


def _slopes(function: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
    """Differences of the function in each parameter."""
    here = function(values)
    columns = []
    for i in range(len(values)):
        moved = values.copy()
        moved[i] += _DIFFERENCE
        columns.append((function(moved) - here) / _DIFFERENCE)
    return np.stack(columns, axis=1)


def _snapped(trajectories: Trajectories, family: Parameters, rough: _Rough) -> Fitted | None:
    """The fit whose steps divide the intervals, near those of the rough fit."""
    values, jacobian, start = rough.values, rough.jacobian, rough.steps
    step = start.step
    best: Fitted | None = None
    tried = set[int]()
    for _ in range(_MOST_SNAPS):
        scheme = Scheme()
        if start.method != "exact":
            count = round(trajectories.shortest / step) if step > 0 else 0
            if not 1 <= count <= MOST_COUNT or count in tried:
                break
            tried.add(count)
            scheme = Scheme(start.method, trajectories.shortest / count)
        found = refined(trajectories, family, scheme, values, jacobian)
        if found is None:
            break
        if best is None or found.size < best.size:
            best = found
        if start.method == "exact" or best.size <= 0.1 * trajectories.limit:
            break
        values, step = _linear_step(trajectories, found)
    return best


def refined(
    trajectories: Trajectories,
    family: Parameters,
    scheme: Scheme,
    values: np.ndarray,
    jacobian: np.ndarray,
) -> Fitted | None:
    """Newton's method with the code itself; slopes are those of the rough one, brought up to date.

    None if the code cannot be run there.
    """
    k = trajectories.fitted
    root = np.sqrt(trajectories.weights)[:, None]

    def defects(values: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            ends = trajectories.ends(stepped_as(family.code(values), scheme), [k])
        return np.asarray((root * trajectories.scaled(ends, [k])[0]).ravel())

    best: tuple[float, np.ndarray, np.ndarray] | None = None
    try:
        for _ in range(_MOST_STEPS):
            here = defects(values)
            size = _mean(trajectories, here)
            if not math.isfinite(size):
                break
            if best is not None:
                change = values - best[1]
                missed = here - best[2] - jacobian @ change
                jacobian = jacobian + np.outer(missed, change) / max(change @ change, 1e-300)
                if size > _SLOWEST * best[0]:
                    if size < best[0]:
                        best = size, values, here
                    break
            best = size, values, here
            if size <= _ROUNDING:
                break
            values = values + _newton(trajectories, jacobian, here)
        if best is None:
            return None
        code = stepped_as(family.code(best[1]), scheme)
    except (InputError, SolverError, TooCostlyError):
        return None
    _, values, here = best
    variance = float(here @ here) / max(here.size - len(values), 1)
    covariance = np.linalg.pinv(jacobian.T @ jacobian, rcond=1e-14, hermitian=True) * variance
    errors = 1.96 * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    title = TITLES[scheme.name].format(scheme.step) if scheme.name in TITLES else ""
    size = _mean(trajectories, here)
    if size <= 2 * trajectories.limit:
        size = trajectories.fit(code).size
    return Fitted(code, values, errors, size, title, here, jacobian)


def _linear_step(trajectories: Trajectories, current: Fitted) -> tuple[np.ndarray, float]:
    """Parameters and step that remove the defects of the current ones, to first order."""
    k = trajectories.fitted
    root = np.sqrt(trajectories.weights)[:, None]
    step = current.code.scheme.step
    push = "tangent" if current.code.scheme.name == "layers" else current.code.push
    flow = replace(current.code, push=push, scheme=Scheme())
    try:
        with np.errstate(all="ignore"):
            ends = trajectories.ends(current.code, [k]) - trajectories.ends(flow, [k])
    except (SolverError, TooCostlyError):
        return current.values, 0.0
    error = (root * ends[0] / trajectories.magnified[k][:, None]).ravel() / step
    columns = np.column_stack([current.jacobian, -error])
    change = _newton(trajectories, columns, current.residual)
    return current.values + change[:-1], step + float(change[-1])


def first_intervals(trajectories: Trajectories) -> list[int]:
    """The intervals whose moves start a fit of V."""
    return list(range(min(FIRST_INTERVALS, len(trajectories.times) - 1)))


def first_value(trajectories: Trajectories, code: Code) -> np.ndarray:
    """What to add to V for the first moves to be explained, d x d; of several, the least.

    Between two times the mean velocity is taken for that at the midpoint,
    log_x(y) / dt = P V m there, with m under the midpoints of all tokens.
    """
    rows: list[np.ndarray] = []
    sides: list[np.ndarray] = []
    for k in first_intervals(trajectories):
        begin, end = float(trajectories.times[k]), float(trajectories.times[k + 1])
        x, y = trajectories.tokens[k], trajectories.tokens[k + 1]
        chord = y - x
        length = np.linalg.norm(chord, axis=1, keepdims=True)
        if length.mean() > _FAR and rows:
            break
        half = np.clip(length / 2, 0, 1)
        velocity = chord * (np.arcsin(half) / np.maximum(half, 1e-300)) / (end - begin)
        middle = normalised(x + y)
        (head,) = heads_of(acting(code.attention, 0.5 * (begin + end)))
        mean = token_means(head, middle, code.masses, code.mask)
        missing = velocity - _projected(middle, mean @ head.value.T)
        d = x.shape[1]
        for i in range(d):  # (P V m)_i = sum_jk P_ij V_jk m_k
            projection = np.eye(d)[i] - middle[:, i : i + 1] * middle
            rows.append(np.einsum("nj,nk->njk", projection, mean).reshape(len(x), -1))
            sides.append(missing[:, i])
    change, *_ = np.linalg.lstsq(np.concatenate(rows), np.concatenate(sides), rcond=1e-6)
    return change.reshape(d, d)


def _projected(x: np.ndarray, push: np.ndarray) -> np.ndarray:
    return push - (push * x).sum(axis=1, keepdims=True) * x
