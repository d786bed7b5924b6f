"""Checks of arrays that are read back: nothing is computed from what no density can have."""

from __future__ import annotations

import numpy as np

from meanfield_pde.support.checks import OFF_SPHERE

# The least value that an array may have, by the last part of its name.
_LEAST = {"masses": 0.0, "volumes": np.finfo(float).tiny, "spread": 0.0}
# Arrays of points of the circle or the sphere, and their dimensions: the last is that of the space.
_AXES = {"points": 2, "vertices": 3}


def check_times(times: np.ndarray) -> None:
    """ValueError unless the saved times are numbers that rise."""
    if times.dtype.kind not in "fiu" or times.ndim != 1:
        raise ValueError("times must be numbers")
    if not np.isfinite(times).all() or not (np.diff(times) > 0).all() or (times < 0).any():
        raise ValueError("times must be finite, >= 0 and increasing")


def check_saved(name: str, array: np.ndarray) -> None:
    """ValueError unless an array can be what its name says: masses >= 0, points on the sphere."""
    kind = name.rpartition("/")[2]
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must be numbers")
    least = -np.inf if kind == "log_masses" else np.finfo(float).min  # an empty cell has -inf
    if not ((array >= least) & (array < np.inf)).all():
        raise ValueError(f"{name} must be finite")
    if kind in _LEAST:
        if array.ndim != 1 or (array < _LEAST[kind]).any():
            sign = ">" if _LEAST[kind] else ">="
            raise ValueError(f"{name} must be a number {sign} 0 for each cell")
    elif kind in _AXES:
        if array.ndim != _AXES[kind] or array.shape[-1] not in (2, 3):
            raise ValueError(f"{name} must be points of the circle or the sphere")
        if (np.abs(np.linalg.norm(array, axis=-1) - 1) > OFF_SPHERE).any():
            raise ValueError(f"{name} must be at distance 1 from the origin")
        if kind == "vertices" and array.shape[1] != array.shape[2]:
            raise ValueError(f"{name} must be as many corners of each cell as there are axes")
