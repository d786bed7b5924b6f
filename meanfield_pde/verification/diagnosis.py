"""The diagnosis of trajectories: right, right but for honest steps, or not right, and why.

The distance of the tokens from what the reference code makes of the first of them holds no sampling
noise. What is left to single precision and to error control is right; so is what a method of a
fixed step, or one of scipy with error control, leaves to rounding. All else is not right.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

import numpy as np

from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.errors import InputError
from meanfield_pde.tokens.cloud import TokenCloud
from meanfield_pde.verification.causes import Cause, find_cause
from meanfield_pde.verification.codes import MOST_EVALUATIONS, TooCostlyError
from meanfield_pde.verification.numbering import keep_numbers
from meanfield_pde.verification.trajectories import Fit, Trajectories

# A method of fixed steps is met to this mean defect in single precision, 25 roundings of 1.2e-7,
# or to SINGLE_STEP sqrt(steps), since roundings add up at random.
SINGLE = 3e-6
SINGLE_STEP = 2e-7


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
    cloud: TokenCloud, attention: AttentionLike, layer_step: float | None = None
) -> Diagnosis | None:
    """The diagnosis of trajectories; None where there are none.

    Args:
        cloud: the tokens.
        attention: what should have moved them.
        layer_step: the step that is claimed for them.
    """
    if len(cloud.times) < 2 or not keep_numbers(cloud, attention):
        return None
    try:
        found = Trajectories(cloud, attention)
    except TooCostlyError:
        counted = "" if layer_step is None else f" with the layer step {layer_step:g}"
        raise InputError(
            f"the times are too far apart: from one to the next, at most "
            f"{np.diff(cloud.times).max():g}{counted}, the reference code needs more than "
            f"{MOST_EVALUATIONS} evaluations of the velocity"
        ) from None
    if len(found.times) < 2:
        return None
    known = (found.distance, found.times, found.distances)
    if found.defect <= found.limit:
        return Diagnosis(True, "its trajectories are those of the reference code", *known)
    stepped = found.with_steps(found.right)
    step = stepped.code.scheme.step
    if _honest(found, stepped):
        if layer_step is not None and abs(step - layer_step) > 0.01 * layer_step:
            name = f"{stepped.title}, where {layer_step:.4g} was claimed"
            since = float(found.times[1])
            return Diagnosis(False, "", *known, step, Cause(name, stepped.size), since)
        how = f"{stepped.title} explain its distance from the reference code"
        return Diagnosis(True, how, *known, step)
    adaptive = found.adaptive()
    if adaptive is not None:
        how = f"{adaptive.title} explains its distance from the reference code"
        return Diagnosis(True, how, *known)
    how = ""
    if step > 0 and stepped.size < 0.1 * found.defect:
        how = f"{stepped.title} explain all but {stepped.size:.1g} of it, more than rounding in "
        how += "single precision"
    cause = find_cause(found, stepped.size)
    return Diagnosis(False, how, *known, cause=cause, since=_missed_since(cloud, found))


def _honest(found: Trajectories, stepped: Fit) -> bool:
    """Whether these steps explain the trajectories to rounding in single precision."""
    step = stepped.code.scheme.step
    if step == 0:
        return False
    count = float(np.diff(found.times).max()) / step
    return stepped.size <= max(SINGLE, SINGLE_STEP * math.sqrt(count))


def _missed_since(cloud: TokenCloud, found: Trajectories) -> float | None:
    """The end of the first interval that no honest steps explain by itself, if there is one.

    Args:
        cloud: tokens that are not right.
        found: their trajectories, whose intervals are cut again if times were saved inside them.
    """
    for begin, end in itertools.pairwise(found.times):
        inside = (cloud.times >= begin) & (cloud.times <= end)
        times = cloud.times[inside]
        part = replace(cloud, times=times, tokens=cloud.tokens[inside])
        ends = replace(part, times=times[[0, -1]], tokens=part.tokens[[0, -1]])
        alone = Trajectories(ends, found.right.attention)
        if alone.defect <= alone.limit or _honest(alone, alone.with_steps(alone.right)):
            continue
        inner = None
        if len(times) > 2:
            inner = _missed_since(part, Trajectories(part, found.right.attention))
        return float(end) if inner is None else inner
    return None
