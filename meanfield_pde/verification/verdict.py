"""What is concluded from a comparison, in one line, and what it rests on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meanfield_pde.tokens.cloud import TokenCloud
from meanfield_pde.verification.band import SamplingBand
from meanfield_pde.verification.causes import Cause
from meanfield_pde.verification.diagnosis import Diagnosis
from meanfield_pde.wasserstein import WassersteinResult

# Tokens are too few to tell if they show no fault of those that are tried in this part of cases:
# more often than not.
TELLING = 0.5
# Steps are too long if they move tokens by more than this part of the sampling error (chosen, not
# tuned).
TOO_LONG = 0.5


@dataclass(frozen=True, eq=False)
class TokenComparison:
    """Tokens and a density, compared.

    Attributes:
        cloud: the tokens, at all their times.
        times: the times compared, common to both.
        common: how many times are common to both.
        w1, w2: the distances from the tokens to the density at these times.
        moments, expected_moments: first moments of the tokens and of the density, times x d.
        band: samples of as many tokens at these times.
        moment_scores: first moments in standard deviations of the samples, times x d.
        p_value: of the tokens among the samples.
        level: below which tokens deviate.
        unlike_since: the first time whose tokens alone have a p-value below the level, or None.
        diagnosis: what trajectories say, or None if there are none.
        seen: faults that would have been seen, where there are no trajectories: name and how often.
        counts_layers: whether the step was given with the tokens.
        noise: strength of the noise of the density.
        notes: what else is to be said.
    """

    cloud: TokenCloud
    times: np.ndarray
    common: int
    w1: tuple[WassersteinResult, ...]
    w2: tuple[WassersteinResult, ...]
    moments: np.ndarray
    expected_moments: np.ndarray
    band: SamplingBand
    moment_scores: np.ndarray
    p_value: float
    level: float
    unlike_since: float | None
    diagnosis: Diagnosis | None
    seen: tuple[tuple[str, float], ...]
    counts_layers: bool
    noise: float
    notes: tuple[str, ...]

    @property
    def judgement(self) -> Diagnosis | None:
        """The name of `diagnosis` in earlier versions."""
        return self.diagnosis

    @property
    def within_sampling_error(self) -> bool:
        """Whether the tokens are as near to the density as samples of it are."""
        return self.p_value >= self.level

    @property
    def reference_distance(self) -> float | None:
        """Mean distance from what the reference code makes of the same first tokens."""
        return None if self.diagnosis is None else self.diagnosis.distance

    @property
    def steps_too_long(self) -> bool:
        """Whether honest steps move the tokens by as much as the sampling error, unannounced."""
        found = self.diagnosis
        if found is None or not found.right or self.counts_layers:
            return False
        return found.distance > self._longest_way

    @property
    def since(self) -> float | None:
        """The first time at which the tokens deviate, by what decides; None if none does alone."""
        found = self.diagnosis
        if found is not None and not found.right:
            return found.since
        if found is not None and self.steps_too_long:
            return float(found.times[np.argmax(found.distances > self._longest_way)])
        return self.unlike_since

    @property
    def _longest_way(self) -> float:
        """How far steps may move the tokens from those of the reference code."""
        return TOO_LONG * float(self.band.expected.mean())

    @property
    def cause(self) -> Cause | None:
        """What is wrong, if it is known."""
        found = self.diagnosis
        if found is None:
            return None
        if self.steps_too_long:
            return Cause(f"{_steps(found)} that are too long", 0.0)
        if not found.right:
            return found.cause
        if not self.within_sampling_error:
            return Cause("the initial tokens are no sample of the initial density", 0.0)
        return None

    @property
    def agrees(self) -> bool:
        """Whether nothing is wrong that can be seen."""
        right = self.diagnosis is None or (self.diagnosis.right and not self.steps_too_long)
        return right and self.within_sampling_error

    @property
    def too_few(self) -> bool:
        """Whether tokens that agree would do so, most likely, if they came from a wrong code."""
        return bool(self.seen) and max(rate for _, rate in self.seen) < TELLING

    @property
    def verdict(self) -> str:
        """What is to be concluded, in one line."""
        found, p = self.diagnosis, f"p = {self.p_value:.2g}"
        if found is None:
            why = "no trajectories" if self.noise == 0 else "with noise no trajectories"
            if self.within_sampling_error:
                start = "too few tokens to tell: " if self.too_few else ""
                return f"{start}agrees within sampling error ({p}; {why} to decide){self._power}"
            since = "" if self.since is None else f", first at t = {self.since:g}"
            how = "" if self.noise else "; with trajectories the cause is found"
            return f"deviates from the density{since} ({p}){how}"
        far = f"mean distance {found.distance:.2g}"
        if self.agrees:
            return f"agrees: {found.how} ({far}; {p})"
        if found.right and not self.steps_too_long:
            return (
                "deviates: the initial tokens are no sample of the initial density "
                f"({p}); {found.how} ({far})"
            )
        if self.cause is not None:
            return f"deviates: {self.cause.name} ({far} from the reference code; {p})"
        since = "" if self.since is None else f", missed from t = {self.since:g} on"
        how = f"; {found.how}" if found.how else ""
        return (
            f"deviates, cause unknown: mean distance {found.distance:.2g} from the reference code"
            f"{since}{how} ({p})"
        )

    @property
    def _power(self) -> str:
        if not self.seen:
            return ""
        parts = ", ".join(f"{name} in {rate:.0%}" for name, rate in self.seen)
        return f"; {self.cloud.tokens.shape[1]} tokens show {parts} of cases"


def _steps(found: Diagnosis) -> str:
    return found.how.removesuffix(" explain its distance from the reference code")
