"""The phases of a history: concentration, metastable, switching, terminal, and its plateaus.

E is the dominant eigenspace of A = V B^T, where tokens gather first, and F that of V (or of -V, see
`ProjectionLimit.terminal`), where clusters end; theta is the angle between them. With the second
moments M = ∫ x x^T dmu and U the eigenspace of M for its dim E largest eigenvalues (the principal
axis, for two clusters), let

    psi = asin sqrt(1 - tr(P_E M)),           the root mean square angle of tokens to E,
    f = angle(U, E) / (angle(U, E) + angle(U, F)),      the progress from E to F.

On their way clusters rest at V E, V^2 E, ... (see `stages`). Let 0 = p_0 < p_1 < ... < 1 be the
progress there, those left out that are nearer than 1/5 to one before or to F. The axis has left the
place p_k when f comes to (p_k + p_(k+1)) / 2, from below, for good. So

    concentration   from the start until psi <= theta / 2 (pi / 8 where theta = 0)
    metastable      from then until the axis leaves E, which is the lifetime; the phase counts if it
                    lasts 1/c or longer, c the contraction rate, and if it is predicted to end
    switching       from the end of the metastable phase until the terminal one
    terminal        from the time after which f stays above 9/10

and a plateau is the time between the last two leavings, if for 1/c of it f keeps within 1/10. These
are integrals of the density against smooth functions, compared with angles that depend on neither
the mesh nor beta, so that the times converge with the mesh. A phase is not reached unless all this
holds: not at beta = 0, where A does not act; no switching where E and F are the same; and the
concentrated state is not called metastable where it is stable, as at zero temperature.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from meanfield_pde.mesh.geometry import AXES
from meanfield_pde.theory.progress import Progress, Stage, first_crossing, for_good
from meanfield_pde.theory.projection_limit import ProjectionLimit

NAMES = ("concentration", "metastable", "switching", "terminal")
# Progress at half-way time, and from which on a state has been reached: definitions.
HALF, ARRIVES = 1 / 2, 9 / 10
BEFORE = "no concentration before it"


def interval_of(begin: float, end: float | None) -> str:
    """Return from when to when, in words; None for an end that has not come."""
    return f"from t = {begin:.4g} on" if end is None else f"t = {begin:.4g} to {end:.4g}"


@dataclass(frozen=True)
class Phase:
    """One phase: when it began and ended.

    Attributes:
        name: one of `NAMES`.
        begin: its first time; None if it was not reached.
        end: its last time; None if it was not reached, or goes on at the end of the history.
        reason: why it was not reached.
    """

    name: str
    begin: float | None = None
    end: float | None = None
    reason: str | None = None

    @property
    def reached(self) -> bool:
        """Whether the history has come to this phase."""
        return self.begin is not None

    @property
    def when(self) -> str:
        """From when to when, in words."""
        return "not reached" if self.begin is None else interval_of(self.begin, self.end)


@dataclass(frozen=True)
class Phases:
    """All four phases, and the plateaus of the way from E to F.

    Attributes:
        concentration, metastable, switching, terminal: the phases.
        lifetime: when the axis leaves E; None if it does not.
        half: when f comes to 1/2, from below, for good; None if it does not.
        stages: where the axis stands still, in the order of time.
    """

    concentration: Phase
    metastable: Phase
    switching: Phase
    terminal: Phase
    lifetime: float | None = None
    half: float | None = None
    stages: tuple[Stage, ...] = ()

    def __iter__(self) -> Iterator[Phase]:
        return iter(getattr(self, name) for name in NAMES)

    def describe(self) -> dict[str, Any]:
        """All of it for summary.json."""
        found: dict[str, Any] = {
            phase.name: {"begin": phase.begin, "end": phase.end}
            if phase.reached
            else f"not reached: {phase.reason}"
            for phase in self
        }
        return found | {
            "lifetime": self.lifetime,
            "half_switched": self.half,
            "stages": [stage.describe() for stage in self.stages],
        }


def find_phases(times: np.ndarray, moments: np.ndarray, limit: ProjectionLimit) -> Phases:
    """The phases of a history of second moments (T x d x d, of total mass one)."""
    obstacle = None
    if not limit.exists:
        obstacle = f"there is no limit to concentrate at: {limit.reason}"
    elif limit.dimension == len(limit.eigenspace.eigenvalues):
        obstacle = "A is a multiple of the identity: tokens have nothing to concentrate at"
    elif limit.attention.beta == 0:
        obstacle = "beta = 0: query and key do not act"
    if obstacle is not None:
        first, second, third, fourth = (Phase(name, reason=obstacle) for name in NAMES)
        return Phases(first, second, third, fourth)
    progress = Progress(limit)
    spread, fraction = progress.spread(moments), progress.fraction(moments)
    end = first_crossing(times, -spread, -progress.concentrated)
    terminal = _terminal(times, fraction, progress, times[0] if end is None else end)
    if end is None:
        reason = (
            f"tokens come as near as {spread.min():.3g} radians to the dominant eigenspace of A, "
            f"{progress.concentrated:.3g} would count"
        )
        concentration = Phase("concentration", reason=reason)
        metastable, switching = (Phase(name, reason=BEFORE) for name in NAMES[1:3])
        return Phases(concentration, metastable, switching, terminal)
    concentration = Phase("concentration", float(times[0]), end)
    leaves = half = None
    stages: list[Stage] = []
    if progress.switches:
        leaves, half = progress.leaves(times, fraction), for_good(times, fraction, HALF)
        stages = progress.stages(times, fraction, end)
    metastable = _metastable(progress, end, leaves, float(times[-1]))
    switching = _switching(progress, metastable, leaves, terminal)
    return Phases(concentration, metastable, switching, terminal, leaves, half, tuple(stages))


def phases_of_history(history: Mapping[str, np.ndarray], limit: ProjectionLimit) -> Phases:
    """The phases from the columns of a history."""
    d = limit.attention.dimension
    moments = np.empty((len(history["time"]), d, d))
    for i in range(d):
        for j in range(i, d):
            moments[:, i, j] = moments[:, j, i] = history[f"second_{AXES[i]}{AXES[j]}"]
    return find_phases(history["time"], moments / history["mass"][:, None, None], limit)


def _metastable(progress: Progress, begin: float, leaves: float | None, last: float) -> Phase:
    limit = progress.projection
    shortest = 1 / limit.contraction_rate
    if leaves is None and math.isinf(limit.lifetime):
        reason = "the concentrated state is stable, nothing is predicted to end it"
    elif not limit.terminal.exists and progress.no_switch:  # its end would not be seen
        reason = progress.no_switch
    elif (last if leaves is None else leaves) - begin < shortest:
        reason = f"less than 1/c = {shortest:.3g} between concentration and "
        reason += "the end of the run" if leaves is None else f"the switch at t = {leaves:.4g}"
    else:
        return Phase("metastable", begin, leaves)
    return Phase("metastable", reason=reason)


def _switching(
    progress: Progress, metastable: Phase, leaves: float | None, terminal: Phase
) -> Phase:
    if progress.no_switch is not None:
        reason = progress.no_switch
    elif not metastable.reached:
        reason = "no metastable phase before it"
    elif leaves is None:
        reason = "the metastable phase has not ended"
    else:
        return Phase("switching", leaves, terminal.begin)
    return Phase("switching", reason=reason)


def _terminal(times: np.ndarray, fraction: np.ndarray, progress: Progress, after: float) -> Phase:
    if progress.no_switch is not None:
        return Phase("terminal", reason=progress.no_switch)
    below = np.flatnonzero((fraction < ARRIVES) | (times < after))
    start = int(below[-1]) if len(below) else 0
    if start == len(times) - 1:
        return Phase("terminal", reason=f"at the end the progress is {fraction[-1]:.3g} of 0.9")
    return Phase("terminal", first_crossing(times[start:], fraction[start:], ARRIVES, after))
