"""Whether a state is steady: how much it changes, and whether it would go on to do so.

With the masses M_n after the steps and those of patches, which count by how far they move in widths
l of the attention kernel, the change is the total variation per unit of time,

    c = ( sum over cells |M_(n+1) - M_n|  +  sum over patches M |x_(n+1) - x_n| / l ) / dt.

A state with c below the tolerance is steady, or only nearly constant. It is metastable if

- without noise, one head concentrates it where theory predicts that it leaves later (`theory`), or
- the velocities of its mass would not stay small if log masses went on as in the last step,

      log M(t + h) = log M(t) + h (log M_(n+1) - log M_n) / dt,

  for as long again as the run has lasted, or until its end, whichever is longer. Tails hold no
  mass, but clusters that attend to one leave when it has decayed too far, or when one has grown.

A state that has never changed is not known to be steady, either: one that is unstable, as the
uniform density may be, begins alike. Nor does theory or extrapolation see perturbations that a
density does not have, as of its symmetry: `Stationary.growth` does.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from meanfield_pde.attention.heads import kernel_width
from meanfield_pde.attention.layers import acting
from meanfield_pde.solver.controller import STILL, Controller
from meanfield_pde.solver.state import Clocks
from meanfield_pde.support.ranks import total
from meanfield_pde.theory.progress import Progress
from meanfield_pde.theory.projection_limit import ProjectionLimit

STEADY, METASTABLE, CHANGING = "steady", "metastable: nearly constant", "changing"
# What counts as steady where nothing is said: far below what steps allow for errors, 1e-3 per unit
# of time, and above what sums leave open, 1e-10.
TOLERANCE = 1e-8
# Velocities that follow from what tails will be are held against this many tolerances: where a tail
# takes over they are of the size of 1, where none does they are as they were.
_NOTICEABLE = 100.0
# What tails will do is asked when a state becomes nearly constant, and then at the powers of this,
# so that a run that is resumed asks at the same steps: it takes a third of a step.
_AGAIN = 1.05


@dataclass(frozen=True)
class Steadiness:
    """What a state is.

    Attributes:
        state: "steady", "metastable: nearly constant" or "changing".
        change: total variation per unit of time in the last step.
        tolerance: below which that counts as nearly none.
        since: from when on it has been below; None if it is not.
        reason: why the state is not called steady.
        stopped: whether the run was ended for it.
    """

    state: str
    change: float
    tolerance: float
    since: float | None = None
    reason: str = ""
    stopped: bool = False

    def __str__(self) -> str:
        since = "" if self.since is None else f" since t = {self.since:.4g}"
        end = ", which ended the run" if self.stopped else ""
        reason = f"; {self.reason}" if self.reason else ""
        return (
            f"the last state is {self.state}{since} (total variation {self.change:.1e} per unit of "
            f"time){end}{reason}"
        )

    def describe(self) -> dict[str, Any]:
        """All of it for summary.json."""
        return asdict(self)


class SteadyWatch:
    """Watches an evolution: since when it is nearly constant, and whether it stays so.

    Args:
        evolution: what is watched.
        projection: what is predicted of it.
        until: how far it goes.
        tolerance: of the change; None to stop for none, with `TOLERANCE` for the verdict.
        metastable: whether a metastable state is to stop the run, too.
    """

    def __init__(
        self,
        evolution: Controller,
        projection: ProjectionLimit,
        until: float,
        tolerance: float | None = None,
        *,
        metastable: bool = False,
    ) -> None:
        self._evolution = evolution
        self._projection = projection
        self._until = until
        self._stops = tolerance is not None
        self._tolerance = TOLERANCE if tolerance is None else tolerance
        self._metastable = metastable
        self._since = evolution.time if self._quiet else None
        self._stopped = self._stops and self._quiet and (metastable or self._clocks.steady)

    @property
    def stopped(self) -> bool:
        """Whether the run ends where it stands; also one that ended here before it was resumed."""
        return self._stopped

    @property
    def _clocks(self) -> Clocks:
        return self._evolution.state.clocks

    @property
    def _quiet(self) -> bool:
        return self._clocks.change < self._tolerance

    def stepped(self) -> bool:
        """Take note of a step, and return whether the run is to end with it. Collective."""
        evolution, clocks = self._evolution, self._clocks
        before = clocks.time - clocks.last_dt
        new = self._quiet and self._since is None
        if not self._quiet:
            self._since = None
        elif new:
            self._since = before  # at its beginning, as the change is the mean over the step
        if not self._stops or not self._quiet:
            return False
        if self._metastable:
            self._stopped = True
        elif (new or _power(before) < _power(clocks.time)) and not self._not_steady():
            self._stopped = True
            evolution.state = replace(evolution.state, clocks=replace(clocks, steady=True))
        return self._stopped

    def verdict(self) -> Steadiness:
        """What the present state is. Collective."""
        change = self._clocks.change
        found = Steadiness(CHANGING, change, self._tolerance, self._since, stopped=self._stopped)
        if self._since is None:
            return found
        reason = "" if self._clocks.steady else self._not_steady()
        state = METASTABLE if reason else STEADY
        return Steadiness(state, change, self._tolerance, self._since, reason, self._stopped)

    def _not_steady(self) -> str:
        """Why a state that is nearly constant is not steady; nothing if it is. Collective."""
        evolution = self._evolution
        now = evolution.time
        if self._clocks.most_change < self._tolerance:
            return "it has not changed since the beginning, and may be unstable"
        following = acting(evolution.equation.attention, self._until)
        if following is not evolution.rhs.layer:
            return "another layer follows"
        if evolution.rhs.fixed:
            return ""
        ends = self._predicted_end()
        if ends > now:
            return f"it is predicted to leave at t = {ends:.4g}"
        shift = self._shift_ahead(max(self._until - now, now))
        if math.isnan(shift):
            return "what its tails do is not known: the mesh has just changed"
        tolerance = evolution.equation.settings.tolerance
        if shift <= max(_NOTICEABLE * self._tolerance, STILL * tolerance * evolution.rhs.speed):
            return ""
        return "a tail of it still grows or decays, until its clusters leave"

    def _predicted_end(self) -> float:
        """When the state is predicted to leave the stop where it is; 0 if no time is known."""
        limit, evolution = self._projection, self._evolution
        if not limit.exists or evolution.equation.noise or math.isinf(limit.lifetime):
            return 0.0
        progress = Progress(limit)
        if not progress.switches:
            return 0.0
        fraction = float(progress.fraction(evolution.state.second_moments()[None])[0])
        passed = int(np.searchsorted(progress.levels, fraction))
        until = progress.stops[passed][1] if passed else limit.lifetime_per_beta
        return limit.attention.beta * until if until is not None and math.isfinite(until) else 0.0

    def _shift_ahead(self, time: float) -> float:
        """How fast the mass would move, per kernel width, by log masses of later. Collective.

        Less what it does now; nan where the mesh has changed since the last step.
        """
        evolution = self._evolution
        state, volumes = evolution.state, evolution.state.volumes
        if evolution.taken is None or evolution.taken[1].masses is not state.masses:
            return math.nan
        before, after = (one.masses.log for one in evolution.taken)
        with np.errstate(invalid="ignore"):  # of cells without mass
            rate = (after - before) / evolution.last_dt
        later = np.minimum(after + time * np.where(np.isfinite(rate), rate, 0.0), 0.0)
        flux = evolution.rhs.facet_flux(later, state.patches) - evolution.velocity().flux
        shift = total(volumes.comm, float(state.masses.doubles @ volumes.speed(flux)))
        if state.patches:
            centres = np.array([patch.centre for patch in state.patches])
            mass = np.array([patch.mass for patch in state.patches])
            then, now = (evolution.rhs.field(one, state.patches) for one in (later, after))
            shift += float(mass @ np.linalg.norm(then(centres) - now(centres), axis=1))
        return shift / kernel_width(evolution.rhs.layer)


def _power(time: float) -> int:
    """The power of `_AGAIN` that a time has reached."""
    return math.floor(math.log(max(time, 1e-300), _AGAIN))
