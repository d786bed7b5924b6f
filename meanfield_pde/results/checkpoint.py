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
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from meanfield_pde.amr.patch_arrays import NAMES as PATCH_ARRAYS
from meanfield_pde.case.text import same_problem
from meanfield_pde.errors import InputError
from meanfield_pde.history.file_store import FileStore
from meanfield_pde.history.store import MASSES, Row, Store
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.results.names import CHECKPOINT, DENSITY, PREVIOUS
from meanfield_pde.solver.controller import Controller
from meanfield_pde.solver.masses import EXPONENT, MANTISSA
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.solver.state import PATCH, Clocks
from meanfield_pde.support.checks import check_file
from meanfield_pde.support.files import replace_file
from meanfield_pde.support.hdf5 import UNREADABLE, check_seal, new_hdf5, seal
from meanfield_pde.support.old_names import new_columns, new_state_arrays
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.timings import timed

LOG = logging.getLogger("meanfield_pde")

# Arrays that a state may hold besides masses: all of a set, or none.
_EXTENDED = {MANTISSA, EXPONENT}
_LEAVES = {"leaf_keys", "leaf_levels"}


@timed("Checkpoint")
def write_checkpoint(directory: Path, simulation: Simulation) -> None:
    """Write checkpoint.h5: the present state, and how much has been saved so far. Collective."""
    states = {name: one.state.record() for name, one in simulation.evolutions.items()}

    def write(path: Path) -> None:
        with new_hdf5(path) as file:
            file.attrs["mesh"] = _mesh_hash(simulation.cells)
            file.attrs["seconds"] = json.dumps(simulation.seconds)
            file.attrs["saved"] = len(simulation.store)
            if isinstance(simulation.store, FileStore):
                file.attrs["case"] = simulation.store.case
            for name, (arrays, clocks) in states.items():
                group = file.create_group(name)
                for key, array in arrays.items():
                    group[key] = array
                group.attrs.update(clocks)
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
    start = simulation.evolution.shown()
    path, data = on_root(simulation.comm, _newest, directory, simulation, len(store))
    # The case names files, which may have changed; the masses made of them are still there.
    if data["saved"] and not _same(store.read(0), start):
        raise InputError(
            f"{path}: the checkpoint was made from another initial density; has a file that the "
            "case names changed? Start again, and overwrite it",
            "--overwrite",
        )
    rows = [dict(zip(data["columns"], row, strict=True)) for row in data["history"]]
    if isinstance(store, FileStore):
        ours = data["case"] is None or same_problem(data["case"], store.case)
        if not ours or (store.checked and not _agree(rows, store.rows)):
            raise InputError(
                f"{path}: the checkpoint of another run than that of {DENSITY}; start again, and "
                "overwrite it",
                "--overwrite",
            )
    for name, evolution in simulation.evolutions.items():
        evolution.restore(*data[name])
    simulation.seconds |= data["seconds"]
    simulation.store = store
    if simulation.distances is not None:
        simulation.distances.open = data["open_distances"]
    simulation.rows = rows
    return int(data["saved"])


def _newest(directory: Path, simulation: Simulation, stored: int) -> tuple[Path, dict[str, Any]]:
    """The newest checkpoint that is whole, and its path; the error of the first if none is."""
    failure: InputError | None = None
    for path in (directory / CHECKPOINT, directory / PREVIOUS):
        if not path.exists():
            continue
        check_file(path, f"{path}: not a readable checkpoint, there is no such file")
        try:
            data = _read(path, simulation, stored)
        except InputError as error:
            failure = failure or error
            continue
        if failure is not None:
            LOG.warning("%s; going on from %s, t = %.6g", failure, path, data["state"][1].time)
        return path, data
    raise failure or InputError(f"{directory}: nothing to resume, there is no {CHECKPOINT}")


def _read(path: Path, simulation: Simulation, stored: int) -> dict[str, Any]:
    try:
        check_seal(path)
        with h5py.File(path) as file:
            if file.attrs["mesh"] != _mesh_hash(simulation.cells):
                raise InputError(f"{path}: the checkpoint was made on another mesh")
            data: dict[str, Any] = {}
            for name, evolution in simulation.evolutions.items():
                data[name] = _state(file[name], evolution)
            saved = int(file.attrs["saved"])
            data["saved"] = saved
            seconds = json.loads(file.attrs["seconds"])
            data["seconds"] = {str(part): float(value) for part, value in seconds.items()}
            data["columns"] = new_columns(map(str, file.attrs["columns"]), path.parent)
            if file["history"].shape[:1] != (saved,):
                raise ValueError(f"history must have {saved} rows")
            data["history"] = [[float(value) for value in row] for row in file["history"][()]]
            case = file.attrs.get("case")  # not there in checkpoints of an earlier version
            data["case"] = None if case is None else str(case)
            data["open_distances"] = json.loads(file.attrs.get("open_distances", "{}"))
    except InputError:
        raise
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:120]
        raise InputError(f"{path}: not a readable checkpoint ({reason})") from error
    _check(path, data, simulation.evolutions)
    if stored < saved:
        raise InputError(
            f"{path}: was written when {saved} times were saved, but there are "
            f"{stored} in {DENSITY}; start again and overwrite"
        )
    return data


def _state(group: h5py.Group, expected: Controller) -> tuple[dict[str, np.ndarray], Clocks]:
    """Arrays and clocks of a state, whose shapes are looked at before anything is read."""
    names, kept = new_state_arrays(group)
    found = {name: group[key].shape for name, key in names.items()}
    patches = {name for name in found if name.startswith(PATCH)}
    cells = found.keys() - patches
    adapt = expected.adapt
    wanted = {MASSES} | (set() if adapt is None else _LEAVES)
    sizes = {found[name] for name in cells}
    fits = cells in (wanted, wanted | _EXTENDED) and len(sizes) == 1 and len(*sizes) == 1
    if adapt is None:
        fits = fits and not patches and sizes == {(expected.state.volumes.global_cells,)}
    else:
        fits = fits and max(*sizes) <= adapt.max_cells and _patches_fit(found, patches)
    if not fits:
        raise ValueError(f"{group.name[1:]} is not the state of this case on its mesh")
    clocks = dict(group.attrs)
    clocks |= {name: group[key][0] for name, key in kept.items()}
    return {name: group[key][()] for name, key in names.items()}, Clocks.of(clocks)


def _patches_fit(found: dict[str, tuple[int, ...]], patches: set[str]) -> bool:
    """Whether the arrays of patches, if there are any, have the dimensions of such."""
    ranks = {name: len(found[name]) for name in patches}
    return patches in (set(), set(PATCH_ARRAYS)) and all(
        rank == (1 if name == "patch_masses" else 2) for name, rank in ranks.items()
    )


def _agree(rows: Sequence[Row], others: Sequence[Row]) -> bool:
    """Whether the rows that a checkpoint knows of are those in density.h5, bit for bit."""
    values = ([list(row.values()) for row in some] for some in (rows, others[: len(rows)]))
    ours, theirs = (np.array(some, dtype=float) for some in values)
    return np.array_equal(ours, theirs, equal_nan=True)


def _same(masses: np.ndarray, others: np.ndarray) -> bool:
    return masses.shape == others.shape and np.allclose(masses, others, rtol=1e-9, atol=0)


def _check(path: Path, data: dict[str, Any], expected: Collection[str]) -> None:
    """Refuse numbers that no run writes."""
    for name in expected:
        arrays, at = data[name]
        masses = arrays[MASSES]
        if not all(np.isrealobj(a) and a.dtype.kind in "fiu" for a in arrays.values()):
            raise InputError(f"{path}: not a readable checkpoint ({name} is not numbers)")
        if not all(np.isfinite(a).all() for a in arrays.values()) or (masses < 0).any():
            raise InputError(f"{path}: not a readable checkpoint (masses are not finite and >= 0)")
        if not (np.isfinite(at.time) and at.time >= 0 and at.step >= 0):
            raise InputError(f"{path}: not a readable checkpoint (its time is {at.time})")
    widths = {len(row) for row in data["history"]}
    if widths and widths != {len(data["columns"])}:
        raise InputError(f"{path}: not a readable checkpoint (rows do not fit the columns)")


def _mesh_hash(cells: Cells) -> str:
    return hashlib.sha256(np.ascontiguousarray(cells.vertices).tobytes()).hexdigest()
