# %% [markdown]
# # Three orthogonal tokens
#
# Geshkovski, Letrouit, Polyanskiy and Rigollet (arXiv 2312.10794): n tokens that are orthogonal at
# the start stay at equal angles, whose cosine g obeys
#
#     g' = 2 exp(beta g) (1 - g) ((n - 1) g + 1) / (exp(beta) + (n - 1) exp(beta g)),      g(0) = 0,
#
# which gives the time in which they cluster against beta. A density on the sphere carries the three
# as atoms.
#
#     python demos/literature/orthogonal_tokens.py [--short]        (also under mpiexec)

# %%
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.integrate import solve_ivp

sys.path.insert(0, str(Path(__file__).parent))
from gallery import Row, identity, refined, run

from meanfield_pde import Tokens, simulate_tokens, solve, sphere_mesh

TIMES = np.linspace(0, 10, 21)  # of the figure


# %%
def cosine(beta: float, times: np.ndarray) -> np.ndarray:
    """The cosine g by its equation."""

    def slope(t: float, g: np.ndarray) -> np.ndarray:
        weight = np.exp(beta * (g - 1))
        return 2 * weight * (1 - g) * (2 * g + 1) / (1 + 2 * weight)

    found = solve_ivp(
        slope, (0, times[-1]), [0.0], t_eval=times, method="DOP853", rtol=1e-12, atol=1e-14
    )
    return found.y[0]


def of_mean(mean: np.ndarray) -> np.ndarray:
    """The cosine g of three tokens with a mean of this length: |mean|^2 = (1 + 2 g) / 3."""
    return (3 * mean**2 - 1) / 2


def by_density(beta: float, fine: int, until: float) -> float:
    """The cosine g of a density that begins as three atoms."""
    solution = solve(
        identity(beta, 3),
        sphere_mesh(80),
        Tokens(np.eye(3)),
        until=until,
        adapt=0.1 / fine**2,
        step_tolerance=1e-3 / fine**2,
    )
    return float(of_mean(solution.history["mean_norm"][-1]))


# %%
def compute(short: bool) -> tuple[list[Row], dict[float, np.ndarray]]:
    rows = []
    for beta, until in ((1.0, 0.25),) if short else ((1.0, 1.0), (4.0, 10.0)):
        (found,) = refined(lambda fine, b=beta, t=until: [by_density(b, fine, t)])
        exact = float(cosine(beta, np.array([until]))[0])
        name = f"cosine of three orthogonal tokens, β = {beta:g}, t = {until:g}"
        text = f"{exact:.4f}"
        rows.append(Row(name, "2312.10794", text, **found, independent=exact, chosen="n = d = 3"))
    tokens = {}
    for beta in (0.0, 1.0, 2.0, 4.0):
        cloud = simulate_tokens(np.eye(3), identity(beta, 3), 10.0, save_at=TIMES[1:-1])
        tokens[beta] = of_mean(np.linalg.norm(cloud.tokens.mean(axis=1), axis=1))
    return rows, tokens


def draw(figure: Figure, tokens: dict[float, np.ndarray]) -> None:
    axes = figure.subplots()
    line = np.linspace(0, TIMES[-1], 200)
    for beta, found in tokens.items():
        (drawn,) = axes.plot(line, cosine(beta, line), label=f"β = {beta:g}")
        axes.plot(TIMES, found, "o", ms=3, color=drawn.get_color())
    axes.set_xlabel("time t; lines: published equation, points: tokens")
    axes.set_ylabel("cosine of the angle between tokens")
    axes.legend()


def main(arguments: list[str] | None = None) -> list[Row]:
    return run(__file__, compute, draw, arguments)


if __name__ == "__main__":
    main()
