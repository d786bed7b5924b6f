"""What a hypothesis leaves, roughly: whether it is worth a run to rounding.

One interval, few Runge-Kutta steps, and the error of Euler's steps to first order in them: with D
the defect of the flow and E the error per unit of step, a code of steps h leaves D - h E.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from meanfield_pde.errors import SolverError
from meanfield_pde.verification.codes import Code, Scheme, TooCostlyError
from meanfield_pde.verification.trajectories import Trajectories

# What leaves more than this part of the defect is given up (chosen, not tuned).
PROMISING = 0.5
# The error of a method is seen with n = 20 steps: a bound on the cost.
_STEPS = 20


@dataclass(frozen=True)
class Screened:
    """What is left at best.

    Attributes:
        left: the mean defect.
        method: "exact", "euler" or "layers".
        step: of the method; 0 for the flow.
    """

    left: float
    method: str = "exact"
    step: float = 0.0


def stepped_as(code: Code, scheme: Scheme) -> Code:
    """The code with these steps; layers push with all of V m."""
    push = "whole" if scheme.name == "layers" else code.push
    return replace(code, push=push, scheme=scheme)


def rough_ends(trajectories: Trajectories, code: Code) -> np.ndarray:
    """Where the flow of a hypothesis ends, about, 1 x N x d."""
    with np.errstate(all="ignore"):
        return trajectories.ends(code.stepped(trajectories.rough), [trajectories.fitted])


def errors_of_steps(
    trajectories: Trajectories, code: Code, ends: np.ndarray
) -> dict[str, np.ndarray]:
    """By how much Euler's steps miss the flow that ends there, scaled, per unit of step."""
    k = trajectories.fitted
    step = float(trajectories.times[k + 1] - trajectories.times[k]) / _STEPS
    found = {}
    for method in ("euler", "layers") if code.push == "tangent" else ("euler",):
        with np.errstate(all="ignore"):
            other = trajectories.ends(stepped_as(code, Scheme(method, step)), [k])
        found[method] = (other - ends) / trajectories.magnified[k][:, None] / step
    return found


def best_steps(
    trajectories: Trajectories, defects: np.ndarray, errors: dict[str, np.ndarray]
) -> list[Screened]:
    """What is left with each method at its best step, the least first."""
    found = [Screened(_finite(trajectories.size(defects)))]
    for method, error in errors.items():
        square = float((error**2).sum())
        step = float((defects * error).sum()) / square if square > 0 else 0.0
        if step > 0:
            left = _finite(trajectories.size(defects - step * error))
            found.append(Screened(left, method, step))
    return sorted(found, key=lambda one: one.left)


class Screen:
    """What hypotheses leave at best on one interval, with the steps of the right code.

    Either the hypothesis is close to the right code, and so are its errors of steps, or these are
    small against what it leaves.
    """

    def __init__(self, trajectories: Trajectories) -> None:
        self.trajectories = trajectories
        ends = trajectories.right_ends[[trajectories.fitted]]
        self.errors = errors_of_steps(trajectories, trajectories.right, ends)

    def __call__(self, code: Code) -> Screened:
        """What this one leaves; everything if it cannot be computed."""
        try:
            ends = rough_ends(self.trajectories, code)
        except (TooCostlyError, SolverError):
            return Screened(math.inf)
        defects = self.trajectories.scaled(ends, [self.trajectories.fitted])
        return best_steps(self.trajectories, defects, self.errors)[0]


def most_left(trajectories: Trajectories) -> float:
    """What may be left by a hypothesis that is worth a run to rounding."""
    k = trajectories.fitted
    here = trajectories.size(trajectories.scaled(trajectories.right_ends[[k]], [k]))
    return max(PROMISING * here, trajectories.limit)


def _finite(size: float) -> float:
    return size if math.isfinite(size) else math.inf
