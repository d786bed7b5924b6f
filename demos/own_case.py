# %% [markdown]
# # Your own case, step by step
#
# For whoever has matrices of their own. A case file holds everything that a run needs. This page
# writes one for matrices on the sphere, looks at what is predicted for it, runs it, and reads the
# folder that it leaves. The same with commands:
#
#     meanfield-pde demo sphere && $EDITOR sphere.toml
#     meanfield-pde limit sphere.toml && meanfield-pde run sphere.toml --output results/mine

# %%
import os
import sys
from pathlib import Path

from mpi4py import MPI

import numpy as np

from meanfield_pde import InputError, ProjectionLimit, read_case, read_result, run_case

SHORT = "--short" in sys.argv or "MEANFIELD_PDE_SHORT" in os.environ
COMM = MPI.COMM_WORLD
FOLDER = Path("results/demos/own_case")

# %% [markdown]
# Your matrices, in an `.npz` file with the names `query`, `key` and `value`. Queries and keys may
# be k x d; `value` is d x d, and d = 3 is the sphere.

# %%
generator = np.random.default_rng(4)
if COMM.rank == 0:
    FOLDER.mkdir(parents=True, exist_ok=True)
    value = np.diag([1.0, 0.5, 0.3]) + 0.1 * generator.normal(size=(3, 3))
    query = generator.normal(size=(2, 3))
    np.savez(FOLDER / "weights.npz", query=query, key=query @ value, value=value)

# %% [markdown]
# The case names the file; paths are relative to the case. What is left out has a default, and a
# key that is misspelt is an error which says what was meant.

# %%
CASE = f"""
[attention]
weights = "weights.npz"
beta = 30.0
[mesh]
kind = "sphere"
cells = {320 if SHORT else 5120}
[initial]
kind = "von-mises"
components = [ {{ weight = 1.0, concentration = 2.0, mean = [0.3, 0.4, 0.86] }} ]
[time]
until = 2.0
save_every = 0.25
[output]
directory = "results"
"""
if COMM.rank == 0:
    (FOLDER / "mine.toml").write_text(CASE, encoding="utf-8")
    (FOLDER / "wrong.toml").write_text(CASE.replace("cells", "cels"), encoding="utf-8")
COMM.Barrier()
case = read_case(FOLDER / "mine.toml", output=FOLDER / "run")
try:
    read_case(FOLDER / "wrong.toml")
except InputError as error:
    complaint = str(error)
    if COMM.rank == 0:
        print(complaint)

# %% [markdown]
# What will happen? A limit needs a dominant eigenvalue of A = V B^T that is real, and queries and
# keys of full rank: here they are 2 x 3, so B is singular and the report says what that means.

# %%
if COMM.rank == 0:
    print(ProjectionLimit(case.attention).report())

# %%
run_case(case, comm=COMM, overwrite=True, quiet=True)
result = read_result(FOLDER / "run")
numbers = {
    "saved times": len(result.times),
    "mass drift": float(np.abs(result.history["mass"] - 1).max()),
    "largest density": float(result.density[-1].max()),
}
if COMM.rank == 0:
    print(numbers)
