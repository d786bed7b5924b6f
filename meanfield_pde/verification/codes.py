"""What a particle code may do, right or wrong: a hypothesis that can be run on the user's tokens.

A `Code` is an equation, w(x) = push(x, V m(x)), and a way to step it. In continuous time it moves
tokens by P_x w; in steps of h by one of the methods in `STEPPERS`, which return to the sphere:

    euler       x <- (x + h w) / |.|            with w = P_x V m; "layers" with w = V m
    exponential x <- cos(h |v|) x + sin(h |v|) v / |v|
    heun, midpoint, ralston, rk4                with and without a return to the sphere in between

and Euler's steps may have a fault of their own (`Scheme.fault`).
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

# A code is given up beyond this number of evaluations in one interval: 1.3 s with 200 tokens, 32 s
# with 1,000, at 1.6 ns a term (`flow.TERM`).
MOST_EVALUATIONS = 20_000
# Own steps where the velocity jumps (zero temperature), in units of 1/|V|: a hundredth of a
# radian at most. What they miss is estimated, and allowed for (`Trajectories.limit`).
STEP_AT_ZERO = 0.01

Push = Callable[[np.ndarray, np.ndarray], np.ndarray]
Stepper = Callable[[Velocity, np.ndarray, float], np.ndarray]


class TooCostlyError(Exception):
    """A code needs more evaluations than it is worth."""


def tangent(x: np.ndarray, push: np.ndarray) -> np.ndarray:
    """P_x of the push."""
    return push - (push * x).sum(axis=-1, keepdims=True) * x


PUSHES: dict[str, Push] = {
    "tangent": tangent,
    "whole": lambda x, push: push,
    "onto itself": lambda x, push: push - (push * x).sum(axis=1, keepdims=True) * push,
    "plus": lambda x, push: push + (push * x).sum(axis=1, keepdims=True) * x,
    # Minus the sum over all coordinates and tokens, as a lost axis or keepdims makes it.
    "mixed": lambda x, push: push - (push * x).sum() / len(x) * x,
}


def _euler(velocity: Velocity, x: np.ndarray, h: float) -> np.ndarray:
    return normalised(x + h * velocity(x))


def _exponential(velocity: Velocity, x: np.ndarray, h: float) -> np.ndarray:
    v = tangent(x, velocity(x))
    speed = np.linalg.norm(v, axis=1, keepdims=True)
    return normalised(np.cos(h * speed) * x + h * np.sinc(h * speed / np.pi) * v)


def _two_stages(at: float, *, back: bool) -> Stepper:
    """The method of order two whose second stage stands at this part of the step."""
    second = 0.5 / at

    def step(velocity: Velocity, x: np.ndarray, h: float) -> np.ndarray:
        first = velocity(x)
        middle = x + at * h * first
        after = velocity(normalised(middle) if back else middle)
        return normalised(x + h * ((1 - second) * first + second * after))

    return step


def _rk4(*, back: bool) -> Stepper:
    def put(x: np.ndarray) -> np.ndarray:
        return normalised(x) if back else x

    def step(velocity: Velocity, x: np.ndarray, h: float) -> np.ndarray:
        a = velocity(x)
        b = velocity(put(x + h / 2 * a))
        c = velocity(put(x + h / 2 * b))
        d = velocity(put(x + h * c))
        return normalised(x + h / 6 * (a + 2 * b + 2 * c + d))

    return step


# Each method with its order and what it is called; those of most codes first, since the first that
# explains the tokens is taken.
STEPPERS: dict[str, tuple[Stepper, int, str]] = {
    "euler": (_euler, 1, "Euler steps of {:.4g}"),
    "layers": (_euler, 1, "layers x + h V m of h = {:.4g}"),  # with the push "whole"
    "exponential": (_exponential, 1, "Euler steps of {:.4g} along great circles"),
    "heun": (_two_stages(1.0, back=True), 2, "Heun steps of {:.4g}"),
    "heun, free stage": (_two_stages(1.0, back=False), 2, "Heun steps of {:.4g}"),
    "midpoint": (_two_stages(0.5, back=True), 2, "midpoint steps of {:.4g}"),
    "midpoint, free stage": (_two_stages(0.5, back=False), 2, "midpoint steps of {:.4g}"),
    "ralston": (_two_stages(2 / 3, back=True), 2, "Ralston steps of {:.4g}"),
    "rk4": (_rk4(back=True), 4, "Runge-Kutta steps of order 4 of {:.4g}"),
    "rk4, free stages": (_rk4(back=False), 4, "Runge-Kutta steps of order 4 of {:.4g}"),
}


@dataclass(frozen=True)
class Scheme:
    """How a code steps.

    Attributes:
        method: "exact" for the flow itself, "rough" for the flow in a few Runge-Kutta steps, or a
            key of `STEPPERS`.
        step: h; of no meaning for the flow.
        fault: of Euler's steps, or none: "stale mean" (m is computed anew in every n-th step only),
            "stale tokens" (tokens attend to where tokens were n steps ago), "unnormalised" (one
            step in n leaves out the denominator of the softmax) or "shifted" (the same, where
            weights are exp(score - largest score), and not exp(score) / N).
        every: n.
    """

    method: str = "exact"
    step: float = 0.0
    fault: str = ""
    every: int = 1

    @property
    def order(self) -> int:
        """Order in the step."""
        return STEPPERS[self.method][1]

    @property
    def title(self) -> str:
        """What it is called."""
        return STEPPERS[self.method][2].format(self.step) if self.step > 0 else "no error of steps"


@dataclass(frozen=True, eq=False)
class Code:
    """What the user's code may do.

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
        """The same equation, stepped in another way; layers push with all of V m."""
        if scheme == self.scheme:
            return self
        push = "whole" if scheme.method == "layers" else self.push
        return replace(self, push=push, scheme=scheme)

    def with_heads(self, change: Callable[[Attention], Attention]) -> Code:
        """The same with a change in every head of every layer."""
        return replace(self, attention=changed(self.attention, change))

    @property
    def own_step(self) -> float:
        """Step of our own where errors cannot be controlled, at zero temperature."""
        return STEP_AT_ZERO / max(*map(speed_bound, self.attention.layers), 1e-300)

    @property
    def has_jumps(self) -> bool:
        """Whether the velocity jumps somewhere: at zero temperature."""
        return any(layer.zero_temperature for layer in self.attention.layers)

    def velocity(self, layer: Layer) -> Velocity:
        """The function that gives w; tangent if the flow itself is wanted."""
        push, evaluations = PUSHES[self.push], 0
        flow = self.scheme.method in ("exact", "rough")
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
        if scheme.method == "exact" and not self.has_jumps:
            return evolve(x, self.attention, [begin, end], self.velocity, tolerance=1e-8)[-1]
        if scheme.method == "exact":
            scheme = Scheme("heun", self.own_step)
        count = max(1, math.ceil((end - begin) / scheme.step * (1 - 1e-6)))
        if count > MOST_EVALUATIONS:
            raise TooCostlyError
        steps = [begin + (end - begin) * i / count for i in range(count + 1)]
        if scheme.fault:
            return self._advance_with_fault(x, steps, first_step)
        stepper = STEPPERS["rk4" if scheme.method == "rough" else scheme.method][0]
        for layer, start, stop in pieces(self.attention, begin, end):
            velocity = self.velocity(layer)
            inside = [t for t in steps if start < t < stop - 1e-9 * (end - begin)]
            times = [start, *(t for t in inside if t > start + 1e-9 * (end - begin)), stop]
            for i in range(len(times) - 1):
                x = stepper(velocity, x, times[i + 1] - times[i])
        return x

    def _advance_with_fault(self, x: np.ndarray, steps: list[float], first_step: int) -> np.ndarray:
        """Euler's steps with a fault of their own."""
        fault, every = self.scheme.fault, self.scheme.every
        lag = every if fault == "stale tokens" else 0
        past = self._before(x, steps, lag) if first_step else [x]
        means: list[np.ndarray] = []
        for i, (start, stop) in enumerate(itertools.pairwise(steps)):
            number = first_step + i
            layer = pieces(self.attention, start, stop)[0][0]
            if fault == "stale tokens":
                means = [_means_under(head, x, past[0], self.masses) for head in layer.heads]
            elif fault != "stale mean" or i == 0 or number % every == 0:
                bare = number % every == every - 1 and fault in ("unnormalised", "shifted")
                means = [self._means(head, x, bare=bare) for head in layer.heads]
            push = push_beside(layer, x, self.masses)
            for head, mean in zip(layer.heads, means, strict=True):
                push += mean @ head.value.T
            moved = x + (stop - start) * PUSHES[self.push](x, push)
            if self.frozen is not None:
                moved = np.where(self.frozen[:, None], x, moved)
            x = normalised(moved)
            past = [*past, x][-lag - 1 :]
        return x

    def _means(self, head: Attention, x: np.ndarray, *, bare: bool) -> np.ndarray:
        """M at all tokens; bare: without the denominator, in the way of the fault."""
        if not bare:
            return token_means(head, x, self.masses, self.mask)
        if self.scheme.fault == "unnormalised":
            return token_means(replace(head, normalise=False), x, self.masses, self.mask)
        scores = head.scores(x) @ x.T
        total = np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True)
        return token_means(head, x, self.masses, self.mask) * total

    def _before(self, x: np.ndarray, steps: list[float], lag: int) -> list[np.ndarray]:
        """Where tokens were up to `lag` steps before the first step, to first order in it."""
        layer = pieces(self.attention, steps[0], steps[1])[0][0]
        velocity = self.stepped(Scheme()).velocity(layer)(x)
        h = steps[1] - steps[0]
        return [normalised(x - j * h * velocity) for j in range(lag, -1, -1)]


def _means_under(
    head: Attention, x: np.ndarray, sources: np.ndarray, masses: np.ndarray | None
) -> np.ndarray:
    """M at the tokens x under tokens that stand elsewhere."""
    weights = np.full(len(sources), 1 / len(sources)) if masses is None else masses
    return head.mean(x, sources, weights, tolerance=1e-12)


def changed(attention: AttentionLike, change: Callable[[Attention], Attention]) -> AttentionLike:
    """The attention with a change in every head of every layer."""
    layers = [with_heads(one, [change(head) for head in one.heads]) for one in attention.layers]
    return with_layers(attention, layers)
