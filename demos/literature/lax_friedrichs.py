# %% [markdown]
# # A scheme of Lax and Friedrichs beside this one
#
# Bruno, Pasqualotto and Agazzi (arXiv 2410.23228) solve the equation without the denominator by
#
#     u_j <- (u_(j-1) + u_(j+1)) / 2 - dt / (2 dx) (f_(j+1) - f_(j-1)),      f = u (W' * u),
#
# with 10,000 points and dt = 0.02 dx (gbruno16/transformers-metastability). Its diffusion, dx^2 /
# (2 dt) = 25 dx, takes k^2 as much off the rate of mode k. Here: the rate of mode 3 at beta = 5.
#
#     python demos/literature/lax_friedrichs.py [--short]        (also under mpiexec)

# %%
import math
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.special import iv

sys.path.insert(0, str(Path(__file__).parent))
from gallery import Row, angles, identity, run

from meanfield_pde import circle_mesh, solve

BETA, MODE, SMALL, UNTIL = 5.0, 3, 1e-4, 0.1
STEP = 0.02  # dt / dx
EXACT = float(MODE**2 * iv(MODE, BETA) / BETA)


# %%
def lax_friedrichs(points: int) -> float:
    """The rate of the mode by their scheme, with sums by Fourier transforms."""
    angle = 2 * np.pi * np.arange(points) / points
    dx = 2 * np.pi / points
    push = np.fft.rfft(-np.exp(BETA * np.cos(angle)) * np.sin(angle)) * dx
    density = (1 + SMALL * np.cos(MODE * angle)) / (2 * np.pi)
    steps = round(UNTIL / (STEP * dx))
    for _ in range(steps):
        flux = density * np.fft.irfft(push * np.fft.rfft(density), points)
        density = (np.roll(density, 1) + np.roll(density, -1)) / 2 - STEP / 2 * (
            np.roll(flux, -1) - np.roll(flux, 1)
        )
    grown = 2 * density @ np.cos(MODE * angle) * dx
    return math.log(grown / SMALL) / (steps * STEP * dx)


def amplified(points: int) -> float:
    """The rate of the mode by that scheme, linearised: the logarithm of what a step makes of it."""
    dx = 2 * np.pi / points
    grown = math.cos(MODE * dx) + STEP * dx * EXACT * math.sin(MODE * dx) / (MODE * dx)
    return math.log(grown) / (STEP * dx)


def finite_volumes(cells: int) -> float:
    """The same by this package."""
    attention, initial = identity(BETA, normalise=False), f"1 + {SMALL} * (4*x**3 - 3*x)"
    solution = solve(attention, circle_mesh(cells), initial, until=UNTIL)
    grown = solution.masses @ np.cos(MODE * angles(solution.cells.points))
    return math.log(grown[-1] / grown[0]) / UNTIL


# %%
def compute(short: bool) -> tuple[list[Row], list[tuple[str, list[int], list[float]]]]:
    theirs = [500, 1000] if short else [1000, 2000, 5000, 10000]
    ours = [20, 40] if short else [10, 20, 40, 80, 160, 320]
    lines = [
        ("Lax and Friedrichs, dt = 0.02 dx", theirs, [lax_friedrichs(one) for one in theirs]),
        ("this package, steps as by default", ours, [finite_volumes(one) for one in ours]),
    ]
    points, rate = theirs[-1], lines[0][2][-1]
    left = 1e-4  # of second order in the perturbation, which grows to 7e-4: 5e-7 of the rate
    rows = [
        Row(
            f"rate of mode 3 by their scheme, {points:,} points",
            "2410.23228",
            "none",
            rate,
            rate - left,
            rate + left,
            independent=amplified(points),
            chosen="its numerical diffusion, 25 dx",
        )
    ]
    for cells, rate in list(zip(ours, lines[1][2], strict=True))[1:3]:
        half = abs(rate - EXACT)
        name = f"rate of mode 3 by this package, {cells} cells"
        chosen = "k² I_k(β)/β; ± is the error"
        rows.append(Row(name, "2410.23228", "none", rate, rate - half, rate + half, EXACT, chosen))
    return rows, [
        (name, sizes, [abs(one - EXACT) for one in rates]) for name, sizes, rates in lines
    ]


def draw(figure: Figure, lines: list[tuple[str, list[int], list[float]]]) -> None:
    axes = figure.subplots()
    for name, sizes, errors in lines:
        axes.loglog(sizes, errors, "o-", label=name)
    axes.set_xlabel("points or cells of the circle")
    axes.set_ylabel("error of the rate of mode 3")
    axes.legend()


def main(arguments: list[str] | None = None) -> list[Row]:
    return run(__file__, compute, draw, arguments)


if __name__ == "__main__":
    main()
