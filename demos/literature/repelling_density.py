# %% [markdown]
# # Repelled tokens come to a density
#
# Burger, Kabri, Korolev, Roith and Weigand (arXiv 2501.03096): for V = -K, K = diag(1, d), tokens
# repel each other and their density tends to that with constant ∫ exp(beta <x, Ky>) dmu(y). Their
# code (TimRoith/TransformerDynamics, exps/min_density.py) minimises the energy of 1,000 weights at
# beta = 1; exps/results/densities has them, here as 2 pi rho at the angles 0 and pi/2. Mode 6 lives
# for 1,600 units of time, mode 8 for 10^5: the density is evolved from near where it ends.
#
#     python demos/literature/repelling_density.py [--short]        (also under mpiexec)

# %%
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parent))
from gallery import Row, angles, evolved, run

from meanfield_pde import Attention, ExpressionDensity, Solution

# d, the exponent of exp(f cos 2 theta) to begin with, and the two weights of their files.
PUBLISHED = ((1.3, 0.56, ("1.621", "0.531")), (0.9, -0.22, ("0.794", "1.230")))
PLACES = np.eye(2)


# %%
def repelling(d: float) -> Attention:
    """V = -K, Q = I."""
    matrix = np.diag([1.0, d])
    return Attention(query=np.eye(2), key=matrix, value=-matrix, beta=1.0)


def exact(d: float, modes: int = 6, points: int = 24) -> np.ndarray:
    """2 pi rho at the angles 0 and pi/2, from ∫ exp(<x, Ky>) rho dy = constant in Fourier modes."""
    angle = 2 * np.pi * np.arange(points) / points
    sin, cos = np.sin(angle), np.cos(angle)
    kernel = np.exp(np.outer(cos, cos) + d * np.outer(sin, sin))
    basis = np.cos(2 * np.outer(angle, np.arange(modes)))
    found = np.linalg.solve(basis.T @ kernel @ basis, np.eye(modes)[0])
    found /= found[0]
    return np.array([found.sum(), found @ (-1.0) ** np.arange(modes)])


def values(solution: Solution, index: int = -1) -> np.ndarray:
    return 2 * np.pi * solution.at(PLACES, index)


# %%
def compute(short: bool) -> tuple[list[Row], list[tuple[float, Solution]]]:
    rows, solutions = [], []
    cells, until = (16, 100.0) if short else (64, 4000.0)
    for d, exponent, published in PUBLISHED[1:] if short else PUBLISHED:
        levels: list[Solution] = []

        def observe(solution: Solution, levels: list[Solution] = levels) -> np.ndarray:
            levels.append(solution)
            return values(solution)

        initial = ExpressionDensity(f"exp({exponent} * (x**2 - y**2))")
        found = evolved(repelling(d), cells, initial, observe, until=until, save_at=[until / 8])
        # What decays more slowly than the run lasts: the change since an eighth of it.
        left = np.abs(values(levels[-1]) - values(levels[-1], 1))
        solutions.append((d, levels[-1]))
        for number, name in enumerate(("0", "π/2")):
            one = found[number]
            one["low"], one["high"] = one["low"] - left[number], one["high"] + left[number]
            rows.append(
                Row(
                    f"2 pi rho at the angle {name}, V = -K, d = {d:g}",
                    "2501.03096",
                    published[number],
                    **one,
                    independent=float(exact(d)[number]),
                    chosen="weights of their files, times 1,000",
                )
            )
    if not short:
        rows[0] = replace(rows[0], wrong="their minimisation had not ended")
    return rows, solutions


def draw(figure: Figure, solutions: list[tuple[float, Solution]]) -> None:
    axes = figure.subplots()
    for d, solution in solutions:
        published = next(digits for other, _, digits in PUBLISHED if other == d)
        order = np.argsort(angle := np.degrees(angles(solution.cells.points)))
        (line,) = axes.plot(
            angle[order], 2 * np.pi * solution.density[-1][order], label=f"d = {d:g}"
        )
        axes.plot([0, 90], [float(one) for one in published], "o", color=line.get_color())
    axes.set_xlabel("angle on the circle (degrees); points: published")
    axes.set_ylabel("2 pi rho")
    axes.set_xlim(-180, 180)
    axes.legend()


def main(arguments: list[str] | None = None) -> list[Row]:
    return run(__file__, compute, draw, arguments)


if __name__ == "__main__":
    main()
