"""Lifetimes on the circle from arcs that move with the flow, which share nothing with the solver.

The ends of N arcs move with

    theta' = <t, V m(theta)>,    m = sum_k M_k y_k exp(beta <Q x, y_k>) / sum_k M_k exp(...),

t the tangent. The masses of arcs stay, as logarithms: nothing is carried over a fixed mesh, and a
cluster is as narrow as it has become. Two sources y_k, Gauss's nodes with weights by the slope of
log rho, stand for an arc, or one for an arc of a tenth of the largest width. An arc is halved where
it is wider than `_WIDTH` kernels or log rho changes by more than `_CHANGE` in it, by the slope of
the parabola through three arcs, and two are merged where they are far below both.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numba
import numpy as np

Integral = Callable[[np.ndarray], np.ndarray]
_FIRST = 2000  # arcs at the start
# The largest width of an arc in kernels, and change of log rho in it (chosen, not tuned; `fine`
# makes them smaller).
_WIDTH, _CHANGE = 0.1, 0.3
_NODE = 1 / math.sqrt(12)  # of the width, from the middle
_SHORTEST = 1e-13  # of an arc: angles are rounded to 9e-16
# Steps of Runge and Kutta's method, as times and as changes of an exponent beta <x, y>.
_STEP, _TURN = 0.05, 0.4
_REACH = 40.0  # exponents this far below the largest are left out: exp(-40) = 4e-18


@numba.njit(fastmath=True, cache=True)
def _velocity(angle, x, y, log_mass, value, score):
    found, exponent = np.empty(angle.size), np.empty(x.size)
    for i in range(angle.size):
        c, s = math.cos(angle[i]), math.sin(angle[i])
        u = score[0, 0] * c + score[0, 1] * s
        v = score[1, 0] * c + score[1, 1] * s
        top = -np.inf
        for k in range(x.size):
            exponent[k] = u * x[k] + v * y[k] + log_mass[k]
            top = max(top, exponent[k])
        total = mean_x = mean_y = 0.0
        for k in range(x.size):
            if exponent[k] > top - _REACH:
                part = math.exp(exponent[k] - top)
                total += part
                mean_x += part * x[k]
                mean_y += part * y[k]
        along_x = (value[0, 0] * mean_x + value[0, 1] * mean_y) / total
        along_y = (value[1, 0] * mean_x + value[1, 1] * mean_y) / total
        found[i] = c * along_y - s * along_x
    return found


class Arcs:
    """The whole circle in arcs.

    Attributes:
        angle: where each begins, increasing; the next begins where it ends.
        log_mass: of each.
    """

    def __init__(
        self, value: np.ndarray, score: np.ndarray, integral: Integral, fine: float = 1.0
    ) -> None:
        """Begin.

        Args:
            value: V.
            score: beta Q.
            integral: of the initial density from 0 to an angle.
            fine: how many times finer, in space and time, than said above.
        """
        self.angle = np.linspace(0, 2 * np.pi, _FIRST, endpoint=False)
        self.log_mass = np.log(np.diff(integral(np.append(self.angle, 2 * np.pi))))
        self.log_mass -= np.log(np.exp(self.log_mass).sum())
        self._value, self._score = np.ascontiguousarray(value), np.ascontiguousarray(score)
        self._beta = float(np.linalg.norm(score, 2))
        self._width, self._change = _WIDTH / math.sqrt(self._beta) / fine, _CHANGE / fine
        self._step, self._turn = _STEP / fine, _TURN / fine
        self.adapt()

    def axis(self) -> float:
        """The angle of the principal axis, between -pi/2 and pi/2."""
        middle = self.angle + self._widths(self.angle) / 2
        x, y = np.cos(middle), np.sin(middle)
        share = np.exp(self.log_mass)
        moments = np.array([[share @ (x * x), share @ (x * y)], [share @ (x * y), share @ (y * y)]])
        first, second = np.linalg.eigh(moments)[1][:, 1]
        return math.atan(second / first)

    def step(self) -> float:
        """One step, and its length."""
        first = self._speed(self.angle)
        fourth = np.exp(self.log_mass) @ (first**4 + np.roll(first, -1) ** 4) / 2
        dt = min(self._step, self._turn / (self._beta * fourth**0.25))
        second = self._speed(self.angle + dt / 2 * first)
        third = self._speed(self.angle + dt / 2 * second)
        last = self._speed(self.angle + dt * third)
        self.angle = self.angle + dt / 6 * (first + 2 * second + 2 * third + last)
        assert (np.diff(self.angle) > 0).all()
        self.adapt()
        return float(dt)

    def adapt(self) -> None:
        """Halve arcs and put arcs together."""
        while True:
            width = self._widths(self.angle)
            slope = self._slopes(width)
            split = (width > self._width) | (
                (np.abs(slope) * width > self._change) & (width > _SHORTEST)
            )
            if not split.any():
                break
            self._halve(split, width, slope)
        self._put_together()

    def _halve(self, split: np.ndarray, width: np.ndarray, slope: np.ndarray) -> None:
        origin = np.repeat(np.arange(len(split)), 1 + split)
        second = np.append(False, origin[1:] == origin[:-1])
        # Of exp(slope x), the first half has 1 / (1 + exp(slope width / 2)), the second the rest.
        sign = np.where(second, -1.0, 1.0)
        share = -np.logaddexp(0.0, sign * (slope * width)[origin] / 2)
        self.log_mass = self.log_mass[origin] + np.where(split[origin], share, 0.0)
        self.angle = self.angle[origin] + np.where(second, width[origin] / 2, 0.0)

    def _put_together(self) -> None:
        width = self._widths(self.angle)
        level = self.log_mass - np.log(width)
        near = np.abs(np.roll(level, -1) - level) < self._change / 4
        near &= width + np.roll(width, -1) < self._width / 2
        near[-1] = False
        keep, last = np.ones(len(near), dtype=bool), -2
        for k in np.flatnonzero(near):
            if k > last + 1:
                keep[k + 1], last = False, k
        gone = np.flatnonzero(~keep)
        self.log_mass[gone - 1] = np.logaddexp(self.log_mass[gone - 1], self.log_mass[gone])
        self.angle, self.log_mass = self.angle[keep], self.log_mass[keep]

    def _slopes(self, width: np.ndarray) -> np.ndarray:
        """Of log rho, at the middles."""
        level = self.log_mass - np.log(width)
        ahead = (width + np.roll(width, -1)) / 2
        rise = (np.roll(level, -1) - level) / ahead
        before, fall = np.roll(ahead, 1), np.roll(rise, 1)
        return (fall * ahead + rise * before) / (ahead + before)

    def _speed(self, angle: np.ndarray) -> np.ndarray:
        width = self._widths(angle)
        middle = angle + width / 2
        wide = np.flatnonzero(width > self._width / 10)
        slope = self._slopes(width)[wide] * width[wide] * _NODE
        places, logs = [np.delete(middle, wide)], [np.delete(self.log_mass, wide)]
        for sign in (-1.0, 1.0):
            places.append(middle[wide] + sign * _NODE * width[wide])
            # exp(slope x) at the nodes, divided by the sum of both.
            logs.append(self.log_mass[wide] - np.logaddexp(0.0, -2 * sign * slope))
        place, log_mass = np.concatenate(places), np.concatenate(logs)
        x, y = np.cos(place), np.sin(place)
        return np.asarray(_velocity(angle, x, y, log_mass, self._value, self._score))

    @staticmethod
    def _widths(angle: np.ndarray) -> np.ndarray:
        return np.diff(angle, append=angle[0] + 2 * np.pi)


def crossings(arcs: Arcs, levels: tuple[float, ...], until: float) -> list[float | None]:
    """When the principal axis comes to each of the angles and stays above it, up to a time."""
    times, angles = [0.0], [arcs.axis()]
    while times[-1] < until:
        times.append(times[-1] + arcs.step())
        angles.append(arcs.axis())
    time, angle = np.array(times), np.array(angles)
    found: list[float | None] = []
    for level in levels:
        below = int(np.flatnonzero(angle < level)[-1])
        if below == len(time) - 1:
            found.append(None)
            continue
        part = (level - angle[below]) / (angle[below + 1] - angle[below])
        found.append(float(time[below] + part * (time[below + 1] - time[below])))
    return found
