# %% [markdown]
# # Concentration on the circle
#
# Concentration on the circle: tokens gather at two points, at the predicted rate and weights.
#
#     python demos/concentration_circle.py [--short]        (also under mpiexec)
#
# At zero temperature the distance to the limit falls like exp(-min(c, c') t) to the end; at
# finite beta it does so until temperature takes over. The figure is in results/demos/.

# %%
import argparse
from pathlib import Path

from mpi4py import MPI

import numpy as np
from matplotlib.figure import Figure

from meanfield_pde import (
    Attention,
    CompareCase,
    Component,
    ProjectionLimit,
    VonMises,
    circle_mesh,
    solve,
)
from meanfield_pde.figures.density import save
from meanfield_pde.theory.fits import linear_fit

QUERY = np.array([[0.90, 0.15], [-0.45, 0.40]])
VALUE = np.array([[0.95, 0.10], [0.45, 0.40]])
INITIAL = VonMises((Component(0.7, 3.0, (0.6, 0.8)), Component(0.3, 1.5, (-0.8, 0.6))))


# %%
def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Concentration on the circle")
    parser.add_argument("--short", action="store_true", help="a coarse mesh")
    cells = 1600 if parser.parse_known_args(arguments)[0].short else 3200

    attention = Attention(query=QUERY, key=np.eye(2), value=VALUE, beta=200.0)
    limit = ProjectionLimit(attention)
    solution = solve(
        attention,
        circle_mesh(cells),
        INITIAL,
        until=8.0,
        save_every=0.25,
        compare=CompareCase(limit=True, zero_temperature=True, p=(1,)),
    )
    times, history = solution.times, solution.history

    # The rate at zero temperature, between the start and where the width of the cells shows.
    distance = history["w1_zero_to_limit"]
    straight = (times >= 3.0) & (distance > 3 * history["quantisation_zero_to_limit"])
    rate = -linear_fit(times[straight], np.log(distance[straight])).slope
    # The mass that has gone to the side of +e, against that of the limit atom there.
    direction = limit.basis[:, 0]
    side = solution.cells.points @ direction > 0
    settled = solution.masses[-1][side].sum()
    assert solution.limit is not None
    predicted = solution.limit.masses[solution.limit.points @ direction > 0].sum()
    numbers = {
        "rate": rate,
        "rate over predicted": rate / limit.decay_rate(1),
        "mass at +e": float(settled),
        "predicted mass at +e": float(predicted),
        "least W1": float(history["w1_limit"].min()),
    }
    if MPI.COMM_WORLD.rank == 0:
        for name, number in numbers.items():
            print(f"{name:24} {number:.5f}")
        draw(times, history, limit.decay_rate(1))
    return numbers


# %%
def draw(times: np.ndarray, history: dict[str, np.ndarray], rate: float) -> None:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.semilogy(times, history["w1_limit"], color="#0072B2", label="β = 200")
    axes.semilogy(
        times, history["w1_zero_to_limit"], "--", color="#D55E00", label="zero temperature"
    )
    start = history["w1_limit"][0]
    label = f"predicted, exp(-{rate:.3f} t)"
    axes.semilogy(times, start * np.exp(-rate * times), ":", color="k", label=label)
    axes.set_xlabel("time t")
    axes.set_ylabel("$W_1$ to the limit (radians)")
    axes.set_title("Concentration at two points of the circle")
    axes.legend()
    Path("results/demos").mkdir(parents=True, exist_ok=True)
    save(figure, Path("results/demos/concentration_circle.png"))


# %%
if __name__ == "__main__":
    main()
