# %% [markdown]
# # One cluster or two
#
# Burger, Kabri, Korolev, Roith and Weigand (arXiv 2501.03096): for V = K = diag(d, 1), Q = I,
# without the denominator, tokens come to one cluster or to two opposite ones, at the eigenvector of
# the larger eigenvalue. Of 100 runs of their code at beta = 1 (TimRoith/TransformerDynamics,
# exps/results/split_eval/CC.txt) none ends in two for d from 0.7895 to 1.1842, half of them do at
# 0.7105 and at 1.2632. Two equal clusters are stable for d < tanh(1) and for d tanh(d) > 1.
#
#     python demos/literature/one_or_two_clusters.py [--short]        (also under mpiexec)

# %%
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import brentq

sys.path.insert(0, str(Path(__file__).parent))
from gallery import Row, refined, run

from meanfield_pde import Attention, circle_mesh, simulate_tokens, solve


# %%
def attention(d: float) -> Attention:
    """V = K = diag(d, 1), without the denominator."""
    matrix = np.diag([d, 1.0])
    return Attention(query=np.eye(2), key=matrix, value=matrix, beta=1.0, normalise=False)


def rate(d: float, moved: float, axis: int) -> float:
    """The rate at which two tokens that are opposite on an axis but for a shift move together."""
    tokens = np.full((2, 2), math.sin(moved))
    tokens[:, axis] = math.cos(moved) * np.array([1, -1])
    cloud = simulate_tokens(tokens, attention(d), 0.2, tolerance=1e-12)
    begin, end = np.abs(cloud.tokens[[0, -1], 0, 1 - axis])
    return math.log(end / begin) / 0.2


def in_one(d: float, lean: float, until: float) -> float:
    """|∫ x dmu| of a density in the end that begins as 1 + lean <x, e>: one for one cluster.

    The mesh is adaptive: on one that stays clusters narrower than a cell are held by it, and two of
    them stay apart beyond tanh(1), at d = 0.8 with 80 cells.
    """
    along, across = ("y", "x") if d < 1 else ("x", "y")
    initial = f"1 + {lean}*{along} + 0.05*{across}"
    solution = solve(attention(d), circle_mesh(40), initial, until=until, adapt=1e-2)
    return float(solution.history["mean_norm"][-1])


# %%
def compute(short: bool) -> tuple[list[Row], tuple[Any, ...]]:
    rows = []
    brackets = (
        ("below 1", 1, (0.6, 0.9), "0.7105 to 0.7895", math.tanh(1)),
        (
            "above 1",
            0,
            (1.1, 1.4),
            "1.1842 to 1.2632",
            brentq(lambda d: d * math.tanh(d) - 1, 1, 2),
        ),
    )
    for name, axis, ends, published, exact in brackets:

        def stable_from(
            fine: int, axis: int = axis, ends: tuple[float, float] = ends
        ) -> list[float]:
            return [float(brentq(rate, *ends, args=(0.04 / fine, axis), xtol=1e-11))]

        (found,) = refined(stable_from)
        rows.append(
            Row(
                f"d {name} from which two equal clusters are stable, tokens",
                "2501.03096",
                published,
                **found,
                independent=float(exact),
                chosen="between values of d of their file",
            )
        )
    values = np.array([0.65, 0.85]) if short else np.arange(0.45, 1.5, 0.1)
    leans, until = ([0.0, 0.4], 16.0) if short else (np.arange(0, 0.6, 0.1), 40.0)
    ends = np.array([[in_one(d, lean, until) for d in values] for lean in leans])
    for number, d in enumerate(values):
        count = 1.0 if ends[0, number] > 0.99 else 2.0
        wanted = "1" if math.tanh(1) < d and d * math.tanh(d) < 1 else "2"
        if short or abs(d - 0.8) < 0.1:
            name = f"clusters of a density that leans to neither, d = {d:.2f}"
            chosen = f"t = {until:g}"
            rows.append(Row(name, "2501.03096", wanted, count, count, count, chosen=chosen))
    return rows, (values, leans, ends)


def draw(figure: Figure, data: tuple[Any, ...]) -> None:
    axes = figure.subplots()
    drawn = axes.pcolormesh(*data, cmap="cividis", vmin=0, vmax=1, shading="nearest")
    figure.colorbar(drawn, label="mean |∫ x dµ| in the end")
    for d in (math.tanh(1), brentq(lambda d: d * math.tanh(d) - 1, 1, 2)):
        axes.axvline(d, color="white", ls=":")
    axes.set_xlabel("eigenvalue d; dotted: two equal clusters are stable outside")
    axes.set_ylabel("lean of the initial density")


def main(arguments: list[str] | None = None) -> list[Row]:
    return run(__file__, compute, draw, arguments)


if __name__ == "__main__":
    main()
