# %% [markdown]
# # Repelled tokens come to a density
#
# Burger, Kabri, Korolev, Roith and Weigand (arXiv 2501.03096): for V = -K, K = diag(1, d), tokens
# repel each other and their density tends to that with constant ∫ exp(beta <x, Ky>) dmu(y). Their
# code (TimRoith/TransformerDynamics, exps/min_density.py) minimises the energy of 1,000 weights at
# beta = 1; exps/results/densities has them, here as 2 pi rho at the angles 0 and pi/2. A mode k
# decays at the rate k^2 I_k(1) at most, 1e-5 for k = 8: `stationary` finds the limit directly.
#
#     python demos/literature/repelling_density.py [--short]        (also under mpiexec)

# %%
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.special import iv

sys.path.insert(0, str(Path(__file__).parent))
from gallery import Row, angles, run

from meanfield_pde import Attention, StationaryDensity, circle_mesh, stationary

# d, and the two weights of their files.
PUBLISHED = ((1.3, ("1.621", "0.531")), (0.9, ("0.794", "1.230")))
MODES = np.arange(2, 21, 2)


# %%
def repelling(d: float) -> Attention:
    """V = -K, Q = I."""
    matrix = np.diag([1.0, d])
    return Attention(query=np.eye(2), key=matrix, value=-matrix, beta=1.0)


def at_axes(cosines: np.ndarray) -> np.ndarray:
    """2 pi rho at the angles 0 and pi/2 from ∫ cos(k theta) dmu, k = 2, 4, ..."""
    signs = (-1.0) ** np.arange(1, len(cosines) + 1)
    return np.array([1 + 2 * cosines.sum(), 1 + 2 * cosines @ signs])


def by_density(found: StationaryDensity) -> np.ndarray:
    """The same of a density on a mesh."""
    angle = angles(found.solution.cells.points)
    return at_axes(np.cos(np.outer(MODES, angle)) @ found.masses)


def exact(d: float) -> np.ndarray:
    """The same from ∫ exp(<x, Ky>) dmu(y) = constant, a linear system between Fourier modes.

    exp(a cos(x - y) + b cos(x + y)) has the coefficients I_((p + q) / 2)(a) I_((p - q) / 2)(b), and
    here a = (1 + d) / 2 and b = (1 - d) / 2.
    """
    a, b = (1 + d) / 2, (1 - d) / 2
    modes = np.append(0, MODES)
    add, take = (modes[:, None] + modes) // 2, np.abs(modes[:, None] - modes) // 2
    matrix = iv(add, a) * iv(take, b) + iv(take, a) * iv(add, b)
    matrix[:, 0] /= 2
    scale = np.sqrt(np.diag(matrix))  # rows and columns fall like 1 / p!
    found = np.linalg.solve(matrix / np.outer(scale, scale), np.eye(len(modes))[0]) / scale
    return at_axes(found[1:] / found[0])


# %%
def compute(short: bool) -> tuple[list[Row], list[tuple[float, StationaryDensity]]]:
    rows, densities = [], []
    for d, published in PUBLISHED:
        levels = [
            stationary(repelling(d), circle_mesh(cells))
            for cells in ((32, 64) if short else (32, 64, 128))
        ]
        densities.append((d, levels[-1]))
        values = np.array([by_density(one) for one in levels])
        # Meshes differ by what the last sigma of `least_energy` leaves of high modes, not by their
        # cells: the interval is that of all of them, and as wide again on either side, and 1e-5,
        # twice what it takes off where they agree (5e-6 at d = 1.3, modes up to 8).
        spread = np.ptp(values, axis=0) + 1e-5
        low, high = values.min(axis=0) - spread, values.max(axis=0) + spread
        independent = exact(d)
        for number, angle in enumerate(("0", "π/2")):
            text = published[number]
            rows.append(
                Row(
                    f"2 pi rho at the angle {angle}, V = -K, d = {d:g}",
                    "2501.03096",
                    text,
                    float(values[-1, number]),
                    float(low[number]),
                    float(high[number]),
                    float(independent[number]),
                    "weights of their files, times 1,000",
                    "their minimisation had not ended" if text == "1.621" else "",
                )
            )
    return rows, densities


def draw(figure: Figure, densities: list[tuple[float, StationaryDensity]]) -> None:
    axes = figure.subplots()
    for (d, found), (_, published) in zip(densities, PUBLISHED, strict=True):
        order = np.argsort(angle := np.degrees(angles(found.solution.cells.points)))
        (line,) = axes.plot(angle[order], 2 * np.pi * found.density[order], label=f"d = {d:g}")
        axes.plot([0, 90], [float(one) for one in published], "o", color=line.get_color())
    axes.set_xlabel("angle on the circle (degrees); points: published")
    axes.set_ylabel("2 pi rho")
    axes.set_xlim(-180, 180)
    axes.legend()


def main(arguments: list[str] | None = None) -> list[Row]:
    return run(__file__, compute, draw, arguments)


if __name__ == "__main__":
    main()
