"""A reference at finite beta that shares nothing with the solver: nodes that follow the flow.

Nodes x_k with masses m_k, a quadrature rule times the initial density, move with

    x_k' = P V sum_l m_l exp(beta <x_k, x_l>) x_l / sum_l m_l exp(beta <x_k, x_l>),

Q = K = I, by Runge and Kutta's method and sums over all pairs. The rules (equal steps on the
circle, Gauss times equal steps on the sphere) converge faster than any power, as long as the flow
is smooth: halving nodes and steps shows how far they are.

Any point can be traced back through the flow of the nodes. What a cell holds is what the initial
density has between the points from which its corners came.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Density = Callable[[np.ndarray], np.ndarray]
Nodes = tuple[np.ndarray, np.ndarray]  # points and masses
_CHUNK = 4_000_000  # pairs at once


@dataclass(frozen=True, eq=False)
class Flow:
    """Nodes at equal steps of time, and the velocity that they make.

    Attributes:
        value, beta: the matrix V, and the inverse temperature.
        masses: of the nodes.
        step: of time.
        positions: of the nodes after each step, steps + 1 x N x d.
    """

    value: np.ndarray
    beta: float
    masses: np.ndarray
    step: float
    positions: np.ndarray

    @classmethod
    def of(
        cls,
        nodes: Nodes,
        value: np.ndarray,
        beta: float,
        *,
        until: float,
        steps: int,
    ) -> Flow:
        """Nodes and masses moved for some time in so many steps."""
        points, masses = nodes
        step = until / steps
        positions = np.empty((steps + 1, *points.shape))
        positions[0] = points
        for i in range(steps):
            x = positions[i]
            first = _velocity(x, x, masses, value, beta)
            middle = x + step / 2 * first
            second = _velocity(middle, middle, masses, value, beta)
            middle = x + step / 2 * second
            third = _velocity(middle, middle, masses, value, beta)
            last = x + step * third
            fourth = _velocity(last, last, masses, value, beta)
            positions[i + 1] = _on_sphere(x + step / 6 * (first + 2 * second + 2 * third + fourth))
        return cls(value, beta, masses, step, positions)

    def origin(self, points: np.ndarray) -> np.ndarray:
        """Where points came from: two of the steps at a time, as half of one is needed too."""
        x = points

        def velocity(at: np.ndarray, place: int) -> np.ndarray:
            return _velocity(at, self.positions[place], self.masses, self.value, self.beta)

        for place in range(len(self.positions) - 1, 1, -2):
            step = -2 * self.step
            first = velocity(x, place)
            second = velocity(x + step / 2 * first, place - 1)
            third = velocity(x + step / 2 * second, place - 1)
            fourth = velocity(x + step * third, place - 2)
            x = _on_sphere(x + step / 6 * (first + 2 * second + 2 * third + fourth))
        return x


def circle_nodes(count: int, density: Density, gather: np.ndarray) -> Nodes:
    """Equal steps on the circle, moved by x -> G x / |G x|; masses add up to one."""
    angle = 2 * np.pi * np.arange(count) / count
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    return _gathered(points, np.ones(count), density, gather)


def sphere_nodes(count: int, density: Density, gather: np.ndarray) -> Nodes:
    """Gauss's rule in z with `count` nodes times twice as many steps around the axis, moved."""
    z, weight = np.polynomial.legendre.leggauss(count)
    angle = np.pi * np.arange(2 * count) / count
    height, around = np.repeat(z, 2 * count), np.tile(angle, count)
    radius = np.sqrt(1 - height**2)
    points = np.column_stack([radius * np.cos(around), radius * np.sin(around), height])
    return _gathered(points, np.repeat(weight, 2 * count), density, gather)


def _gathered(points: np.ndarray, weights: np.ndarray, density: Density, by: np.ndarray) -> Nodes:
    moved = points @ by.T
    length = np.linalg.norm(moved, axis=1)
    masses = weights / length ** points.shape[1] * density(moved / length[:, None])
    return moved / length[:, None], masses / masses.sum()


def _velocity(
    x: np.ndarray, nodes: np.ndarray, masses: np.ndarray, value: np.ndarray, beta: float
) -> np.ndarray:
    mean = np.empty_like(x)
    size = max(1, _CHUNK // len(nodes))
    for start in range(0, len(x), size):
        part = slice(start, start + size)
        share = np.exp(beta * (x[part] @ nodes.T - 1)) * masses
        mean[part] = share @ nodes / share.sum(axis=1, keepdims=True)
    moved = mean @ value.T
    return moved - (moved * x).sum(axis=1, keepdims=True) / (x * x).sum(axis=1, keepdims=True) * x


def _on_sphere(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=1, keepdims=True)
