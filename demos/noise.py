# %% [markdown]
# # Noise against attraction
#
# Noise against attraction: how ordered tokens stay on the circle.
#
#     python demos/noise.py [--short]        (also under mpiexec)
#
# At beta = 0 and V = I all tokens attend to their mean, and with noise of strength sigma the
# density is that of Kuramoto's oscillators: it tends to exp(r cos(theta) / sigma), whose order r =
# |∫ x dmu| solves r = I_1(r / sigma) / I_0(r / sigma) below sigma = 1/2, and is zero above. The
# figure is in results/demos/.

# %%
import argparse
from pathlib import Path

from mpi4py import MPI

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import brentq
from scipy.special import ive

from meanfield_pde import Attention, Solution, circle_mesh, solve
from meanfield_pde.figures.density import save


def order(strength: float) -> float:
    """The largest solution of r = I_1(r / sigma) / I_0(r / sigma)."""
    if strength >= 0.5:
        return 0.0
    return float(brentq(lambda r: ive(1, r / strength) / ive(0, r / strength) - r, 1e-6, 1.0))


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Noise against attraction.")
    parser.add_argument("--short", action="store_true", help="a coarse mesh, and two strengths")
    short = parser.parse_args(arguments).short

    mesh = circle_mesh(160 if short else 320)
    attention = Attention(query=np.eye(2), key=np.eye(2), value=np.eye(2), beta=0)
    strengths = (0.15, 0.2) if short else (0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.6)
    numbers: dict[str, float] = {}
    solutions = []
    for strength in strengths:
        until = 20.0 if short else 40.0
        solution = solve(attention, mesh, "exp(x)", until=until, save_every=1.0, noise=strength)
        solutions.append(solution)
        numbers[f"sigma {strength:g}: order"] = solution.history["mean_x"][-1]
        numbers[f"sigma {strength:g}: predicted"] = order(strength)
    numbers["largest deviation"] = max(
        abs(solution.history["mean_x"][-1] - order(strength))
        for strength, solution in zip(strengths, solutions, strict=True)
    )
    if MPI.COMM_WORLD.rank == 0:
        for name, number in numbers.items():
            print(f"{name:28} {number:.5f}")
        draw(strengths, solutions)
    return numbers


def draw(strengths: tuple[float, ...], solutions: list[Solution]) -> None:
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for strength, solution in list(zip(strengths, solutions, strict=True))[:: len(strengths) // 2]:
        left.plot(solution.times, solution.history["mean_x"], label=f"strength {strength:g}")
    left.set_xlabel("time t")
    left.set_ylabel("order r")
    left.set_ylim(0, 1)
    left.legend()
    line = np.linspace(0.02, 0.6, 200)
    right.plot(line, [order(strength) for strength in line], "-", color="0.4", label="exact")
    found = [solution.history["mean_x"][-1] for solution in solutions]
    right.plot(strengths, found, "o", color="#D55E00", label="solved")
    right.set_xlabel("strength of the noise")
    right.set_ylabel("order r in the end")
    right.set_ylim(bottom=-0.02)
    right.legend()
    Path("results/demos").mkdir(parents=True, exist_ok=True)
    save(figure, Path("results/demos/noise.png"))


if __name__ == "__main__":
    main()
