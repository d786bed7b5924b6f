"""A reference at finite beta that shares nothing with the solver: nodes that follow the flow.

Nodes x_k with masses m_k, a quadrature rule times the initial density, move with

    x_k' = P V sum_l m_l exp(beta <x_k, x_l>) x_l / sum_l m_l exp(beta <x_k, x_l>),

Q = K = I, by Runge and Kutta's method and sums over all pairs. The rules (equal steps on the
circle, Gauss times equal steps on the sphere) converge faster than any power, as long as the flow
is smooth: halving nodes and steps shows how far they are.

Any point can be traced back through the flow of the nodes, and what a cell holds is what the
initial density has where it came from. On the sphere there are many points: where those of a grid
were a step before is found for each step, and a table of it gives all others (`Origins`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy import ndimage

Density = Callable[[np.ndarray], np.ndarray]
Nodes = tuple[np.ndarray, np.ndarray]  # points and masses
_CHUNK = 100_000  # pairs at once, which a cache holds
# Tables are made n = 4 times as fine by their Fourier sums, and then read by cubic splines.
_FINER = 4
_CUBIC = 3  # the degree of splines, of order 4 as the steps in time


@dataclass(frozen=True, eq=False)
class Flow:
    """Nodes at equal steps of time, and the velocity that they make.

    Attributes:
        value, beta: the matrix V, and the inverse temperature.
        masses: of the nodes.
        step: of time.
        positions: of the nodes at each half of a step, 2 steps + 1 x N x d.
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
        """Nodes and masses moved for some time in n steps."""
        x, masses = nodes
        step = until / steps
        positions = np.empty((2 * steps + 1, *x.shape))
        positions[0] = x
        for place in range(0, 2 * steps, 2):
            first, second, third, fourth = _stages(
                x, step, lambda at, _: _velocity(at, at, masses, value, beta)
            )
            # The method's own continuous extension, at half of the step.
            half = x + step / 24 * (5 * first + 4 * (second + third) - fourth)
            x = on_sphere(x + step / 6 * (first + 2 * (second + third) + fourth))
            positions[place + 1 : place + 3] = on_sphere(half), x
        return cls(value, beta, masses, step, positions)

    def origin(self, points: np.ndarray, moment: float, since: float = 0.0) -> np.ndarray:
        """Where points at one time were at another one before; both are ends of steps."""
        x = points
        for last in range(2 * round(moment / self.step), 2 * round(since / self.step), -2):

            def velocity(at: np.ndarray, halves: int, last: int = last) -> np.ndarray:
                nodes = self.positions[last - halves]
                return _velocity(at, nodes, self.masses, self.value, self.beta)

            first, second, third, fourth = _stages(x, -self.step, velocity)
            x = on_sphere(x - self.step / 6 * (first + 2 * (second + third) + fourth))
        return x


class Origins:
    """Where points of the sphere came from: a table for each step of a flow.

    At theta = pi (i + 1/2) / n, phi = pi j / n smooth functions of the sphere are smooth and
    periodic in both angles, once theta goes on over the pole to 2 pi.
    """

    def __init__(self, flow: Flow, count: int) -> None:
        self._step, self._scale = flow.step, _FINER * count / np.pi
        theta, phi = np.pi * (np.arange(count) + 0.5) / count, np.pi * np.arange(2 * count) / count
        height, around = np.repeat(theta, 2 * count), np.tile(phi, count)
        grid = np.column_stack(
            [np.sin(height) * np.cos(around), np.sin(height) * np.sin(around), np.cos(height)]
        )
        self._tables = []
        for i in range(len(flow.positions) // 2):
            before = flow.origin(grid, (i + 1) * flow.step, i * flow.step)
            self._tables.append([_spline(one.reshape(count, -1)) for one in before.T])

    def origin(self, points: np.ndarray, moment: float) -> np.ndarray:
        """Where points at the time, the end of a step, began."""
        x = points
        for table in reversed(self._tables[: round(moment / self._step)]):
            theta = np.arctan2(np.hypot(x[:, 0], x[:, 1]), x[:, 2])
            phi = np.arctan2(x[:, 1], x[:, 0])
            place = np.stack([theta * self._scale - _FINER / 2, phi * self._scale])
            found = [
                ndimage.map_coordinates(one, place, order=_CUBIC, mode="grid-wrap", prefilter=False)
                for one in table
            ]
            x = on_sphere(np.column_stack(found))
        return x


def gathered(points: np.ndarray, weights: np.ndarray, density: Density, by: np.ndarray) -> Nodes:
    """Nodes of a rule moved by x -> G x / |G x|; their masses add up to one."""
    moved = points @ by.T
    length = np.linalg.norm(moved, axis=1)
    masses = weights / length ** points.shape[1] * density(moved / length[:, None])
    return moved / length[:, None], masses / masses.sum()


def on_sphere(x: np.ndarray) -> np.ndarray:
    """Points moved along their rays onto the circle or sphere."""
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def _spline(values: np.ndarray) -> np.ndarray:
    count = len(values)
    beyond = np.roll(values, count, axis=1)[::-1]
    waves = np.fft.fft2(np.concatenate([values, beyond]))
    size = 2 * count * _FINER
    padded = np.zeros((size, size), dtype=complex)
    kept = np.r_[:count, size - count : size]
    padded[np.ix_(kept, kept)] = waves * _FINER**2
    fine = np.fft.ifft2(padded).real
    return np.asarray(ndimage.spline_filter(fine, order=_CUBIC, mode="grid-wrap"))


def _stages(
    x: np.ndarray, step: float, velocity: Callable[[np.ndarray, int], np.ndarray]
) -> tuple[np.ndarray, ...]:
    """The four velocities of a step; `velocity` gets how many halves of it have passed."""
    first = velocity(x, 0)
    second = velocity(x + step / 2 * first, 1)
    third = velocity(x + step / 2 * second, 1)
    return first, second, third, velocity(x + step * third, 2)


def _velocity(
    x: np.ndarray, nodes: np.ndarray, masses: np.ndarray, value: np.ndarray, beta: float
) -> np.ndarray:
    mean = np.empty_like(x)
    summed = np.column_stack([nodes, np.ones(len(nodes))]) * masses[:, None]
    size = max(1, _CHUNK // len(nodes))
    buffer = np.empty((size, len(nodes)))
    for start in range(0, len(x), size):
        some = x[start : start + size]
        share = np.matmul(some, beta * nodes.T, out=buffer[: len(some)])
        share -= beta
        sums = np.exp(share, out=share) @ summed
        mean[start : start + size] = sums[:, :-1] / sums[:, -1:]
    moved = mean @ value.T
    return moved - (moved * x).sum(axis=1, keepdims=True) / (x * x).sum(axis=1, keepdims=True) * x
