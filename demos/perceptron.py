# %% [markdown]
# # A perceptron beside attention
#
# A perceptron beside attention: it moves the clusters that attention makes.
#
#     python demos/perceptron.py [--short]        (also under mpiexec)
#
# At Q = K = V = I and a high temperature attention gathers all tokens in one cluster, anywhere. A
# perceptron g beside it acts on each token by itself, and carries the cluster to a zero of its
# tangential part where that attracts: a cluster at x stays one and follows x' = P_x g(x), which is
# compared with the mean of the density. The figure is in results/demos/.

# %%
import argparse
from pathlib import Path

from mpi4py import MPI

import numpy as np
from matplotlib.figure import Figure
from scipy.integrate import solve_ivp

from meanfield_pde import (
    Attention,
    Component,
    Heads,
    Perceptron,
    Solution,
    VonMises,
    circle_mesh,
    solve,
)
from meanfield_pde.figures.density import save

START = 2.5  # angle of the cluster, in radians


def direction(solution: Solution) -> np.ndarray:
    """Angle of the mean of the density at the saved times."""
    history = solution.history
    return np.unwrap(np.arctan2(history["mean_y"], history["mean_x"]))


def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="A perceptron beside attention.")
    parser.add_argument("--short", action="store_true", help="a coarse mesh")
    short = parser.parse_args(arguments).short

    perceptron = Perceptron(
        weights_in=[[1.0, 0.5], [-0.8, 0.6], [0.2, -1.0]],
        bias_in=[0.1, -0.2, 0.3],
        weights_out=[[0.5, 0.1, -0.3], [0.2, -0.4, 0.3]],
        activation="gelu",
    )
    one = np.eye(2)
    heads = Heads([Attention(query=one, key=one, value=2 * one, beta=1)], perceptron)
    cluster = VonMises((Component(1.0, 200.0, (np.cos(START), np.sin(START))),))
    mesh = circle_mesh(400 if short else 1600)
    solution = solve(heads, mesh, cluster, until=12.0, save_every=0.5)

    def turning(_: float, angle: np.ndarray) -> np.ndarray:
        x = np.array([[np.cos(angle[0]), np.sin(angle[0])]])
        return perceptron.push(x) @ np.array([-x[0, 1], x[0, 0]])

    alone = solve_ivp(turning, (0, 12), [START], t_eval=solution.times, rtol=1e-9, atol=1e-9).y[0]
    found = direction(solution)
    numbers = {
        "angle in the end": float(np.degrees(found[-1])),
        "a cluster alone": float(np.degrees(alone[-1])),
        "largest difference (degrees)": float(np.degrees(np.abs(found - alone).max())),
        "way gone (degrees)": float(np.degrees(abs(alone[-1] - START))),
    }
    if MPI.COMM_WORLD.rank == 0:
        for name, number in numbers.items():
            print(f"{name:32} {number:.4f}")
        draw(solution, found, alone)
    return numbers


def draw(solution: Solution, found: np.ndarray, alone: np.ndarray) -> None:
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    angle = np.degrees(np.arctan2(solution.points[:, 1], solution.points[:, 0]))
    order = np.argsort(angle)
    for time in (0.0, 1.0, 3.0, 12.0):
        index = int(np.searchsorted(solution.times, time))
        left.semilogy(angle[order], solution.density_at(index)[order], label=f"t = {time:g}")
    left.set_ylim(1e-4, None)
    left.set_xlabel("angle on the circle (degrees)")
    left.set_ylabel("density (mass per radian)")
    left.legend()
    right.plot(solution.times, np.degrees(found), "o", ms=4, color="#0072B2", label="density")
    right.plot(solution.times, np.degrees(alone), "-", color="0.3", label="a cluster alone")
    right.set_xlabel("time t")
    right.set_ylabel("angle of the mean (degrees)")
    right.legend()
    Path("results/demos").mkdir(parents=True, exist_ok=True)
    save(figure, Path("results/demos/perceptron.png"))


if __name__ == "__main__":
    main()
