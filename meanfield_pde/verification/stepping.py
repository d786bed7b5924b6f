"""Faults of Euler's steps themselves: a mean that is stale, a denominator left out now and then.

They hang on the number of steps, which is found by trying. A stale mean is late by tau, on average,
and to first order leaves D - h E - tau L, with L the error of a mean late by one unit of time:
that gives tau away, and only few numbers of steps go with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from meanfield_pde.errors import SolverError
from meanfield_pde.verification.codes import Scheme, TooCostlyError
from meanfield_pde.verification.screening import most_left, stepped_as
from meanfield_pde.verification.trajectories import Fit, Trajectories

# Terms of token sums that are spent: 6 s at 1.6 ns each (`flow.TERM`).
BUDGET = 4e9
# Steps in an interval and how often a fault occurs, round numbers first: what codes are written
# with (chosen, not tuned).
STEP_COUNTS = (5, 10, 20, 25, 50, 100, 2, 4, 8, 16, 32, 40, 64, 80, 128, 200)
STALE_MEANS, LAGS, UNNORMALISED = (2, 4, 5, 8, 10, 20), (1, 2, 5, 10), (2, 5, 10, 20)
# Each with by how many steps the mean is late, on average.
_STALE = [("stale mean", n, (n - 1) / 2) for n in STALE_MEANS] + [
    ("stale tokens", n, float(n)) for n in LAGS
]
# The methods whose faults these are.
METHODS = ("euler", "layers")
_TITLES = {
    "stale mean": "a mean that is computed anew in every {} steps only",
    "stale tokens": "a mean of where tokens were {} steps ago",
    "unnormalised softmax": "a softmax without its denominator in one step of {}",
    "shifted": "a softmax without its denominator in one step of {}",
}
_SOME = "a softmax without its denominator in some of the steps"
_LATE_STEPS = 20  # in which the error of a late mean is seen: a bound on the cost
# How late a mean is is found to this factor: to first order only.
_NEAR = 2.0


def faulty_steps(trajectories: Trajectories) -> Iterator[tuple[str, Fit]]:
    """The fault that explains the tokens on one interval, and what it leaves on all."""
    where = [trajectories.fitted] if trajectories.fitted == 0 else [0]
    length = float(trajectories.times[1] - trajectories.times[0])
    pairs, spent = trajectories.tokens.shape[1] ** 2, 0.0
    for name, every, scheme in _candidates(trajectories):
        spent += pairs * length / scheme.step
        if spent > BUDGET:
            return
        code = stepped_as(trajectories.right, scheme.with_fault(name, every))
        try:
            with np.errstate(all="ignore"):
                ends = trajectories.ends(code, where)
        except (SolverError, TooCostlyError):
            continue
        if trajectories.size(trajectories.scaled(ends, where)) <= trajectories.limit:
            if not _together(trajectories, where[0] + 1):
                yield _TITLES[name].format(every), trajectories.fit(code)
            elif name in ("unnormalised softmax", "shifted"):
                yield _SOME, trajectories.fit(code)
            return


def _together(trajectories: Trajectories, index: int) -> bool:
    """Whether tokens have come together, so that they do not tell how often steps have a fault."""
    places = np.round(trajectories.tokens[index] / trajectories.limit)
    return len(np.unique(places, axis=0)) < len(places) / 2


def _candidates(trajectories: Trajectories) -> Iterator[tuple[str, int, Scheme]]:
    """Faults, how often, and the steps: what is stale as it is late, then all of the others."""
    shortest = trajectories.shortest
    late = _lateness(trajectories)
    near = sorted(
        (abs(math.log(steps * shortest / count / late[name])), name, n, count)
        for name, n, steps in _STALE
        for count in STEP_COUNTS
        if late[name] > 0
    )
    for far, name, n, count in near:
        if far > math.log(_NEAR):
            break
        for method in METHODS:
            yield name, n, Scheme(method, shortest / count)
    for count in STEP_COUNTS:
        for n, name in itertools.product(UNNORMALISED, ("unnormalised softmax", "shifted")):
            for method in METHODS:
                yield name, n, Scheme(method, shortest / count)


def _lateness(trajectories: Trajectories) -> dict[str, float]:
    """By how much time means are late that explain the tokens best; 0 if none do."""
    right, k = trajectories.right, trajectories.fitted
    step = float(trajectories.times[k + 1] - trajectories.times[k]) / _LATE_STEPS
    scale = step * trajectories.magnified[k][None, :, None]
    flow = trajectories.right_ends[[k]]
    defects = trajectories.scaled(flow, [k])
    euler = Scheme("euler", step)
    found = {}
    with np.errstate(all="ignore"):
        plain = trajectories.ends(right.stepped(euler), [k])
        for name, every, steps in (("stale mean", 2, 0.5), ("stale tokens", 1, 1.0)):
            late = trajectories.ends(right.stepped(euler.with_fault(name, every)), [k])
            errors = ((plain - flow) / scale, (late - plain) / scale / steps)
            columns = np.stack([one.ravel() for one in errors], axis=1)
            length, time = np.linalg.lstsq(columns, defects.ravel(), rcond=None)[0]
            left = trajectories.size(defects - length * errors[0] - time * errors[1])
            found[name] = float(time) if left <= most_left(trajectories) else 0.0
    return found
