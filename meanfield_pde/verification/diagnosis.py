"""The diagnosis of trajectories: right, right but for honest steps, or not right, and why.

The distance of the tokens from what the reference code makes of the first of them holds no sampling
noise. What is left to single precision and to error control is right; so is what a method of a
fixed step, or one of scipy with error control, leaves to rounding. All else is not right, and its
cause is the smallest change of the equation (`hypotheses.TABLE`) that explains the tokens.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp
from scipy.spatial import cKDTree

from meanfield_pde.attention.layers import AttentionLike, pieces
from meanfield_pde.errors import InputError
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.tokens.cloud import TokenCloud
from meanfield_pde.verification.codes import (
    MOST_EVALUATIONS,
    STEPPERS,
    Scheme,
    TooCostlyError,
)
from meanfield_pde.verification.fitting import Fit, Hypothesis, fit, with_fewer_numbers
from meanfield_pde.verification.hypotheses import TABLE
from meanfield_pde.verification.numbering import keep_numbers
from meanfield_pde.verification.trajectories import DiagnosisSettings, Trajectories

# Adaptive methods of scipy as they come, without a tolerance given, and with a better one.
ADAPTIVE = tuple((name, rtol) for name in ("RK45", "RK23", "DOP853") for rtol in (1e-3, 1e-4, 1e-5))


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


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What the trajectories say.

    Attributes:
        right: whether they are those of the equation, but for steps and rounding.
        how: what explains their distance from the reference code, in words.
        distance: mean distance from what the reference code makes of the same first tokens.
        times, distances: the same by time.
        step: length of the steps found; 0 if none show.
        cause: what explains tokens that are not right, if that is known.
        since: the first saved time at which tokens that are not right are seen not to be; None if
            only all intervals together show it.
    """

    right: bool
    how: str
    distance: float
    times: np.ndarray
    distances: np.ndarray
    step: float = 0.0
    cause: Cause | None = None
    since: float | None = None


def diagnose(
    cloud: TokenCloud,
    attention: AttentionLike,
    layer_step: float | None = None,
    settings: DiagnosisSettings | None = None,
    noise: float = 0.0,
) -> Diagnosis | None:
    """The diagnosis of trajectories; None where there are none, or where noise has made them.

    Args:
        cloud: the tokens.
        attention: what should have moved them.
        layer_step: the step that is claimed for them.
        settings: what is taken for an explanation, and what it may cost.
        noise: strength of the noise that should have moved them, too.
    """
    settings = settings or DiagnosisSettings()
    if (cloud.times <= attention.end * (1 + 1e-9)).sum() < 2:
        return None
    if noise and not _look_free_of_noise(cloud, noise, settings):
        return None
    if not keep_numbers(cloud, attention):
        return None
    try:
        found = Trajectories(cloud, attention, settings)
    except TooCostlyError:
        if noise:
            return None
        counted = "" if layer_step is None else f" with the layer step {layer_step:g}"
        raise InputError(
            f"the times are too far apart: from one to the next, at most "
            f"{np.diff(cloud.times).max():g}{counted}, the reference code needs more than "
            f"{MOST_EVALUATIONS} evaluations of the velocity"
        ) from None
    known = (found.distance, found.times, found.distances)
    first = float(found.times[1])
    stepped = _honest_steps(found)
    step, title = stepped.code.scheme.step, stepped.code.scheme.title
    how = _how_right(found, stepped)
    if noise:
        if not how:
            return None
        return Diagnosis(False, "", *known, step, Cause("the noise that is left out", 0.0), first)
    if how:
        if layer_step is not None and step > 0 and abs(step - layer_step) > 0.01 * layer_step:
            other = Cause(f"{title}, where {layer_step:.4g} was claimed", stepped.left)
            return Diagnosis(False, "", *known, step, other, first)
        return Diagnosis(True, how, *known, step)
    if step > 0 and stepped.left < settings.honest * found.defect:
        how = f"{title} explain all but {stepped.left:.1g} of it, more than rounding in "
        how += "single precision"
    cause = find_cause(found, stepped.left)
    return Diagnosis(False, how, *known, cause=cause, since=_missed_since(cloud, found))


def _how_right(found: Trajectories, stepped: Fit) -> str:
    """How the right code explains the trajectories, in words; empty if it does not."""
    if found.defect <= found.limit:
        return "its trajectories are those of the reference code"
    if _to_rounding(found, stepped):
        return f"{stepped.code.scheme.title} explain its distance from the reference code"
    adaptive = _adaptive(found)
    return f"{adaptive} explains its distance from the reference code" if adaptive else ""


def _look_free_of_noise(cloud: TokenCloud, noise: float, settings: DiagnosisSettings) -> bool:
    """Whether neighbours stay nearer to each other than noise lets them: a look at little cost.

    Noise parts them by sqrt(4 noise dt) along each direction, but on the sphere no further than by
    about 1; a flow takes neighbours to neighbours.
    """
    k = int(np.diff(cloud.times).argmin())
    x, y = cloud.tokens[k], cloud.tokens[k + 1]
    kick = min(math.sqrt(4 * noise * float(cloud.times[k + 1] - cloud.times[k])), 1.0)
    if len(x) < 2 or kick < settings.unexplained / settings.no_noise:
        return False
    nearest = cKDTree(x).query(x, 2)[1][:, 1]
    parted = np.linalg.norm((y[nearest] - y) - (x[nearest] - x), axis=1)
    return bool(np.median(parted) <= settings.no_noise * kick)


def find_cause(trajectories: Trajectories, honest: float) -> Cause | None:
    """The smallest change that explains the tokens, or None.

    It explains them if what it leaves is left to rounding, and a small part of what the equation
    with honest steps leaves.

    Args:
        trajectories: the tokens.
        honest: the mean defect that honest steps leave.
    """
    settings = trajectories.settings
    most = min(trajectories.limit, settings.fits * honest)
    for level in TABLE.values():
        if level.of_steps and honest <= settings.honest * trajectories.defect:
            continue
        found: list[Cause] = []
        for hypothesis in level.hypotheses(trajectories):
            cause = _explanation(trajectories, hypothesis, most)
            if cause is not None:
                found.append(cause)
                if hypothesis.scheme is not None:  # tried one by one, the likely ones first
                    break
        if found:
            names = " or ".join(dict.fromkeys(one.name for one in found))
            fitted = tuple(number for one in found for number in one.fitted)
            return Cause(names, min(one.left for one in found), fitted)
    return None


def _explanation(trajectories: Trajectories, hypothesis: Hypothesis, most: float) -> Cause | None:
    """The hypothesis as a cause, with its numbers, if it explains the tokens."""
    best = fit(trajectories, hypothesis, most=most)
    if best is None or best.left > most:
        return None
    if hypothesis.says is None:
        return Cause(hypothesis.name, best.left)
    differing = best.differing(trajectories.settings.differs)
    if not differing.size:  # what is left to rounding in half precision, say, is no other number
        return None
    if len(differing) < len(best.values):
        best = with_fewer_numbers(trajectories, best, differing, most)
    if _is_vague(best, trajectories.settings):
        return None
    says = hypothesis.says
    words = "; ".join(says(number) for number in best.numbers)
    return Cause(words, best.left, tuple(vars(number) for number in best.numbers))


def _is_vague(found: Fit, settings: DiagnosisSettings) -> bool:
    """Whether the tokens leave open what was fitted, though it explains them to rounding.

    Tokens that have come together are explained by any number that brings them together.
    """
    largest = max(float(np.abs(found.values).max()), float(np.abs(found.hypothesis.case).max()))
    return bool((found.errors > settings.vague * largest).any())


def _honest_steps(trajectories: Trajectories) -> Fit:
    """The method and the step by which the equation itself leaves the least; none if none show."""
    right = Hypothesis("the equation", lambda _: trajectories.right)
    methods = () if trajectories.defect <= trajectories.limit else tuple(STEPPERS)
    found = fit(trajectories, right, methods)
    assert found is not None  # the flow itself can always be run: it has been
    return found


def _to_rounding(trajectories: Trajectories, stepped: Fit) -> bool:
    """Whether these steps explain the trajectories to rounding in single precision."""
    step, settings = stepped.code.scheme.step, trajectories.settings
    if step == 0:
        return False
    count = float(np.diff(trajectories.times).max()) / step
    return stepped.left <= max(settings.single, settings.single_step * math.sqrt(count))


def _adaptive(trajectories: Trajectories) -> str | None:
    """A method with error control from scipy that the tokens are those of, if one is."""
    largest = trajectories.settings.largest_adaptive
    if trajectories.defect > largest or trajectories.right.has_jumps:
        return None
    for (name, rtol), back in itertools.product(ADAPTIVE, (False, True)):
        ends = _solve_ivp(trajectories, name, rtol, back=back)
        if ends is None:
            continue
        defects = (trajectories.defects(one, k) for k, one in enumerate(ends))
        if max(map(trajectories.mean, defects)) <= trajectories.limit:
            return f"solve_ivp ({name}, rtol = {rtol:g})"
    return None


def _solve_ivp(
    trajectories: Trajectories, name: str, rtol: float, *, back: bool
) -> np.ndarray | None:
    """Tokens from the first time on, over all intervals at once, as the steps of scipy go.

    Args:
        trajectories: the tokens.
        name: the method.
        rtol: its tolerance.
        back: whether the velocity is that of points put back on the sphere.
    """
    times, x = trajectories.times, trajectories.tokens[0]
    layer, begin, end = pieces(trajectories.right.attention, times[0], times[-1])[0]
    if end < times[-1]:
        return None
    # Such a code projects once, and so does the velocity of steps.
    velocity = trajectories.right.stepped(Scheme("euler", 1.0)).velocity(layer)

    def rate(_: float, y: np.ndarray) -> np.ndarray:
        points = y.reshape(x.shape)
        return velocity(normalised(points) if back else points).ravel()

    try:
        with np.errstate(all="ignore"):
            found = solve_ivp(
                rate, (begin, end), x.ravel(), name, t_eval=times[1:], rtol=rtol, atol=1e-6
            )
    except TooCostlyError:
        return None
    return normalised(found.y.T.reshape(-1, *x.shape)) if found.success else None


def _missed_since(cloud: TokenCloud, found: Trajectories) -> float | None:
    """The end of the first interval that no honest steps explain by itself, if there is one.

    Args:
        cloud: tokens that are not right.
        found: their trajectories, whose intervals are cut again if times were saved inside them.
    """
    attention, settings = found.right.attention, found.settings
    for begin, end in itertools.pairwise(found.times):
        inside = (cloud.times >= begin) & (cloud.times <= end)
        times = cloud.times[inside]
        part = replace(cloud, times=times, tokens=cloud.tokens[inside])
        ends = replace(part, times=times[[0, -1]], tokens=part.tokens[[0, -1]])
        alone = Trajectories(ends, attention, settings)
        if alone.defect <= alone.limit or _to_rounding(alone, _honest_steps(alone)):
            continue
        inner = None
        if len(times) > 2:
            inner = _missed_since(part, Trajectories(part, attention, settings))
        return float(end) if inner is None else inner
    return None
