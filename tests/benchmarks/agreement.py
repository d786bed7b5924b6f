"""Tokens of right codes with several heads, noise or a perceptron against the density, many seeds.

Circle and sphere, N = 200, positions at three times, one p-value each; the codes are plain numpy,
written from the equation. `python -m tests.benchmarks.agreement [--quick]`.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde import Attention, Heads, Perceptron, circle_mesh, solve, sphere_mesh
from meanfield_pde.initial.sampling import sample_tokens
from meanfield_pde.verification.samples import densities_at, sampling_band
from meanfield_pde.verification.statistic import features
from tests.benchmarks.tables import Table, options, present

DENSITY = "1 + 0.4*x + 0.6*x*y"
TIMES = (0.5, 1.0)
COUNT, STEP = 200, 0.005
NOISE = 0.2


def problem(d: int) -> dict[str, tuple[list[Attention], Perceptron | None, float]]:
    """Heads, perceptron and noise by name; no matrix is symmetric."""
    generator = np.random.default_rng(d)
    query, key, first, second, inner, outer = 0.4 * generator.normal(size=(6, d, d)) + np.eye(d)
    heads = [Attention(query, key, first, 2.0), Attention(key, inner, -0.5 * second, 4.0)]
    bias = generator.normal(size=(2, d)) * 0.3
    perceptron = Perceptron(inner, 0.5 * outer, *bias, activation="tanh")
    return {
        "one head": (heads[:1], None, 0.0),
        "two heads": (heads, None, 0.0),
        "noise": (heads[:1], None, NOISE),
        "perceptron": (heads[:1], perceptron, 0.0),
        "two heads, perceptron, noise": (heads, perceptron, NOISE),
    }


def velocity(x: np.ndarray, heads: list[Attention], perceptron: Perceptron | None) -> np.ndarray:
    """sum_h V_h m_h(x) + W_out tanh(W_in x + b_in) + b_out, its part along the sphere."""
    push = np.zeros_like(x)
    for head in heads:
        scores = head.beta * (x @ head.query.T) @ (x @ head.key.T).T
        weight = np.exp(scores - scores.max(axis=1, keepdims=True))
        push += weight @ x / weight.sum(axis=1, keepdims=True) @ head.value.T
    if perceptron is not None:
        inner = np.tanh(x @ perceptron.weights_in.T + perceptron.bias_in)
        push += inner @ perceptron.weights_out.T + perceptron.bias_out
    return np.asarray(push - (push * x).sum(axis=1, keepdims=True) * x)


def tokens(
    d: int, heads: list[Attention], perceptron: Perceptron | None, noise: float, seed: int
) -> np.ndarray:
    """Heun's method, or Euler-Maruyama with steps along the tangent plane."""
    generator = np.random.default_rng(seed)
    x = sample_tokens(DENSITY, COUNT, seed, d)
    saved = [x]
    for _ in TIMES:
        for _ in range(round(0.5 / STEP)):
            move = STEP * velocity(x, heads, perceptron)
            if noise:
                kick = np.sqrt(2 * noise * STEP) * generator.normal(size=x.shape)
                move += kick - (kick * x).sum(axis=1, keepdims=True) * x
            else:
                ahead = (x + move) / np.linalg.norm(x + move, axis=1, keepdims=True)
                move = 0.5 * (move + STEP * velocity(ahead, heads, perceptron))
            x = (x + move) / np.linalg.norm(x + move, axis=1, keepdims=True)
        saved.append(x)
    return np.array(saved)


OPTIONS = options("agreement", __doc__)


def main() -> None:
    """Print the table."""
    quick = OPTIONS.parse_args().quick
    seeds, samples = (20, 199) if quick else (100, 1999)
    table = Table(
        f"right codes, N = {COUNT}, {seeds} seeds, {samples} samples",
        ("surface", "code", "p >= 0.01", "p < 0.05", "mean p"),
    )
    for d, surface, mesh in ((2, "circle", circle_mesh(400)), (3, "sphere", sphere_mesh(1280))):
        for name, (heads, perceptron, noise) in problem(d).items():
            layer = Heads(heads, perceptron)
            solution = solve(layer, mesh, DENSITY, until=TIMES[-1], save_at=TIMES[:-1], noise=noise)
            at = np.arange(len(solution.times))
            band = sampling_band(solution, at, COUNT, samples=samples, seed=1)
            quantiles = densities_at(solution, at)
            found = np.array(
                [
                    band.p_value(
                        features(tokens(d, heads, perceptron, noise, seed), None, quantiles)
                    )
                    for seed in range(seeds)
                ]
            )
            table.row(
                surface,
                name,
                f"{(found >= 0.01).sum()}/{seeds}",
                f"{(found < 0.05).sum()}/{seeds}",
                f"{found.mean():.3f}",
            )


if __name__ == "__main__":
    present(main, OPTIONS)
