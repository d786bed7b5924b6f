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
from meanfield_pde.history.store import MASSES, Store
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.results.names import CHECKPOINT, DENSITY
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.support.files import replace_file
from meanfield_pde.support.ranks import on_root

# Attributes of an evolution.
_CLOCK = {"time": float, "step": int, "rejected": int, "limited": int, "split_limit": float}


def write_checkpoint(directory: Path, simulation: Simulation) -> None:
    """Write checkpoint.h5: the present state, and how much has been saved so far. Collective."""
    states = {name: one.record() for name, one in simulation.evolutions.items()}

    def write(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file.attrs["mesh"] = _mesh_hash(simulation.cells)
            file.attrs["wall_time"] = simulation.wall_time
            file.attrs["saved"] = len(simulation.store)
            for name, evolution in simulation.evolutions.items():
                group = file.create_group(name)
                for key, array in states[name].items():
                    group[key] = array
                for key in _CLOCK:
                    group.attrs[key] = getattr(evolution, key)
            rows = [list(row.values()) for row in simulation.rows]
            file["history"] = np.array(rows, dtype=float)
            file.attrs["columns"] = list(simulation.rows[0]) if simulation.rows else []
            if simulation.distances is not None:
                file.attrs["open_distances"] = json.dumps(simulation.distances.open)

    if simulation.comm.rank == 0:
        replace_file(directory / CHECKPOINT, write)


def restore_checkpoint(directory: Path, simulation: Simulation, store: Store) -> int:
    """Put a simulation where the checkpoint stands; nothing is written. Collective.

    Args:
        directory: the result folder.
        simulation: as it is at time 0.
        store: the densities in the folder, at least as many as the checkpoint knows of.

    Returns:
        How many saved times the checkpoint knows of.
    """
    path = directory / CHECKPOINT
    data = on_root(simulation.comm, _read, path, simulation)
    if len(store) < data["saved"]:
        raise InputError(
            f"{path}: was written when {data['saved']} times were saved, but there are "
            f"{len(store)} in {DENSITY}; start again and overwrite"
        )
    # The case names files, which may have changed; the masses made of them are still there.
    start = simulation.evolution.state.gather()[MASSES]
    if data["saved"] and not _same(store.read(0), start):
        raise InputError(
            f"{path}: the checkpoint was made from another initial density; has a file that the "
            "case names changed? Start again with --overwrite"
        )
    for name, evolution in simulation.evolutions.items():
        arrays, at = data[name]
        try:
            evolution.restore(arrays, time=at["time"], step=at["step"])
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        evolution.rejected = at["rejected"]
        evolution.limited, evolution.split_limit = at["limited"], at["split_limit"]
    simulation.wall_time = data["wall_time"]
    simulation.store = store
    if simulation.distances is not None:
        simulation.distances.open = json.loads(data["open_distances"])
    simulation.rows = [dict(zip(data["columns"], row, strict=True)) for row in data["history"]]
    return int(data["saved"])


def _read(path: Path, simulation: Simulation) -> dict[str, Any]:
    try:
        with h5py.File(path) as file:
            if file.attrs["mesh"] != _mesh_hash(simulation.cells):
                raise InputError(f"{path}: the checkpoint was made on another mesh")
            data: dict[str, Any] = {}
            for name in simulation.evolutions:
                group = file[name]
                arrays = {key: group[key][()] for key in group}
                data[name] = (arrays, {key: kind(group.attrs[key]) for key, kind in _CLOCK.items()})
            data["history"] = [[float(value) for value in row] for row in file["history"][()]]
            data["saved"] = int(file.attrs["saved"])
            data["wall_time"] = float(file.attrs["wall_time"])
            data["columns"] = list(file.attrs["columns"])
            data["open_distances"] = file.attrs.get("open_distances", "{}")
    except InputError:
        raise
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a readable checkpoint ({error})") from error
    return data


def _same(masses: np.ndarray, others: np.ndarray) -> bool:
    return masses.shape == others.shape and np.allclose(masses, others, rtol=1e-9, atol=0)


def _mesh_hash(cells: Cells) -> str:
    return hashlib.sha256(np.ascontiguousarray(cells.vertices).tobytes()).hexdigest()
