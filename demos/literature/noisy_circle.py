# %% [markdown]
# # Noise on the circle: continuous transitions and jumps
#
# Mun and Rosenzweig (arXiv 2604.16288): with noise of strength sigma, Q = K = V = I and no
# denominator, the uniform density is stable from sigma = I_1(beta) / beta on. The transition is
# continuous up to beta*, I_2(beta*) / I_1(beta*) = 1/2, and jumps beyond, where the free energies
# of the uniform and of the ordered density are equal. Balasubramanian, Banerjee and Rigollet (arXiv
# 2510.20094): states of period k leave the uniform density at sigma = I_k(beta) / beta.
#
#     python demos/literature/noisy_circle.py [--short]        (also under mpiexec)

# %%
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import brentq, root
from scipy.special import iv

sys.path.insert(0, str(Path(__file__).parent))
from gallery import (
    Row,
    angles,
    branch,
    curvature,
    draw_branches,
    identity,
    problem,
    rayleigh,
    refined,
    run,
)

from meanfield_pde import circle_mesh, transition
from meanfield_pde.case.case import Case, MeshCase
from meanfield_pde.solver.settings import TimeCase

BETA = 5.0
USA = {"normalise": False}


# %%
def free_energy(kernel: np.ndarray, masses: np.ndarray, volume: np.ndarray, s: float) -> float:
    """Return sigma ∫ rho log rho - (1 / 2 beta) ∬ exp(beta <x, y>) dmu dmu."""
    energy = masses @ kernel @ masses / (2 * BETA)
    return float(s * masses @ np.log(masses / volume) - energy)


def crossing(cells: int) -> float:
    """The strength at which the free energies are equal, on a mesh."""
    stationary = problem(identity(BETA, **USA), circle_mesh(cells))
    angle = angles(stationary.mean)
    kernel = np.exp(BETA * np.cos(angle[:, None] - angle))
    found = [stationary.at_order(stationary.uniform * np.exp(3 * np.cos(angle)), 5.3, 0.745)]

    def gain(order: float) -> float:
        state = stationary.at_order(found[-1].masses, found[-1].strength, order)
        found.append(state)
        both = (state.masses, stationary.uniform)
        energies = [free_energy(kernel, one, stationary.volume, state.strength) for one in both]
        return energies[0] - energies[1]

    brentq(gain, 0.72, 0.77, xtol=1e-9)
    return float(found[-1].strength)


def crossing_by_command(cells: int) -> float:
    """The same by `meanfield-pde transition`."""
    mesh = MeshCase("circle", cells)
    case = Case(attention=identity(BETA, **USA), mesh=mesh, time=TimeCase(1.0))
    folder = Path(f"results/literature/transition-{cells}")
    return float(transition(case, (4.8, 5.2), directory=folder)["crossing"])


def exact_crossing(modes: int = 24, points: int = 256) -> float:
    """The same from Fourier coefficients: log rho = (1 / (sigma beta)) K rho + constant."""
    angle = 2 * np.pi * np.arange(points) / points
    numbers = np.arange(1, modes + 1)
    cosines = np.cos(np.outer(numbers, angle))
    bessel = iv(numbers, BETA)

    def density(moments: np.ndarray, strength: float) -> np.ndarray:
        shares = np.exp(2 * (bessel * moments) @ cosines / (strength * BETA))
        return shares / shares.sum()

    def gain(strength: float) -> float:
        start = (iv(numbers, 4.0) / iv(0, 4.0)).astype(float)
        found = root(lambda m: cosines @ density(m, strength) - m, start, tol=1e-13)
        masses = density(found.x, strength)
        entropy = masses @ np.log(masses * points)
        return float(strength * entropy - (bessel @ found.x**2) / BETA)

    return float(brentq(gain, 5.2, 5.4, xtol=1e-12))


# %%
def compute(short: bool) -> tuple[list[Row], list[tuple[float, np.ndarray]]]:
    base = 100 if short else 800

    def thresholds(fine: int) -> list[float]:
        mesh = circle_mesh(base * fine)
        found = []
        for beta, mode in ((2.2, 1), (2.7, 1), (5.0, 1), (5.0, 2), (5.0, 3)):
            stationary = problem(identity(beta, **USA), mesh)
            shape = np.cos(mode * angles(stationary.mean))
            found.append(rayleigh(stationary, shape))
        return found

    def tricritical(fine: int) -> list[float]:
        mesh = circle_mesh(base // 2 * fine)

        def bend(beta: float) -> float:
            return curvature(problem(identity(beta, **USA), mesh))

        return [float(brentq(bend, 2.4, 2.5, xtol=1e-5 if short else 1e-7))]

    rows = []
    names = ((2.2, 1), (2.7, 1), (5.0, 1), (5.0, 2), (5.0, 3))
    for (beta, mode), found in zip(names, refined(thresholds), strict=True):
        exact = float(iv(mode, beta) / beta)
        source = "2604.16288" if mode == 1 else "2510.20094"
        name = f"strength at which mode {mode} turns unstable, β = {beta:g}"
        formula = f"I_{mode}(β)/β"
        rows.append(Row(name, source, f"{exact:.6f}", **found, independent=exact, chosen=formula))
    (found,) = refined(tricritical)
    exact = float(brentq(lambda b: iv(2, b) / iv(1, b) - 0.5, 1, 4))
    name = "β* from which on the transition jumps"
    rows.append(
        Row(name, "2604.16288", "2.446918", **found, independent=exact, chosen="orders 0.1 to 0.3")
    )
    (found,) = refined(lambda fine: [crossing(base * fine // 2)])
    name = "strength at which free energies cross, β = 5"
    rows.append(
        Row(
            name,
            "2604.16288",
            "5.319833",
            **found,
            independent=exact_crossing(),
            chosen="coupling 1 / strength",
        )
    )
    if not short:
        (found,) = refined(lambda fine: [crossing_by_command(100 * fine)])
        chosen = "`meanfield-pde transition`"
        rows.append(replace(rows[-1], result=f"{name}, by command", chosen=chosen, **found))
    orders = np.arange(0.05, 0.96, 0.45 if short else 0.05)
    lines = []
    for beta in (2.2, 2.7):
        stationary = problem(identity(beta, **USA), circle_mesh(base))
        strengths = branch(stationary, orders)
        lines.append((beta, np.column_stack([strengths / rayleigh(stationary), orders])))
    return rows, lines


def draw(figure: Figure, lines: list[tuple[float, np.ndarray]]) -> None:
    draw_branches(figure, lines, "I₁(β)/β")


def main(arguments: list[str] | None = None) -> list[Row]:
    return run(__file__, compute, draw, arguments)


if __name__ == "__main__":
    main()
