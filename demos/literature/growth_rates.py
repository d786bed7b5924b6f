# %% [markdown]
# # How many clusters grow, and how fast
#
# Bruno, Pasqualotto and Agazzi (arXiv 2410.23228): about the uniform density, without the
# denominator, mode k grows at the rate k^2 I_k(beta) / beta, pi times the gamma_k of their code
# (gbruno16/transformers-metastability), and the mode of largest rate says how many clusters come:
# 3 at beta = 5, 4 at beta = 7. With the denominator rates are I_0(beta) times less, and tend to
# k^2 / beta as beta grows: the backward heat equation of arXiv 2509.25040.
#
#     python demos/literature/growth_rates.py [--short]        (also under mpiexec)

# %%
import math
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.special import ive

sys.path.insert(0, str(Path(__file__).parent))
from gallery import Row, angles, evolved, identity, run

from meanfield_pde import ExpressionDensity, Solution, circle_mesh, solve

# Of the code: beta, k, rate in our time, until.
PUBLISHED = ((5.0, 3, "18.596", 0.1), (7.0, 4, "116.58", 0.015))
MODES = {3: "4*x**3 - 3*x", 4: "8*x**4 - 8*x**2 + 1"}
SMALL = 1e-4  # of the perturbation: what is of second order in it is 1e-8


# %%
def rate(solution: Solution, mode: int) -> float:
    """The rate of a mode from the first saved time to the last."""
    shape = np.exp(1j * mode * angles(solution.cells.points))
    grown = np.abs(solution.masses @ shape)
    return math.log(grown[-1] / grown[0]) / (solution.times[-1] - solution.times[0])


def noisy(points: np.ndarray) -> np.ndarray:
    """One plus ten modes of equal size with random phases."""
    phases = np.random.default_rng(1).uniform(0, 2 * np.pi, 10)
    return 1 + 0.01 * np.cos(np.outer(angles(points), np.arange(1, 11)) + phases).sum(axis=1)


def clusters(solution: Solution) -> int:
    """The number of maxima of the last density that are higher than the mean."""
    density = solution.density[-1][np.argsort(angles(solution.cells.points))]
    peak = (density > np.roll(density, 1)) & (density >= np.roll(density, -1))
    return int((peak & (density > 1 / (2 * np.pi))).sum())


# %%
def compute(short: bool) -> tuple[list[Row], list[tuple[float, Solution]]]:
    rows, solutions = [], []
    for beta, mode, published, until in PUBLISHED:
        attention = identity(beta, normalise=False)
        bessel = mode**2 / beta * ive(mode, beta) * math.exp(beta)
        (found,) = evolved(
            attention,
            60 if short else 400,
            ExpressionDensity(f"1 + {SMALL} * ({MODES[mode]})"),
            lambda solution, mode=mode: [rate(solution, mode)],
            until=until,
        )
        name = f"rate of mode {mode} without denominator, β = {beta:g}"
        chosen = "density of mass one; gamma_k of their code is this over π"
        rows.append(Row(name, "2410.23228", published, **found, independent=bessel, chosen=chosen))
        # 4.6 e-foldings take 0.01 to the mean; after 6 there are clusters that do not merge yet.
        solution = solve(attention, circle_mesh(120 if short else 400), noisy, until=6 / bessel)
        number = float(clusters(solution))
        name = f"clusters, β = {beta:g}"
        chosen = "ten modes of size 0.01, seed 1, after 6 e-foldings"
        rows.append(Row(name, "2410.23228", str(mode), number, number, number, chosen=chosen))
        solutions.append((beta, solution))
    return rows, solutions


def draw(figure: Figure, solutions: list[tuple[float, Solution]]) -> None:
    left, right = figure.subplots(1, 2)
    for beta, solution in solutions:
        order = np.argsort(angle := np.degrees(angles(solution.cells.points)))
        left.plot(angle[order], solution.density[-1][order], label=f"β = {beta:g}")
    left.set_xlabel("angle on the circle (degrees)")
    left.set_ylabel("density (mass per radian)")
    left.legend()
    betas = np.geomspace(1, 1000, 100)
    for mode in (1, 2, 4, 8):
        right.semilogx(betas, ive(mode, betas) / ive(0, betas), label=f"k = {mode}")
    right.set_xlabel("inverse temperature β")
    right.set_ylabel("rate with denominator, times β / k²")
    right.legend()


def main(arguments: list[str] | None = None) -> list[Row]:
    return run(__file__, compute, draw, arguments)


if __name__ == "__main__":
    main()
