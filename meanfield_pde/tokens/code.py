"""The reference particle code: N tokens on the sphere S^(d-1) in any dimension d >= 2.

    dx_i = P_{x_i} ( sum_h V_h m_h(x_i) + g(x_i) ) dt + sqrt(2 sigma) dW_i

    mu = sum_j masses_j delta_{x_j}

with m_h the mean of each head under the tokens themselves, and g that of terms beside them. At zero
temperature m(x) is the token that maximises <B^T x, y>, or the average of those that tie;
unlike that of a density, whose support is the whole sphere, it is not B^T x / |B^T x|.

Ranks share out the velocities and gather them all: each integrates the same, bit for bit.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Callable, Iterator, Sequence

from mpi4py import MPI

import numpy as np
from scipy.integrate import DOP853, OdeSolver

from meanfield_pde.attention.heads import Layer, speed_bound
from meanfield_pde.attention.layers import AttentionLike, pieces, stack
from meanfield_pde.attention.term import Sources
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.mesh.geometry import normalised
from meanfield_pde.support.arguments import typed_except
from meanfield_pde.support.checks import check_ends, number_list, real, shown, whole
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.threads import set_threads
from meanfield_pde.tokens.cloud import WEIGHTS, TokenCloud
from meanfield_pde.tokens.noise import Velocity, euler_maruyama, longest_step, splitting

LOG = logging.getLogger("meanfield_pde")

WORTH_SAYING = 1e4  # steps, of a millisecond or more each: some seconds
# At zero temperature the velocity may jump back and forth, and error control then creeps: this many
# steps must cover at least this length of time, in units of 1/|V|.
WATCHED_STEPS = 500
SHORTEST_PROGRESS = 0.01  # with steps of 2e-5, a thousandth of those that are taken otherwise
# Likewise in units of 1/|V|: a token goes at most a fiftieth of a radian, to which a jump is
# placed.
STEP_AT_ZERO = 0.02


@typed_except("tokens", "masses")
def simulate_tokens(
    tokens: np.ndarray,
    attention: AttentionLike,
    until: float,
    *,
    start: float = 0.0,
    step: float | None = None,
    residual: bool = False,
    noise: float = 0.0,
    seed: int = 0,
    tolerance: float = 1e-8,
    save_at: Sequence[float] | np.ndarray = (),
    masses: np.ndarray | None = None,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> TokenCloud:
    """Tokens at the start, at the times in `save_at` and at `until`. Collective.

    Args:
        tokens: N x d positions on the unit sphere.
        attention: what moves them; `Layers` change with time.
        until: end time.
        start: time of the positions given.
        step: take Euler steps of this length, x <- (x + step v)/|x + step v|: one layer of a
            network each. It is shortened where needed to divide the time between two that are
            saved. By default an explicit Runge-Kutta method of order 8 controls its error.
        residual: Euler steps with V m(x) in the place of v = P_x V m(x), as a layer with a residual
            connection takes them; the two differ by O(step^2).
        noise: strength sigma of the noise. With it the default is a splitting of weak order 2 with
            steps of 1/50 of 1/|V| and 1/sigma, and Euler steps are those of Euler-Maruyama.
        seed: of the noise; the same tokens on any number of ranks, and from any saved time on.
        tolerance: bound on the error of one Runge-Kutta step, for every token.
        save_at: times to save besides the start and the end.
        masses: N weights >= 0 of the tokens; equal if left out.
        comm: the ranks that share the work; the tokens are those of the first.
    """
    given = on_root(comm, TokenCloud, np.zeros(1), tokens, masses)
    times = _save_times(save_at, start, until)
    if given.dimension != attention.dimension:
        raise InputError(
            f"the tokens have {given.dimension} coordinates, but attention.value is "
            f"{attention.dimension} x {attention.dimension}"
        )
    _check_numbers(step, residual, tolerance, noise, seed)
    longest = step or min(longest_step(layer, noise) for layer in attention.layers)
    remedy = f"steps are at most {longest:.1e} long"
    steps = (until - start) / longest
    check_ends(steps, f"until = {until:g}", remedy)
    if steps > WORTH_SAYING:
        LOG.info("about %.3g steps, of %.1e each", steps, longest)
    set_threads(comm)
    x, weights = given.tokens[0], given.masses

    def velocity(layer: Layer) -> Velocity:
        return token_velocity(layer, weights, comm, tolerance=tolerance, residual=residual)

    saved = evolve(
        x, attention, times, velocity, step=step, tolerance=tolerance, noise=noise, seed=seed
    )
    query, key, value = (stack(attention, name) for name in WEIGHTS)
    beta = None if math.isnan(attention.beta) else attention.beta  # heads with several
    return TokenCloud(np.array(times), saved, weights, query, key, value, beta)


def _check_numbers(
    step: float | None, residual: bool, tolerance: float, noise: float, seed: int
) -> None:
    if step is not None and not 0 < step < math.inf:
        raise InputError(f"the step must be a number > 0, got {shown(step)}")
    if residual and step is None:
        raise InputError("residual = True applies to Euler steps; give a step")
    if not 1e-13 <= tolerance <= 1e-2:
        raise InputError(f"the tolerance must be from 1e-13 to 1e-2, got {tolerance!r}")
    if not 0 <= noise < math.inf:
        raise InputError(f"the strength of the noise must be a number >= 0, got {noise!r}")
    whole(seed, "seed", 0)


def token_velocity(
    layer: Layer,
    masses: np.ndarray | None = None,
    comm: MPI.Comm = MPI.COMM_SELF,
    *,
    tolerance: float = 1e-8,
    residual: bool = False,
) -> Velocity:
    """The function that takes N tokens to their N velocities; its calls are collective.

    Args:
        layer: the attention, or the heads, that move the tokens.
        masses: their weights; equal if left out.
        comm: the ranks that share the tokens out.
        tolerance: that of the integration in time; the attention sum is a good deal better.
        residual: the drift itself instead of its projection by P_x.
    """
    # The error estimate must not see the rounding of the sum, nor the sum be needlessly exact.
    sum_tolerance = min(max(1e-4 * tolerance, 1e-14), 1e-10)

    def velocity(x: np.ndarray) -> np.ndarray:
        weights = np.full(len(x), 1 / len(x)) if masses is None else masses
        shares = [len(part) for part in np.array_split(x, comm.size)]
        first = sum(shares[: comm.rank])
        own = x[first : first + shares[comm.rank]]
        sources = Sources.of(x, weights)
        pushes = [term.push(own, sources, tolerance=sum_tolerance) for term in layer.terms]
        push = np.sum(pushes, axis=0)
        if not residual:
            push -= (push * own).sum(axis=1, keepdims=True) * own
        if comm.size == 1:
            return push
        gathered = np.empty_like(x)
        counts = [share * x.shape[1] for share in shares]
        comm.Allgatherv(np.ascontiguousarray(push), [gathered, counts])
        return gathered

    return velocity


def evolve(
    x: np.ndarray,
    attention: AttentionLike,
    times: Sequence[float],
    velocity: Callable[..., Velocity],
    *,
    step: float | None = None,
    tolerance: float = 1e-8,
    method: type[OdeSolver] = DOP853,
    noise: float = 0.0,
    seed: int = 0,
) -> np.ndarray:
    """Positions at the times given, T x N x d; x are those at the first of them.

    Several clouds of tokens, ... x N x d, are moved side by side by a velocity that takes them.

    Args:
        x: N x d points on the sphere, or several clouds of them.
        attention: the attention, or the layers.
        times: increasing.
        velocity: makes the velocity field of an attention.
        step: of Euler's method; None for the Runge-Kutta method.
        tolerance: of the Runge-Kutta method: bounds the error of a step for every token.
        method: the Runge-Kutta method.
        noise: its strength; see `noise`.
        seed: of the noise.
    """
    saved = [x]
    for layer, begin, end in pieces(attention, times[0], times[-1]):
        inside = [time for time in times if begin < time <= end]
        stops = inside if inside and inside[-1] == end else [*inside, end]
        if noise:
            longest = step or longest_step(layer, noise)
            random = splitting if step is None else euler_maruyama
            states = list(random(velocity(layer), x, begin, stops, longest, noise, seed))
        elif step is None:
            slowest = 0.0
            if layer.zero_temperature:
                slowest = SHORTEST_PROGRESS / max(speed_bound(layer), 1e-300)
            states = list(
                _runge_kutta(velocity(layer), x, begin, stops, method, tolerance, slowest)
            )
        else:
            states = list(_euler(velocity(layer), x, begin, stops, step))
        x = states[-1]
        saved += states[: len(inside)]
    return np.array(saved[: len(times)])


def fixed_step(attention: AttentionLike) -> float | None:
    """The Euler step to follow an attention with in any case; None where errors are controlled.

    At zero temperature the velocity may jump back and forth, which only fixed steps get past.
    """
    layers = attention.layers
    if not any(layer.zero_temperature for layer in layers):
        return None
    return STEP_AT_ZERO / max(*map(speed_bound, layers), 1e-300)


def _euler(
    velocity: Velocity, x: np.ndarray, begin: float, stops: Sequence[float], step: float
) -> Iterator[np.ndarray]:
    for stop in stops:
        count = math.ceil((stop - begin) / step * (1 - 1e-9))
        for _ in range(count):
            x = normalised(x + (stop - begin) / count * velocity(x))
        begin = stop
        yield x


def _runge_kutta(
    velocity: Velocity,
    x: np.ndarray,
    begin: float,
    stops: Sequence[float],
    method: type[OdeSolver],
    tolerance: float,
    slowest: float,
) -> Iterator[np.ndarray]:
    shape = x.shape

    def rate(_: float, y: np.ndarray) -> np.ndarray:
        # Homogeneous of degree one: the direction of y moves as the token does, whatever |y| has
        # become by the error of the method. Nothing has to be put back on the sphere on the way.
        points = y.reshape(shape)
        length = np.linalg.norm(points, axis=-1, keepdims=True)
        return (length * velocity(points / length)).ravel()

    # The method bounds the root mean square of the errors; this bounds the largest.
    bound = max(tolerance / math.sqrt(x.size), 1e-13) / 2
    solver = method(rate, begin, x.ravel(), stops[-1], rtol=bound, atol=bound)
    waiting = list(stops)
    watched = begin
    for count in itertools.count(1):
        message = solver.step()
        if solver.status == "failed":
            raise SolverError(
                f"at t = {solver.t:.6g} no step meets the tolerance ({message}); give a step"
            )
        if waiting[0] <= solver.t:
            between = solver.dense_output()
            while waiting and waiting[0] <= solver.t:
                y = solver.y if waiting[0] == solver.t else between(waiting[0])
                yield normalised(y.reshape(shape))
                waiting.pop(0)
        if not waiting:
            return
        if count % WATCHED_STEPS == 0:
            if solver.t - watched < slowest:
                raise SolverError(
                    f"from t = {watched:.6g} on {WATCHED_STEPS} steps led to t = {solver.t:.6g} "
                    "only: at zero temperature a token can be sent back and forth between two "
                    "others, which only fixed steps get past; give a step, or a finite beta"
                )
            watched = solver.t


def _save_times(save_at: Sequence[float] | np.ndarray, start: float, until: float) -> list[float]:
    if not (math.isfinite(start) and math.isfinite(until) and until >= start):
        raise InputError(f"until must be a number from {start:g} on, got {until}")
    given = number_list(save_at, "save_at")
    save_at = [real(time, f"save_at[{i}]", "a number") for i, time in enumerate(given)]
    wrong = [time for time in save_at if not start <= time <= until]
    if wrong:
        raise InputError(f"save_at must lie between {start:g} and {until:g}, got {wrong[0]}")
    return sorted({float(start), *map(float, save_at), float(until)})
