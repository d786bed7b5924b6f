"""What a particle code may have done instead: variants of the equation, tried on its own tokens.

Each variant starts from the first positions in the token file and is followed through the later
ones. The measure of its fit is the mean distance between its tokens and those of the file, token
by token, which is sharp: the right variant meets them to the error of the integration in time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from mpi4py import MPI

import numpy as np
from scipy.optimize import minimize_scalar

from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.layers import AttentionLike, Layers, layers_of
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.tokens.cloud import TokenCloud
from meanfield_pde.tokens.code import Velocity, evolve, fixed_step, token_velocity

# Beyond this mean distance from the reference code, later times tell no more.
FAR = 0.03
# A variant explains the tokens if it leaves at most this part of the distance.
FITS = 0.05
# One that leaves less than this is worth a mention, as the nearest.
HELPS = 0.5
# One that leaves less than this need not be compared with any other.
CERTAIN = 1e-3
# A token that has not come further than this while it should have come this far does not move.
STILL, MOVED = 1e-9, 1e-3
LATER_TIMES = 6  # at which variants are compared with the tokens
STEPS_PER_INTERVAL = (1, 2, 3, 4, 5, 8, 10, 16, 20)
TOLERANCE = 1e-6
# A variant that takes so many times the evaluations of the reference code is given up: without the
# denominator of the softmax, velocities of the order exp(beta |B|) are out of any code's reach.
MOST_COST = 30


@dataclass(frozen=True, eq=False)
class Variant:
    """A way to compute the tokens.

    Attributes:
        name: what it is, as the end of the sentence "the tokens are those of ...".
        attention: the attention.
        step: of Euler's method; None for a method of controlled error.
        residual: whether Euler's step takes V m instead of P_x V m.
        frozen: which tokens do not move; None if all do.
    """

    name: str
    attention: AttentionLike
    step: float | None = None
    residual: bool = False
    frozen: np.ndarray | None = None


@dataclass(frozen=True)
class Fit:
    """How well a variant fits.

    Attributes:
        name: the name of the variant.
        distance: mean distance between its tokens and those of the file.
        of_step: whether it differs from the equation in nothing but its steps.
        left: the part that is left of the distance between the equation and the tokens.
    """

    name: str
    distance: float
    of_step: bool = False
    left: float = 1.0

    @property
    def explains(self) -> bool:
        """Whether the tokens are those of this variant."""
        return self.left < FITS


class Trial:
    """The tokens of a file, with which variants are compared. Its methods are collective.

    Attributes:
        right: how well the equation itself fits, over all times.
    """

    def __init__(
        self, cloud: TokenCloud, attention: AttentionLike, layer_step: float | None, comm: MPI.Comm
    ) -> None:
        if isinstance(attention, Layers):  # tokens may go on where the layers end
            inside = cloud.times <= attention.end * (1 + 1e-9)
            cloud = replace(cloud, times=cloud.times[inside], tokens=cloud.tokens[inside])
        self._cloud = cloud
        self._comm = comm
        self._attention = attention
        # A file that counts layers was made by a residual network, whatever else is wrong with it.
        self._usual = Variant(
            "", attention, layer_step or fixed_step(attention), layer_step is not None
        )
        self._chosen = np.arange(len(cloud.times))
        self._evaluations = 0
        self._most = math.inf
        paths = self._simulate(Variant("", attention, fixed_step(attention)))
        self._most = MOST_COST * max(self._evaluations, 100)
        distances = self._distances(paths)
        self.right = Fit("the equation", float(distances[1:].mean()))
        # Wrong tokens are soon everywhere: what the cause is, the first times tell best.
        far = np.flatnonzero(distances > FAR)
        last = int(far[0]) if len(far) else len(cloud.times) - 1
        self._chosen = np.unique(np.linspace(0, last, LATER_TIMES + 1).round().astype(int))
        self._paths = paths[self._chosen]
        self._start = float(distances[self._chosen][1:].mean())

    def best(self) -> Fit | None:
        """The variant nearest to the tokens, or None if none of them is near."""
        found = Fit("", math.inf)
        for variant in self._variants():
            fit = self._fit(variant)
            if fit.distance < found.distance:
                found = fit
            if found.left < CERTAIN:
                return found
        for fit in self._other_betas():
            if fit.distance < found.distance:
                found = fit
        return found if found.left < HELPS else None

    def _variants(self) -> Iterator[Variant]:
        still = self._frozen()
        if still.any():
            name = f"a code that leaves {still.sum()} of {len(still)} tokens frozen"
            yield replace(self._usual, name=name, frozen=still)
        for name, change in _CHANGES:
            changed = _changed(self._attention, change)
            if changed is not None:
                yield replace(self._usual, name=name, attention=changed)
        interval = float(np.diff(self._times).min())
        steps = [interval / n for n in STEPS_PER_INTERVAL]
        if self._usual.residual:
            steps = [self._usual.step or interval]
        for step in steps:
            yield Variant(f"Euler steps of {step:.4g}", self._attention, step)
            name = f"layers x + h V m of h = {step:.4g}"
            yield Variant(name, self._attention, step, residual=True)
        cold = _changed(self._attention, lambda layer: layer.with_beta(math.inf))
        if cold is not None:
            yield Variant("zero temperature", cold, self._usual.step or interval / 20)

    def _other_betas(self) -> Iterator[Fit]:
        """The inverse temperature that fits best."""
        attention = self._attention
        beta = attention.beta
        if not 0 < beta < math.inf:
            return

        def fit(log_factor: float) -> Fit:
            other = beta * math.exp(log_factor)
            name = f"beta = {other:.3g} instead of {beta:g}"
            return self._fit(replace(self._usual, name=name, attention=attention.with_beta(other)))

        # A coarse scan finds the valley, whose bottom is as sharp as that of |beta - best|.
        scan = np.log([0.1, 0.25, 0.7, 1.0, 1.4, 4.0, 10.0])
        distances = [self._start if factor == 0 else fit(factor).distance for factor in scan[1:-1]]
        best = 1 + int(np.argmin(distances))
        found = minimize_scalar(
            lambda log_factor: fit(log_factor).distance,
            bounds=(scan[best - 1], scan[best + 1]),
            method="bounded",
            options={"xatol": 2e-3, "maxiter": 25},
        )
        yield fit(float(found.x))

    def _frozen(self) -> np.ndarray:
        """Which tokens stay where they are at all times, though the equation moves them."""
        tokens = self._cloud.tokens
        came = np.linalg.norm(tokens - tokens[0], axis=2).max(axis=0)
        should = np.linalg.norm(self._paths - self._paths[0], axis=2).max(axis=0)
        return (came < STILL) & (should > MOVED)

    @property
    def _times(self) -> np.ndarray:
        return self._cloud.times[self._chosen]

    def _fit(self, variant: Variant) -> Fit:
        try:
            distances = self._distances(self._simulate(variant))
        except SolverError:  # a variant that cannot even be computed is not what the code did
            return Fit(variant.name, math.inf)
        of_step = variant.attention is self._attention and variant.frozen is None
        distance = float(distances[1:].mean())
        return Fit(variant.name, distance, of_step, distance / self._start)

    def _distances(self, paths: np.ndarray) -> np.ndarray:
        """Mean distance of the tokens at each of the chosen times."""
        apart = np.linalg.norm(paths - self._cloud.tokens[self._chosen], axis=2)
        masses = self._cloud.masses
        return np.average(apart, axis=1, weights=masses)

    def _simulate(self, variant: Variant) -> np.ndarray:
        cloud = self._cloud
        self._evaluations = 0

        def velocity(layer: Attention) -> Velocity:
            moving = token_velocity(
                layer, cloud.masses, self._comm, tolerance=TOLERANCE, residual=variant.residual
            )
            still = False if variant.frozen is None else variant.frozen[:, None]

            def counted(x: np.ndarray) -> np.ndarray:
                self._evaluations += 1
                if self._evaluations > self._most:
                    raise SolverError(f"{variant.name}: more than {self._most} evaluations")
                return np.where(still, 0.0, moving(x))

            return counted

        x = self._comm.bcast(cloud.tokens[0])
        return evolve(
            x,
            variant.attention,
            list(self._times),
            velocity,
            step=variant.step,
            tolerance=TOLERANCE,
        )


_CHANGES: tuple[tuple[str, Callable[[Attention], Attention]], ...] = (
    (
        "Q and K swapped, <x, B y> with B transposed",
        lambda layer: replace(layer, query=layer.key, key=layer.query),
    ),
    ("V transposed", lambda layer: replace(layer, value=layer.value.T)),
    ("-V instead of V", lambda layer: replace(layer, value=-layer.value)),
    ("a softmax without its denominator", lambda layer: replace(layer, normalise=False)),
    ("a softmax with its denominator", lambda layer: replace(layer, normalise=True)),
    (
        "scores divided by the square root of their dimension",
        lambda layer: layer.with_beta(layer.beta / math.sqrt(len(layer.query))),
    ),
)


def _changed(
    attention: AttentionLike, change: Callable[[Attention], Attention]
) -> AttentionLike | None:
    """The attention with a change in every layer; None if that is no attention, or no change."""
    before = layers_of(attention)
    try:
        changed = [change(layer) for layer in before]
    except InputError:
        return None
    if all(_same(*pair) for pair in zip(before, changed, strict=True)):
        return None
    return Layers(changed, attention.duration) if isinstance(attention, Layers) else changed[0]


def _same(one: Attention, other: Attention) -> bool:
    return (
        one.beta == other.beta
        and one.normalise == other.normalise
        and np.allclose(one.key_query, other.key_query, rtol=0, atol=1e-12)
        and np.allclose(one.value, other.value, rtol=0, atol=1e-12)
    )
