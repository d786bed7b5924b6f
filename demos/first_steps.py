# %% [markdown]
# # First steps in Python
#
# For whoever begins: a density of tokens on the circle, moved by one attention head,
#
#     d/dt mu + div( mu P_x V m(x) ) = 0,   m(x) = the mean of y with weights exp(beta <Qx, Ky>)
#
# Run this page with `python demos/first_steps.py [--short]`, also under `mpiexec -n 2`, or open it
# as a notebook with jupytext.

# %%
import os
import sys
from pathlib import Path

from mpi4py import MPI

import matplotlib.pyplot as plt
import numpy as np

from meanfield_pde import Attention, ProjectionLimit, circle_mesh, solve, wasserstein

SHORT = "--short" in sys.argv or "MEANFIELD_PDE_SHORT" in os.environ
FIRST = MPI.COMM_WORLD.rank == 0  # the rank that prints and draws

# %% [markdown]
# The head is three matrices and an inverse temperature; the mesh is 800 arcs; the initial density
# is a formula, whose mass does not matter.

# %%
attention = Attention(query=np.eye(2), key=np.eye(2), value=np.diag([1.0, 0.3]), beta=40)
mesh = circle_mesh(200 if SHORT else 800)
solution = solve(attention, mesh, "1 + 0.5*x + 0.3*x*y", until=8, save_every=0.25)

# %% [markdown]
# Everything comes back as numpy arrays, the same on every rank: `density` is times x cells, and
# `history` has a column for each number that was recorded.

# %%
if FIRST:
    print("saved times  ", len(solution.times), "cells", len(solution.points))
    print("columns      ", ", ".join(solution.history))
    print("mass         ", solution.history["mass"][[0, -1]])
    print("largest      ", solution.density[-1].max())

# %% [markdown]
# What theory predicts needs no mesh: tokens gather at ± the dominant eigenvector of A = V B^T,
# B = Q^T K, at the rate c.

# %%
limit = ProjectionLimit(attention)
if FIRST:
    print(limit.report())

# %% [markdown]
# Distances come with an interval that is certified by linear programming.

# %%
moved = wasserstein(solution.measure(0), solution.measure(-1), p=1)
right = solution.masses[-1][solution.points[:, 0] > 0].sum()
numbers = {"W1": moved.value, "low": moved.low, "high": moved.high, "mass at +e": float(right)}
if FIRST:
    print(numbers)

# %% [markdown]
# And a figure, with matplotlib as always.

# %%
if FIRST:
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    angle = np.degrees(np.arctan2(solution.points[:, 1], solution.points[:, 0]))
    order = np.argsort(angle)
    for index in (0, 8, 16, 32):
        label = f"t = {solution.times[index]:g}"
        axes.semilogy(angle[order], solution.density[index][order], label=label)
    axes.set_xlabel("angle on the circle (degrees)")
    axes.set_ylabel("density (mass per radian)")
    axes.legend()
    Path("results/demos").mkdir(parents=True, exist_ok=True)
    figure.savefig("results/demos/first_steps.png", dpi=150)
