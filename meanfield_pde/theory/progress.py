"""The progress of the principal axis from E to F, and the plateaus in which it stands still.

The definitions are those of `phases`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.stages import stops

# Where E and F are the same, the angle that counts as concentrated (a definition).
SETTLED = math.pi / 8
# Below this angle between E and F [rad] no switch can be distinguished from the width of clusters
# (chosen, not tuned).
SAME = 0.02
# Places on the way that are nearer to each other than this progress are taken as one: a definition,
# as is the next.
APART = 1 / 5
# In a plateau the progress keeps within this for a time 1/c.
STILL = 1 / 10


@dataclass(frozen=True)
class Stage:
    """A plateau: a place where the axis stands still.

    Attributes:
        place: the progress f where it moves least.
        angle: of the axis to E there, in radians.
        expected: the progress at V^k E, which is the place in the limit of large beta.
        begin: when it left the place before; for the first the end of the concentration.
        end: when it left this one; None if it is there at the end of the history.
        expected_end: when it is predicted to, in the limit of large beta; None where it is not.
    """

    place: float
    angle: float
    expected: float
    begin: float
    end: float | None
    expected_end: float | None

    @property
    def name(self) -> str:
        """Where the axis stands, in words."""
        return f"plateau at {self.place:.3g} of the way ({math.degrees(self.angle):.1f} degrees)"

    def describe(self) -> dict[str, Any]:
        """All of it for summary.json."""
        return {
            "place": self.place,
            "degrees": math.degrees(self.angle),
            "expected": self.expected,
            "begin": self.begin,
            "end": self.end,
            "expected_end": self.expected_end,
        }


class Progress:
    """The angle psi, the progress f, and the switch, from second moments (T x d x d)."""

    def __init__(self, projection: ProjectionLimit) -> None:
        self.projection = projection
        self._first, self._last = projection.basis, projection.terminal.basis
        self.angle = 0.0  # theta
        if self._last is not None:
            self.angle = float(largest_angles(self._first[None], self._last)[0])

    @property
    def switches(self) -> bool:
        """Whether E and F are so far apart that a switch can be seen."""
        return self.angle > SAME

    @property
    def no_switch(self) -> str | None:
        """Why there is none to be seen, or None."""
        if self._last is None:
            terminal = self.projection.terminal
            return f"V has no dominant eigenspace to leave for: {terminal.reason}"
        if not self.switches:
            return "there is nowhere to go, A and V have the same dominant eigenspace"
        return None

    @property
    def concentrated(self) -> float:
        """The angle psi from which on the density counts as concentrated."""
        return self.angle / 2 if self.switches else SETTLED

    def spread(self, moments: np.ndarray) -> np.ndarray:
        """The angle psi at each time."""
        inside = np.einsum("tij,ik,jk->t", moments, self._first, self._first)
        return np.arcsin(np.sqrt(np.clip(1 - inside, 0, 1)))

    def fraction(self, moments: np.ndarray) -> np.ndarray:
        """The progress f at each time; zero where E and F are not distinguished."""
        axes = np.linalg.eigh(moments)[1][:, :, -self._first.shape[1] :]
        return self._progress(axes)

    @cached_property
    def stops(self) -> list[tuple[float, float | None]]:
        """The progress p_0 = 0, p_1, ... at E and the plateaus that are distinguished, and 1 at F.

        With when each is left, divided by beta, where that is predicted.
        """
        first, *others = stops(self.projection)
        found = [(0.0, first.until_per_beta)]
        if self.switches and self.projection.dimension == 1:
            for stop in others:
                progress = float(self._progress(stop.basis[None])[0])
                if found[-1][0] + APART <= progress <= 1 - APART:
                    found.append((progress, stop.until_per_beta))
        return [*found, (1.0, None)]

    @property
    def levels(self) -> np.ndarray:
        """The progress at which the axis leaves each of the places but the last."""
        places = np.array([place for place, _ in self.stops])
        return (places[1:] + places[:-1]) / 2

    def leaves(self, times: np.ndarray, fraction: np.ndarray) -> float | None:
        """When the axis leaves E for good, the end of its plateau; None if it never was there."""
        level = float(self.levels[0])
        return for_good(times, fraction, level) if fraction.min() < level else None

    def stages(self, times: np.ndarray, fraction: np.ndarray, begin: float) -> list[Stage]:
        """The plateaus of a history from the time `begin` on."""
        found = []
        ends = [for_good(times, fraction, float(level)) for level in self.levels]
        beta = self.projection.attention.beta
        for (expected, until), end in zip(self.stops, [*ends, None], strict=True):
            last = float(times[-1]) if end is None else end
            inside = (times >= begin) & (times <= last)
            place = still(times[inside], fraction[inside], 1 / self.projection.contraction_rate)
            if place is not None:
                predicted = None if until is None or math.isinf(until) else until * beta
                angle = place * self.angle
                found.append(Stage(place, angle, expected, begin, end, predicted))
            if end is None:
                break
            begin = max(begin, end)
        return found

    def _progress(self, axes: np.ndarray) -> np.ndarray:
        """The progress f of axes, T x d x k, given by orthonormal bases."""
        if not self.switches or self._last is None:
            return np.zeros(len(axes))
        gone, ahead = largest_angles(axes, self._first), largest_angles(axes, self._last)
        return np.asarray(gone / np.maximum(gone + ahead, 1e-300))


def largest_angles(subspaces: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """The largest principal angle between each of some subspaces, T x d x k, and another, d x m.

    It is atan2(s, c), c the least singular value of E^T F and s the largest of F - E E^T F, for
    orthonormal bases E and F, that of the smaller space.
    """
    cosines = np.linalg.svd(basis.T @ subspaces, compute_uv=False).min(axis=1)
    if subspaces.shape[2] <= basis.shape[1]:
        left = subspaces - basis @ (basis.T @ subspaces)
    else:
        left = basis - subspaces @ (np.swapaxes(subspaces, 1, 2) @ basis)
    sines = np.linalg.svd(left, compute_uv=False).max(axis=1)
    return np.asarray(np.arctan2(sines, cosines))


def for_good(times: np.ndarray, values: np.ndarray, level: float) -> float | None:
    """When the values come to the level and stay above it; the first time if they always are."""
    below = np.flatnonzero(values < level)
    if not len(below):
        return float(times[0])
    if below[-1] == len(times) - 1:
        return None
    return first_crossing(times, values, level, after=float(times[below[-1]]))


def still(times: np.ndarray, values: np.ndarray, duration: float) -> float | None:
    """The mean value over that duration in which it changes least; None if it changes by 1/10."""
    place, least = None, STILL
    for i, j in enumerate(np.searchsorted(times, times + duration)):
        if j == len(times):
            break
        change = float(np.ptp(values[i : j + 1]))
        if change < least:
            place, least = float(values[i : j + 1].mean()), change
    return place


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
