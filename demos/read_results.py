# %% [markdown]
# # Reading results back
#
# For whoever has a result folder. It needs nothing of this package to be read: tables are CSV,
# arrays are HDF5, the rest is JSON and TOML.

# %%
import csv
import importlib.util
import json
import os
import sys
import tomllib
from pathlib import Path

from mpi4py import MPI

import h5py
import numpy as np

from meanfield_pde import read_case, read_result, run_case, sample
from meanfield_pde.case.starter import write_starter

SHORT = "--short" in sys.argv or "MEANFIELD_PDE_SHORT" in os.environ
COMM = MPI.COMM_WORLD
FOLDER = Path("results/demos/read_results")
if COMM.rank == 0:
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "circle.toml").unlink(missing_ok=True)
    write_starter("circle", FOLDER)
COMM.Barrier()
case = read_case(FOLDER / "circle.toml", until=1.0 if SHORT else 5.0, output=FOLDER / "run")
run_case(case, comm=COMM, overwrite=True, quiet=True)
run = FOLDER / "run"

# %% [markdown]
# **The history** is a row for each saved time. With numpy alone:

# %%
history = np.genfromtxt(run / "history.csv", delimiter=",", names=True)
print(history.dtype.names[:6], history["w1_limit"][-1])

# %% [markdown]
# With pandas it is one line, `pandas.read_csv(run / "history.csv", index_col="time")`:

# %%
if importlib.util.find_spec("pandas"):
    import pandas as pd

    print(pd.read_csv(run / "history.csv", index_col="time").tail(3))
else:
    with (run / "history.csv").open(newline="") as file:
        print(list(csv.DictReader(file))[-1]["time"])

# %% [markdown]
# **The densities** are in `density.h5`: `masses` is times x cells, in the order of the mesh's input
# on any number of ranks. A case with `[adapt]` has cells of its own at each time, one after the
# other, and `offsets` says where each begins.

# %%
with h5py.File(run / "density.h5") as file:
    times, points, volumes = file["times"][()], file["points"][()], file["volumes"][()]
    if "offsets" in file:
        last = slice(*file["offsets"][-2:])
        points, volumes, masses = points[last], volumes[last], file["masses"][last]
    else:
        masses = file["masses"][-1]
density = masses / volumes
mean = masses @ points
print(f"t = {times[-1]:g}: mass {masses.sum():.12f}, mean {mean}, largest {density.max():.4g}")

# %% [markdown]
# **What was concluded** is in `summary.json`, and the case as run, every default spelled out, in
# `case.toml`.

# %%
summary = json.loads((run / "summary.json").read_text())
spelled_out = tomllib.loads((run / "case.toml").read_text())
print(summary["phases"]["concentration"], spelled_out["solver"])

# %% [markdown]
# **With this package** the folder is one object, whose densities are read when they are asked for.

# %%
result = read_result(run)
print(result.times[-1], result.density_at(-1).max(), result.measure(-1).points.shape)

# %% [markdown]
# **At any points**, also as `meanfield-pde sample`: here on arcs of one degree, and as netCDF,
# which `xarray.open_dataset` reads. With xarray installed, `to_xarray(result)` is a dataset.

# %%
print("density at (0.6, 0.8):", result.at([[0.6, 0.8]], -1)[0])
grid = sample(result, "1deg", values=["density", "velocity"])
if COMM.rank == 0:
    grid.write(FOLDER / "grid.nc")
on_grid = grid.variables["density"].values[-1] @ grid.coordinates["box"].values
print("mass on the grid:", on_grid)

# %% [markdown]
# **ParaView** opens `fields/density.pvd` (File, Open, Apply), and shows the cells coloured by
# `density`; choose a logarithmic scale, and the arrows at the top go through the times. With
# `fields = "xdmf"` in `[output]` it is `fields/density.xdmf`, for the reader "Xdmf3ReaderT".

# %%
numbers = {
    "columns agree": float(np.abs(history["mean_x"] - result.history["mean_x"]).max()),
    "densities agree": float(np.abs(density - result.density_at(-1)).max()),
    "mass on the grid": float(on_grid),
    "fields": float((run / "fields/density.pvd").is_file()),
}
