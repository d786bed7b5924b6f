"""Particle codes in plain numpy, each with one fault."""

from __future__ import annotations

import numpy as np
from scipy.integrate import solve_ivp

from meanfield_pde.initial.sampling import sample_tokens
from meanfield_pde.tokens.cloud import TokenCloud

DENSITY = "1 + 0.5*x*y + 0.4*y - 0.3*x"
TIMES = (1.0, 2.0)
STEPS = {100: 0.02, 200: 0.01, 1000: 0.02}  # by how many tokens there are
INITIAL = "the initial tokens are no sample of the initial density"


# Each with how its cause begins; None where no cause is listed.
CAUSES: dict[str, str | None] = {
    "none": None,
    "twice the step": "time runs 2 ",
    "half the step": "time runs 0.5 ",
    "one sign of V": "value[0][1] is",
    "V negative": "-V instead of V",
    "V too large": "times as fast as the file says, or V is too large by that factor",
    "Q transposed": "Q transposed",
    "K transposed": "K transposed",
    "projection": "the projection v - <x, v> v",
    "causal mask": "a causal mask",
    "root of beta": "beta (or the scale of query^T key)",
    "unnormalised softmax": "a softmax without its denominator in one step of 10",
    "shifted softmax": "a softmax without its denominator in ",
    "no self": "tokens that do not attend to themselves",
    "no self, solve_ivp": "tokens that do not attend to themselves",
    "stale mean": "a mean that is computed anew in every 10 steps only",
    "frozen third": " of ",
    "float16": None,
    "uniform start": INITIAL,
}


def matrices(d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Query, key and value, none symmetric."""
    query, key, value = np.eye(d) + 0.4 * np.random.default_rng(d).normal(size=(3, d, d))
    return query, key, value


class Faulty:
    """Euler's method in plain numpy, with one fault."""

    def __init__(self, d: int, fault: str) -> None:
        self.query, self.key, self.value = matrices(d)
        self.fault, self.beta, self.number, self.stale = fault, 5.0, 0, np.zeros(0)
        if fault == "one sign of V":
            self.value[0, 1] *= -1
        elif fault == "V negative":
            self.value *= -1
        elif fault == "V too large":
            self.value *= 1.3
        elif fault == "Q transposed":
            self.query = self.query.T
        elif fault == "K transposed":
            self.key = self.key.T
        elif fault == "root of beta":
            self.beta **= 0.5

    def velocity(self, x: np.ndarray) -> np.ndarray:
        """Of all tokens."""
        mean = self.mean(x)
        if self.fault == "stale mean":
            if self.number % 10 == 0:
                self.stale = mean
            mean = self.stale
        self.number += 1
        push = mean @ self.value.T
        along = (push * x).sum(axis=1, keepdims=True)
        move = push - along * (push if self.fault == "projection" else x)
        if self.fault == "frozen third":
            move[: len(x) // 3] = 0
        return np.asarray(move)

    def step(self, x: np.ndarray) -> np.ndarray:
        """The tokens one step later."""
        clock = {"twice the step": 2.0, "half the step": 0.5}.get(self.fault, 1.0)
        x = x + clock * STEPS[len(x)] * self.velocity(x)
        return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))

    def mean(self, x: np.ndarray) -> np.ndarray:
        """The softmax mean."""
        count = len(x)
        scores = self.beta * (x @ self.query.T) @ (x @ self.key.T).T
        if self.fault == "causal mask":
            scores[~np.tril(np.ones((count, count), dtype=bool))] = -np.inf
        if self.fault.startswith("no self"):
            np.fill_diagonal(scores, -np.inf)
        if self.fault == "unnormalised softmax" and self.number % 10 == 9:
            return np.asarray(np.exp(scores) @ x / count)
        if self.fault == "shifted softmax" and self.number % 10 == 9:
            return np.asarray(np.exp(scores - scores.max(axis=1, keepdims=True)) @ x)
        kind = np.float16 if self.fault == "float16" else np.float64
        weight = np.exp(scores - scores.max(axis=1, keepdims=True)).astype(kind)
        total = weight.sum(axis=1, keepdims=True)
        return np.asarray((weight @ x.astype(kind) / total).astype(float))


def faulty(d: int, fault: str, count: int, seed: int) -> TokenCloud:
    """Tokens of a code with a fault."""
    if fault == "uniform start":
        x = np.random.default_rng(seed).normal(size=(count, d))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    else:
        x = sample_tokens(DENSITY, count, 10_000 + seed, d)
    code = Faulty(d, fault)
    return adaptive(code, x) if fault.endswith("solve_ivp") else stepped(code, x)


def stepped(code: Faulty, x: np.ndarray) -> TokenCloud:
    """Tokens of a code that takes its own steps."""
    saved = [x]
    for _ in TIMES:
        for _ in range(round(1 / STEPS[len(x)])):
            x = code.step(x)
        saved.append(x)
    return TokenCloud(np.array([0.0, *TIMES]), np.array(saved))


def adaptive(code: Faulty, x: np.ndarray) -> TokenCloud:
    """Tokens of a code that scipy steps."""

    def rate(_: float, y: np.ndarray) -> np.ndarray:
        return code.velocity(y.reshape(x.shape)).ravel()

    path = solve_ivp(rate, (0, TIMES[-1]), x.ravel(), t_eval=(0, *TIMES), rtol=1e-8, atol=1e-8)
    tokens = path.y.T.reshape(-1, *x.shape)
    return TokenCloud(path.t, tokens / np.linalg.norm(tokens, axis=2, keepdims=True))
