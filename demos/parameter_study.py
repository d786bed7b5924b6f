# %% [markdown]
# # A parameter study with mpiexec
#
# Many small problems are done fastest side by side: the world is split into groups of ranks, each
# solves its own, and the numbers are gathered at the end.
#
#     mpiexec -n 8 python demos/parameter_study.py        four groups of two ranks
#
# For keys of a case file there is a command, `meanfield-pde sweep --vary KEY=VALUES`; this is for
# what a script computes at each point.

# %%
import os
import sys

from mpi4py import MPI

import numpy as np

from meanfield_pde import Attention, ProjectionLimit, circle_mesh, solve

SHORT = "--short" in sys.argv or "MEANFIELD_PDE_SHORT" in os.environ
WORLD = MPI.COMM_WORLD
GROUP_SIZE = 2 if WORLD.size >= 4 else 1
group = WORLD.rank // GROUP_SIZE
groups = -(-WORLD.size // GROUP_SIZE)
comm = WORLD.Split(group, WORLD.rank)

# %% [markdown]
# The gap between the two eigenvalues of A = V B^T sets the rate of concentration. Each group takes
# every `groups`-th problem; a mesh belongs to the communicator that it is made on, and so does all
# that `solve` does.

# %%
seconds = np.linspace(0.1, 0.7, 3 if SHORT else 13)
mesh = circle_mesh(200 if SHORT else 800, comm=comm)
found = {}
for second in seconds[group::groups]:
    attention = Attention(np.eye(2), np.eye(2), np.diag([1.0, second]), beta=np.inf)
    solution = solve(attention, mesh, "1 + 0.5*x + 0.3*x*y", until=8.0, save_at=[4.0])
    # The mean square angle to E falls like exp(-c t), in the end.
    spread = solution.history["lyapunov"]
    measured = -np.log(spread[2] / spread[1]) / 4.0
    found[float(second)] = (measured, ProjectionLimit(attention).contraction_rate)

# %% [markdown]
# One rank of each group has its numbers; all of them go to the first.

# %%
parts = WORLD.gather(found if comm.rank == 0 else {})
numbers = {}
if parts is not None:
    table = {key: rates for part in parts for key, rates in part.items()}
    for second, (measured, predicted) in sorted(table.items()):
        print(f"lambda_2 = {second:.2f}: rate {measured:.4f}, predicted c = {predicted:.4f}")
        numbers[f"{second:.2f}"] = measured / predicted
comm.Free()
