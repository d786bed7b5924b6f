"""Parameters of the equation fitted to the user's trajectories, with intervals.

Velocities are linear in V: the first moves give it by least squares, up to the error of a midpoint
rule. From there the fit goes through the flow, all matrices and beta by Gauss and Newton, until the
defects of `Trajectories` are as small as they get, first roughly (`rough_fit`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from meanfield_pde.attention.layers import acting
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.verification.codes import Code, Scheme, TooCostlyError
from meanfield_pde.verification.flow import token_means
from meanfield_pde.verification.rough_fit import (
    Parameters,
    Start,
    mean_size,
    newton_step,
    rough_fits,
)
from meanfield_pde.verification.screening import stepped_as
from meanfield_pde.verification.trajectories import Trajectories

# Steps of Newton's method: a bound on the cost (chosen, not tuned).
_MOST_STEPS = 10
# A step of Newton's method that leaves more than this part of the defect is the last one.
_SLOWEST = 0.5
# A mean defect below which another step would fit rounding: tokens are doubles, moved many times.
_ROUNDING = 1e-10
# Intervals whose moves start a fit of V: a bound on the cost (chosen, not tuned).
FIRST_INTERVALS = 3
# Chords longer than this, 40 degrees, are no first moves: one velocity does not stand for them.
_FAR = 0.7
# Numbers of steps that are tried one after the other: a bound on the cost (chosen, not tuned).
_MOST_SNAPS = 4
MOST_COUNT = 5000  # steps in an interval: a bound on the cost


@dataclass(frozen=True, eq=False)
class Fitted:
    """The best of a family.

    Attributes:
        code: the code.
        values: its parameters.
        errors: half widths of their 95% intervals.
        size: mean defect that is left over all intervals.
        residual, jacobian: weighted defects on the interval fitted, and what they change by.
    """

    code: Code
    values: np.ndarray
    errors: np.ndarray
    size: float
    residual: np.ndarray
    jacobian: np.ndarray


def fit_with_steps(trajectories: Trajectories, family: Parameters) -> Fitted | None:
    """The best of a family, its steps included; None if nothing near it explains the tokens.

    A rough fit finds the parameters and the steps together, from which Newton's method goes on with
    the code itself, as long as it stays worth it.
    """
    best: Fitted | None = None
    for rough in rough_fits(trajectories, family):
        found = _snapped(trajectories, family, rough)
        if found is not None and (best is None or found.size < best.size):
            best = found
        if best is not None and best.size <= 0.1 * trajectories.limit:
            break
    return best


def _snapped(trajectories: Trajectories, family: Parameters, rough: Start) -> Fitted | None:
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
            size = mean_size(trajectories, here)
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
            values = values + newton_step(trajectories, jacobian, here)
        if best is None:
            return None
        code = stepped_as(family.code(best[1]), scheme)
    except (InputError, SolverError, TooCostlyError):
        return None
    _, values, here = best
    variance = float(here @ here) / max(here.size - len(values), 1)
    covariance = np.linalg.pinv(jacobian.T @ jacobian, rcond=1e-14, hermitian=True) * variance
    errors = 1.96 * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    size = mean_size(trajectories, here)
    if size <= 2 * trajectories.limit:
        size = trajectories.fit(code).size
    return Fitted(code, values, errors, size, here, jacobian)


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
    change = newton_step(trajectories, columns, current.residual)
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
        (head,) = acting(code.attention, 0.5 * (begin + end)).heads
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
