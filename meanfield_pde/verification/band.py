"""How far N tokens are from a density by chance: samples of the density itself.

A sample is N independent points of the density at its first time, moved by the reference code: were
samples drawn anew at each time, what the mean field makes of their fluctuations would be missing.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mpi4py import MPI

import numpy as np

from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.errors import InputError
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.support.checks import check_file
from meanfield_pde.support.npz import read_arrays, write_arrays
from meanfield_pde.support.ranks import shared_errors
from meanfield_pde.verification.features import Features, density_quantiles, features
from meanfield_pde.verification.samples import follow_samples, sample_cells
from meanfield_pde.verification.statistic import rank
from meanfield_pde.wasserstein import wasserstein
from meanfield_pde.wasserstein.measure import Measure

# More tokens than this take too long to be simulated many times.
MOST_TOKENS = 1000
# Samples for which W_1 itself is computed, beside the sliced one, and the times for that: bounds on
# the cost, which on the sphere is that of a linear program each.
TRANSPORTED = {2: 8, 3: 1}
TRANSPORT_TIMES = 3
# Samples moved together: what a rank gets at a time. Noise has one seed for each block.
_BLOCK = 64
# Of these W_1, which only scale the numbers that are shown: far below the spread of samples.
_RTOL = 1e-3
_ARRAYS = {"key", "times", "distances", "moments", "ratio"}  # of a file


class Densities(Protocol):
    """A density at several times: a `Solution`, or the `Result` read from a folder."""

    @property
    def attention(self) -> AttentionLike:
        """What drove it."""

    @property
    def noise(self) -> float:
        """Strength of the noise."""

    @property
    def dimension(self) -> int:
        """Dimension d of the space around."""

    @property
    def times(self) -> np.ndarray:
        """The times."""

    def cells_at(self, index: int) -> Cells:
        """The cells at one of the times."""

    def measure(self, index: int) -> Measure:
        """The density at one of the times, as atoms in its cells."""


def densities_at(result: Densities, at: np.ndarray) -> np.ndarray:
    """Quantiles of the density at some of its times."""
    return density_quantiles([(result.cells_at(int(i)), result.measure(int(i)).masses) for i in at])


@dataclass(frozen=True, eq=False)
class SamplingBand:
    """Features of samples of N tokens of a density, at several times.

    Attributes:
        key: what it belongs to: a hash of the density, N, weights, times, samples and seed.
        times: the times.
        features: of the samples.
        ratio: of W_1 to the sliced W_1, at each time.
    """

    key: str
    times: np.ndarray
    features: Features
    ratio: np.ndarray

    @property
    def samples(self) -> int:
        """S."""
        return len(self.features.distances)

    @property
    def expected(self) -> np.ndarray:
        """The mean distance W_1 of a sample to the density, at each time."""
        return self.features.distances[..., 0].mean(axis=0) * self.ratio

    def quantile(self, probability: float) -> np.ndarray:
        """The distance W_1 that is not exceeded with this probability, at each time."""
        return np.quantile(self.features.distances[..., 0], probability, axis=0) * self.ratio

    def p_value(self, observed: Features, at: np.ndarray | None = None) -> float:
        """The p-value of tokens with these features, from some of the times or all of them."""
        chosen = np.arange(len(self.times)) if at is None else at
        return rank(observed.at(chosen), self.features.at(chosen))

    def since(self, observed: Features, level: float) -> float | None:
        """The first time whose features alone have a p-value below the level; None if none has."""
        for k, time in enumerate(self.times):
            if self.p_value(observed, np.array([k])) < level:
                return float(time)
        return None

    def moment_scores(self, observed: np.ndarray) -> np.ndarray:
        """First moments less their mean over the samples, in standard deviations, times x d."""
        moments = self.features.moments[..., : observed.shape[1]]
        deviation = np.maximum(moments.std(axis=0, ddof=1), 1e-15)
        return (observed - moments.mean(axis=0)) / deviation

    def write(self, path: Path) -> None:
        """Write the band as `.npz`."""
        arrays = {
            "key": np.array(self.key),
            "times": self.times,
            "distances": self.features.distances,
            "moments": self.features.moments,
            "ratio": self.ratio,
        }
        write_arrays(path, arrays)


def sampling_band(
    result: Densities,
    at: np.ndarray,
    count: int,
    *,
    samples: int,
    seed: int = 0,
    weights: np.ndarray | None = None,
    quantiles: np.ndarray | None = None,
    comm: MPI.Comm = MPI.COMM_SELF,
    done: Callable[[int], None] = lambda _: None,
) -> SamplingBand:
    """The band of N tokens for a density at several of its times. Collective.

    Args:
        result: the density.
        at: indices of the times wanted.
        count: N. Beyond 1000 tokens, samples of 1000 are taken, and how far they are from their
            mean is scaled with 1/sqrt(N).
        samples: how many samples are drawn.
        seed: of the draws.
        weights: the weights of the tokens; equal if left out.
        quantiles: of the density at these times (`densities_at`), if they are at hand.
        comm: the ranks that share the work; the result does not depend on their number.
        done: called with how many samples have been moved, now and then.
    """
    key = band_key(result, at, count, samples=samples, seed=seed, weights=weights)
    count, weights, scale = _simulated(count, weights)
    times = np.unique(np.concatenate([result.times[:1], result.times[at]]))
    chosen = np.searchsorted(times, result.times[at])
    first = result.cells_at(0), result.measure(0).masses
    quantiles = densities_at(result, at) if quantiles is None else quantiles
    blocks = [np.arange(i, min(i + _BLOCK, samples)) for i in range(0, samples, _BLOCK)]
    found: dict[int, Features] = {}
    ratios = np.zeros(0)
    with shared_errors(comm):
        for number in range(comm.rank, len(blocks), comm.size):
            drawn = [np.random.default_rng([seed, int(s)]) for s in blocks[number]]
            start = np.stack([sample_cells(one, *first, count) for one in drawn])
            paths = follow_samples(
                start,
                result.attention,
                times,
                weights,
                noise=result.noise,
                # Seeds below 2^31; those above are for other uses.
                seed=(int(blocks[number][0]) + 7919 * seed) % 2**31,
                done=done,
            )[:, chosen]
            found[number] = features(paths, weights, quantiles)
            if number == 0:
                ratios = _ratios(result, at, paths, weights, found[0])
    every = _gathered(found, comm)
    if scale < 1:
        mean = every.moments.mean(axis=0)
        every = Features(every.distances * scale, mean + scale * (every.moments - mean))
    ratio = comm.bcast(ratios)
    return SamplingBand(key, result.times[at], every, ratio)


def _simulated(count: int, weights: np.ndarray | None) -> tuple[int, np.ndarray | None, float]:
    """How many tokens a sample has, their weights, and what its distances are scaled with."""
    if count <= MOST_TOKENS:
        return count, weights, 1.0
    effective = count if weights is None else weights.sum() ** 2 / (weights**2).sum()
    return MOST_TOKENS, None, math.sqrt(MOST_TOKENS / effective)


def _gathered(found: dict[int, Features], comm: MPI.Comm) -> Features:
    """The features of all samples, from their blocks on all ranks. Collective."""
    every = {i: one for part in comm.allgather(found) for i, one in part.items()}
    blocks = [every[i] for i in range(len(every))]
    return Features(
        np.concatenate([one.distances for one in blocks]),
        np.concatenate([one.moments for one in blocks]),
    )


def band_key(
    result: Densities,
    at: np.ndarray,
    count: int,
    *,
    samples: int,
    seed: int,
    weights: np.ndarray | None,
) -> str:
    """What a band belongs to, as a hash."""
    digest = hashlib.sha256()
    arrays: list[np.ndarray] = []
    for layer in result.attention.layers:
        for head in layer.heads:
            arrays += [head.key_query, head.value, np.array([head.beta])]
        for term in layer.beside:
            said = json.dumps([term.section, term.table()], sort_keys=True)
            arrays.append(np.frombuffer(said.encode(), dtype=np.uint8))
    duration = result.attention.duration
    numbers = [
        np.array([result.noise, duration, count, samples, seed, result.attention.normalise]),
        result.times[at],
        result.times[:1],
        result.measure(0).masses,
        *(
            one
            for i in at
            for one in (result.measure(int(i)).points, result.measure(int(i)).masses)
        ),
        *arrays,
        *([] if weights is None else [weights]),
    ]
    for array in numbers:
        digest.update(np.ascontiguousarray(array, dtype=float).tobytes())
    return digest.hexdigest()


def check_band_file(path: Path) -> None:
    """InputError unless a band can be kept in a file, in which nothing else is."""
    if path.suffix.lower() != ".npz":
        raise InputError(f"{path}: samples are kept in a file that ends in .npz")
    if not path.exists():
        return
    check_file(path, f"{path}: samples are kept in a file, and this is none")
    try:
        others = read_arrays(path).keys() - _ARRAYS
    except InputError:  # damaged, and made again
        return
    if others:
        raise InputError(
            f"{path}: holds other arrays ({', '.join(sorted(others)[:3])}), and would be replaced "
            "by samples; name another file"
        )


def read_band(path: Path, key: str) -> SamplingBand | None:
    """The band in a file, if the file is there and holds the one wanted."""
    try:
        arrays = read_arrays(path)  # which have checksums, as all that is in a zip file
        if str(arrays["key"]) != key:
            return None
        found = Features(arrays["distances"], arrays["moments"])
        return SamplingBand(key, arrays["times"], found, arrays["ratio"])
    except (InputError, KeyError):
        return None  # whatever is there, it is not a band, and made again


def _ratios(
    result: Densities,
    at: np.ndarray,
    paths: np.ndarray,
    weights: np.ndarray | None,
    sliced: Features,
) -> np.ndarray:
    """W_1 over sliced W_1 of a few samples, at a few times, and between them by interpolation."""
    times = result.times[at]
    chosen = np.unique(np.linspace(0, len(at) - 1, TRANSPORT_TIMES).round().astype(int))
    count = min(TRANSPORTED[paths.shape[-1]], len(paths))
    masses = np.ones(paths.shape[2]) if weights is None else weights
    ratio = []
    for k in chosen:
        density = result.measure(int(at[k]))
        exact = [
            wasserstein(Measure(path, masses), density, 1, rtol=_RTOL).value
            for path in paths[:count, k]
        ]
        ratio.append(sum(exact) / sliced.distances[:count, k, 0].sum())
    return np.interp(times, times[chosen], ratio)
