"""A rough fit of parameters and steps together: where Newton's method with the code itself starts.

The rough flow (`screening`) is fitted by least squares, the errors of Euler's steps projected out;
with r its defects, J their slopes and E the error per unit of step, r + J dp - h E = 0 then gives
the rest of the parameters and the step h.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.verification.codes import Code, TooCostlyError
from meanfield_pde.verification.screening import Screened, errors_of_steps, most_left, rough_ends
from meanfield_pde.verification.trajectories import Trajectories

# Of parameters, for slopes: near the cube root of the rounding of doubles.
_DIFFERENCE = 1e-5
_ROUGH_EVALUATIONS = 8  # of a fit that only starts another: a bound on the cost
# Methods are tried that leave at most k = 3 times what the best one leaves, roughly (chosen, not
# tuned).
_RIVAL = 3.0
_FAR_OFF = 3.0  # times what is common: beyond, a token has no more say (chosen, not tuned)
_BAD = 1e3  # defect of parameters that make no code; those of codes are 2 at most


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
class Start:
    """Parameters to a part of the defect, what the defects change by, and the steps."""

    values: np.ndarray
    jacobian: np.ndarray
    steps: Screened


def rough_fits(trajectories: Trajectories, family: Parameters) -> list[Start]:
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
    if mean_size(trajectories, found.fun) > most:
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
        change = newton_step(trajectories, both, here)
        left = mean_size(trajectories, here + both @ change)
        step = 0.0 if method == "exact" else float(change[-1])
        if left <= most and (method == "exact" or step > 0):
            values = found.x + change[: len(found.x)]
            starts.append(Start(values, jacobian, Screened(left, method, step)))
    starts.sort(key=lambda one: one.steps.left)
    return [one for one in starts if one.steps.left <= _RIVAL * starts[0].steps.left]


def mean_size(trajectories: Trajectories, defects: np.ndarray) -> float:
    """The mean of weighted defects."""
    sizes = np.linalg.norm(defects.reshape(len(trajectories.weights), -1), axis=1)
    return float(sizes @ np.sqrt(trajectories.weights))


def newton_step(trajectories: Trajectories, slopes: np.ndarray, defects: np.ndarray) -> np.ndarray:
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
