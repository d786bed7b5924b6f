# %% [markdown]
# # Concentration on the sphere
#
# Concentration on the sphere: at two atoms for dim E = 1, on a great circle for dim E = 2.
#
#     python demos/concentration_sphere.py [--short]        (also under mpiexec)
#
# E is the eigenspace of A = V B^T for its largest eigenvalue. W1 to the two atoms, and the root
# mean square angle of tokens to the great circle, fall at the predicted rates, to the end at zero
# temperature and for a while at beta = 100. The figure is in results/demos/.

# %%
import argparse
import math
from pathlib import Path

from mpi4py import MPI

import numpy as np
from dolfinx import mesh as dolfinx_mesh
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from meanfield_pde import Attention, CompareCase, ProjectionLimit, solve, sphere_mesh
from meanfield_pde.figures.density import save
from meanfield_pde.theory.fits import linear_fit

# Q and V for the two cases, K = I. A = V B^T has the eigenvalues 1, 0.4, 0.2 and 1, 1, 0.3.
HEADS = {
    "two atoms": (np.diag([1.0, 0.45, 0.45]), np.diag([1.0, 0.4 / 0.45, 0.2 / 0.45])),
    "great circle": (np.diag([1.0, 1.0, 0.5]), np.diag([1.0, 1.0, 0.6])),
}
INITIAL = "1 + 0.5*x*y + 0.4*z - 0.3*x"


# %%
def main(arguments: list[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description="Concentration on the sphere")
    parser.add_argument("--short", action="store_true", help="a coarse mesh")
    short = parser.parse_known_args(arguments)[0].short

    mesh = sphere_mesh(5120 if short else 20_480)
    figure = Figure(figsize=(10.0, 4.2), layout="constrained")
    panels = figure.subplots(1, 2)
    numbers = {}
    for axes, name in zip(panels, HEADS, strict=True):
        numbers[f"{name}: rate over predicted"] = concentrate(axes, name, mesh)
    if MPI.COMM_WORLD.rank == 0:
        for name, number in numbers.items():
            print(f"{name:36} {number:.4f}")
        panels[0].set_ylabel("$W_1$ to the two atoms (radians)")
        panels[1].set_ylabel("root mean square angle to the great circle")
        Path("results/demos").mkdir(parents=True, exist_ok=True)
        save(figure, Path("results/demos/concentration_sphere.png"))
    return numbers


# %%
def concentrate(axes: Axes, name: str, mesh: dolfinx_mesh.Mesh) -> float:
    """Run a case at zero and at finite temperature; the rate over the predicted one at zero."""
    query, value = HEADS[name]
    atoms = name == "two atoms"
    for beta, colour in ((100.0, "#D55E00"), (math.inf, "#0072B2")):
        attention = Attention(query=query, key=np.eye(3), value=value, beta=beta)
        solution = solve(
            attention,
            mesh,
            INITIAL,
            until=4.0,
            save_every=0.25,
            compare=CompareCase(limit=True, p=(1,)) if atoms else None,
        )
        times, history = solution.times, solution.history
        distance = history["w1_limit"] if atoms else np.sqrt(history["lyapunov"])
        label = f"β = {beta:g}" if beta < math.inf else "zero temperature"
        axes.semilogy(times, distance, color=colour, label=label)
    # The mean square angle to E is W2 to the nearest measure on E, and has its rate.
    predicted = ProjectionLimit(attention).decay_rate(1 if atoms else 2)
    line = distance[0] * np.exp(-predicted * times)
    axes.semilogy(times, line, ":", color="k", label=f"predicted, exp(-{predicted:.2f} t)")
    axes.set_xlabel("time t")
    axes.set_title(name, fontsize="medium")
    axes.legend()
    late = times >= 2.0
    return -linear_fit(times[late], np.log(distance[late])).slope / predicted


# %%
if __name__ == "__main__":
    main()
