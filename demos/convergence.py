# %% [markdown]
# # How many tokens?
#
# How many tokens? The distance of N tokens from the density, and how long their plateau lasts.
#
#     python demos/convergence.py [--short]        (also under mpiexec)
#
# On the circle W_1 from N tokens to the density falls like N^(-1/2), as for independent samples,
# but for a factor by which the mean field lets their fluctuations grow. The metastable state is
# another matter: N tokens have no tail below 1/N, so it lasts log(N)/c' and some constant,
# whatever beta is; the density's lasts for a time proportional to beta. The figure is in
# results/demos/.

# %%
import argparse
from pathlib import Path

from mpi4py import MPI

import numpy as np
from matplotlib.figure import Figure

from meanfield_pde import (
    Attention,
    Measure,
    ProjectionLimit,
    circle_mesh,
    sample_tokens,
    simulate_tokens,
    solve,
    wasserstein,
)
from meanfield_pde.experiments.lifetime import token_lifetime
from meanfield_pde.figures.density import save
from meanfield_pde.theory.fits import linear_fit

DENSITY = "1 + 0.5*x + 0.3*x*y"
HEAD = Attention(
    query=np.array([[1.0, 0.4], [-0.3, 0.8]]),
    key=np.eye(2),
    value=np.array([[1.0, 0.3], [-0.2, 0.4]]),
    beta=4.0,
)
# A = V B^T = diag(1, 0.2), and V turned away from it: clusters at ±(1, 0) are metastable.
TURN = np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])
VALUE = TURN @ np.diag([1.0, 0.3]) @ TURN.T
QUERY = np.linalg.solve(VALUE, np.diag([1.0, 0.2]))
COLD = Attention(QUERY / np.linalg.norm(QUERY, 2), np.eye(2), VALUE, beta=320.0)
UNTIL = 2.0


# %%
def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="How many tokens?")
    parser.add_argument("--short", action="store_true", help="fewer tokens and samples")
    short = parser.parse_known_args(arguments)[0].short
    counts = (30, 120, 480) if short else (100, 300, 1000, 3000, 10_000)
    samples = 24 if short else 20
    few = (30, 300) if short else (30, 100, 300, 1000, 3000)

    solution = solve(HEAD, circle_mesh(800), DENSITY, until=UNTIL)
    start, end = solution.measure(0), solution.measure(-1)
    drawn, moved = [], []
    for count in counts:
        distances = []
        for seed in range(samples):
            x = sample_tokens(DENSITY, count, seed, 2)
            y = simulate_tokens(x, HEAD, UNTIL, tolerance=1e-5).tokens[-1]
            pairs = ((x, start), (y, end))
            distances.append(
                [wasserstein(Measure(z, np.ones(count)), rho, p=1).value for z, rho in pairs]
            )
        initial, final = np.mean(distances, axis=0)
        drawn.append(initial)
        moved.append(final)

    lives = np.array(
        [
            np.mean([token_lifetime(COLD, DENSITY, count, seed).lifetime for seed in range(4)])
            for count in few
        ]
    )
    limit = ProjectionLimit(COLD)
    numbers = {
        "slope of log W1": linear_fit(np.log(counts), np.log(moved)).slope,
        "slope at the start": linear_fit(np.log(counts), np.log(drawn)).slope,
        "growth of fluctuations": float(np.mean(np.array(moved) / drawn)),
        "lifetime per log N": linear_fit(np.log(few), lives).slope,
        "predicted, 1/c'": 1 / limit.tail_rate,
        "lifetime of the density": limit.lifetime,
    }
    if MPI.COMM_WORLD.rank == 0:
        for name, number in numbers.items():
            print(f"{name:24} {number:.4f}")
        draw(np.array(counts), np.array(moved), np.array(few), lives, limit)
    return numbers


# %%
def draw(
    counts: np.ndarray,
    distances: np.ndarray,
    few: np.ndarray,
    lives: np.ndarray,
    limit: ProjectionLimit,
) -> None:
    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.loglog(counts, distances, "o-", color="#D55E00", label=f"N tokens, t = {UNTIL:g}")
    line = distances[0] * np.sqrt(counts[0] / counts)
    left.loglog(counts, line, ":", color="k", label="slope -1/2")
    left.set_xlabel("number of tokens N")
    left.set_ylabel("$W_1$ to the density (radians)")
    left.legend()
    right.semilogx(few, lives, "o-", color="#D55E00", label="N tokens, β = 320")
    line = lives[0] + np.log(few / few[0]) / limit.tail_rate
    right.semilogx(few, line, ":", color="k", label="slope 1/c'")
    right.axhline(limit.lifetime, ls="--", color="#0072B2", label="predicted for the density")
    right.set_xlabel("number of tokens N")
    right.set_ylabel("lifetime of the metastable state")
    right.legend()
    Path("results/demos").mkdir(parents=True, exist_ok=True)
    save(figure, Path("results/demos/convergence.png"))


# %%
if __name__ == "__main__":
    main()
