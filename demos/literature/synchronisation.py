# %% [markdown]
# # Synchronisation at negative beta
#
# Criscitiello, Rebjock, McRae and Boumal (arXiv 2405.18273) show that almost all tokens on the
# circle synchronise for 0 <= beta <= 1; Polyanskiy, Rigollet and Yao (arXiv 2507.22857) show it for
# beta >= -0.16, and that it fails for beta < -2/3, where three equal clusters 120 degrees apart are
# stable. A negative beta is Q -> -Q at |beta| here, where `beta` itself is never negative.
#
#     python demos/literature/synchronisation.py [--short]        (also under mpiexec)

# %%
import math
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import brentq

sys.path.insert(0, str(Path(__file__).parent))
from gallery import Row, angles, refined, run

from meanfield_pde import Attention, Solution, Tokens, circle_mesh, simulate_tokens, solve

THIRD = 2 * np.pi / 3


# %%
def attention(beta: float) -> Attention:
    """Q = -I at |beta| if beta is negative; K = V = I."""
    one = np.eye(2)
    return Attention(query=math.copysign(1, beta) * one, key=one, value=one, beta=abs(beta))


def atoms(moved: float) -> np.ndarray:
    """Three points 120 degrees apart, one of them moved."""
    angle = THIRD * np.arange(3) + [moved, 0, 0]
    return np.column_stack([np.cos(angle), np.sin(angle)])


def rate_of_tokens(beta: float, moved: float) -> float:
    """The rate at which the mean of three tokens grows, which is 0 at 120 degrees."""
    cloud = simulate_tokens(atoms(moved), attention(beta), 0.5, tolerance=1e-12)
    begin, end = np.linalg.norm(cloud.tokens.mean(axis=1), axis=1)[[0, -1]]
    return math.log(end / begin) / 0.5


def rate_of_density(beta: float) -> float:
    """The same of a density that begins as three atoms."""
    initial = Tokens(atoms(0.02))
    mean = solve(attention(beta), circle_mesh(60), initial, until=0.5, adapt=1e-3).history[
        "mean_norm"
    ]
    return math.log(mean[-1] / mean[0]) / 0.5


def exact_rate(beta: np.ndarray) -> np.ndarray:
    """exp(-beta / 2) (1/2 + 3 beta / 4) over the mean of the weights, of three equal atoms."""
    return np.exp(-beta / 2) * (1 / 2 + 3 * beta / 4) / ((np.exp(beta) + 2 * np.exp(-beta / 2)) / 3)


def clusters(solution: Solution) -> int:
    """The number of arcs, 0.3 or more apart, where the last density is above its mean."""
    dense = solution.density_at(-1) > 1 / (2 * np.pi)
    angle = np.sort(angles(solution.cells_at(-1).points[dense]))
    apart = np.diff(angle, append=angle[0] + 2 * np.pi)
    return int((apart > 0.3).sum())


# %%
def compute(short: bool) -> tuple[list[Row], dict[str, np.ndarray]]:
    def ends(fine: int) -> list[float]:
        return [float(brentq(rate_of_tokens, -0.8, -0.5, args=(0.05 / fine,), xtol=1e-10))]

    (found,) = refined(ends)
    chosen = "β below which three clusters are stable"
    rows = [
        Row(
            "β of three clusters, tokens",
            "2507.22857",
            "-0.667",
            **found,
            independent=-2 / 3,
            chosen=chosen,
        )
    ]
    betas = np.array([-0.8, -0.6]) if short else np.linspace(-0.9, -0.4, 6)
    rates = np.array([rate_of_density(beta) for beta in betas])
    times, curves = np.linspace(0, 30 if short else 60, 11 if short else 41), {}
    for beta in (-0.9, -0.16) if short else (-0.9, -0.6, -0.16, 0.0, 1.0):
        solution = solve(
            attention(beta),
            circle_mesh(60),
            "exp(8*(4*x**3 - 3*x)) * (1 + 0.02*x + 0.02*y)",
            until=times[-1],
            save_at=times[1:-1],
            adapt=1e-2,  # cells that stay would hold clusters that are narrower
        )
        curves[f"{beta:g}"] = np.array(solution.history["mean_norm"])
        number = float(clusters(solution))
        name = f"clusters in the end from three unequal ones, β = {beta:g}"
        source = "2507.22857" if beta < 0 else "2405.18273"
        wanted = "3" if beta < -2 / 3 else "1"
        if not -2 / 3 < beta < -0.16:  # nothing is proven between
            rows.append(
                Row(
                    name,
                    source,
                    wanted,
                    number,
                    number,
                    number,
                    chosen=f"exp(8 cos(3θ)) (1 + 0.02 x + 0.02 y) up to t = {times[-1]:g}",
                )
            )
    return rows, {"betas": betas, "rates": rates, "times": times, **curves}


def draw(figure: Figure, data: dict[str, np.ndarray]) -> None:
    left, right = figure.subplots(1, 2)
    line = np.linspace(-0.95, -0.35, 100)
    left.plot(line, exact_rate(line), color="0.4", label="linearised")
    left.plot(data["betas"], data["rates"], "o", color="#D55E00", label="density")
    left.axhline(0, color="0.7", lw=1)
    left.axvline(-2 / 3, color="k", lw=1, ls=":")
    left.set_xlabel("inverse temperature β")
    left.set_ylabel("rate of growth about three clusters")
    left.legend()
    for name in [one for one in data if one not in ("betas", "rates", "times")]:
        right.plot(data["times"], data[name], label=f"β = {name}")
    right.set_xlabel("time t")
    right.set_ylabel("mean |∫ x dµ|")
    right.legend()


def main(arguments: list[str] | None = None) -> list[Row]:
    return run(__file__, compute, draw, arguments)


if __name__ == "__main__":
    main()
