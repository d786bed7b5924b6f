"""Methods of fixed steps that return to the sphere after each; see `codes`."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.tokens.noise import Velocity


def tangent(x: np.ndarray, push: np.ndarray) -> np.ndarray:
    """P_x of the push."""
    return push - (push * x).sum(axis=-1, keepdims=True) * x


def _euler(velocity: Velocity, x: np.ndarray, h: float) -> np.ndarray:
    return normalised(x + h * velocity(x))


def _exponential(velocity: Velocity, x: np.ndarray, h: float) -> np.ndarray:
    v = tangent(x, velocity(x))
    speed = np.linalg.norm(v, axis=1, keepdims=True)
    return normalised(np.cos(h * speed) * x + h * np.sinc(h * speed / np.pi) * v)


def _two_stages(at: float, *, back: bool) -> Callable[[Velocity, np.ndarray, float], np.ndarray]:
    """The method of order two whose second stage stands at this part of the step."""
    second = 0.5 / at

    def step(velocity: Velocity, x: np.ndarray, h: float) -> np.ndarray:
        first = velocity(x)
        middle = x + at * h * first
        after = velocity(normalised(middle) if back else middle)
        return normalised(x + h * ((1 - second) * first + second * after))

    return step


def _rk4(*, back: bool) -> Callable[[Velocity, np.ndarray, float], np.ndarray]:
    def put(x: np.ndarray) -> np.ndarray:
        return normalised(x) if back else x

    def step(velocity: Velocity, x: np.ndarray, h: float) -> np.ndarray:
        a = velocity(x)
        b = velocity(put(x + h / 2 * a))
        c = velocity(put(x + h / 2 * b))
        d = velocity(put(x + h * c))
        return normalised(x + h / 6 * (a + 2 * b + 2 * c + d))

    return step


STEPPERS: dict[str, Callable[[Velocity, np.ndarray, float], np.ndarray]] = {
    "euler": _euler,
    "layers": _euler,  # with the push "whole"
    "exponential": _exponential,
    "heun": _two_stages(1.0, back=True),
    "heun, free stage": _two_stages(1.0, back=False),
    "midpoint": _two_stages(0.5, back=True),
    "midpoint, free stage": _two_stages(0.5, back=False),
    "ralston": _two_stages(2 / 3, back=True),
    "rk4": _rk4(back=True),
    "rk4, free stages": _rk4(back=False),
}
ORDERS = dict.fromkeys(("euler", "layers", "exponential"), 1) | {
    name: 4 if name.startswith("rk4") else 2
    for name in STEPPERS
    if name not in ("euler", "layers", "exponential")
}
TITLES = {
    "euler": "Euler steps of {:.4g}",
    "layers": "layers x + h V m of h = {:.4g}",
    "exponential": "Euler steps of {:.4g} along great circles",
    "heun": "Heun steps of {:.4g}",
    "heun, free stage": "Heun steps of {:.4g}",
    "midpoint": "midpoint steps of {:.4g}",
    "midpoint, free stage": "midpoint steps of {:.4g}",
    "ralston": "Ralston steps of {:.4g}",
    "rk4": "Runge-Kutta steps of order 4 of {:.4g}",
    "rk4, free stages": "Runge-Kutta steps of order 4 of {:.4g}",
}
