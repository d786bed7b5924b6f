"""What a saved time needs beside its density, for the velocity that was integrated to be had again.

    log_masses          logarithms of the masses of the cells, without those of patches
    patches/sizes       of each patch the number of its cells and of its vertices
    patches/places      its origin and frame, d x d
    patches/vertices/   offsets of its vertices, `u`
    patches/cells/      numbers of the vertices of its cells, `corners`, and their `masses`

The density is the masses of both, in doubles, on the cells of the mesh. It lacks where in a cell a
patch is, and what is below the range of doubles. The arrays are kept where there may be either: on
adaptive meshes, and with log masses.
"""

from __future__ import annotations

import numpy as np

from meanfield_pde.amr.patch_arrays import record, recorded
from meanfield_pde.amr.patches import NONE, Patches
from meanfield_pde.errors import InputError
from meanfield_pde.history.store import LOG_MASSES, MASSES, PATCHES, Store
from meanfield_pde.solver.controller import Controller

# The arrays of a group have the same number of rows.
_ARRAYS = {
    "sizes": "patch_sizes",
    "places": "patch_places",
    "vertices/u": "patch_offsets",
    "cells/corners": "patch_cells",
    "cells/masses": "patch_masses",
}


def arrays_to_save(controller: Controller, store: Store) -> dict[str, np.ndarray]:
    """Arrays to be saved beside the density of this time. Collective.

    Nothing if the store was begun by a version that saved none: its times have to be alike.
    """
    adaptive, state = controller.adapt is not None, controller.state
    if not (adaptive or controller.may_be_extended):
        return {}
    if len(store) and LOG_MASSES not in store.names():
        return {}
    arrays = {LOG_MASSES: state.gathered().log}
    if adaptive:
        d = state.volumes.dimension
        shapes = {"sizes": (2,), "places": (d, d), "vertices/u": (d - 1,), "cells/corners": (d,)}
        found = record(state.patches)
        for name, known in _ARRAYS.items():
            array = np.asarray(found.get(known, np.empty(0)), dtype=float)
            arrays[PATCHES + name] = array.reshape(-1, *shapes.get(name, ()))
    return arrays


def saved_state(store: Store, index: int, patch_mass: float) -> tuple[np.ndarray, Patches]:
    """Log masses of all cells, and the patches beside them, at a saved time.

    Args:
        store: the saved densities.
        index: of the time.
        patch_mass: the mass of patches at this time, by the history.
    """
    names = store.names()
    if LOG_MASSES not in names:
        if patch_mass > 0:
            raise InputError(
                f"the velocity at t = {store.times[index]:g} cannot be had again: the density was "
                "saved by a version that did not keep its patches; run the case again"
            )
        with np.errstate(divide="ignore"):
            return np.log(store.read(index, MASSES)), NONE
    log_masses = store.read(index, LOG_MASSES)
    if PATCHES + "sizes" not in names:
        return log_masses, NONE
    arrays = {known: store.read(index, PATCHES + name) for name, known in _ARRAYS.items()}
    if not len(arrays["patch_sizes"]):
        return log_masses, NONE
    for known in ("patch_sizes", "patch_cells"):
        arrays[known] = arrays[known].astype(np.int64)
    places = arrays["patch_places"]
    arrays["patch_places"] = places.reshape(-1, places.shape[-1])
    return log_masses, recorded(arrays)
