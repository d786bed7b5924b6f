"""Several heads at zero temperature: no theorem, but the fixed points of the flow, by a search.

Where every head attends to the best place, tokens follow

    x' = v(x) = P_x ( sum_h V_h B_h^T x / |B_h^T x| + g(x) )

whatever the density is. Unlike for one head this is no projected linear flow, there is no
projection map, and tokens may also go round for ever. What is searched for:

- fixed points, by Newton's method in the tangent plane from points all over the sphere, those that
  arrive at the same one counted once. If all are found their indices (the sign of the determinant
  of -J) add up to 2 on the sphere and to 0 on the circle (Poincare and Hopf), and this is reported;
- whether they attract, by the eigenvalues of the Jacobian J in the tangent plane;
- what part of the sphere each attracts, by following the same points with the flow.

A search can miss points that lie close together, and it does not tell a circle of fixed points.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from meanfield_pde.attention.head import SINGULAR
from meanfield_pde.attention.heads import Layer, push_beside, speed_bound
from meanfield_pde.errors import InputError
from meanfield_pde.mesh.geometry import norm, normalised, tangential
from meanfield_pde.mesh.surface import sphere_surface

# Points all over the sphere, 0.08 apart: closer fixed points may be missed, which the indices tell.
_STARTS = 2000
# Step of the differences that make the Jacobian: central, 1e-10 of truncation, 1e-11 of rounding.
_DIFFERENCE = 1e-5
_LONGEST = (
    0.2  # length of a Newton step, in radians: two or three distances of starts (chosen, not tuned)
)
_NEWTON_STEPS = 60  # at 0.2 each the way to the other side takes 16; a bound on the cost
# Radians: after a Newton step of this length the error is about its square, 1e-16, as of rounding.
_LAST_STEP = 1e-8
# |v| at a fixed point, relative to the speeds: above the rounding of sums of many masses.
_ZERO = 1e-9
_SAME = 1e-5  # distance of points that are one: far above what Newton's method leaves
_NEAR = (
    0.05  # distance at which a token has arrived: less than that of two starts (chosen, not tuned)
)
# Tokens are followed for a time of 200 / speed, and go 0.05 at most in a step: a bound on the cost.
_FLOW_STEPS, _FLOW_STEP = 4000, 0.05

Velocity = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """A zero of the velocity.

    Attributes:
        point: its place, d numbers.
        eigenvalues: of the Jacobian in the tangent plane, by decreasing real part.
        share: of the sphere that flows to it; zero unless it attracts.
    """

    point: np.ndarray
    eigenvalues: np.ndarray
    share: float

    @property
    def attracts(self) -> bool:
        """Whether all tokens near by come to it."""
        return bool((self.eigenvalues.real < 0).all())

    @property
    def index(self) -> int:
        """The sign of det(-J)."""
        return int(np.sign(np.prod(-self.eigenvalues).real))


@dataclass(frozen=True, eq=False)
class FixedPoints:
    """What the search found.

    Attributes:
        points: the fixed points, those that attract most first.
        complete: whether their indices add up as they must.
        unsettled: share of the sphere that has not come near a fixed point.
    """

    points: list[FixedPoint]
    complete: bool
    unsettled: float

    def describe(self) -> dict[str, Any]:
        """All of it as plain JSON values."""
        return {
            "theorem": None,
            "fixed_points": [
                {
                    "point": one.point.tolist(),
                    "attracts": one.attracts,
                    "eigenvalues": [[value.real, value.imag] for value in one.eigenvalues],
                    "share": one.share,
                }
                for one in self.points
            ],
            "indices_add_up": self.complete,
            "unsettled_share": self.unsettled,
        }

    def report(self) -> str:
        """All of it as text."""
        lines = [
            "limit measure  none is known: there is no theorem for several heads, or "
            "for terms beside them",
            "fixed points of the flow at zero temperature, by a search:",
        ]
        for one in self.points:
            place = ", ".join(f"{round(x, 12) + 0.0:.6g}" for x in one.point)
            rates = ", ".join(_complex(value) for value in one.eigenvalues)
            kind = (
                f"attracts {100 * one.share:.1f} % of the surface" if one.attracts else "unstable"
            )
            lines.append(f"  ({place})  {kind}; rates {rates}")
        if self.unsettled > 0:
            lines.append(
                f"  {100 * self.unsettled:.1f} % of the surface comes to no fixed point in the "
                "time followed"
            )
        lines.append(
            "their indices add up as they must"
            if self.complete
            else "their indices do not add up: some are missing, or they are not isolated"
        )
        return "\n".join(lines)


def zero_temperature_velocity(layer: Layer) -> Velocity:
    """V at zero temperature, of N points; InputError if B is singular, or it needs the density."""
    for term in layer.beside:
        if term.depends_on_density:
            raise InputError(
                f"with {term.noun}, which depends on the density, there are no fixed points of one "
                "velocity to search for"
            )
    for i, head in enumerate(layer.heads):
        singular = np.linalg.svd(head.key_query, compute_uv=False)
        if not singular[-1] > SINGULAR * singular[0]:
            raise InputError(f"head {i}: B = query^T key is singular, there is no zero temperature")
        if not head.normalise:
            raise InputError(
                "without the denominator of the softmax the equation has no zero temperature; set "
                "attention.normalise = true"
            )
    cold = layer.with_beta(math.inf)

    def velocity(x: np.ndarray) -> np.ndarray:
        # `cold.velocity` checks what users give, which took half of the time of a search.
        push = push_beside(cold, x)
        for head in cold.heads:
            push += normalised(x @ head.key_query.T) @ head.value.T
        return tangential(x, push)

    return velocity


def fixed_points(layer: Layer) -> FixedPoints:
    """Search for the fixed points at zero temperature; the same ones every time."""
    velocity = zero_temperature_velocity(layer)
    scale = max(speed_bound(layer), 1e-300)
    starts = _spread(layer.dimension)
    ends = _newton(velocity, starts)
    still = np.linalg.norm(velocity(ends), axis=1) <= _ZERO * scale
    found: list[np.ndarray] = []
    for point in ends[still]:
        if all(np.linalg.norm(point - other) > _SAME for other in found):
            found.append(point)
    places = np.array(found).reshape(-1, layer.dimension)
    # One eigenvalue is that of the normal, along which nothing is defined; the frame leaves it out.
    jacobians = _jacobians(velocity, places, _frames(places))
    spectra = [np.sort_complex(np.linalg.eigvals(jacobian))[::-1] for jacobian in jacobians]
    attracting = [i for i, values in enumerate(spectra) if (values.real < 0).all()]
    arrived = _follow(velocity, starts, scale, places[attracting])
    shares = np.zeros(len(places))
    for number, i in enumerate(attracting):
        shares[i] = np.mean(arrived == number)
    points = [FixedPoint(*one) for one in zip(places, spectra, map(float, shares), strict=True)]
    points.sort(key=lambda one: (-round(one.share, 6), *(-np.round(one.point, 6)).tolist()))
    characteristic = 2 if layer.dimension % 2 else 0  # of the sphere S^(d-1)
    complete = sum(one.index for one in points) == characteristic
    return FixedPoints(points, bool(complete), float(np.mean(arrived < 0)))


def _spread(dimension: int) -> np.ndarray:
    """Points all over the sphere."""
    if dimension == 2:
        angle = 2 * math.pi * (np.arange(_STARTS) + 0.5) / _STARTS
        return np.column_stack([np.cos(angle), np.sin(angle)])
    if dimension == 3:
        return sphere_surface(2 * _STARTS).points
    return normalised(np.random.default_rng(0).standard_normal((_STARTS, dimension)))


def _frames(x: np.ndarray) -> np.ndarray:
    """Orthonormal bases of the tangent planes, N x d x (d - 1)."""
    return np.linalg.svd(x[:, None, :])[2][:, 1:, :].transpose(0, 2, 1)


def _jacobians(velocity: Velocity, x: np.ndarray, frames: np.ndarray) -> np.ndarray:
    """Derivatives of v along the sphere, N x (d - 1) x (d - 1), in the frames of the points."""
    columns = []
    for k in range(frames.shape[2]):
        step = _DIFFERENCE * frames[:, :, k]
        ahead, behind = velocity(normalised(x + step)), velocity(normalised(x - step))
        columns.append((ahead - behind) / (2 * _DIFFERENCE))
    return np.einsum("ndk,ndj->nkj", frames, np.stack(columns, axis=2))


def _newton(velocity: Velocity, starts: np.ndarray) -> np.ndarray:
    x, ahead = starts.copy(), np.arange(len(starts))
    for _ in range(_NEWTON_STEPS):
        y = x[ahead]
        frames = _frames(y)
        inside = np.einsum("ndk,nd->nk", frames, velocity(y))
        inverse = np.linalg.pinv(_jacobians(velocity, y, frames))
        step = np.einsum("ndk,nk->nd", frames, -np.einsum("nkj,nj->nk", inverse, inside))
        length = norm(step)
        x[ahead] = normalised(
            y + step * np.minimum(1.0, _LONGEST / np.maximum(length, 1e-300))[:, None]
        )
        ahead = ahead[length > _LAST_STEP]
        if not len(ahead):
            break
    return x


def _follow(velocity: Velocity, x: np.ndarray, scale: float, targets: np.ndarray) -> np.ndarray:
    """Number of the target that each point flows to; -1 for none in the time followed."""
    step = _FLOW_STEP / scale
    arrived = np.full(len(x), -1)
    for _ in range(_FLOW_STEPS):
        ahead = np.flatnonzero(arrived < 0)
        if not len(ahead) or not len(targets):
            break
        y = x[ahead]
        middle = normalised(y + step / 2 * velocity(y))
        y = x[ahead] = normalised(y + step * velocity(middle))
        distance = norm(y[:, None] - targets)
        near = distance.min(axis=1) <= _NEAR
        arrived[ahead[near]] = distance[near].argmin(axis=1)
    return arrived


def _complex(value: complex) -> str:
    sign = "-" if value.imag < 0 else "+"
    return f"{value.real:.6g}" + (f" {sign} {abs(value.imag):.6g}i" if value.imag else "")
