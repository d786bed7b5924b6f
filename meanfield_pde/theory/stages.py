"""How clusters leave E at finite beta: the next term of their lifetime, and stops on the way.

At zero temperature a cluster at e rests, with the linearisation -C in the tangent space, c the
smallest eigenvalue of C. It attends to the tail at u = B^T e / |B^T e|, whose logarithm falls like
-r t. What a token at x loses by attending to a cluster at y instead is beta h(x, y),

    h(x, y) = |B^T x| - s <B^T x, y>,    s = the sign of <B^T e, e>,    a = h(e, e),

so that the share p of the cluster in what it attends to grows like exp(r t - beta h), and pushes
it with p s P_e V e = p v. Four things happen one after the other.

1.  The weights balance, p = 1/2 for a cluster that stays at e. The tail fills n dimensions about u
    (Laplace's method), so r t_b = beta a - (n/2) log beta + O(1).
2.  p moves the cluster by C^-1 v p, and h(x, x) there by a' p, a' its derivative along C^-1 v. If
    a' > 0 tails win farther on, and as soon as beta a' p = 1, much earlier than p = 1/2, at
    r t_1 = r t_b - log beta + O(1), it creeps on only as fast as the tail dies: y = beta a' p is
    r (t - t_1) - log y.
3.  A creeping cluster is unstable inside, if h(x, y) falls along v: parts that are ahead attend to
    the others rather than to the tail, and are pushed on. Widths along that direction grow at the
    rate beta p |dh/dx v| - c = G y - c with

        G = -<grad_x h, v> / <grad h(x, x), C^-1 v>.

4.  It has to grow from exp(-c t_1) to order 1/beta. That takes the longest: with T = t - t_1 the
    integral of the rate is G r T^2 / 2 = c t_1, so that T is of order sqrt(beta). In all

        lifetime = slope beta + kappa sqrt(beta) - ((n + 1) / (2 r)) log beta + O(1),

        slope = a / r,      kappa = sqrt(2 c slope / (r G)).

On a mesh whose cells at the cluster are not narrower than w the width stops at w, and T is sqrt(2
log(1/w) / (r G)) from then on, whatever beta is: the lifetime is linear in beta, but too short.

Where clusters go. Those that leave e attend to what is left there, which the tail holds: they come
to rest where P_x V e = 0, at V e / |V e|, then likewise at V^2 e / |V^2 e|, ..., and so to the
dominant eigenspace of V. What is left at V^k e / |..| is as much as balances the tail,
exp(beta c_k - r t), since more of it would be unstable as above, so that

    c_0 = a,    c_k = c_(k-1) + |<B^T x_k, x_(k-1)>| - |<B^T x_k, x_k>|,    x_k = V^k e / |V^k e|,

is what the cluster at x_k needs to attend to itself rather than to what is left at x_(k-1). Stage k
ends at beta c_k / r, or when the tail is lost at the saddle that feeds it, if that is earlier; then
nothing is held any more, and clusters go on without another stop. At finite beta what is left has
crept on by a part of order 1/sqrt(beta) of the way, and the place and the end of a stage with it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.saddles import ALIGNED

# A mode of the way is followed no farther than this: the angle to the end is then below rounding.
_MOST_STAGES = 60


@dataclass(frozen=True)
class Departure:
    """When clusters leave E, beyond the linear law.

    Attributes:
        slope: a / r, of the lifetime in beta.
        rate: r, of the tail.
        contraction: c, of the clusters.
        growth: G, by which what is inside a cluster is less stable than the cluster itself.
        filled: n, in how many dimensions the tail fills the neighbourhood of u.
    """

    slope: float
    rate: float
    contraction: float
    growth: float
    filled: int

    @property
    def root(self) -> float:
        """kappa, of sqrt(beta)."""
        return math.sqrt(2 * self.contraction * self.slope / (self.rate * self.growth))

    @property
    def logarithm(self) -> float:
        """-(n + 1) / (2 r), of log beta."""
        return -(self.filled + 1) / (2 * self.rate)

    def beyond(self, beta: float, width: float = 0.0) -> float:
        """What is added to slope beta, up to a constant.

        Args:
            beta: inverse temperature.
            width: the least one that the clusters can have on the mesh; 0 for the equation itself.
        """
        narrowing = self.contraction * self.slope * beta
        if width > 0:
            narrowing = min(narrowing, max(-math.log(width), 0.0))
        creeping = math.sqrt(2 * narrowing / (self.rate * self.growth))
        # -(n/2 + 1) log beta of the balance, and log y = log(r T) of the creeping.
        logs = math.log1p(self.rate * creeping) - (self.filled / 2 + 1) * math.log(beta)
        return creeping + logs / self.rate

    def describe(self) -> dict[str, Any]:
        """The terms of the law, for summary.json."""
        return {"slope": self.slope, "root": self.root, "logarithm": self.logarithm}


def departure(limit: ProjectionLimit) -> Departure | None:
    """The terms of the law; None where clusters leave in another way, or do not.

    That is where E is no line, where the tail is lost elsewhere before it is lost at e, and where
    clusters do not creep (tails do not win farther on) or are stable while they do.
    """
    if not limit.exists or limit.dimension != 1 or not limit.saddles:
        return None
    e, key_query = limit.basis[:, 0], limit.first.key_query
    seen = key_query @ e
    length, sign = float(np.linalg.norm(seen)), math.copysign(1.0, seen @ e)
    rate = limit.tail_rate
    slope = (length - abs(float(seen @ e))) / rate if rate > 0 else math.inf
    if not math.isclose(slope, limit.lifetime_per_beta, rel_tol=1e-9):
        return None
    tangent = np.linalg.svd(e[None])[2][1:].T
    drift = limit.first.drift
    contraction = tangent.T @ ((e @ drift @ e) * np.eye(len(e)) - drift) @ tangent / length
    push = sign * tangent.T @ limit.first.value @ e
    ahead = tangent.T @ key_query.T @ (seen / length - sign * e)
    together = ahead - sign * tangent.T @ seen
    inside = -float(ahead @ push)
    whole = float(together @ np.linalg.solve(contraction, push))
    if not (inside > 0 and whole > 0):
        return None
    filled = next(
        saddle.unstable.shape[1] - 1
        for saddle in limit.saddles
        if _within(seen, saddle.unstable) and math.isclose(saddle.unsettled_rate, rate)
    )
    return Departure(slope, rate, limit.contraction_rate, inside / whole, filled)


@dataclass(frozen=True, eq=False)
class Stop:
    """Where clusters stop on their way.

    Attributes:
        basis: of V^k E, d x dim E.
        until_per_beta: when the stage ends, divided by beta; None where nothing is derived: E is no
            line, or the surface is not the circle.
    """

    basis: np.ndarray
    until_per_beta: float | None


def stops(limit: ProjectionLimit) -> list[Stop]:
    """E and the images V^k E, k = 1, 2, ..., until they come to rest or the tail is lost."""
    value, basis = limit.first.value, limit.basis
    line = limit.dimension == 1 and limit.attention.dimension == 2
    cost = limit.lifetime_per_beta * limit.tail_rate
    found = [Stop(basis, limit.lifetime_per_beta if line else None)]
    for _ in range(_MOST_STAGES):
        last, basis = basis, np.linalg.qr(value @ basis)[0]
        if np.linalg.norm(basis - last @ (last.T @ basis)) <= ALIGNED:
            break
        until = None
        if line:
            seen = limit.first.key_query @ basis[:, 0]
            cost += float(abs(seen @ last[:, 0]) - abs(seen @ basis[:, 0]))
            until = min(cost / limit.tail_rate, _fed_until(limit, basis[:, 0]))
            if not until > (found[-1].until_per_beta or 0.0):
                break
        found.append(Stop(basis, until))
    return found


def _fed_until(limit: ProjectionLimit, cluster: np.ndarray) -> float:
    """When the saddle that feeds the tail attends to clusters at ±x, divided by beta; circle."""
    seen = limit.first.key_query @ limit.saddles[0].basis[:, 0]
    advantage = float(np.linalg.norm(seen) - abs(seen @ cluster))
    return advantage / limit.tail_rate


def _within(seen: np.ndarray, basis: np.ndarray) -> bool:
    rest = seen - basis @ (basis.T @ seen)
    return bool(np.linalg.norm(rest) <= ALIGNED * np.linalg.norm(seen))
