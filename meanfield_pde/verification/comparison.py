"""A particle code against the density: is it right, and if not, why?

Where tokens keep their numbers from a common start, trajectories decide (`diagnosis`); they hold no
sampling noise. Their start, and everything where there are no trajectories (one time, no numbers),
is tested by one p-value (`statistic`): are the tokens as far from the density as samples of as
many are? For each time there are the certified distances W_1 and W_2, too.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from mpi4py import MPI

import numpy as np
from tqdm import tqdm

from meanfield_pde.attention.heads import is_one_head
from meanfield_pde.attention.layers import stack
from meanfield_pde.errors import InputError, StorageError
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.checks import whole
from meanfield_pde.support.ranks import on_root, shared_errors
from meanfield_pde.support.threads import set_threads
from meanfield_pde.tokens.cloud import WEIGHTS, TokenCloud
from meanfield_pde.verification.diagnosis import Diagnosis, diagnose
from meanfield_pde.verification.report import TokenComparison
from meanfield_pde.verification.samples import (
    MOST_TOKENS,
    Densities,
    SamplingBand,
    band_key,
    check_band_file,
    densities_at,
    power_of_faults,
    read_band,
    sampling_band,
)
from meanfield_pde.verification.statistic import features
from meanfield_pde.verification.trajectories import DiagnosisSettings
from meanfield_pde.wasserstein import WassersteinResult, wasserstein
from meanfield_pde.wasserstein.measure import Measure

# Tokens deviate if their p-value is below this: one right code in a hundred does by chance.
LEVEL = 0.01
# Times that are compared, a bound on the cost: transport on the sphere takes a linear program, on
# the circle sorting.
MOST_TIMES = {2: 12, 3: 4}
# (N, S): S samples of at most N tokens each; more tokens, fewer samples, a bound on the cost.
SAMPLES = ((300, 999), (600, 499), (MOST_TOKENS, 249))
# A bound on memory and time: a hundred times what the least level, 0.0001, has to have.
MOST_SAMPLES = 1_000_000
# Steps make no difference to the p-value if they move tokens by less of the sampling error than
# this part: added to it as errors at random are, they make it larger by 0.5 %.
NEGLIGIBLE = 0.1
_SAME = 1e-12  # matrices that differ by no more are one: they were written in single digits, say
# Of the distances shown, far below their sampling error.
_RTOL = 1e-8


@typed
def compare_tokens(
    result: Densities,
    cloud: TokenCloud,
    *,
    layer_step: float | None = None,
    level: float = LEVEL,
    band: SamplingBand | None = None,
    band_file: str | Path | None = None,
    samples: int | None = None,
    seed: int = 0,
    progress: bool = False,
    settings: DiagnosisSettings | None = None,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> TokenComparison:
    """The comparison of tokens with a density. Collective.

    Args:
        result: a solution, or a result that has been read.
        cloud: the tokens.
        layer_step: if given, the times of the tokens count layers, of this length of time each.
        level: tokens deviate if their p-value is below this.
        band: samples from an earlier comparison of as many tokens with the same density.
        band_file: where samples are kept for the next comparison.
        samples: how many samples of N tokens are taken, from 2 to a million.
        seed: of these samples.
        progress: show a bar, if standard error is a terminal.
        settings: what the diagnosis of trajectories takes for an explanation, and may cost.
        comm: the ranks that share the work.
    """
    cloud = _checked(result, cloud, layer_step, level)
    whole(seed, "the seed", 0)
    if samples is not None and whole(samples, "the number of samples", 2) > MOST_SAMPLES:
        raise InputError(f"the number of samples must be at most {MOST_SAMPLES}, got {samples}")
    file = None if band_file is None else Path(band_file)
    if file is not None:
        on_root(comm, check_band_file, file)
    set_threads(comm)
    ours, theirs, common = _chosen_times(result, cloud)
    samples = samples or max(sample_count(cloud.tokens.shape[1]), round(1 / level))
    shown = progress and comm.rank == 0 and sys.stderr.isatty()
    total = samples + 2 * len(ours)
    with tqdm(total=total, desc="compare", leave=False, disable=not shown) as bar:
        attention, noise = result.attention, result.noise
        diagnosis = on_root(comm, diagnose, cloud, attention, layer_step, settings, noise)
        w1, w2 = _transport(result, cloud, ours, theirs, comm, bar)
        quantiles = densities_at(result, ours)
        band = band or _band(result, cloud, ours, quantiles, samples, seed, file, comm, bar)
    _check_band(band, result.times[ours])
    observed = features(cloud.tokens[theirs], cloud.masses, quantiles)
    ranked = _ranked_times(diagnosis, band)
    p_value = band.p_value(observed, ranked)
    moments, expected = _first_moments(result, cloud, ours, theirs)
    return TokenComparison(
        cloud=cloud,
        times=result.times[ours],
        common=common,
        w1=w1,
        w2=w2,
        moments=moments,
        expected_moments=expected,
        band=band,
        moment_scores=band.moment_scores(moments),
        p_value=p_value,
        ranked=band.times[ranked],
        level=level,
        unlike_since=band.since(observed, level) if p_value < level else None,
        diagnosis=diagnosis,
        seen=_power(result, cloud, ours, quantiles, band, diagnosis, p_value, level, comm),
        counts_layers=layer_step is not None,
        noise=result.noise,
        notes=_notes(result, cloud, diagnosis, layer_step),
    )


def _checked(
    result: Densities, cloud: TokenCloud, layer_step: float | None, level: float
) -> TokenCloud:
    """The tokens, in the time of the density; InputError if they cannot be compared."""
    if cloud.dimension != result.dimension:
        raise InputError(
            f"the tokens have {cloud.dimension} coordinates, the density lives in dimension "
            f"{result.dimension}"
        )
    if not 1e-4 <= level <= 0.5:
        raise InputError(f"the level must be from 0.0001 to 0.5, got {level}")
    if layer_step is None:
        return cloud
    if not 0 < layer_step < np.inf:
        raise InputError(f"the layer step must be a number > 0, got {layer_step}")
    with np.errstate(over="ignore"):
        times = cloud.times * layer_step
    if not np.isfinite(times).all():
        raise InputError(
            f"the layer step must leave the times finite, got {layer_step:g} for times up to "
            f"{np.abs(cloud.times).max():g}"
        )
    return replace(cloud, times=times)


def _chosen_times(result: Densities, cloud: TokenCloud) -> tuple[np.ndarray, np.ndarray, int]:
    """Indices of the times compared, in the density and in the tokens, and how many are common."""
    ours, theirs = common_times(result.times, cloud.times)
    most = min(len(ours), MOST_TIMES[result.dimension])
    chosen = np.unique(np.linspace(0, len(ours) - 1, most).round().astype(int))
    return ours[chosen], theirs[chosen], len(ours)


def _check_band(band: SamplingBand, times: np.ndarray) -> None:
    if len(band.times) != len(times) or not np.allclose(band.times, times):
        raise InputError("the sampling band is one for other times")


def _ranked_times(diagnosis: Diagnosis | None, band: SamplingBand) -> np.ndarray:
    """The times for the p-value: the first one where trajectories are right, else all."""
    if diagnosis is not None and diagnosis.right:
        negligible = NEGLIGIBLE * float(band.expected.mean())
        if diagnosis.step == 0 or diagnosis.distance <= negligible:
            return np.zeros(1, int)
    return np.arange(len(band.times))


def _first_moments(
    result: Densities, cloud: TokenCloud, ours: np.ndarray, theirs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """First moments of the tokens and of the density, times x d."""
    weights = np.ones(cloud.tokens.shape[1]) if cloud.masses is None else cloud.masses
    densities = [result.measure(int(i)) for i in ours]
    return (
        np.einsum("n,tnd->td", weights / weights.sum(), cloud.tokens[theirs]),
        np.array([one.masses @ one.points / one.masses.sum() for one in densities]),
    )


def sample_count(count: int) -> int:
    """How many samples are taken of N = `count` tokens."""
    return next((samples for most, samples in SAMPLES if count <= most), SAMPLES[-1][1])


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


def _band(
    result: Densities,
    cloud: TokenCloud,
    at: np.ndarray,
    quantiles: np.ndarray,
    samples: int,
    seed: int,
    file: Path | None,
    comm: MPI.Comm,
    bar: tqdm[NoReturn],
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
        quantiles=quantiles,
        comm=comm,
        done=lambda number: bar.update(number * comm.size),
    )
    if file is not None and comm.rank == 0:
        try:
            band.write(file)
        except StorageError:  # it is made again the next time
            return band
    return band


def _transport(
    result: Densities,
    cloud: TokenCloud,
    ours: np.ndarray,
    theirs: np.ndarray,
    comm: MPI.Comm,
    bar: tqdm[NoReturn],
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
            bar.update(comm.size)
    every = {task: one for part in comm.allgather(found) for task, one in part.items()}
    w1, w2 = (tuple(every[k, p] for k in range(len(ours))) for p in (1, 2))
    return w1, w2


def _power(
    result: Densities,
    cloud: TokenCloud,
    at: np.ndarray,
    quantiles: np.ndarray,
    band: SamplingBand,
    diagnosis: Diagnosis | None,
    p_value: float,
    level: float,
    comm: MPI.Comm,
) -> tuple[tuple[str, float], ...]:
    """How often as many tokens show faults of a stated size, if these do not. Collective.

    Nothing where trajectories decide.
    """
    count = cloud.tokens.shape[1]
    if diagnosis is not None or p_value < level or cloud.masses is not None or count > MOST_TOKENS:
        return ()
    return on_root(comm, power_of_faults, result, at, quantiles, band, count, level)


def _notes(
    result: Densities, cloud: TokenCloud, diagnosis: Diagnosis | None, layer_step: float | None
) -> tuple[str, ...]:
    attention = result.attention
    notes = [cloud.note] if cloud.note else []
    beta = attention.beta
    if cloud.beta is not None and not math.isnan(beta) and cloud.beta != beta:
        notes.append(f"the token file says beta = {cloud.beta:g}, the density has {beta:g}")
    notes += _contradictions(result, cloud)
    if layer_step is not None:
        notes.append(f"times count layers of {layer_step:g}")
    if diagnosis is None and result.noise and len(cloud.times) > 1:
        notes.append("with noise trajectories decide nothing: only the p-value does")
    elif diagnosis is None and len(cloud.times) > 1:
        notes.append("tokens do not keep their numbers from time to time: no trajectories")
    fitted = diagnosis is not None and not diagnosis.right and not result.noise
    if fitted and not is_one_head(attention.layers[0]):
        notes.append("with several heads, or terms beside them, no matrix and no beta is fitted")
    if cloud.times[-1] > attention.end * (1 + 1e-9):
        notes.append(f"times after the last of {len(attention.layers)} layers are left aside")
    return tuple(notes)


def _contradictions(result: Densities, cloud: TokenCloud) -> list[str]:
    """A note for each matrix that the tokens were moved by and the density was not.

    Of query and key only their product matters.
    """
    ours = {name: stack(result.attention, name) for name in WEIGHTS}
    given = {name: getattr(cloud, name) for name in WEIGHTS}
    theirs: dict[str, np.ndarray] = {n: one for n, one in given.items() if one is not None}
    if {"query", "key"} <= theirs.keys():
        for both in (ours, theirs):
            query, key = both.pop("query"), both.pop("key")
            if query.shape[:-1] == key.shape[:-1]:
                both["query^T key"] = np.swapaxes(query, -1, -2) @ key
    return [
        f"the token file says another {name} than the density has"
        for name, matrix in theirs.items()
        if not _alike(matrix, ours[name])
    ]


def _alike(matrix: np.ndarray, other: np.ndarray) -> bool:
    """Whether two matrices are the same to rounding; one may be that of all layers and heads."""
    try:
        return np.allclose(matrix, other, rtol=_SAME, atol=_SAME)
    except ValueError:  # of other layers or heads
        return False


def _listed(times: np.ndarray) -> str:
    shown = [f"{time:g}" for time in times[:3]]
    return ", ".join([*shown, f"..., {times[-1]:g}"] if len(times) > 3 else shown)
