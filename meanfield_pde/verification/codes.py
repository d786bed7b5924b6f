"""What a particle code may do, right or wrong: a hypothesis that can be run on the user's tokens.

A `Code` is an equation, w(x) = push(x, V m(x)), and a way to step it. In continuous time it moves
tokens by P_x w; in steps of h by one of

    euler       x <- (x + h w) / |.|            with w = P_x V m, or w = V m as a layer takes it
    exponential x <- cos(h |v|) x + sin(h |v|) v / |v|
    heun, midpoint, ralston, rk4                with and without a return to the sphere in between

and Euler's steps may keep a stale mean m for several steps, attend to where tokens were some steps
ago, or leave out one normalisation in n steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.heads import Layer, push_beside, speed_bound, with_heads
from meanfield_pde.attention.layers import AttentionLike, pieces, with_layers
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.tokens.code import Velocity, evolve
from meanfield_pde.verification.flow import Mask, token_means, token_push
from meanfield_pde.verification.steppers import ORDERS, STEPPERS, tangent

# Beyond this number of evaluations of the velocity in one interval a hypothesis is given up: a
# bound on its cost (chosen, not tuned).
MOST_EVALUATIONS = 20_000
# Own steps where the velocity jumps (zero temperature), in units of 1/|V|: a hundredth of a
# radian at most. What they miss is estimated, and allowed for (`Trajectories.limit`).
STEP_AT_ZERO = 0.01


class TooCostlyError(Exception):
    """A hypothesis needs more evaluations than it is worth."""


def _whole(x: np.ndarray, push: np.ndarray) -> np.ndarray:
    return push


def _onto_itself(x: np.ndarray, push: np.ndarray) -> np.ndarray:
    return push - (push * x).sum(axis=1, keepdims=True) * push


def _plus(x: np.ndarray, push: np.ndarray) -> np.ndarray:
    return push + (push * x).sum(axis=1, keepdims=True) * x


def _mixed(x: np.ndarray, push: np.ndarray) -> np.ndarray:
    """Minus the sum over all coordinates and tokens, as a lost axis or keepdims makes it."""
    return push - (push * x).sum() / len(x) * x


PUSHES: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "tangent": tangent,
    "whole": _whole,
    "onto itself": _onto_itself,
    "plus": _plus,
    "mixed": _mixed,
}


@dataclass(frozen=True)
class Scheme:
    """How a code steps.

    Attributes:
        name: "exact" for the flow itself, "rough" for the flow in a few Runge-Kutta steps, or a key
            of `STEPPERS`.
        step: h; of no meaning for the flow.
        stale_mean: n: m is computed anew in every n-th step only; 1 for each.
        lag: n: tokens attend to where tokens were n steps ago.
        skip: n: one step in n leaves out the return to the sphere; 0 for none.
        unnormalised: n: one step in n leaves out the denominator of the softmax; 0 for none.
        shifted: its weights are then exp(score - largest score), and not exp(score) / N.
    """

    name: str = "exact"
    step: float = 0.0
    stale_mean: int = 1
    lag: int = 0
    skip: int = 0
    unnormalised: int = 0
    shifted: bool = False

    def with_fault(self, name: str, every: int) -> Scheme:
        """The same steps with a fault, once in `every` steps or as long ago (see `stepping`)."""
        match name:
            case "stale mean":
                return replace(self, stale_mean=every)
            case "stale tokens":
                return replace(self, lag=every)
            case "skip":
                return replace(self, skip=every)
            case "shifted":
                return replace(self, unnormalised=every, shifted=True)
        return replace(self, unnormalised=every)

    @property
    def order(self) -> int:
        """Order in the step; 0 for the flow itself."""
        return ORDERS.get(self.name, 0)


@dataclass(frozen=True, eq=False)
class Code:
    """A hypothesis on what the user's code does.

    Attributes:
        attention: the attention.
        masses: weights of the tokens; equal if None.
        mask: which tokens a token attends to.
        push: a key of `PUSHES`.
        frozen: which tokens do not move; None if all do.
        scheme: how it steps.
    """

    attention: AttentionLike
    masses: np.ndarray | None = None
    mask: Mask = "none"
    push: str = "tangent"
    frozen: np.ndarray | None = None
    scheme: Scheme = Scheme()

    def stepped(self, scheme: Scheme) -> Code:
        """The same equation, stepped in another way."""
        return replace(self, scheme=scheme)

    @property
    def own_step(self) -> float:
        """Step of our own where errors cannot be controlled, at zero temperature."""
        return STEP_AT_ZERO / max(*map(speed_bound, self.attention.layers), 1e-300)

    def velocity(self, layer: Layer) -> Velocity:
        """The function that gives w; tangent if the flow itself is wanted."""
        push, evaluations = PUSHES[self.push], 0
        flow = self.scheme.name in ("exact", "rough")
        still = None if self.frozen is None else self.frozen[:, None]

        def velocity(x: np.ndarray) -> np.ndarray:
            nonlocal evaluations
            evaluations += 1
            if evaluations > MOST_EVALUATIONS:
                raise TooCostlyError
            moving = push(x, token_push(layer, x, self.masses, self.mask))
            if flow:
                moving = tangent(x, moving)
            return moving if still is None else np.where(still, 0.0, moving)

        return velocity

    def advance(self, x: np.ndarray, begin: float, end: float, first_step: int = 0) -> np.ndarray:
        """Positions at `end` of tokens at x at `begin`, after `first_step` steps before."""
        scheme = self.scheme
        if scheme.name == "exact" and not has_jumps(self.attention):
            return evolve(x, self.attention, [begin, end], self.velocity, tolerance=1e-8)[-1]
        if scheme.name == "exact":
            scheme = Scheme("heun", self.own_step)
        count = max(1, math.ceil((end - begin) / scheme.step * (1 - 1e-6)))
        if count > MOST_EVALUATIONS:
            raise TooCostlyError
        steps = [begin + (end - begin) * i / count for i in range(count + 1)]
        if (scheme.stale_mean, scheme.lag, scheme.skip, scheme.unnormalised) != (1, 0, 0, 0):
            return _faulty_euler(self, scheme, x, steps, first_step)
        stepper = STEPPERS["rk4" if scheme.name == "rough" else scheme.name]
        for layer, start, stop in pieces(self.attention, begin, end):
            velocity = self.velocity(layer)
            inside = [t for t in steps if start < t < stop - 1e-9 * (end - begin)]
            times = [start, *(t for t in inside if t > start + 1e-9 * (end - begin)), stop]
            for i in range(len(times) - 1):
                x = stepper(velocity, x, times[i + 1] - times[i])
        return x


def _faulty_euler(
    code: Code, scheme: Scheme, x: np.ndarray, steps: list[float], first_step: int
) -> np.ndarray:
    """Euler's steps with a fault of their own."""
    push = PUSHES[code.push]
    past = _past(code, scheme, x, steps) if first_step else [x]
    means: list[np.ndarray] = []
    for i, (start, stop) in enumerate(itertools.pairwise(steps)):
        number = first_step + i
        layer = pieces(code.attention, start, stop)[0][0]
        unnormalised = (
            bool(scheme.unnormalised) and number % scheme.unnormalised == scheme.unnormalised - 1
        )
        if unnormalised and not scheme.shifted:
            layer = changed_layer(layer, lambda head: replace(head, normalise=False))
        if i == 0 or number % scheme.stale_mean == 0:
            sources = past[max(0, len(past) - 1 - scheme.lag)]
            if scheme.lag == 0:
                means = [token_means(h, x, code.masses, code.mask) for h in layer.heads]
                if unnormalised and scheme.shifted:
                    pairs = zip(layer.heads, means, strict=True)
                    means = [mean * _shifted_total(h, x) for h, mean in pairs]
            else:
                means = [cross_means(h, x, sources, code.masses) for h in layer.heads]
        moved = x + (stop - start) * push(x, _pushed(layer, x, means, code.masses))
        if code.frozen is not None:
            moved = np.where(code.frozen[:, None], x, moved)
        leave_out = scheme.skip and number % scheme.skip == scheme.skip - 1
        x = moved if leave_out else normalised(moved)
        past = [*past[-scheme.lag :], x] if scheme.lag else [x]
    return normalised(x)


def _shifted_total(head: Attention, x: np.ndarray) -> np.ndarray:
    """The denominator sum_j exp(s_ij - max_j s_ij) of the softmax of scores s, N x 1."""
    scores = head.scores(x) @ x.T
    return np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)


def _pushed(
    layer: Layer, x: np.ndarray, means: list[np.ndarray], masses: np.ndarray | None
) -> np.ndarray:
    """The sum of V m over the heads with these means, and g of the terms beside them."""
    push = push_beside(layer, x, masses)
    for head, mean in zip(layer.heads, means, strict=True):
        push += mean @ head.value.T
    return push


def _past(code: Code, scheme: Scheme, x: np.ndarray, steps: list[float]) -> list[np.ndarray]:
    """Where tokens were before the first step, to first order in it."""
    layer = pieces(code.attention, steps[0], steps[1])[0][0]
    velocity = code.stepped(Scheme()).velocity(layer)(x)
    h = steps[1] - steps[0]
    return [normalised(x - j * h * velocity) for j in range(scheme.lag, -1, -1)]


def cross_means(
    head: Attention, x: np.ndarray, sources: np.ndarray, masses: np.ndarray | None
) -> np.ndarray:
    """M at the tokens x under tokens that stand elsewhere."""
    weights = np.full(len(sources), 1 / len(sources)) if masses is None else masses
    return head.mean(x, sources, weights, tolerance=1e-12)


def changed(attention: AttentionLike, change: Callable[[Attention], Attention]) -> AttentionLike:
    """The attention with a change in every head of every layer."""
    return with_layers(attention, [changed_layer(layer, change) for layer in attention.layers])


def changed_layer(layer: Layer, change: Callable[[Attention], Attention]) -> Layer:
    """The layer with a change in every head."""
    return with_heads(layer, [change(head) for head in layer.heads])


def has_jumps(attention: AttentionLike) -> bool:
    """Whether the velocity jumps somewhere: at zero temperature."""
    return any(layer.zero_temperature for layer in attention.layers)
