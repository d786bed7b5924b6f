"""Patches as plain arrays, for checkpoints and saved times."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from meanfield_pde.amr.patches import NONE, Patch, Patches
from meanfield_pde.errors import InputError


def record(patches: Patches) -> dict[str, np.ndarray]:
    """Arrays for a checkpoint, whose names begin with "patch_"."""
    if not patches:
        return {}
    places = [np.column_stack([patch.origin, patch.frame]) for patch in patches]
    return {
        "patch_sizes": np.array([[len(patch.masses), len(patch.offsets)] for patch in patches]),
        "patch_places": np.concatenate(places),
        "patch_offsets": np.concatenate([patch.offsets for patch in patches]),
        "patch_cells": np.concatenate([patch.cells for patch in patches]),
        "patch_masses": np.concatenate([patch.masses for patch in patches]),
    }


NAMES = ("patch_sizes", "patch_places", "patch_offsets", "patch_cells", "patch_masses")


def recorded(arrays: Mapping[str, np.ndarray]) -> Patches:
    """The patches that such arrays stand for."""
    if "patch_sizes" not in arrays:
        return NONE
    sizes, numbers = arrays["patch_sizes"], arrays["patch_cells"]
    length = [len(arrays["patch_masses"]), len(arrays["patch_offsets"])]
    most = np.repeat(sizes[:, 1], np.maximum(sizes[:, 0], 0))
    if (sizes < 1).any() or (sizes.sum(axis=0) != length).any() or len(numbers) != len(most):
        raise InputError("the patches in the checkpoint do not fit together; start again")
    if ((numbers < 0) | (numbers >= most[:, None])).any():
        raise InputError("the patches in the checkpoint lack some of their vertices; start again")
    if len(arrays["patch_places"]) != len(sizes) * numbers.shape[1]:
        raise InputError("the patches in the checkpoint have no places; start again")
    cells, vertices = np.cumsum(sizes, axis=0)[:-1].T
    each = zip(
        np.split(arrays["patch_places"], len(sizes)),
        np.split(arrays["patch_offsets"], vertices),
        np.split(arrays["patch_cells"], cells),
        np.split(arrays["patch_masses"], cells),
        strict=True,
    )
    contiguous = np.ascontiguousarray  # as compiled code takes them
    return tuple(
        Patch(contiguous(place[:, 0]), contiguous(place[:, 1:]), *others) for place, *others in each
    )
