# %% [markdown]
# # Clusters about the uniform density
#
# Clusters about the uniform density at Q = K = V = I: how many grow, and how fast.
#
#     python demos/clusters.py [--short]        (also under mpiexec)
#
# The uniform density on the circle is an equilibrium, and a small perturbation cos(k theta) of it
# grows at the rate k^2 I_k(beta) / (beta I_0(beta)), I_k the modified Bessel function. It is
# largest near k = sqrt(2 beta), and about that many clusters come out of small noise, before they
# begin to merge. The figure is in results/demos/.

# %%
import argparse
import math
from pathlib import Path

from mpi4py import MPI

import numpy as np
from matplotlib.figure import Figure
from scipy.special import ive

from meanfield_pde import Attention, Solution, circle_mesh, solve
from meanfield_pde.figures.density import save

NOISE = 1e-3
MODES = np.arange(1, 41)


# %%
def growth_rate(mode: np.ndarray, beta: float) -> np.ndarray:
    """The rate k^2 I_k(beta) / (beta I_0(beta))."""
    return mode**2 * ive(mode, beta) / (beta * ive(0, beta))


# %%
def noise(points: np.ndarray) -> np.ndarray:
    """One plus all modes, with the same size and random phases."""
    phases = np.random.default_rng(1).uniform(0, 2 * math.pi, len(MODES))
    angle = np.arctan2(points[:, 1], points[:, 0])
    return 1 + NOISE * np.cos(np.outer(angle, MODES) + phases).sum(axis=1)


# %%
def amplitudes(solution: Solution) -> np.ndarray:
    """|∫ exp(i k theta) dmu| for each saved time and mode."""
    angle = np.arctan2(solution.cells.points[:, 1], solution.cells.points[:, 0])
    return np.abs(solution.masses @ np.exp(1j * np.outer(angle, MODES)))


# %%
def clusters(solution: Solution) -> tuple[int, int]:
    """The number of maxima once the highest is four times the mean, and the saved time."""
    mean = 1 / (2 * math.pi)
    grown = np.flatnonzero(solution.density.max(axis=1) > 4 * mean)
    index = int(grown[0]) if len(grown) else len(solution.times) - 1
    order = np.argsort(np.arctan2(solution.cells.points[:, 1], solution.cells.points[:, 0]))
    density = solution.density[index][order]
    peak = (density > np.roll(density, 1)) & (density >= np.roll(density, -1)) & (density > mean)
    return int(peak.sum()), index


# %%
def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Clusters about the uniform density")
    parser.add_argument("--short", action="store_true", help="a coarse mesh, and two beta")
    short = parser.parse_known_args(arguments)[0].short

    mesh = circle_mesh(240 if short else 800)
    numbers: dict[str, float] = {}
    counts, solutions = [], []
    betas = (8.0, 50.0) if short else (8.0, 18.0, 32.0, 50.0, 72.0, 98.0)
    for beta in betas:
        attention = Attention(query=np.eye(2), key=np.eye(2), value=np.eye(2), beta=beta)
        solution = solve(attention, mesh, noise, until=14.0, save_every=0.5)
        fastest = int(MODES[growth_rate(MODES, beta).argmax()])
        # The growth of the fastest mode from t = 1 to 3, while everything is still small.
        grown = amplitudes(solution)[:, fastest - 1]
        rate = math.log(grown[6] / grown[2]) / (solution.times[6] - solution.times[2])
        count, index = clusters(solution)
        counts.append(count)
        solutions.append((solution, index))
        numbers[f"beta {beta:g}: clusters"] = count
        numbers[f"beta {beta:g}: fastest mode"] = fastest
        numbers[f"beta {beta:g}: rate over Bessel"] = rate / float(growth_rate(fastest, beta))
    if MPI.COMM_WORLD.rank == 0:
        for name, number in numbers.items():
            print(f"{name:32} {number:.4f}")
        draw(betas, counts, *solutions[-1])
    return numbers


# %%
def draw(betas: tuple[float, ...], counts: list[int], solution: Solution, index: int) -> None:
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    angle = np.degrees(np.arctan2(solution.cells.points[:, 1], solution.cells.points[:, 0]))
    order = np.argsort(angle)
    left.plot(angle[order], solution.density[index][order], color="#0072B2")
    left.set_xlabel("angle on the circle (degrees)")
    left.set_ylabel("density (mass per radian)")
    left.set_title(f"β = {betas[-1]:g}, t = {solution.times[index]:g}", fontsize="medium")
    line = np.linspace(min(betas), max(betas), 200)
    fastest = [MODES[growth_rate(MODES, beta).argmax()] for beta in line]
    right.plot(line, fastest, color="0.4", lw=1, label="mode of largest rate (Bessel)")
    right.plot(line, np.sqrt(2 * line), "--", color="k", lw=1, label="√(2β)")
    right.plot(betas, counts, "o", color="#D55E00", label="clusters counted")
    right.set_xlabel("inverse temperature β")
    right.set_ylabel("number of clusters")
    right.set_ylim(bottom=0)
    right.legend()
    Path("results/demos").mkdir(parents=True, exist_ok=True)
    save(figure, Path("results/demos/clusters.png"))


# %%
if __name__ == "__main__":
    main()
