"""A particle code against the density: is it right, and if not, why?

Where tokens keep their numbers from a common start, trajectories decide (`judgement`); they hold no
sampling noise. Their start, and everything where there are no trajectories (one time, no numbers),
is judged by one p-value (`statistics`): are the tokens as far from the density as samples of as
many are? For each time there are the certified distances W_1 and W_2, too.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpi4py import MPI

import numpy as np
from tqdm import tqdm

from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.layers import AttentionLike, Layers, plain_layers
from meanfield_pde.errors import InputError
from meanfield_pde.judging.causes import Cause
from meanfield_pde.judging.codes import changed
from meanfield_pde.judging.features import Features, features
from meanfield_pde.judging.judgement import Judgement, judge
from meanfield_pde.judging.statistics import (
    MOST_TOKENS,
    Densities,
    SamplingBand,
    band_key,
    densities_at,
    power,
    read_band,
    sampling_band,
)
from meanfield_pde.support.ranks import on_root, shared_errors
from meanfield_pde.support.threads import set_threads
from meanfield_pde.tokens.cloud import TokenCloud
from meanfield_pde.wasserstein import WassersteinResult, wasserstein
from meanfield_pde.wasserstein.measure import Measure

# Tokens deviate if their p-value is below this.
LEVEL = 0.01
# Times that are compared: transport on the sphere takes a linear program, on the circle sorting.
MOST_TIMES = {2: 12, 3: 4}
# Samples of at most so many tokens; more tokens, fewer samples.
SAMPLES = ((300, 999), (600, 499), (MOST_TOKENS, 249))
# Steps are too long if they move tokens by more than this part of the sampling error.
TOO_LONG = 0.5
# And make no difference to it below this.
NEGLIGIBLE = 0.1
_RTOL = 1e-8


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
        since: the first time that deviates by itself, or None.
        judgement: what trajectories say, or None if there are none.
        seen: faults that would have been seen, where there are no trajectories: name and how often.
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
    since: float | None
    judgement: Judgement | None
    seen: tuple[tuple[str, float], ...]
    notes: tuple[str, ...]

    @property
    def within_sampling_error(self) -> bool:
        """Whether the tokens are as near to the density as samples of it are."""
        return self.p_value >= self.level

    @property
    def reference_distance(self) -> float | None:
        """Mean distance from what the reference code makes of the same first tokens."""
        return None if self.judgement is None else self.judgement.distance

    @property
    def steps_too_long(self) -> bool:
        """Whether honest steps move the tokens by as much as the sampling error, unannounced."""
        found = self.judgement
        if found is None or not found.right or self.cloud_counts_layers:
            return False
        return found.distance > TOO_LONG * float(self.band.expected.mean())

    @property
    def cloud_counts_layers(self) -> bool:
        """Whether the step was given with the tokens."""
        return any(note.startswith("times count layers") for note in self.notes)

    @property
    def cause(self) -> Cause | None:
        """What is wrong, if it is known."""
        found = self.judgement
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
        right = self.judgement is None or (self.judgement.right and not self.steps_too_long)
        return right and self.within_sampling_error

    @property
    def verdict(self) -> str:
        """What is to be concluded, in one line."""
        found, p = self.judgement, f"p = {self.p_value:.2g}"
        if found is None:
            if self.within_sampling_error:
                return f"agrees within sampling error ({p}; no trajectories to decide){self._power}"
            since = "" if self.since is None else f" from t = {self.since:g} on"
            return f"deviates from the density{since} ({p}); with trajectories the cause is found"
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
        how = f"; {found.how}" if found.how else ""
        return (
            f"deviates, cause unknown: mean distance {found.distance:.2g} from the reference code"
            f"{how} ({p})"
        )

    @property
    def _power(self) -> str:
        if not self.seen:
            return ""
        parts = ", ".join(f"{name} in {rate:.0%}" for name, rate in self.seen)
        return f"; so many tokens show {parts} of cases"


def compare_tokens(
    result: Densities,
    cloud: TokenCloud,
    *,
    layer_step: float | None = None,
    level: float = LEVEL,
    band: SamplingBand | None = None,
    band_file: Path | None = None,
    samples: int | None = None,
    seed: int = 0,
    progress: bool = False,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> TokenComparison:
    """Compare tokens with a density. Collective.

    Args:
        result: a solution, or a result that has been read.
        cloud: the tokens.
        layer_step: if given, the times of the tokens count layers, of this length of time each.
        level: tokens deviate if their p-value is below this.
        band: samples from an earlier comparison of as many tokens with the same density.
        band_file: where samples are kept for the next comparison.
        samples: how many samples of N tokens are taken.
        seed: of these samples.
        progress: show a bar, if standard error is a terminal.
        comm: the ranks that share the work.
    """
    set_threads(comm)
    dimension = result.dimension
    if cloud.dimension != dimension:
        raise InputError(
            f"the tokens have {cloud.dimension} coordinates, the density lives in dimension "
            f"{dimension}"
        )
    if not 1e-4 <= level <= 0.5:
        raise InputError(f"the level must be from 0.0001 to 0.5, got {level}")
    if layer_step is not None:
        if not 0 < layer_step < np.inf:
            raise InputError(f"the layer step must be a number > 0, got {layer_step}")
        cloud = replace(cloud, times=cloud.times * layer_step)
    ours, theirs = common_times(result.times, cloud.times)
    common = len(ours)
    chosen = np.unique(
        np.linspace(0, common - 1, min(common, MOST_TIMES[dimension])).round().astype(int)
    )
    ours, theirs = ours[chosen], theirs[chosen]
    count = cloud.tokens.shape[1]
    samples = samples or max(sample_count(count), round(1 / level))
    with _Bar(progress and comm.rank == 0, samples + 2 * len(ours)) as bar:
        judgement = on_root(comm, judge, cloud, result.attention, layer_step)
        w1, w2 = _transport(result, cloud, ours, theirs, comm, bar)
        if band is None:
            band = _band(result, cloud, ours, samples, seed, band_file, comm, bar)
    times = result.times[ours]
    if len(band.times) != len(times) or not np.allclose(band.times, times):
        raise InputError("the sampling band is one for other times")
    quantiles = densities_at(result, ours)
    observed = features(cloud.tokens[theirs], cloud.masses, quantiles)
    first_only = judgement is not None and judgement.right
    if first_only and judgement is not None and judgement.step > 0:
        first_only = judgement.distance <= NEGLIGIBLE * float(band.expected.mean())
    p_value = band.p_value(observed, np.zeros(1, int) if first_only else None)
    seen: tuple[tuple[str, float], ...] = ()
    if judgement is None and p_value >= level and cloud.masses is None and count <= MOST_TOKENS:
        seen = on_root(comm, _seen, result, ours, band, count, level)
    return _assembled(
        result, cloud, ours, theirs, common, (w1, w2), band, observed, p_value, level, judgement,
        seen, layer_step,
    )  # fmt: skip


def sample_count(count: int) -> int:
    """How many samples are taken of so many tokens."""
    return next((samples for most, samples in SAMPLES if count <= most), SAMPLES[-1][1])


def _assembled(
    result: Densities,
    cloud: TokenCloud,
    ours: np.ndarray,
    theirs: np.ndarray,
    common: int,
    distances: tuple[tuple[WassersteinResult, ...], tuple[WassersteinResult, ...]],
    band: SamplingBand,
    observed: Features,
    p_value: float,
    level: float,
    judgement: Judgement | None,
    seen: tuple[tuple[str, float], ...],
    layer_step: float | None,
) -> TokenComparison:
    weights = np.ones(cloud.tokens.shape[1]) if cloud.masses is None else cloud.masses
    moments = np.einsum("n,tnd->td", weights / weights.sum(), cloud.tokens[theirs])
    densities = [result.measure(int(i)) for i in ours]
    expected = np.array([one.masses @ one.points / one.masses.sum() for one in densities])
    return TokenComparison(
        cloud=cloud,
        times=result.times[ours],
        common=common,
        w1=distances[0],
        w2=distances[1],
        moments=moments,
        expected_moments=expected,
        band=band,
        moment_scores=band.moment_scores(moments),
        p_value=p_value,
        level=level,
        since=band.since(observed, level) if p_value < level else None,
        judgement=judgement,
        seen=seen,
        notes=_notes(result.attention, cloud, judgement, layer_step),
    )


def common_times(times: np.ndarray, others: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the times that both have, up to rounding; InputError if there are none."""
    nearest = np.abs(times[:, None] - others).argmin(axis=1)
    close = np.abs(times - others[nearest]) <= 1e-9 * np.maximum(1.0, np.abs(times))
    if not close.any():
        raise InputError(
            f"the density and the tokens have no time in common: the density was saved at "
            f"{_listed(times)}, the tokens at {_listed(others)}; set time.save_at to those of the "
            "tokens, or give --layer-step if their times count layers"
        )
    return np.flatnonzero(close), nearest[close]


class _Bar:
    """A progress bar on a terminal."""

    def __init__(self, shown: bool, total: int) -> None:
        self._bar = (
            tqdm(total=total, desc="compare", file=sys.stderr, leave=False)
            if shown and sys.stderr.isatty()
            else None
        )

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def done(self, count: int) -> None:
        """So much more is done."""
        if self._bar is not None:
            self._bar.update(count)


def _band(
    result: Densities,
    cloud: TokenCloud,
    at: np.ndarray,
    samples: int,
    seed: int,
    file: Path | None,
    comm: MPI.Comm,
    bar: _Bar,
) -> SamplingBand:
    """The samples, from the file if it holds these, or made anew and kept there."""
    count, weights = cloud.tokens.shape[1], cloud.masses
    key = band_key(result, at, count, samples=samples, seed=seed, weights=weights)
    kept = None if file is None else on_root(comm, read_band, file, key)
    if kept is not None:
        return kept
    band = sampling_band(
        result,
        at,
        count,
        samples=samples,
        seed=seed,
        weights=weights,
        comm=comm,
        done=lambda number: bar.done(number * comm.size),
    )
    if file is not None and comm.rank == 0:
        try:
            band.write(file)
        except OSError:  # it is made again the next time
            return band
    return band


def _transport(
    result: Densities,
    cloud: TokenCloud,
    ours: np.ndarray,
    theirs: np.ndarray,
    comm: MPI.Comm,
    bar: _Bar,
) -> tuple[tuple[WassersteinResult, ...], tuple[WassersteinResult, ...]]:
    """W_1 and W_2 at each time, dealt out to the ranks. Collective."""
    weights = np.ones(cloud.tokens.shape[1]) if cloud.masses is None else cloud.masses
    tasks: Sequence[tuple[int, int]] = [(k, p) for k in range(len(ours)) for p in (1, 2)]
    found: dict[tuple[int, int], WassersteinResult] = {}
    with shared_errors(comm):
        for k, p in tasks[comm.rank :: comm.size]:
            tokens = Measure(cloud.tokens[theirs[k]], weights / weights.sum())
            found[k, p] = wasserstein(
                tokens, result.measure(int(ours[k])), p, rtol=_RTOL, time_limit=60.0
            )
            bar.done(comm.size)
    every = {task: one for part in comm.allgather(found) for task, one in part.items()}
    w1, w2 = (tuple(every[k, p] for k in range(len(ours))) for p in (1, 2))
    return w1, w2


def _seen(
    result: Densities, at: np.ndarray, band: SamplingBand, count: int, level: float
) -> tuple[tuple[str, float], ...]:
    """Faults of a stated size, and how often as many tokens show them at these times."""
    attention = result.attention
    faults: list[tuple[str, AttentionLike]] = []
    for name, factor in (("V too large by 20%", 1.2), ("by half", 1.5)):

        def larger(head: Attention, factor: float = factor) -> Attention:
            return replace(head, value=factor * head.value)

        faults.append((name, changed(attention, larger)))
    if 0 < attention.beta < np.inf:
        faults.append(("half of beta", attention.with_beta(attention.beta / 2)))
    return tuple((name, power(result, at, other, band, count, level)) for name, other in faults)


def _steps(found: Judgement) -> str:
    return found.how.removesuffix(" explain its distance from the reference code")


def _notes(
    attention: AttentionLike,
    cloud: TokenCloud,
    judgement: Judgement | None,
    layer_step: float | None,
) -> tuple[str, ...]:
    notes = [cloud.note] if cloud.note else []
    beta = getattr(attention, "beta", None)
    if cloud.beta is not None and beta is not None and cloud.beta != beta:
        notes.append(f"the token file says beta = {cloud.beta:g}, the density has {beta:g}")
    if layer_step is not None:
        notes.append(f"times count layers of {layer_step:g}")
    if judgement is None and len(cloud.times) > 1:
        notes.append("tokens do not keep their numbers from time to time: no trajectories")
    if isinstance(attention, Layers) and cloud.times[-1] > attention.end * (1 + 1e-9):
        notes.append(
            f"times after the last of {len(plain_layers(attention))} layers are left aside"
        )
    return tuple(notes)


def _listed(times: np.ndarray) -> str:
    shown = [f"{time:g}" for time in times[:3]]
    return ", ".join([*shown, f"..., {times[-1]:g}"] if len(times) > 3 else shown)
