"""When clusters on the circle leave, constants and all, by a model of a few equations.

The tail is what the zero-temperature flow makes of the initial density: exp(-r t) g(y), g in
closed form along the way from the separatrix e2 (the variable of Koenigs, in which the flow is
linear). Its softmax means are integrals of g against the kernel, and r is the slope of the
velocity that they make at its zero near e2, which differs from c' by terms of order 1/beta. A
cluster is a point and a logarithm of a width: the point moves with the velocity at it, attending
to itself and the tail in proportion to their weights, and the width changes at the rate that is
the derivative of the velocity for fixed sources. It leaves when the share of itself in what is
attended to differs by a factor of e between its sides, at the width 1 / (2 beta |dh/dx|), or when
it is half of the way to V e. No number is fitted, and nothing of the package is used but the
matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Decades of the tail that are kept below its largest value, in powers of e.
_DEPTH = 60.0
_STEP = 0.02


def unit(angle: np.ndarray | float) -> np.ndarray:
    """Points of the circle."""
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1)


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two clusters: e, the point e2 that feeds the tail it attends to, and matrices."""

    key_query: np.ndarray
    value: np.ndarray
    e: np.ndarray
    e2: np.ndarray
    gap: float


def sides(key_query: np.ndarray, value: np.ndarray) -> list[Side]:
    """Those at e and at -e."""
    values, vectors = np.linalg.eig(value @ key_query)
    order = np.argsort(-values.real)
    e, e2 = (vectors[:, i].real / np.linalg.norm(vectors[:, i].real) for i in order)
    gap = float(values[order[0]].real - values[order[1]].real)
    coordinates = np.linalg.solve(np.column_stack([e, e2]), key_query @ e)
    e2 = e2 * np.sign(coordinates[1])
    return [Side(key_query, value, sign * e, sign * e2, gap) for sign in (1.0, -1.0)]


def tail(side: Side, density: float) -> tuple[np.ndarray, np.ndarray]:
    """Angles from -e over e2 to e, increasing or decreasing, and log g there.

    With x along rho e + e2 the flow is rho' = gap rho / |B^T x|, so that exp(-c' t) h(rho) is the
    distance from e2 at time 0 of what is at rho at time t, and g = density dh/dy.
    """
    slow = np.linalg.norm(side.key_query @ side.e2)
    log_rho = np.linspace(-14, 10, 2400)
    found = []
    for sign in (-1.0, 1.0):
        rho = np.exp(log_rho)
        x = sign * rho[:, None] * side.e + side.e2
        x /= np.linalg.norm(x, axis=1)[:, None]
        length = np.linalg.norm(x @ side.key_query.T, axis=1)
        change = (length[1:] + length[:-1]) / 2 - slow
        delay = np.concatenate([[0.0], np.cumsum(change * np.diff(log_rho))]) / slow
        angle = np.unwrap(np.arctan2(x[:, 1], x[:, 0]))
        stretch = np.abs(np.gradient(log_rho, angle)) * rho
        sine = abs(side.e[0] * side.e2[1] - side.e[1] * side.e2[0])
        found.append((angle, math.log(density * sine) + delay + np.log(length / slow * stretch)))
    (before, log_before), (after, log_after) = found
    after = after + 2 * math.pi * np.round((before[0] - after[0]) / (2 * math.pi))
    return np.concatenate([before[::-1], after]), np.concatenate([log_before[::-1], log_after])


def heavier_leaves(
    key_query: np.ndarray,
    value: np.ndarray,
    density: Callable[[np.ndarray], np.ndarray],
    beta: float,
    width: float,
) -> float:
    """When the heavier of the two clusters leaves, and with it the axis."""
    one, other = sides(key_query, value)
    left = np.linalg.inv(np.column_stack([one.e, one.e2]))[0]
    every = unit(2 * math.pi * (np.arange(20_000) + 0.5) / 20_000)
    masses = density(every)
    heavier = one if masses[every @ left > 0].sum() > masses.sum() / 2 else other
    return leaving(heavier, density, beta, width)


def leaving(
    side: Side, density: Callable[[np.ndarray], np.ndarray], beta: float, width: float
) -> float:
    """When the cluster leaves: beta, and the least width that the mesh can show (0 for none).

    nan where the kernel is too wide near e2 for the rate, beta |B^T e2| < 100, or where the tail
    has lost before the cluster is narrow; infinite if it does not leave in several times as long as
    expected.
    """
    if beta * np.linalg.norm(side.key_query @ side.e2) < 100:
        return math.nan
    every = unit(2 * math.pi * (np.arange(20_000) + 0.5) / 20_000)
    total = density(every).mean() * 2 * math.pi
    left = np.linalg.inv(np.column_stack([side.e, side.e2]))[0]
    share = density(every)[every @ left > 0].sum() / density(every).sum()
    angle, log_g = tail(side, float(density(side.e2[None])[0] / total))
    cells = np.abs(np.gradient(angle))

    def attended(x: np.ndarray) -> tuple[np.ndarray, float]:
        """Mean of the tail as seen from x, and the logarithm of its weight."""
        weight = log_g + beta * (unit(angle) @ (side.key_query @ x))
        weight = np.where(log_g < log_g.min() + _DEPTH, weight, -np.inf)
        most = weight.max()
        p = np.exp(weight - most) * cells
        return (p @ unit(angle)) / p.sum(), float(most + np.log(p.sum()))

    # The zero of the velocity near e2, and its slope, the rate of the tail.
    middle = math.atan2(side.e2[1], side.e2[0])
    places = middle + np.linspace(-0.3, 0.3, 301)
    normal = np.stack([-np.sin(places), np.cos(places)], axis=-1)
    means = np.array([attended(x)[0] for x in unit(places)])
    speed = np.einsum("ni,ij,nj->n", normal, side.value, means)
    zeros = np.flatnonzero((speed[:-1] < 0) & (speed[1:] >= 0))
    zero = int(zeros[np.abs(zeros - 150).argmin()])
    rate = float(np.polyfit(places[zero - 4 : zero + 6], speed[zero - 4 : zero + 6], 1)[0])

    # The way of the cluster, by the angle from e; what the tail does is tabulated along it.
    start = math.atan2(side.e[1], side.e[0])
    push = np.array([-side.e[1], side.e[0]]) @ side.value @ side.e
    turn = math.copysign(1.0, float(push))
    way = np.linspace(-0.1, 1.2, 400)
    table = [attended(x) for x in unit(start + turn * way)]
    table_means, table_weights = np.array([m for m, _ in table]), np.array([w for _, w in table])

    def velocity(at: float, cluster: float, time: float) -> float:
        x, centre = unit(start + turn * at), unit(start + turn * cluster)
        mean = np.array([np.interp(at, way, table_means[:, i]) for i in range(2)])
        odds = math.log(share) + beta * float(side.key_query @ x @ centre) + rate * time
        odds -= float(np.interp(at, way, table_weights))
        p = 1 / (1 + math.exp(-max(min(odds, 700.0), -700.0)))
        tangent = turn * np.array([-x[1], x[0]])
        return float(tangent @ side.value @ ((1 - p) * mean + p * centre))

    seen = side.key_query @ side.e
    length = float(np.linalg.norm(seen))
    forward = turn * np.array([-side.e[1], side.e[0]])
    steep = abs(float((seen / length - side.e) @ side.key_query @ forward))
    pushed = side.value @ side.e
    stop = math.acos(abs(float(pushed @ side.e)) / float(np.linalg.norm(pushed)))
    time = 0.4 * beta * (length - abs(float(seen @ side.e))) / rate
    if velocity(0.0, 0.0, time) > abs(push) / 2:
        return math.nan
    place, log_width = 0.0, -side.gap / length * time
    longest = 6 * time + 20
    while time < longest:
        slope = velocity(place + 1e-3, place, time) - velocity(place - 1e-3, place, time)
        first = velocity(place, place, time)
        second = velocity(place + _STEP * first, place + _STEP * first, time + _STEP)
        place, time = place + _STEP * (first + second) / 2, time + _STEP
        log_width += _STEP * slope / 2e-3
        if width > 0:
            log_width = max(log_width, math.log(width))
        if (slope > 0 and log_width > -math.log(2 * beta * steep)) or place > stop / 2:
            return time
    return math.inf
