"""What a user chooses of the solver: scheme, tolerance, times to save, and what to compare with.

Each is a section of a case file, [solver], [time] and [compare], and what `solve` takes in scripts.
A message begins with the key it is about, as in "solver.tolerance must be ...".
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from meanfield_pde.errors import InputError
from meanfield_pde.solver.schemes import SCHEMES, Scheme
from meanfield_pde.support.checks import choice, number_list, real, shown, whole
from meanfield_pde.wasserstein.choices import COSTS

# Whether masses may leave the range of doubles; None lets the solver decide.
LOG_MASSES = {"auto": None, "on": True, "off": False}
# Masses and velocities are then nearer to those of far shorter steps than cells leave open (the
# distance in total variation is 1e-5 to 1e-4: `tests.benchmarks.sums`).
STEP_TOLERANCE = 1e-3
AUTO = "auto"  # the scheme of transport is chosen by the solver
# A misplaced digit in save_every should be an error, not a full disk.
MOST_SAVED_TIMES = 100_000


@dataclass(frozen=True)
class SolverCase:
    """[solver]: the finite volume scheme, and the numbers it works with.

    Attributes:
        scheme: a name in `SCHEMES`, or "auto": "quadratic", but with noise "muscl", which like the
            noise is of second order, with an error of the other sign.
        tolerance: of the attention sum, relative.
        log_masses: "on" to follow tails below the range of doubles, "off" not to, "auto" from when
            the smallest mass of the state falls below 1e-280, if velocities can see it.
        step_tolerance: bound on the error of a step of order two per unit of time, by which steps
            of order three are chosen (`step_control`).
    """

    scheme: str = AUTO
    tolerance: float = 1e-10
    log_masses: str = "auto"
    step_tolerance: float = STEP_TOLERANCE

    def __post_init__(self) -> None:
        choice(self.scheme, "solver.scheme", (AUTO, *SCHEMES))
        # Below 1e-14 is out of reach of double precision.
        tolerance = real(
            self.tolerance,
            "solver.tolerance",
            "a number from 1e-14 to 1e-2",
            lambda t: 1e-14 <= t <= 1e-2,
        )
        object.__setattr__(self, "tolerance", tolerance)
        # Below 1e-9 steps would follow what the sums leave open.
        steps = real(
            self.step_tolerance,
            "solver.step_tolerance",
            "a number from 1e-9 to 1",
            lambda t: 1e-9 <= t <= 1,
        )
        object.__setattr__(self, "step_tolerance", steps)
        choice(self.log_masses, "solver.log_masses", LOG_MASSES)

    def scheme_of(self, *, noise: bool) -> Scheme:
        """The scheme of transport, with noise or without."""
        name = self.scheme
        if name == AUTO:
            name = "muscl" if noise else "quadratic"
        return SCHEMES[name]


@dataclass(frozen=True)
class NoiseCase:
    """[noise]: diffusion on the surface, + strength x Laplace-Beltrami; zero for none.

    Tokens that make this density follow dx = v dt + sqrt(2 strength) dW on the sphere.
    """

    strength: float = 0.0

    def __post_init__(self) -> None:
        strength = real(self.strength, "noise.strength", "a number >= 0", lambda s: s >= 0)
        object.__setattr__(self, "strength", strength)


@dataclass(frozen=True)
class TimeCase:
    """[time]: how far to go, and the times to save, listed or evenly spaced.

    The start and the end are always saved, whether or not they are listed.

    Attributes:
        until: the end.
        save_at: times to save beside.
        save_every: the time between them, instead.
        steady: the run ends before where the density changes by less than this per unit of time, in
            total variation, and is to stay so (`steadiness`).
        steady_metastable: it also ends where the density is to change later.
    """

    until: float
    save_at: tuple[float, ...] = ()
    save_every: float | None = None
    steady: float | None = None
    steady_metastable: bool = False

    def __post_init__(self) -> None:
        until = real(self.until, "time.until", "a number >= 0", lambda t: t >= 0)
        object.__setattr__(self, "until", until)
        given = number_list(self.save_at, "time.save_at")
        times = tuple(real(t, f"time.save_at[{i}]", "a number") for i, t in enumerate(given))
        object.__setattr__(self, "save_at", times)
        for i, t in enumerate(times):
            if not 0 <= t <= until:
                raise InputError(
                    f"time.save_at[{i}] must be between 0 and time.until = {until}, got {t}"
                )
            if i and t <= times[i - 1]:
                raise InputError(f"time.save_at must increase, got {t} after {times[i - 1]}")
        self._check_steady()
        if self.save_every is None:
            return
        if times:
            raise InputError("time.save_at and time.save_every exclude each other; give one")
        step = real(self.save_every, "time.save_every", "a number > 0", lambda s: s > 0)
        object.__setattr__(self, "save_every", step)
        if until / step > MOST_SAVED_TIMES:
            raise InputError(
                f"time.save_every must leave at most {MOST_SAVED_TIMES} saved times, "
                f"got {step} for until = {until}"
            )

    def _check_steady(self) -> None:
        if self.steady is not None:
            # Below 1e-13 is rounding: the whole mass is one.
            steady = real(
                self.steady, "time.steady", "a number from 1e-13 to 1", lambda c: 1e-13 <= c <= 1
            )
            object.__setattr__(self, "steady", steady)
        if not isinstance(self.steady_metastable, bool):
            raise InputError(
                f"time.steady_metastable must be true or false, got {shown(self.steady_metastable)}"
            )
        if self.steady_metastable and self.steady is None:
            raise InputError("time.steady_metastable = true needs time.steady, such as 1e-8")

    @property
    def save_times(self) -> tuple[float, ...]:
        """The saved times in order: 0, those asked for, and `until`."""
        inside = self.save_at
        if self.save_every is not None:
            # A last multiple that is until but for rounding is until.
            count = math.ceil(self.until / self.save_every * (1 - 1e-12))
            inside = tuple(k * self.save_every for k in range(1, count))
        return tuple(sorted({0.0, *inside, self.until}))

    def with_until(self, until: float) -> TimeCase:
        """The same with another end; listed times beyond it are left out."""
        until = real(until, "time.until", "a number >= 0", lambda t: t >= 0)
        return replace(self, until=until, save_at=tuple(t for t in self.save_at if t <= until))


ORDERS = (1, 2)  # p of the distances there are


@dataclass(frozen=True)
class Compared:
    """Two measures between which there are distances, and what they are called.

    Attributes:
        name: as in the columns w{p}_{name} and so on.
        label: in words.
        needs: the keys of [compare] that ask for it.
        interval: whether there is one for the densities, not only for atoms.
        least: what its least value is called in the lines that end a run, where "to the limit"
            gives "least W1 to the limit: 0.012 (between densities 0.011 to 0.013), at t = 3".
            Empty if that is no news, as between two that begin as one.
    """

    name: str
    label: str
    needs: tuple[str, ...]
    interval: bool = True
    least: str = ""

    def column(self, p: int | str) -> str:
        """The column of its value, of this order."""
        return f"w{p}_{self.name}"

    def bounds(self, p: int | str) -> tuple[str, str]:
        """The columns of its interval."""
        return f"{self.column(p)}_low", f"{self.column(p)}_high"

    @property
    def quantisation(self) -> str:
        """The column of what the width of the cells leaves open."""
        return f"quantisation_{self.name}"

    def asked_for(self, compare: CompareCase) -> bool:
        """Whether a section [compare] asks for it."""
        return all(getattr(compare, key) for key in self.needs)


# In the order of their columns.
COMPARED = (
    Compared("limit", "density to limit", ("limit",), least="to the limit"),
    Compared("zero", "density to zero temperature", ("zero_temperature",)),
    Compared(
        "zero_to_limit",
        "zero temperature to limit",
        ("zero_temperature", "limit"),
        interval=False,
        least="of zero temperature to the limit",
    ),
)


@dataclass(frozen=True)
class CompareCase:
    """[compare]: what each saved density is compared with, and how.

    Attributes:
        limit: compare with the push-forward of the initial density under the projection map.
        zero_temperature: compare with the same problem at beta = inf, solved alongside.
        p: the orders of the Wasserstein distances.
        cost: "geodesic" or "chordal".
        time_limit: seconds for one distance, after which the interval reached is taken.
    """

    limit: bool = False
    zero_temperature: bool = False
    p: tuple[int, ...] = (1,)
    cost: str = "geodesic"
    time_limit: float = 60.0

    def __post_init__(self) -> None:
        keys = dict.fromkeys(key for one in COMPARED for key in one.needs)
        for name in keys:
            if not isinstance(value := getattr(self, name), bool):
                raise InputError(f"compare.{name} must be true or false, got {shown(value)}")
        if not any(getattr(self, name) for name in keys):
            raise InputError(f"[compare] needs {' or '.join(f'{key} = true' for key in keys)}")
        orders = tuple(whole(p, "compare.p", 1) for p in number_list(self.p, "compare.p"))
        if orders not in ((1,), (2,), (1, 2)):
            raise InputError(f"compare.p must be [1], [2] or [1, 2], got {list(orders)}")
        object.__setattr__(self, "p", orders)
        choice(self.cost, "compare.cost", COSTS)
        limit = real(self.time_limit, "compare.time_limit", "a number > 0", lambda s: s > 0)
        object.__setattr__(self, "time_limit", limit)


def check_noise(strength: float, solver: SolverCase, compare: CompareCase | None) -> None:
    """Refuse what has no meaning with noise. Zero temperature has: it is a linear equation then."""
    if not strength:
        return
    if compare is not None and compare.limit:
        raise InputError(
            "compare.limit = true: the projection limit is that of the flow without noise; set "
            "noise.strength = 0, or compare.limit = false"
        )
    if LOG_MASSES[solver.log_masses]:
        raise InputError(
            "solver.log_masses = 'on' follows tails that die out, which noise fills again; set "
            "noise.strength = 0, or log_masses = 'auto'"
        )
