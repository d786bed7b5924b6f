"""Trajectories judged: right, right but for honest steps, or not right, and why.

The distance of the tokens from what the reference code makes of the first of them holds no sampling
noise. What is left to single precision and to error control is right; so is what a method of a
fixed step, or one of scipy with error control, leaves to rounding. All else is not right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.judging.causes import Cause, find_cause
from meanfield_pde.judging.numbering import keep_numbers
from meanfield_pde.judging.trajectories import Trajectories
from meanfield_pde.tokens.cloud import TokenCloud

# A method of fixed steps is met to this mean defect in single precision, and to this much more for
# each step of an interval, at random.
SINGLE = 3e-6
SINGLE_STEP = 2e-7


@dataclass(frozen=True, eq=False)
class Judgement:
    """What the trajectories say.

    Attributes:
        right: whether they are those of the equation, but for steps and rounding.
        how: what explains their distance from the reference code, in words.
        distance: mean distance from what the reference code makes of the same first tokens.
        times, distances: the same by time.
        step: length of the steps found; 0 if none show.
        cause: what explains tokens that are not right, if that is known.
    """

    right: bool
    how: str
    distance: float
    times: np.ndarray
    distances: np.ndarray
    step: float = 0.0
    cause: Cause | None = None


def judge(
    cloud: TokenCloud, attention: AttentionLike, layer_step: float | None = None
) -> Judgement | None:
    """The judgement of trajectories; None where there are none.

    Args:
        cloud: the tokens.
        attention: what should have moved them.
        layer_step: the step that is claimed for them.
    """
    if len(cloud.times) < 2 or not keep_numbers(cloud, attention):
        return None
    found = Trajectories(cloud, attention)
    if len(found.times) < 2:
        return None
    known = (found.distance, found.times, found.distances)
    if found.defect <= found.limit:
        return Judgement(True, "its trajectories are those of the reference code", *known)
    stepped = found.with_steps(found.right)
    step = stepped.code.scheme.step
    if step > 0:
        count = float(np.diff(found.times).max()) / step
        if stepped.size <= max(SINGLE, SINGLE_STEP * math.sqrt(count)):
            if layer_step is not None and abs(step - layer_step) > 0.01 * layer_step:
                name = f"{stepped.title}, where {layer_step:.4g} was claimed"
                return Judgement(False, "", *known, step, Cause(name, stepped.size))
            how = f"{stepped.title} explain its distance from the reference code"
            return Judgement(True, how, *known, step)
    adaptive = found.adaptive()
    if adaptive is not None:
        how = f"{adaptive.title} explains its distance from the reference code"
        return Judgement(True, how, *known)
    how = ""
    if step > 0 and stepped.size < 0.1 * found.defect:
        how = f"{stepped.title} explain all but {stepped.size:.1g} of it, more than rounding in "
        how += "single precision"
    return Judgement(False, how, *known, cause=find_cause(found, stepped.size))
