"""The phases of a history: concentration, metastable, switching, terminal, with their times.

E is the dominant eigenspace of A = V B^T, where tokens gather first, and F that of V (or of -V, see
`ProjectionLimit.terminal`), where clusters end; theta is the angle between them. With the second
moments M = ∫ x x^T dmu and U the eigenspace of M for its dim E largest eigenvalues (the principal
axis, for two clusters), let

    psi = asin sqrt(1 - tr(P_E M)),           the root mean square angle of tokens to E,
    f = angle(U, E) / (angle(U, E) + angle(U, F)),      the progress from E to F.

    concentration   from the start until psi <= theta / 2 (pi / 8 where theta = 0)
    metastable      from then until f rises above 1/3 on its way to 1/2; the phase counts if it
                    lasts 1/c or longer, c the contraction rate, and if it is predicted to end
    switching       from the end of the metastable phase until the terminal one
    terminal        from the time after which f stays above 9/10

and the lifetime of the metastable state is the time at which f comes to 1/2, from below, for good.
These are integrals of the density against smooth functions, compared with angles that do not
depend on the mesh, so that the times converge with it. A phase is not reached unless all this
holds: not at beta = 0, where A does not act; no switching where E and F are the same; and the
concentrated state is not called metastable where it is stable, as at zero temperature.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import subspace_angles

from meanfield_pde.mesh.geometry import AXES
from meanfield_pde.theory.projection_limit import ProjectionLimit

NAMES = ("concentration", "metastable", "switching", "terminal")
LEAVES, HALF, ARRIVES = 1 / 3, 1 / 2, 9 / 10
# Where E and F are the same, the angle that counts as concentrated.
SETTLED = math.pi / 8
# Below this angle between E and F, in radians, no switch can be told from the width of clusters.
SAME = 0.02
BEFORE = "no concentration before it"


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

    def __str__(self) -> str:
        if self.begin is None:
            return f"{self.name}: not reached ({self.reason})"
        end = "the end of the run" if self.end is None else f"t = {self.end:.4g}"
        return f"{self.name}: from t = {self.begin:.4g} to {end}"


@dataclass(frozen=True)
class Phases:
    """All four phases, and the time at which the switch is half done.

    Attributes:
        concentration, metastable, switching, terminal: the phases.
        lifetime: when f comes to 1/2; None if it does not.
    """

    concentration: Phase
    metastable: Phase
    switching: Phase
    terminal: Phase
    lifetime: float | None = None

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
        return found | {"half_switched": self.lifetime}


class Progress:
    """The angle psi, the progress f, and the switch, from second moments (T x d x d)."""

    def __init__(self, projection: ProjectionLimit) -> None:
        self.projection = projection
        self._first, self._last = projection.basis, projection.terminal.basis
        self.angle = 0.0  # theta
        if self._last is not None:
            self.angle = float(subspace_angles(self._first, self._last).max())

    @property
    def switches(self) -> bool:
        """Whether E and F are so far apart that a switch can be seen."""
        return self.angle > SAME

    @property
    def concentrated(self) -> float:
        """The angle psi from which on the density counts as concentrated."""
        return self.angle / 2 if self.switches else SETTLED

    def spread(self, moments: np.ndarray) -> np.ndarray:
        """The angle psi at each time."""
        inside = np.einsum("tij,ik,jk->t", moments, self._first, self._first)
        return np.arcsin(np.sqrt(np.clip(1 - inside, 0, 1)))

    def fraction(self, moments: np.ndarray) -> np.ndarray:
        """The progress f at each time; zero where E and F are not told apart."""
        if not self.switches or self._last is None:
            return np.zeros(len(moments))
        axes = np.linalg.eigh(moments)[1][:, :, -self._first.shape[1] :]
        gone = np.array([subspace_angles(axis, self._first).max() for axis in axes])
        ahead = np.array([subspace_angles(axis, self._last).max() for axis in axes])
        return gone / np.maximum(gone + ahead, 1e-300)

    def switch(self, times: np.ndarray, fraction: np.ndarray) -> tuple[float | None, float] | None:
        """When the progress rises above 1/3, if it was below, and to 1/2, for the last time."""
        early = np.flatnonzero(fraction < HALF)
        if not len(early) or early[-1] == len(times) - 1:
            return None
        half = first_crossing(times, fraction, HALF, after=times[early[-1]])
        assert half is not None  # what follows the last time below is not below
        low = np.flatnonzero(fraction[: early[-1] + 1] < LEAVES)
        if not len(low):
            return None, half
        return first_crossing(times, fraction, LEAVES, after=times[low[-1]]), half


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
    leaves, half = progress.switch(times, fraction) or (None, None)
    if half is not None and leaves is None:
        leaves = end  # the axis was never near E: it did not stay
    metastable = _metastable(limit, end, leaves, float(times[-1]))
    switching = _switching(progress, metastable, leaves, terminal)
    return Phases(concentration, metastable, switching, terminal, half)


def phases_of_history(history: Mapping[str, np.ndarray], limit: ProjectionLimit) -> Phases:
    """The phases from the columns of a history."""
    d = limit.attention.dimension
    moments = np.empty((len(history["time"]), d, d))
    for i in range(d):
        for j in range(i, d):
            moments[:, i, j] = moments[:, j, i] = history[f"second_{AXES[i]}{AXES[j]}"]
    return find_phases(history["time"], moments / history["mass"][:, None, None], limit)


def _metastable(limit: ProjectionLimit, begin: float, leaves: float | None, last: float) -> Phase:
    shortest = 1 / limit.contraction_rate
    if leaves is None and math.isinf(limit.lifetime):
        reason = "the concentrated state is stable, nothing is predicted to end it"
    elif (last if leaves is None else leaves) - begin < shortest:
        reason = f"less than 1/c = {shortest:.3g} between concentration and "
        reason += "the end of the run" if leaves is None else f"the switch at t = {leaves:.4g}"
    else:
        return Phase("metastable", begin, leaves)
    return Phase("metastable", reason=reason)


def _switching(
    progress: Progress, metastable: Phase, leaves: float | None, terminal: Phase
) -> Phase:
    if not progress.switches:
        reason = "there is nowhere to go, A and V have the same dominant eigenspace"
    elif not metastable.reached:
        reason = "no metastable phase before it"
    elif leaves is None:
        reason = "the metastable phase has not ended"
    else:
        return Phase("switching", leaves, terminal.begin)
    return Phase("switching", reason=reason)


def _terminal(times: np.ndarray, fraction: np.ndarray, progress: Progress, after: float) -> Phase:
    if not progress.switches:
        return Phase("terminal", reason="it is not told from the concentrated state")
    below = np.flatnonzero((fraction < ARRIVES) | (times < after))
    start = int(below[-1]) if len(below) else 0
    if start == len(times) - 1:
        return Phase("terminal", reason=f"at the end the progress is {fraction[-1]:.3g} of 0.9")
    return Phase("terminal", first_crossing(times[start:], fraction[start:], ARRIVES, after))


def first_crossing(
    times: np.ndarray, values: np.ndarray, level: float, after: float = -math.inf
) -> float | None:
    """When the values first are at the level or above at a time past `after`; linear in between."""
    reached = np.flatnonzero((values >= level) & (times >= after))
    if not len(reached):
        return None
    i = int(reached[0])
    if i == 0:
        return float(times[0])
    if values[i - 1] >= level:  # since before `after`
        return after
    return max(_interpolated(times, values, level, i), after)


def _interpolated(times: np.ndarray, values: np.ndarray, level: float, i: int) -> float:
    part = (level - values[i - 1]) / (values[i] - values[i - 1])
    return float(times[i - 1] + part * (times[i] - times[i - 1]))
