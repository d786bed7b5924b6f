"""Samples of N tokens of a density, drawn from its cells and moved in bulk.

    dx_i = P_x ( sum_h V_h m_h(x_i) + g(x_i) ) dt + sqrt(2 sigma) dW_i

Thousands of samples are moved by one compiled loop, each by an embedded Runge-Kutta pair of orders
3 and 2 (Bogacki and Shampine) whose error per step is far below 1/sqrt(N). With noise, and at zero
temperature, steps are fixed: the splitting of `tokens.noise`, and Euler's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from meanfield_pde.attention.heads import Layer, heads_of, perceptron_of, pushing
from meanfield_pde.attention.layers import AttentionLike, pieces
from meanfield_pde.judging.flow import FAST, log_weights, mean_at
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.geometry import geodesic_distance, normalised
from meanfield_pde.tokens.code import fixed_step
from meanfield_pde.tokens.noise import STEP

# Root mean square error of one step of a sample, in units of 1/sqrt(N): far below its noise.
SAMPLE_TOLERANCE = 0.01
ACTIVATIONS = {"relu": 0, "gelu": 1, "tanh": 2}
_BLOCK = 16


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


@numba.njit(cache=True, fastmath=FAST)
def _drift(x, i, inner, outer, activation, push):  # type: ignore[no-untyped-def]
    """Add g at token i; inner k x 4 and outer k + 1 x 3, whose last columns or row are biases."""
    for r in range(inner.shape[0]):
        u = inner[r, 0] * x[0, i] + inner[r, 1] * x[1, i] + inner[r, 2] * x[2, i] + inner[r, 3]
        if activation == 0:
            u = max(u, 0.0)
        elif activation == 1:
            u *= 0.5 * math.erfc(-u / math.sqrt(2.0))
        else:
            u = math.tanh(u)
        for k in range(3):
            push[k] += outer[r, k] * u
    for k in range(3):
        push[k] += outer[inner.shape[0], k]


@numba.njit(cache=True, fastmath=FAST)
def _velocity(x, layer, log_masses, buffer, out):  # type: ignore[no-untyped-def]
    """P_x (sum V m + g) at all tokens, 3 x N."""
    key_queries, values, hard, unnormalised, inner, outer, activation = layer
    count = x.shape[1]
    mean = np.empty(3)
    out[:] = 0.0
    for h in range(len(values)):
        scores = key_queries[h] @ x
        logs = log_masses[1 if hard[h] else 0]
        for i in range(count):
            log_z = mean_at(i, scores, x, logs, buffer, 0, hard[h], mean)
            if unnormalised:
                mean *= math.exp(log_z)
            for k in range(3):
                for j in range(3):
                    out[k, i] += values[h, k, j] * mean[j]
    for i in range(count):
        if len(inner):
            _drift(x, i, inner, outer, activation, out[:, i])
        along = out[0, i] * x[0, i] + out[1, i] * x[1, i] + out[2, i] * x[2, i]
        for k in range(3):
            out[k, i] -= along * x[k, i]


@numba.njit(cache=True, fastmath=FAST)
def _to_sphere(x):  # type: ignore[no-untyped-def]
    for i in range(x.shape[1]):
        length = math.sqrt(x[0, i] ** 2 + x[1, i] ** 2 + x[2, i] ** 2)
        for k in range(3):
            x[k, i] /= length


@numba.njit(cache=True)
def _wander(x, spread, dimension):  # type: ignore[no-untyped-def]
    """Brownian motion of the sphere for a time s / sigma, s = `spread`."""
    size = math.sqrt(2 * spread * max(1 - (dimension - 2) * spread / 3, 0.0))
    move = np.zeros(3)
    for i in range(x.shape[1]):
        along = 0.0
        for k in range(dimension):
            move[k] = np.random.normal()  # noqa: NPY002  what compiled code has
            along += move[k] * x[k, i]
        length = 0.0
        for k in range(dimension):
            move[k] -= along * x[k, i]
            length += move[k] ** 2
        length = math.sqrt(length)
        if length > 0:
            for k in range(dimension):
                x[k, i] = math.cos(size * length) * x[k, i] + math.sin(size * length) * (
                    move[k] / length
                )
    _to_sphere(x)


@numba.njit(cache=True, fastmath=FAST)
def _fixed_steps(x, begin, stops, layer, log_masses, step, noise, dimension, out):  # type: ignore[no-untyped-def]
    """Euler's steps without noise; with it the splitting, the drift by the midpoint rule."""
    buffer, rate = np.empty(x.shape[1]), np.empty_like(x)
    for stop in range(len(stops)):
        count = max(1, math.ceil((stops[stop] - begin) / step * (1 - 1e-9)))
        h = (stops[stop] - begin) / count
        for _ in range(count):
            if noise > 0:
                _wander(x, noise * h / 2, dimension)
            _velocity(x, layer, log_masses, buffer, rate)
            if noise > 0:
                middle = x + h / 2 * rate
                _to_sphere(middle)
                _velocity(middle, layer, log_masses, buffer, rate)
            x = x + h * rate
            _to_sphere(x)
            if noise > 0:
                _wander(x, noise * h / 2, dimension)
        begin = stops[stop]
        out[stop] = x
    return x


@numba.njit(cache=True, fastmath=FAST)
def _adaptive(x, begin, stops, layer, log_masses, step, tolerance, out):  # type: ignore[no-untyped-def]
    """Move one sample to the times `stops`."""
    buffer = np.empty(x.shape[1])
    k1, k2 = np.empty_like(x), np.empty_like(x)
    k3, k4 = np.empty_like(x), np.empty_like(x)
    time, h = begin, step
    _velocity(x, layer, log_masses, buffer, k1)
    for stop in range(len(stops)):
        while time < stops[stop]:
            left = stops[stop] - time
            h_now = left if h >= left else (left / 2 if h > left / 2 else h)
            trial = x + 0.5 * h_now * k1
            _to_sphere(trial)
            _velocity(trial, layer, log_masses, buffer, k2)
            trial = x + 0.75 * h_now * k2
            _to_sphere(trial)
            _velocity(trial, layer, log_masses, buffer, k3)
            new = x + h_now * (2.0 / 9.0 * k1 + 1.0 / 3.0 * k2 + 4.0 / 9.0 * k3)
            _to_sphere(new)
            _velocity(new, layer, log_masses, buffer, k4)
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
def _follow(samples, seeds, begin, stops, layer, log_masses, step, fixed, noise, dimension, out):  # type: ignore[no-untyped-def]
    """Move all samples; `step` is the first one, or all of them, and the tolerance beside it."""
    for s in numba.prange(samples.shape[0]):
        np.random.seed(seeds[s])  # noqa: NPY002
        if fixed:
            samples[s] = _fixed_steps(
                samples[s], begin, stops, layer, log_masses, step[0], noise, dimension, out[s]
            )
        else:
            samples[s] = _adaptive(
                samples[s], begin, stops, layer, log_masses, step[0], step[1], out[s]
            )


def follow_samples(
    samples: np.ndarray,
    attention: AttentionLike,
    times: np.ndarray,
    masses: np.ndarray | None = None,
    *,
    noise: float = 0.0,
    seeds: np.ndarray | None = None,
    done: Callable[[int], None] = lambda _: None,
) -> np.ndarray:
    """Positions S x T x N x d of samples S x N x d, given at the first of the times.

    Args:
        samples: the tokens of each sample.
        attention: what moves them.
        times: increasing.
        masses: the weights of the tokens, in each sample.
        noise: its strength.
        seeds: of the noise of each sample; counted from 0 if left out.
        done: told how many samples have been moved, now and then.
    """
    count, tokens, d = samples.shape
    paths = np.empty((count, len(times), tokens, d))
    tolerance = SAMPLE_TOLERANCE / math.sqrt(tokens)
    numbers = np.arange(count) if seeds is None else seeds
    for first in range(0, count, _BLOCK):
        rows = slice(first, first + _BLOCK)
        x = np.zeros((len(samples[rows]), 3, tokens))
        x[:, :d] = samples[rows].transpose(0, 2, 1)
        paths[rows, 0] = samples[rows]
        saved = 1
        for number, (layer, begin, end) in enumerate(
            pieces(attention, float(times[0]), float(times[-1]))
        ):
            if end <= begin:
                continue
            inside = times[(times > begin) & (times <= end)]
            stops = inside if len(inside) and inside[-1] == end else np.append(inside, end)
            out = np.empty((len(x), len(stops), 3, tokens))
            hard = layer.zero_temperature
            step = STEP / max(pushing(layer), noise) if noise else (end - begin) / 100
            if hard:
                step = min(step, fixed_step(layer) or step) if noise else fixed_step(layer) or step
            logs = np.stack([log_weights(masses, tokens, hard=one) for one in (False, True)])
            stepping = (np.array([step, tolerance]), hard or noise > 0, noise, d)
            seeds_now = (numbers[rows] + 1_000_003 * number) % 2**32
            _follow(x, seeds_now, begin, stops, _arrays(layer), logs, *stepping, out)
            paths[rows, saved : saved + len(inside)] = out[:, : len(inside), :d].swapaxes(2, 3)
            saved += len(inside)
        done(len(x))
    return paths


def _arrays(layer: Layer) -> tuple[Any, ...]:
    """What the compiled loops know of a layer, padded to three dimensions."""
    heads, perceptron = heads_of(layer), perceptron_of(layer)
    d = layer.dimension
    matrices = np.zeros((2, len(heads), 3, 3))
    for h, head in enumerate(heads):
        beta = 1.0 if head.zero_temperature else head.beta
        matrices[0, h, :d, :d] = beta * head.key_query
        matrices[1, h, :d, :d] = head.value
    hard = np.array([head.zero_temperature for head in heads])
    width = 0 if perceptron is None else len(perceptron.bias_in)
    inner, outer = np.zeros((width, 4)), np.zeros((width + 1, 3))
    activation = 0
    if perceptron is not None:
        inner[:, :d], inner[:, 3] = perceptron.weights_in, perceptron.bias_in
        outer[:-1, :d], outer[-1, :d] = perceptron.weights_out.T, perceptron.bias_out
        activation = ACTIVATIONS[perceptron.activation]
    return matrices[0], matrices[1], hard, not layer.normalise, inner, outer, activation
