"""A particle code against the density: do its tokens deviate by more than their number allows?

At every time that both have, the distances W_1 and W_2 from the tokens to the density, certified,
and their first moments. Whether the tokens deviate is decided by W_1 against the distance of
samples of as many tokens of the density itself (`token_statistics`). Why is asked of the equation:
what the reference code makes of the same initial tokens, and variants of it, one of which
may be what the code did (`token_variants`). That also finds faults that are too small to be seen
beside the sampling error.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mpi4py import MPI

import numpy as np

from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.errors import InputError
from meanfield_pde.judging.statistics import Densities, SamplingBand, sampling_band
from meanfield_pde.judging.variants import CERTAIN, Fit, Trial
from meanfield_pde.support.ranks import shared_errors
from meanfield_pde.support.threads import set_threads
from meanfield_pde.tokens.cloud import TokenCloud
from meanfield_pde.wasserstein import WassersteinResult, wasserstein
from meanfield_pde.wasserstein.measure import Measure

LOG = logging.getLogger("meanfield_pde")

# Above this score tokens deviate; samples of the density do so in 2.3% of cases.
DEVIATES = 2.0
# Times at which samples are compared, and their number: transport on the sphere takes a linear
# program, on the circle it is sorting.
BAND_TIMES = {2: 12, 3: 6}
SAMPLES = {2: 40, 3: 16}
# Trajectories that differ by less than this part of the sampling error are the same for this N.
NEGLIGIBLE = 0.1
_RTOL = 1e-8


@dataclass(frozen=True, eq=False)
class TokenComparison:
    """Tokens and a density, compared.

    Attributes:
        cloud: the tokens, at all their times.
        times: the times that both have.
        w1, w2: the distances from the tokens to the density at these times.
        moments, expected_moments: first moments of the tokens and of the density, times x d.
        band: the distances W_1 to be expected of as many tokens, at some of these times.
        scores: z of W_1 at the times of the band.
        moment_scores: z of each first moment, likewise.
        score: z for all times together.
        since: the time from which on the tokens deviate, or None.
        reference_distance: mean distance from what the reference code makes of the same initial
            tokens, token by token; None if the file has a single time.
        cause: the variant that explains the tokens, if one was found.
        nearest: otherwise the variant that comes nearest to it, if one comes near.
        notes: what else is to be said.
    """

    cloud: TokenCloud
    times: np.ndarray
    w1: tuple[WassersteinResult, ...]
    w2: tuple[WassersteinResult, ...]
    moments: np.ndarray
    expected_moments: np.ndarray
    band: SamplingBand
    scores: np.ndarray
    moment_scores: np.ndarray
    score: float
    since: float | None
    reference_distance: float | None
    cause: Fit | None
    nearest: Fit | None
    notes: tuple[str, ...]

    @property
    def within_sampling_error(self) -> bool:
        """Whether the tokens are as near to the density as samples of it are."""
        return self.score < DEVIATES

    @property
    def agrees(self) -> bool:
        """Whether that is so, and no variant explains their trajectories better."""
        return self.within_sampling_error and self.cause is None

    @property
    def reproduced(self) -> bool:
        """Whether the reference code makes the same of the same initial tokens."""
        distance = self.reference_distance
        return distance is not None and distance <= _negligible(self.band)

    @property
    def verdict(self) -> str:
        """What is to be concluded, in one sentence."""
        if self.within_sampling_error:
            if self.cause is not None:
                return (
                    f"within sampling error of the density (z = {self.score:.1f}), but not right: "
                    f"its trajectories are those of {_described(self.cause)}"
                )
            text = f"agrees within sampling error (z = {self.score:.1f})"
            if self.reference_distance is None or self.reproduced:
                return text
            return (
                f"{text}; its trajectories are at a mean distance of {self.reference_distance:.2g} "
                f"from those of the reference code{_nearest(self.nearest)}"
            )
        text = f"deviates from t = {self.since:g} on (z = {self.score:.1f})"
        if self.cause is not None:
            return f"{text}: its trajectories are those of {_described(self.cause)}"
        if self.reference_distance is None:
            return f"{text}; with its tokens at an earlier time the cause could be looked for"
        if not self.reproduced:
            return (
                f"{text}; no variant tried explains it (mean distance from the reference code: "
                f"{self.reference_distance:.2g}){_nearest(self.nearest)}"
            )
        if self.scores[0] >= DEVIATES:
            return (
                f"{text}: the code is right, but its initial tokens are no sample of the initial "
                "density"
            )
        return (
            f"{text}, and so does the reference code from the same initial tokens: the code is "
            "right, and its sample an unusual one (one in 44 is)"
        )


def compare_tokens(
    result: Densities,
    cloud: TokenCloud,
    *,
    layer_step: float | None = None,
    band: SamplingBand | None = None,
    samples: int | None = None,
    seed: int = 0,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> TokenComparison:
    """Compare tokens with a density. Collective.

    Args:
        result: a solution, or a result that has been read.
        cloud: the tokens.
        layer_step: if given, the times of the tokens count layers, of this length of time each.
        band: a sampling band from an earlier comparison of as many tokens with the same density.
        samples: how many samples of N tokens the band is made from, for each of its times.
        seed: of these samples.
        comm: the ranks that share the work.
    """
    set_threads(comm)
    if cloud.dimension != result.dimension:
        raise InputError(
            f"the tokens have {cloud.dimension} coordinates, the density lives in dimension "
            f"{result.dimension}"
        )
    if layer_step is not None:
        if not 0 < layer_step < np.inf:
            raise InputError(f"the layer step must be a number > 0, got {layer_step}")
        cloud = replace(cloud, times=cloud.times * layer_step)
    ours, theirs = common_times(result.times, cloud.times)
    times, tokens = result.times[ours], cloud.tokens[theirs]
    weights = np.ones(tokens.shape[1]) if cloud.masses is None else cloud.masses
    weights = weights / weights.sum()
    densities = [result.measure(int(i)) for i in ours]
    clouds = [Measure(one, weights) for one in tokens]
    w1, w2 = _distances(clouds, densities, comm)
    moments = np.einsum("n,tnd->td", weights, tokens)
    expected_moments = np.array([one.masses @ one.points / one.masses.sum() for one in densities])
    if band is None:
        chosen = band_times(len(times), result.dimension)
        band = sampling_band(
            result,
            ours[chosen],
            tokens.shape[1],
            samples=samples or SAMPLES[cloud.dimension],
            seed=seed,
            weights=cloud.masses,
            comm=comm,
        )
    at = np.flatnonzero(np.isin(times, band.times))
    if len(at) != len(band.times):
        raise InputError("the sampling band is one for other times")
    distances = np.array([w1[k].value for k in at])
    score = band.joint_score(distances)
    trial = Trial(cloud, result.attention, layer_step, comm) if len(cloud.times) > 1 else None
    nearest: Fit | None = None
    if trial is not None and trial.right.distance > _negligible(band):
        nearest = trial.best()
    cause = nearest if nearest is not None and nearest.explains else None
    notes = list(_notes(result.attention, cloud))
    if cause is not None and layer_step is not None and cause.of_step and score < DEVIATES:
        # Layers are Euler steps by their nature, and these are short enough.
        notes.append(f"its trajectories are those of {cause.name} ({cause.distance:.1g})")
        cause = nearest = None
    return TokenComparison(
        cloud=cloud,
        times=times,
        w1=w1,
        w2=w2,
        moments=moments,
        expected_moments=expected_moments,
        moment_scores=(moments - expected_moments)[at] / band.moment_deviation,
        band=band,
        scores=band.score(distances),
        score=score,
        since=band.first_beyond(distances, DEVIATES),
        reference_distance=None if trial is None else trial.right.distance,
        cause=cause,
        nearest=nearest if cause is None else None,
        notes=tuple(notes),
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


def band_times(count: int, dimension: int) -> np.ndarray:
    """Which of so many times get a sampling band: all, or as many as are affordable."""
    most = min(count, BAND_TIMES[dimension])
    return np.unique(np.linspace(0, count - 1, most).round().astype(int))


def _distances(
    clouds: Sequence[Measure], densities: Sequence[Measure], comm: MPI.Comm
) -> tuple[tuple[WassersteinResult, ...], tuple[WassersteinResult, ...]]:
    """W_1 and W_2 of each pair, dealt out to the ranks. Collective."""
    tasks = [(k, p) for k in range(len(clouds)) for p in (1, 2)]
    found: dict[tuple[int, int], WassersteinResult] = {}
    with shared_errors(comm):
        for k, p in tasks[comm.rank :: comm.size]:
            found[k, p] = wasserstein(clouds[k], densities[k], p, rtol=_RTOL, time_limit=60.0)
    every = {task: one for part in comm.allgather(found) for task, one in part.items()}
    w1, w2 = (tuple(every[k, p] for k in range(len(clouds))) for p in (1, 2))
    return w1, w2


def _negligible(band: SamplingBand) -> float:
    """Mean distance of trajectories that N tokens cannot tell from none."""
    return max(NEGLIGIBLE * float(band.expected.mean()), CERTAIN)


def _described(cause: Fit) -> str:
    too_large = ", which are too long" if cause.of_step else ""
    return f"{cause.name}{too_large} (mean distance {cause.distance:.1g})"


def _nearest(fit: Fit | None) -> str:
    if fit is None:
        return ""
    return f"; nearest of the variants tried, but not the same: {fit.name} ({fit.distance:.2g})"


def _notes(attention: AttentionLike, cloud: TokenCloud) -> tuple[str, ...]:
    notes = [cloud.note] if cloud.note else []
    beta = getattr(attention, "beta", None)
    if cloud.beta is not None and beta is not None and cloud.beta != beta:
        notes.append(f"the token file says beta = {cloud.beta:g}, the density has {beta:g}")
    return tuple(notes)


def _listed(times: np.ndarray) -> str:
    shown = [f"{time:g}" for time in times[:3]]
    return ", ".join([*shown, f"..., {times[-1]:g}"] if len(times) > 3 else shown)
