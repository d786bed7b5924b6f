"""The token sums of a comparison: means under N tokens, masked if wanted, and samples in bulk.

    m(x_i) = sum_j w_j exp(<s_i, x_j>) x_j / sum_j w_j exp(<s_i, x_j>),     s_i = beta B^T x_i,

over all j, over j <= i (a causal mask) or over j != i. N is small here, and the sums are plain.
Thousands of samples of N tokens are moved by one compiled loop, each by an embedded Runge-Kutta
pair of orders 3 and 2 (Bogacki and Shampine) whose error per step is far below 1/sqrt(N).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import numba
import numpy as np

from meanfield_pde.attention.head import Attention
from meanfield_pde.attention.layers import AttentionLike, plain_pieces
from meanfield_pde.attention.sum.tiles import power_of_two
from meanfield_pde.tokens.code import fixed_step

LOG2_E = 1.4426950408889634
# Sums over tokens may be reordered: a verdict does not hang on the last digit.
FAST = {"contract", "nsz", "nnan", "ninf", "reassoc"}
Mask = Literal["none", "causal", "no self"]
MASKS: dict[Mask, int] = {"none": 0, "causal": 1, "no self": 2}
# Root mean square error of one step of a sample, in units of 1/sqrt(N): far below its noise.
SAMPLE_TOLERANCE = 0.01
# A step of a sample at zero temperature, in units of the reference code's.
COARSE = 1.0
NO_SCORE = -1e290


@numba.njit(cache=True, fastmath=FAST)
def _mean(i, scores, points, log_masses, buffer, mask, hard, out):  # type: ignore[no-untyped-def]
    """M of target i, points and scores d x N (d = 3, padded by zero); returns log of the sum."""
    stop = i + 1 if mask == 1 else points.shape[1]
    a, b, c = scores[0, i] * LOG2_E, scores[1, i] * LOG2_E, scores[2, i] * LOG2_E
    largest = NO_SCORE
    for j in range(stop):
        buffer[j] = a * points[0, j] + b * points[1, j] + c * points[2, j] + log_masses[j]
    if mask == 2:
        buffer[i] = NO_SCORE
    for j in range(stop):
        largest = max(largest, buffer[j])
    total, x, y, z = 0.0, 0.0, 0.0, 0.0
    if hard:
        slack = 1e-12 * math.sqrt(a * a + b * b + c * c)
        for j in range(stop):
            if buffer[j] >= largest - slack:
                total += 1.0
                x += points[0, j]
                y += points[1, j]
                z += points[2, j]
    else:
        for j in range(stop):
            weight = power_of_two(buffer[j] - largest)
            total += weight
            x += weight * points[0, j]
            y += weight * points[1, j]
            z += weight * points[2, j]
    out[0], out[1], out[2] = x / total, y / total, z / total
    return (largest + math.log2(total)) / LOG2_E


@numba.njit(cache=True, fastmath=FAST, parallel=True)
def _all_means(scores, points, log_masses, mask, hard, unnormalised, chunks):  # type: ignore[no-untyped-def]
    count = points.shape[1]
    mean = np.empty((count, 3))
    for chunk in numba.prange(chunks):
        buffer = np.empty(count)
        for i in range(chunk * count // chunks, (chunk + 1) * count // chunks):
            log_z = _mean(i, scores, points, log_masses, buffer, mask, hard, mean[i])
            if unnormalised:
                mean[i] *= math.exp(log_z)
    return mean


def token_means(
    head: Attention, x: np.ndarray, masses: np.ndarray | None = None, mask: Mask = "none"
) -> np.ndarray:
    """M at each of the tokens, N x d, under the tokens themselves."""
    hard = head.zero_temperature
    z = x @ head.key_query.T if hard else head.scores(x)
    mean = _all_means(
        _padded(z),
        _padded(x),
        _log_masses(masses, len(x), hard=hard),
        MASKS[mask],
        hard,
        not head.normalise,
        min(numba.get_num_threads(), len(x)),
    )
    return mean[:, : x.shape[1]]


@numba.njit(cache=True, fastmath=FAST)
def _velocity(x, key_query, value, log_masses, hard, unnormalised, buffer, out):  # type: ignore[no-untyped-def]
    """P_x V m at all tokens, 3 x N."""
    count = x.shape[1]
    scores = key_query @ x
    mean = np.empty(3)
    for i in range(count):
        log_z = _mean(i, scores, x, log_masses, buffer, 0, hard, mean)
        if unnormalised:
            mean *= math.exp(log_z)
        push = value @ mean
        along = push[0] * x[0, i] + push[1] * x[1, i] + push[2] * x[2, i]
        for k in range(3):
            out[k, i] = push[k] - along * x[k, i]


@numba.njit(cache=True, fastmath=FAST)
def _to_sphere(x):  # type: ignore[no-untyped-def]
    for i in range(x.shape[1]):
        length = math.sqrt(x[0, i] ** 2 + x[1, i] ** 2 + x[2, i] ** 2)
        for k in range(3):
            x[k, i] /= length


@numba.njit(cache=True, fastmath=FAST)
def _follow(x, begin, stops, key_query, value, log_masses, kind, step, tolerance, out):  # type: ignore[no-untyped-def]
    """Move one sample to the times `stops`; kind: 0 softmax, 1 unnormalised, 2 hard max."""
    hard, unnormalised = kind == 2, kind == 1
    buffer = np.empty(x.shape[1])
    k1, k2 = np.empty_like(x), np.empty_like(x)
    k3, k4 = np.empty_like(x), np.empty_like(x)
    time, h = begin, step
    _velocity(x, key_query, value, log_masses, hard, unnormalised, buffer, k1)
    for stop in range(len(stops)):
        while time < stops[stop]:
            left = stops[stop] - time
            h_now = left if h >= left else (left / 2 if h > left / 2 else h)
            if hard:
                x = x + h_now * k1
                _to_sphere(x)
                _velocity(x, key_query, value, log_masses, hard, unnormalised, buffer, k1)
                time = stops[stop] if h_now == left else time + h_now
                continue
            trial = x + 0.5 * h_now * k1
            _to_sphere(trial)
            _velocity(trial, key_query, value, log_masses, hard, unnormalised, buffer, k2)
            trial = x + 0.75 * h_now * k2
            _to_sphere(trial)
            _velocity(trial, key_query, value, log_masses, hard, unnormalised, buffer, k3)
            new = x + h_now * (2.0 / 9.0 * k1 + 1.0 / 3.0 * k2 + 4.0 / 9.0 * k3)
            _to_sphere(new)
            _velocity(new, key_query, value, log_masses, hard, unnormalised, buffer, k4)
            apart = (-5.0 / 72.0) * k1 + k2 / 12.0 + k3 / 9.0 - k4 / 8.0
            error = h_now * math.sqrt((apart**2).sum() / x.shape[1])
            if error <= tolerance:
                time = stops[stop] if h_now == left else time + h_now
                x = new
                k1, k4 = k4, k1
            change = 0.9 * (tolerance / max(error, 1e-300)) ** (1.0 / 3.0)
            h = h_now * min(max(change, 0.2), 5.0) if error > tolerance or h_now >= 0.5 * h else h
        out[stop] = x
    return x


@numba.njit(cache=True, fastmath=FAST, parallel=True)
def _follow_all(samples, begin, stops, key_query, value, log_masses, kind, step, tolerance, out):  # type: ignore[no-untyped-def]
    for s in numba.prange(samples.shape[0]):
        samples[s] = _follow(
            samples[s],
            begin,
            stops,
            key_query,
            value,
            log_masses,
            kind,
            step,
            tolerance,
            out[s],
        )


def follow_samples(
    samples: np.ndarray,
    attention: AttentionLike,
    times: np.ndarray,
    masses: np.ndarray | None = None,
    done: Callable[[int], None] = lambda _: None,
) -> np.ndarray:
    """Positions S x T x N x d of samples S x N x d, given at the first of the times.

    Args:
        samples: the tokens of each sample.
        attention: what moves them.
        times: increasing.
        masses: the weights of the tokens, in each sample.
        done: told how many samples have been moved, now and then.
    """
    count, tokens, d = samples.shape
    paths = np.empty((count, len(times), tokens, d))
    tolerance = SAMPLE_TOLERANCE / math.sqrt(tokens)
    block = 16
    for first in range(0, count, block):
        x = np.zeros((len(samples[first : first + block]), 3, tokens))
        x[:, :d] = samples[first : first + block].transpose(0, 2, 1)
        rows = slice(first, first + len(x))
        paths[rows, 0] = samples[rows]
        saved = 1
        for head, begin, end in plain_pieces(attention, float(times[0]), float(times[-1])):
            inside = times[(times > begin) & (times <= end)]
            stops = inside if len(inside) and inside[-1] == end else np.append(inside, end)
            if end <= begin:
                continue
            out = np.empty((len(x), len(stops), 3, tokens))
            hard = head.zero_temperature
            kind = 2 if hard else (0 if head.normalise else 1)
            step = COARSE * (fixed_step(head) or 0.0) if hard else (end - begin) / 100
            matrix = head.key_query if hard else head.beta * head.key_query
            logs = _log_masses(masses, tokens, hard=hard)
            _follow_all(
                x,
                begin,
                stops,
                _padded_matrix(matrix),
                _padded_matrix(head.value),
                logs,
                kind,
                step,
                tolerance,
                out,
            )
            paths[rows, saved : saved + len(inside)] = out[:, : len(inside), :d].swapaxes(2, 3)
            saved += len(inside)
        done(len(x))
    return paths


def _log_masses(masses: np.ndarray | None, count: int, *, hard: bool) -> np.ndarray:
    """Binary logarithms of the normalised weights; at zero temperature, whether there is one."""
    weights = np.ones(count) if masses is None else masses
    if hard:
        return np.where(weights > 0, 0.0, NO_SCORE)
    with np.errstate(divide="ignore"):
        return np.maximum(np.log2(weights / weights.sum()), NO_SCORE)


def _padded(x: np.ndarray) -> np.ndarray:
    padded = np.zeros((3, len(x)))
    padded[: x.shape[1]] = x.T
    return padded


def _padded_matrix(matrix: np.ndarray) -> np.ndarray:
    padded = np.zeros((3, 3))
    padded[: len(matrix), : len(matrix)] = matrix
    return padded
