"""What is concluded from a comparison: in one line, as a table, and as plain numbers for JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meanfield_pde.support.old_names import accept_old_attributes
from meanfield_pde.tokens.cloud import TokenCloud
from meanfield_pde.verification.diagnosis import Cause, Diagnosis
from meanfield_pde.verification.samples import SamplingBand
from meanfield_pde.wasserstein import WassersteinResult

# Tokens are too few to tell if they show no fault of those that are tried in this part of cases:
# more often than not.
TELLING = 0.5
# Steps are too long if they move tokens by more than this part of the sampling error: added to it
# as errors at random are, they then make it larger by an eighth at least.
TOO_LONG = 0.5


@accept_old_attributes
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
        ranked: the times whose features enter it, all together.
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
    ranked: np.ndarray
    level: float
    unlike_since: float | None
    diagnosis: Diagnosis | None
    seen: tuple[tuple[str, float], ...]
    counts_layers: bool
    noise: float
    notes: tuple[str, ...]

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


def table(comparison: TokenComparison) -> str:
    """The verdict in one line; below it a row for each time compared, what p is, and the notes."""
    band = comparison.band
    common = comparison.common
    some = "" if common == len(comparison.times) else f" of {common}"
    lines = [
        comparison.verdict,
        f"{len(comparison.cloud.tokens[0])} tokens at {len(comparison.times)}{some} common times, "
        f"{band.samples} samples of as many",
        f"{'t':>8}  {'W1':>10}  {'expected':>10}  {'95% below':>10}  {'W2':>10}  "
        f"{'reference':>10}  mean of the tokens (deviations)",
    ]
    most = band.quantile(0.95)
    for k, time in enumerate(comparison.times):
        mean = [
            f"{value:.4f} ({z:.1f})"
            for value, z in zip(comparison.moments[k], comparison.moment_scores[k], strict=True)
        ]
        distance = _reference(comparison, k)
        lines.append(
            f"{time:8.4g}  {comparison.w1[k].value:10.4g}  {band.expected[k]:10.4g}  "
            f"{most[k]:10.4g}  {comparison.w2[k].value:10.4g}  "
            f"{'' if distance is None else f'{distance:.2g}':>10}  {', '.join(mean)}"
        )
    lines.append(_meaning_of_p(comparison))
    return "\n".join([*lines, *(f"note: {note}" for note in comparison.notes)])


def _meaning_of_p(comparison: TokenComparison) -> str:
    """What the p-value is, beside the column of 95 %."""
    ranked = comparison.ranked
    when = f"t = {ranked[0]:g}" if len(ranked) == 1 else f"all {len(ranked)} times together"
    return (
        f"p = {comparison.p_value:.2g}: that part of the samples is as far from the density as the "
        f"tokens, by W1, W2 and moments at {when}; below {comparison.level:g} tokens deviate. "
        '"95% below" is about W1 at one time alone: 1 right code in 20 exceeds it there.'
    )


def summary(comparison: TokenComparison) -> dict[str, Any]:
    """What JSON can hold: the verdict, what it rests on, and the numbers at each time."""
    cause, diagnosis = comparison.cause, comparison.diagnosis
    return {
        "verdict": comparison.verdict,
        "agrees": comparison.agrees,
        "p_value": comparison.p_value,
        "level": comparison.level,
        "samples": comparison.band.samples,
        "within_sampling_error": comparison.within_sampling_error,
        "since": comparison.since,
        "tokens": len(comparison.cloud.tokens[0]),
        "trajectories": None if diagnosis is None else diagnosis.right,
        "reference_distance": comparison.reference_distance,
        "step": diagnosis.step if diagnosis is not None and diagnosis.step > 0 else None,
        "cause": None if cause is None else cause.name,
        "fitted": [] if cause is None else list(cause.fitted),
        "power": dict(comparison.seen),
        "too_few": comparison.too_few,
        "notes": list(comparison.notes),
        "times": [_row(comparison, k) for k in range(len(comparison.times))],
    }


def _reference(comparison: TokenComparison, k: int) -> float | None:
    """Mean distance from the reference code at a time, if it was followed to there."""
    found = comparison.diagnosis
    if found is None:
        return None
    at = np.flatnonzero(np.isclose(found.times, comparison.times[k], rtol=1e-9, atol=1e-9))
    return float(found.distances[at[0]]) if len(at) else None


def _row(comparison: TokenComparison, k: int) -> dict[str, float | None]:
    row: dict[str, float | None] = {"time": float(comparison.times[k])}
    for p, results in ((1, comparison.w1), (2, comparison.w2)):
        row[f"w{p}"] = results[k].value
        row |= {f"w{p}_low": results[k].low, f"w{p}_high": results[k].high}
    row["expected_w1"] = float(comparison.band.expected[k])
    row["reference_distance"] = _reference(comparison, k)
    for i, name in enumerate("xyz"[: comparison.moments.shape[1]]):
        row[f"mean_{name}"] = float(comparison.moments[k, i])
        row[f"mean_{name}_density"] = float(comparison.expected_moments[k, i])
        row[f"mean_{name}_z"] = float(comparison.moment_scores[k, i])
    return row
