"""Checkpoints: the state of a simulation in one file, and the restart from it.

The masses are stored in the mesh's input order and restored bit for bit on any number of ranks, so
that a run that was stopped and resumed gives the same results as one that was not.

The checkpoint before is kept until the next: a file that does not check, by a checksum of all
its bytes, is passed over with a warning, and the run goes on from the one before. Both are
needed on disks that lose what they said was written; a killed run leaves the newest whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from meanfield_pde.errors import InputError
from meanfield_pde.history.store import MASSES, Store
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.results.names import CHECKPOINT, DENSITY, PREVIOUS
from meanfield_pde.solver.evolution import Evolution
from meanfield_pde.solver.following import MOST_CELLS
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.solver.spots import NAMES as SPOT_ARRAYS
from meanfield_pde.support.files import replace_file
from meanfield_pde.support.hdf5 import UNREADABLE, check_seal, new_hdf5, seal
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.timings import timed

# The shapes of the arrays of an evolution by name; None if the mesh moves.
Shapes = dict[str, tuple[int, ...] | None]
LOG = logging.getLogger("meanfield_pde")

# Attributes of an evolution.
_CLOCK = {
    "time": float,
    "step": int,
    "rejected": int,
    "limited": int,
    "split_limit": float,
    "noise_step": float,
}


@timed("Checkpoint")
def write_checkpoint(directory: Path, simulation: Simulation) -> None:
    """Write checkpoint.h5: the present state, and how much has been saved so far. Collective."""
    states = {name: one.record() for name, one in simulation.evolutions.items()}

    def write(path: Path) -> None:
        with new_hdf5(path) as file:
            file.attrs["mesh"] = _mesh_hash(simulation.cells)
            file.attrs["seconds"] = json.dumps(simulation.seconds)
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
        seal(path)

    path = directory / CHECKPOINT
    on_root(simulation.comm, lambda: replace_file(path, write, keep=directory / PREVIOUS))


def restore_checkpoint(directory: Path, simulation: Simulation, store: Store) -> int:
    """Put a simulation where the checkpoint stands; nothing is written. Collective.

    Args:
        directory: the result folder.
        simulation: as it is at time 0.
        store: the densities in the folder, at least as many as the checkpoint knows of.

    Returns:
        How many saved times the checkpoint knows of.
    """
    start = simulation.evolution.state.gather()[MASSES]
    expected = {name: _shapes(one) for name, one in simulation.evolutions.items()}
    path, data = on_root(simulation.comm, _newest, directory, simulation, expected, len(store))
    # The case names files, which may have changed; the masses made of them are still there.
    if data["saved"] and not _same(store.read(0), start):
        raise InputError(
            f"{path}: the checkpoint was made from another initial density; has a file that the "
            "case names changed? Start again, and overwrite it",
            "--overwrite",
        )
    for name, evolution in simulation.evolutions.items():
        arrays, at = data[name]
        evolution.restore(arrays, time=at["time"], step=at["step"])
        evolution.rejected = at["rejected"]
        evolution.limited, evolution.split_limit = at["limited"], at["split_limit"]
        evolution.noise_step = at["noise_step"]
    simulation.seconds |= data["seconds"]
    simulation.store = store
    if simulation.distances is not None:
        simulation.distances.open = data["open_distances"]
    simulation.rows = [dict(zip(data["columns"], row, strict=True)) for row in data["history"]]
    return int(data["saved"])


def _newest(
    directory: Path, simulation: Simulation, expected: dict[str, Shapes], stored: int
) -> tuple[Path, dict[str, Any]]:
    """The newest checkpoint that is whole, and its path; the error of the first if none is."""
    failure: InputError | None = None
    for path in (directory / CHECKPOINT, directory / PREVIOUS):
        if not path.exists():
            continue
        try:
            data = _read(path, simulation, expected, stored)
        except InputError as error:
            failure = failure or error
            continue
        if failure is not None:
            LOG.warning("%s; going on from %s, t = %.6g", failure, path, data["state"][1]["time"])
        return path, data
    raise failure or InputError(f"{directory}: nothing to resume, there is no {CHECKPOINT}")


def _read(
    path: Path, simulation: Simulation, expected: dict[str, Shapes], stored: int
) -> dict[str, Any]:
    try:
        check_seal(path)
        with h5py.File(path) as file:
            if file.attrs["mesh"] != _mesh_hash(simulation.cells):
                raise InputError(f"{path}: the checkpoint was made on another mesh")
            data: dict[str, Any] = {}
            for name, shapes in expected.items():
                group = file[name]
                _check_shapes(group, shapes)
                arrays = {key: group[key][()] for key in group}
                data[name] = (arrays, {key: kind(group.attrs[key]) for key, kind in _CLOCK.items()})
            saved = int(file.attrs["saved"])
            data["saved"] = saved
            seconds = json.loads(file.attrs["seconds"])
            data["seconds"] = {str(part): float(value) for part, value in seconds.items()}
            data["columns"] = [str(name) for name in file.attrs["columns"]]
            if file["history"].shape[:1] != (saved,):
                raise ValueError(f"history must have {saved} rows")
            data["history"] = [[float(value) for value in row] for row in file["history"][()]]
            data["open_distances"] = json.loads(file.attrs.get("open_distances", "{}"))
    except InputError:
        raise
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path}: not a readable checkpoint ({reason})") from error
    _check(path, data, expected)
    if stored < saved:
        raise InputError(
            f"{path}: was written when {saved} times were saved, but there are "
            f"{stored} in {DENSITY}; start again and overwrite"
        )
    return data


def _shapes(evolution: Evolution) -> Shapes:
    """The shapes of the arrays that a checkpoint has to hold; of one that moves, their names."""
    return {
        name: None if evolution.follower is not None else array.shape
        for name, array in evolution.record().items()
    }


def _check_shapes(group: h5py.Group, shapes: Shapes) -> None:
    """Before anything is read: nothing larger than the state is."""
    found = {key: group[key].shape for key in group}
    if None in shapes.values():
        cells = found.get("leaf_keys", (0,))[0]
        beside = {key for key in found if key.startswith("spot_")}
        sizes = {found[key][0] for key in found.keys() - beside - {"leaf_changes"}}
        fits = found.keys() - beside == shapes.keys() and sizes == {cells} and cells <= MOST_CELLS
        fits = fits and beside in (set(), set(SPOT_ARRAYS)) and _spots_fit(found)
    else:
        fits = found == shapes
    if not fits:
        raise ValueError(f"{group.name[1:]} is not the state of this case on its mesh")


def _spots_fit(found: dict[str, tuple[int, ...]]) -> bool:
    """Whether the arrays of spots, if there are any, have the dimensions of such."""
    ranks = {name: len(found[name]) for name in SPOT_ARRAYS if name in found}
    return all(rank == (1 if name == "spot_masses" else 2) for name, rank in ranks.items())


def _same(masses: np.ndarray, others: np.ndarray) -> bool:
    return masses.shape == others.shape and np.allclose(masses, others, rtol=1e-9, atol=0)


def _check(path: Path, data: dict[str, Any], expected: dict[str, Shapes]) -> None:
    """Refuse numbers that no run writes."""
    for name in expected:
        arrays, at = data[name]
        masses = arrays[MASSES]
        if not all(np.isrealobj(a) and a.dtype.kind in "fiu" for a in arrays.values()):
            raise InputError(f"{path}: not a readable checkpoint ({name} is not numbers)")
        if not all(np.isfinite(a).all() for a in arrays.values()) or (masses < 0).any():
            raise InputError(f"{path}: not a readable checkpoint (masses are not finite and >= 0)")
        if not (np.isfinite(at["time"]) and at["time"] >= 0 and at["step"] >= 0):
            raise InputError(f"{path}: not a readable checkpoint (its time is {at['time']})")
    widths = {len(row) for row in data["history"]}
    if widths and widths != {len(data["columns"])}:
        raise InputError(f"{path}: not a readable checkpoint (rows do not fit the columns)")


def _mesh_hash(cells: Cells) -> str:
    return hashlib.sha256(np.ascontiguousarray(cells.vertices).tobytes()).hexdigest()
