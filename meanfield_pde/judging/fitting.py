"""Parameters of the equation fitted to the user's trajectories, with intervals.

Velocities are linear in V: the first moves give it by least squares, up to the error of a midpoint
rule. From there the fit goes through the flow, all matrices and beta by Gauss and Newton, until the
defects of `Trajectories` are as small as they get.
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
from meanfield_pde.judging.steppers import TITLES
from meanfield_pde.judging.trajectories import Trajectories
from meanfield_pde.mesh.geometry import normalised

_DIFFERENCE = 1e-5
_MOST_STEPS = 12
FITTED_INTERVALS = 3
# Moves longer than this are no first moves.
_FAR = 0.7
# Steps are looked for if the parameters alone leave at most this part of the defect.
PROMISING = 0.6
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
        residual, jacobian: weighted defects on the intervals fitted, and what they change by.
    """

    code: Code
    values: np.ndarray
    errors: np.ndarray
    size: float
    title: str
    residual: np.ndarray
    jacobian: np.ndarray


def fit_parameters(trajectories: Trajectories, family: Parameters, scheme: Scheme) -> Fitted:
    """Least squares through the flow, stepped as given."""
    chosen = fitted_intervals(trajectories)
    root = np.sqrt(trajectories.weights / len(chosen))[None, :, None]

    known: dict[bytes, np.ndarray] = {}  # the last one, which the Jacobian starts from

    def residual(values: np.ndarray) -> np.ndarray:
        if values.tobytes() not in known:
            known.clear()
            known[values.tobytes()] = defects_of(values)
        return known[values.tobytes()]

    def defects_of(values: np.ndarray) -> np.ndarray:
        shape = (len(chosen), *trajectories.tokens[0].shape)
        try:
            with np.errstate(all="ignore"):
                ends = trajectories.ends(family.code(values).stepped(scheme), chosen)
        except (InputError, SolverError, TooCostlyError):
            return np.full(math.prod(shape), _BAD)
        defects = trajectories.scaled(ends, chosen)
        return np.nan_to_num(root * defects, nan=_BAD, posinf=_BAD, neginf=-_BAD).ravel()

    def jacobian(values: np.ndarray) -> np.ndarray:
        here = residual(values)
        columns = []
        for i in range(len(values)):
            moved = values.copy()
            moved[i] += _DIFFERENCE
            columns.append((defects_of(moved) - here) / _DIFFERENCE)
        return np.stack(columns, axis=1)

    found = least_squares(
        residual, family.start, jac=jacobian, max_nfev=_MOST_STEPS, xtol=1e-10, ftol=1e-12
    )
    code = family.code(found.x).stepped(scheme)
    freedom = max(found.fun.size - len(found.x), 1)
    variance = float(found.fun @ found.fun) / freedom
    covariance = np.linalg.pinv(found.jac.T @ found.jac, rcond=1e-14, hermitian=True) * variance
    errors = 1.96 * np.sqrt(np.maximum(np.diag(covariance), 0.0))
    title = TITLES[scheme.name].format(scheme.step) if scheme.name in TITLES else ""
    size = trajectories.fit(code).size
    return Fitted(code, found.x, errors, size, title, found.fun, found.jac)


def fit_with_steps(trajectories: Trajectories, family: Parameters) -> Fitted:
    """Parameters and the step of Euler's method together; the flow itself, if that is enough.

    A wrong parameter can hide an error of steps in part. To first order both are the solution of
    one linear problem, r + J dp - h E = 0, with E the error of a step by its length; then the step
    is made to divide the intervals, and the parameters are fitted again.
    """
    best = fit_parameters(trajectories, family, Scheme())
    if not trajectories.limit < best.size <= PROMISING * trajectories.defect:
        return best
    flow = best
    for method in ("euler", "layers"):
        stepped = family
        if method == "layers":
            if flow.code.push != "tangent":
                continue
            stepped = Parameters(family.start, lambda p: replace(family.code(p), push="whole"))
        current, tried = flow, set[int]()
        for _ in range(_MOST_SNAPS):
            values, step = _linear_step(trajectories, current, flow, method)
            count = round(trajectories.shortest / step) if step > 0 else 0
            if not 1 <= count <= MOST_COUNT or count in tried:
                break
            tried.add(count)
            start = Parameters(values, stepped.code)
            scheme = Scheme(method, trajectories.shortest / count)
            current = fit_parameters(trajectories, start, scheme)
            if current.size < best.size:
                best = current
        if best.size <= 0.1 * trajectories.limit:
            break
    return best


def _linear_step(
    trajectories: Trajectories, current: Fitted, flow: Fitted, method: str
) -> tuple[np.ndarray, float]:
    """Parameters and step that remove the defects of the current ones, to first order."""
    chosen = fitted_intervals(trajectories)
    root = np.sqrt(trajectories.weights / len(chosen))[None, :, None]
    base = current.code.scheme.step
    step = base if base > 0 else trajectories.shortest / 20
    push = "whole" if method == "layers" else flow.code.push
    exact = replace(current.code, push=push, scheme=Scheme())
    with np.errstate(all="ignore"):
        try:
            ends = trajectories.ends(exact.stepped(Scheme(method, step)), chosen)
            ends = ends - trajectories.ends(exact, chosen)
        except (SolverError, TooCostlyError):
            return current.values, 0.0
    error = (root * ends / trajectories.magnified[chosen][..., None]).ravel() / step
    columns = np.column_stack([current.jacobian, -error])
    change, *_ = np.linalg.lstsq(columns, -current.residual, rcond=1e-12)
    return current.values + change[:-1], base + float(change[-1])


def fitted_intervals(trajectories: Trajectories) -> list[int]:
    """The first intervals, on which the parameters are fitted."""
    return list(range(min(FITTED_INTERVALS, len(trajectories.times) - 1)))


def first_value(trajectories: Trajectories, code: Code) -> np.ndarray:
    """What to add to V for the first moves to be explained, d x d; of several, the least.

    Between two times the mean velocity is taken for that at the midpoint,
    log_x(y) / dt = P V m there, with m under the midpoints of all tokens.
    """
    rows: list[np.ndarray] = []
    sides: list[np.ndarray] = []
    for k in fitted_intervals(trajectories):
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
