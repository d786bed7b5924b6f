# %% [markdown]
# # Kuramoto's oscillators
#
# At beta = 0 and V = I the density is that of identical oscillators of coupling K = 1. Ott and
# Antonsen (arXiv 0806.0004): a Poisson kernel stays one, r' = r (1 - r^2) / 2. With noise of
# strength D the uniform density loses its stability at K = 2 D (Strogatz and Mirollo, J. Stat.
# Phys. 63, 1991), and the order is r = I_1(r / D) / I_0(r / D) below (Sakaguchi, Prog. Theor. Phys.
# 79, 1988). On the sphere the threshold is D = 1/3.
#
#     python demos/literature/kuramoto.py [--short]        (also under mpiexec)

# %%
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import brentq
from scipy.special import ive

sys.path.insert(0, str(Path(__file__).parent))
from gallery import Row, evolved, identity, problem, rayleigh, refined, run

from meanfield_pde import ExpressionDensity, circle_mesh

START, STRENGTH = 0.2, 0.25


# %%
def order_without_noise(time: np.ndarray) -> np.ndarray:
    """Return r with r' = r (1 - r^2) / 2."""
    square = START**2 * np.exp(time)
    return np.sqrt(square / (1 - START**2 + square))


def order_with_noise(strength: float) -> float:
    """The largest solution of r = I_1(r / D) / I_0(r / D)."""
    return float(brentq(lambda r: ive(1, r / strength) / ive(0, r / strength) - r, 1e-6, 1))


# %%
def compute(short: bool) -> tuple[list[Row], dict[str, np.ndarray]]:
    cells, times = (40, [2.0]) if short else (400, [1.0, 2.0, 4.0, 6.0])
    found = evolved(
        identity(0),
        cells,
        ExpressionDensity(f"1 / (1 - 2*{START}*x + {START**2})"),
        lambda solution: solution.history["mean_norm"][1:],
        until=times[-1],
        save_at=times[:-1],
    )
    rows = []
    for time, one in zip(times, found, strict=True):
        exact = float(order_without_noise(np.array(time)))
        name = f"order of identical oscillators, t = {time:g}"
        chosen = f"Poisson kernel with r = {START} at the start"
        rows.append(Row(name, "0806.0004", f"{exact:.5f}", **one, independent=exact, chosen=chosen))

    def with_noise(fine: int) -> list[float]:
        stationary = problem(identity(0), circle_mesh(cells * fine))
        masses = stationary.uniform * np.exp(stationary.mean[:, 0] / STRENGTH)
        return [rayleigh(stationary), stationary.newton(masses, STRENGTH).order]

    threshold, order = refined(with_noise)
    journal = "J. Stat. Phys. 63, 613"
    rows.append(
        Row(
            "threshold of noise, β = 0",
            journal,
            "0.500",
            **threshold,
            independent=0.5,
            chosen="K = 1",
        )
    )
    exact = order_with_noise(STRENGTH)
    journal = "Prog. Theor. Phys. 79, 39"
    rows.append(
        Row(
            "order with noise of strength 0.25",
            journal,
            f"{exact:.5f}",
            **order,
            independent=exact,
            chosen="K = 1",
        )
    )
    return rows, {"times": np.array(times), "orders": np.array([one["value"] for one in found])}


def draw(figure: Figure, data: dict[str, np.ndarray]) -> None:
    axes = figure.subplots()
    line = np.linspace(0, data["times"][-1], 100)
    axes.plot(line, order_without_noise(line), color="0.4", label="r' = r (1 - r²) / 2")
    axes.plot(data["times"], data["orders"], "o", color="#D55E00", label="density")
    axes.set_xlabel("time t")
    axes.set_ylabel("order r")
    axes.legend()


def main(arguments: list[str] | None = None) -> list[Row]:
    return run(__file__, compute, draw, arguments)


if __name__ == "__main__":
    main()
