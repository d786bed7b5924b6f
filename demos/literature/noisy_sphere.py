# %% [markdown]
# # Noise on the sphere: continuous transitions and jumps
#
# Mun and Rosenzweig (arXiv 2606.05140) in any dimension, here d = 3: with Q = K = V = I and no
# denominator the uniform density is stable from sigma = i_1(beta) / beta on, i_l the modified
# spherical Bessel function, and the transition jumps from beta* on, where I_(5/2)(beta*) =
# I_(3/2)(beta*) / 3. Shalova and Schlichting (arXiv 2412.14813): states of degree l leave the
# uniform density at sigma = i_l(beta) / beta.
#
#     python demos/literature/noisy_sphere.py [--short]        (also under mpiexec)

# %%
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import brentq
from scipy.special import eval_legendre, iv, spherical_in

sys.path.insert(0, str(Path(__file__).parent))
from gallery import Row, branch, curvature, draw_branches, identity, problem, rayleigh, refined, run

from meanfield_pde import sphere_mesh

THRESHOLDS = ((1.5, 1), (2.5, 1), (5.0, 1), (5.0, 2), (5.0, 3))


# %%
def unnormalised(beta: float, cells: int):
    """The stationary problem on the sphere without the denominator."""
    return problem(identity(beta, 3, normalise=False), sphere_mesh(cells))


def thresholds(cells: int) -> list[float]:
    found = []
    for beta, degree in THRESHOLDS:
        stationary = unnormalised(beta, cells)
        shape = eval_legendre(degree, stationary.mean[:, 2])
        found.append(rayleigh(stationary, shape))
    return found


def jumps_from(cells: int) -> float:
    """The beta at which the ordered branch begins upright."""
    return float(brentq(lambda beta: curvature(unnormalised(beta, cells)), 1.75, 2.2, xtol=1e-6))


# %%
def compute(short: bool) -> tuple[list[Row], list[tuple[float, np.ndarray]]]:
    base, rows = (320 if short else 1280), []
    found = refined(lambda fine: thresholds(base * fine**2))
    for (beta, degree), one in zip(THRESHOLDS, found, strict=True):
        exact = float(spherical_in(degree, beta) / beta)
        name = f"strength at which degree {degree} turns unstable, β = {beta:g}"
        source = "2606.05140" if degree == 1 else "2412.14813"
        formula = f"i_{degree}(β)/β"
        rows.append(Row(name, source, f"{exact:.6f}", **one, independent=exact, chosen=formula))
    if not short:
        (one,) = refined(lambda fine: [jumps_from(320 * fine**2)])
        exact = float(brentq(lambda beta: iv(2.5, beta) / iv(1.5, beta) - 1 / 3, 1, 4))
        name = "β* from which on the transition jumps, sphere"
        rows.append(
            Row(
                name, "2606.05140", "1.816155", **one, independent=exact, chosen="orders 0.1 to 0.3"
            )
        )
    orders = np.arange(0.1, 0.6 if short else 0.96, 0.1)
    lines = []
    for beta in (1.5, 2.5):
        stationary = unnormalised(beta, base)
        strengths = branch(stationary, orders) / rayleigh(stationary)
        lines.append((beta, np.column_stack([strengths, orders])))
    return rows, lines


def draw(figure: Figure, lines: list[tuple[float, np.ndarray]]) -> None:
    draw_branches(figure, lines, "i₁(β)/β")


def main(arguments: list[str] | None = None) -> list[Row]:
    return run(__file__, compute, draw, arguments)


if __name__ == "__main__":
    main()
