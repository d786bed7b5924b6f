"""Samples of N tokens of a density, moved as a right code moves them: how far they are by chance.

    dx_i = P_x ( sum_h V_h m_h(x_i) + g(x_i) ) dt + sqrt(2 sigma) dW_i

A sample is N independent points of the density at its first time, moved by the reference code
(`tokens.code`): were samples drawn anew at each time, what the mean field makes of their
fluctuations would be missing. Many are moved side by side, with an error per step that is far below
1/sqrt(N). Samples of wrong codes say what N tokens can tell (`power_of_faults`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from mpi4py import MPI

import numpy as np
from scipy.integrate import RK23

from meanfield_pde.attention.heads import Layer
from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.errors import InputError
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.geometry import geodesic_distance, normalised
from meanfield_pde.support.checks import check_file
from meanfield_pde.support.npz import read_arrays, write_arrays
from meanfield_pde.support.ranks import shared_errors
from meanfield_pde.tokens.code import evolve, fixed_step
from meanfield_pde.tokens.noise import Velocity
from meanfield_pde.verification.codes import changed, tangent
from meanfield_pde.verification.flow import token_push
from meanfield_pde.verification.statistic import Features, density_quantiles, features, rank
from meanfield_pde.wasserstein import wasserstein
from meanfield_pde.wasserstein.measure import Measure

# Tokens that a sample has at most, a bound on the cost, which grows with their square: 1.6 ms for
# each evaluation of the velocity, by `flow.TERM`, and an error that is known to go as 1/sqrt(N).
MOST_TOKENS = 1000
# Root mean square error of one step, in units of 1/sqrt(N): far below the noise of a sample.
SAMPLE_TOLERANCE = 0.005
_SIDE_BY_SIDE = 16_000  # tokens that are moved side by side: a bound on memory
# Samples for which W_1 itself is computed, beside the sliced one, and the times for that: bounds on
# the cost, which on the sphere is that of a linear program each.
TRANSPORTED = {2: 8, 3: 1}
TRANSPORT_TIMES = 3
# Samples that a rank gets at a time. Noise has one seed for each block.
_BLOCK = 64
# Of these W_1, which only scale the numbers that are shown: far below the spread of samples.
_RTOL = 1e-3
# Samples of a wrong code that say how often it is seen: 8 % of cases more or less, 1 / sqrt(4 n).
_TRIALS = 40


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
        if at is None:
            return rank(observed, self.features)
        return rank(observed.at(at), self.features.at(at))

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


# Of a file of samples.
_ARRAYS = {"key", "times", "distances", "moments", "ratio"}


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


def power_of_faults(
    result: Densities,
    at: np.ndarray,
    quantiles: np.ndarray,
    band: SamplingBand,
    count: int,
    level: float,
) -> tuple[tuple[str, float], ...]:
    """Faults of a stated size, and how often N tokens show them at these times (p < level).

    `quantiles` are those of the density there (`densities_at`).
    """
    attention, noise = result.attention, result.noise
    faults = [
        (
            "V too large by 20%",
            changed(attention, lambda h: replace(h, value=1.2 * h.value)),
            noise,
        ),
        ("by half", changed(attention, lambda h: replace(h, value=1.5 * h.value)), noise),
    ]
    if any(0 < head.beta < math.inf for layer in attention.layers for head in layer.heads):
        faults.append(
            ("half of beta", changed(attention, lambda h: h.with_beta(h.beta / 2)), noise)
        )
    if noise:
        faults.append(("half of the noise", attention, noise / 2))  # sqrt(sigma) for sqrt(2 sigma)
    times = np.unique(np.concatenate([result.times[:1], result.times[at]]))
    chosen = np.searchsorted(times, result.times[at])
    first = result.cells_at(0), result.measure(0).masses
    # Seeds that no band uses: those have two numbers.
    drawn = [np.random.default_rng([0, 0, i]) for i in range(_TRIALS)]
    start = np.stack([sample_cells(one, *first, count) for one in drawn])
    rates = []
    for name, other, strength in faults:
        paths = follow_samples(start, other, times, noise=strength, seed=2**31)
        found = features(paths[:, chosen], None, quantiles)
        pairs = zip(found.distances, found.moments, strict=True)
        seen = [band.p_value(Features(*one)) < level for one in pairs]
        rates.append((name, float(np.mean(seen))))
    return tuple(rates)


def sample_cells(
    generator: np.random.Generator, cells: Cells, masses: np.ndarray, count: int
) -> np.ndarray:
    """N independent points of a density that is constant in each cell, N x d."""
    chosen = generator.choice(len(masses), count, p=masses / masses.sum())
    corners = cells.vertices[chosen]
    if corners.shape[-1] == 2:
        share = generator.random(count)
        length = geodesic_distance(corners[:, 0], corners[:, 1])
        ends = np.stack([np.sin((1 - share) * length), np.sin(share * length)], axis=1)
        return normalised(np.einsum("nk,nkd->nd", ends, corners))
    # Uniform in the flat triangle and put on the sphere, which is uniform up to O(h^2).
    root, share = np.sqrt(generator.random((count, 1))), generator.random((count, 1))
    barycentric = np.concatenate([1 - root, root * (1 - share), root * share], axis=1)
    return normalised(np.einsum("nk,nkd->nd", barycentric, corners))


def follow_samples(
    samples: np.ndarray,
    attention: AttentionLike,
    times: np.ndarray,
    masses: np.ndarray | None = None,
    *,
    noise: float = 0.0,
    seed: int = 0,
    done: Callable[[int], None] = lambda _: None,
) -> np.ndarray:
    """Positions S x T x N x d of samples S x N x d, given at the first of the times.

    Args:
        samples: the tokens of each sample.
        attention: what moves them.
        times: increasing.
        masses: the weights of the tokens, in each sample.
        noise: its strength.
        seed: of the noise.
        done: called with how many samples have been moved, now and then.
    """

    def velocity(layer: Layer) -> Velocity:
        return lambda x: tangent(x, token_push(layer, x, masses))

    count, tokens, d = samples.shape
    paths = np.empty((count, len(times), tokens, d))
    side_by_side = max(1, _SIDE_BY_SIDE // tokens)
    for first in range(0, count, side_by_side):
        rows = slice(first, first + side_by_side)
        x = samples[rows]
        paths[rows] = evolve(
            x,
            attention,
            times.tolist(),
            velocity,
            step=None if noise else fixed_step(attention),
            # In `evolve` it bounds the largest error, by a root mean square of it / 2 sqrt(size).
            tolerance=2 * SAMPLE_TOLERANCE * math.sqrt(x.size / tokens),
            method=RK23,
            noise=noise,
            # The first of the samples makes the numbers those of the block.
            seed=seed + first,
        ).swapaxes(0, 1)
        done(len(x))
    return paths
