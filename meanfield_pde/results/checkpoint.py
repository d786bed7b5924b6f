"""Checkpoints: the state of a simulation in one file, and the restart from it.

The masses are stored in the mesh's input order and restored bit for bit on any number of ranks, so
that a run that was stopped and resumed gives the same results as one that was not.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.results.folder import CHECKPOINT
from meanfield_pde.solver.evolution import Evolution
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.support.files import replace_file
from meanfield_pde.support.ranks import on_root


def write_checkpoint(directory: Path, simulation: Simulation) -> None:
    """Write checkpoint.h5: the present state, and everything saved so far. Collective."""
    evolutions = _evolutions(simulation)
    masses = {
        name: simulation.volumes.gather(evolution.state) for name, evolution in evolutions.items()
    }

    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file.attrs["mesh"] = _mesh_hash(simulation.cells)
            file.attrs["wall_time"] = simulation.wall_time
            for name, evolution in evolutions.items():
                file[name] = masses[name]
                file[name].attrs["time"] = evolution.time
                file[name].attrs["step"] = evolution.step
                file[name].attrs["rejected"] = evolution.rejected
            file["saved_times"] = np.array(simulation.times)
            file["saved_masses"] = np.array(simulation.masses)
            file["saved_zero_masses"] = np.array(simulation.zero_masses)
            rows = [list(row.values()) for row in simulation.rows]
            file["history"] = np.array(rows, dtype=float)
            file.attrs["columns"] = list(simulation.rows[0]) if simulation.rows else []
            if simulation.comparison is not None:
                file.attrs["open_distances"] = json.dumps(simulation.comparison.open)

    if simulation.comm.rank == 0:
        replace_file(directory / CHECKPOINT, write)


def restore_checkpoint(directory: Path, simulation: Simulation) -> None:
    """Put a simulation where the checkpoint stands. Collective."""
    path = directory / CHECKPOINT
    evolutions = _evolutions(simulation)
    data = on_root(simulation.comm, _read, path, simulation.cells, list(evolutions))
    # The case names files, which may have changed; the masses made of them are still there.
    start = simulation.volumes.gather(simulation.evolution.masses)
    saved = data["saved_masses"]
    if len(saved) and not np.allclose(saved[0], start, rtol=1e-9, atol=0):
        raise InputError(
            f"{path}: the checkpoint was made from another initial density; has a file that the "
            "case names changed? Start again with --overwrite"
        )
    for name, evolution in evolutions.items():
        state = data[name]
        own = simulation.volumes.scatter(state["masses"])
        evolution.restore(own, time=state["time"], step=state["step"])
        evolution.rejected = state["rejected"]
    simulation.wall_time = data["wall_time"]
    simulation.times = list(data["saved_times"])
    simulation.masses = list(data["saved_masses"])
    simulation.zero_masses = list(data["saved_zero_masses"])
    if simulation.comparison is not None:
        simulation.comparison.open = json.loads(data["open_distances"])
    simulation.rows = [dict(zip(data["columns"], row, strict=True)) for row in data["history"]]


def _evolutions(simulation: Simulation) -> dict[str, Evolution]:
    zero = {} if simulation.zero is None else {"zero_state": simulation.zero}
    return {"state": simulation.evolution, **zero}


def _read(path: Path, cells: Cells, states: list[str]) -> dict[str, Any]:
    try:
        with h5py.File(path) as file:
            if file.attrs["mesh"] != _mesh_hash(cells):
                raise InputError(f"{path}: the checkpoint was made on another mesh")
            arrays = ("saved_times", "saved_masses", "saved_zero_masses", "history")
            data: dict[str, Any] = {name: file[name][()] for name in arrays}
            for name in states:
                data[name] = {"masses": file[name][()]}
                for key, kind in (("time", float), ("step", int), ("rejected", int)):
                    data[name][key] = kind(file[name].attrs[key])
            data["wall_time"] = float(file.attrs["wall_time"])
            data["columns"] = list(file.attrs["columns"])
            data["open_distances"] = file.attrs.get("open_distances", "{}")
    except (OSError, KeyError) as error:
        raise InputError(f"{path}: not a readable checkpoint ({error})") from error
    data["saved_times"] = [float(time) for time in data["saved_times"]]
    data["history"] = [[float(value) for value in row] for row in data["history"]]
    return data


def _mesh_hash(cells: Cells) -> str:
    return hashlib.sha256(np.ascontiguousarray(cells.vertices).tobytes()).hexdigest()
