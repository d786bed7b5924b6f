"""What a finished run concludes, as numbers by name: for `converge`, and for tables of many runs.

lifetime, half_time, concentration_end, terminal_begin, stage_end_...     times of events
least_w1_limit, least_w1_limit_time, ...                                  the least distance
end.mean_x, end.energy, ...                                               columns at the end
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meanfield_pde.experiments.sweep_analysis import between_saved_times, least_distance
from meanfield_pde.results.checked_text import read_summary
from meanfield_pde.results.folder import read_result
from meanfield_pde.solver.settings import COMPARED, ORDERS
from meanfield_pde.theory.richardson import Interval, interval

# Columns that are not integrals of the density, or that say how it was computed.
_NO_NUMBERS = (
    "time",
    "step",
    "mass",
    "min_density",
    "max_density",
    "unresolved_mass",
    "cells",
    "min_cell_width",
    "w1_error_estimate",
    "patch_mass",
)


# What there is of every case with a metastable phase that is followed for long enough.
EVENTS = ("lifetime", "half_time")


def numbers_of_run(directory: Path) -> dict[str, tuple[float, float]]:
    """What a run has concluded, by name: the value, and how far interpolation may be off."""
    run = read_result(directory)
    summary = read_summary(directory, run.store.rows, checked=run.store.checked)
    phases = summary["phases"]
    found = {
        "lifetime": phases.get("lifetime"),
        "half_time": phases.get("half_switched"),
        "concentration_end": _of_phase(phases, "concentration", "end"),
        "terminal_begin": _of_phase(phases, "terminal", "begin"),
    }
    for stage in phases.get("stages", []):
        found[f"stage_end_{stage['expected']:.3g}"] = stage["end"]
    numbers = {name: (float(one), 0.0) for name, one in found.items() if one is not None}
    for name in (one.column(p) for p in ORDERS for one in COMPARED if one.least):
        if name in run.history:
            numbers |= _least(name, run.times, run.history[name])
    distances = [name for one in COMPARED for p in ORDERS for name in one.bounds(p)]
    skipped = {*_NO_NUMBERS, *distances, *(one.quantisation for one in COMPARED)}
    for name, column in run.history.items():
        if name not in skipped and math.isfinite(column[-1]):
            numbers[f"end.{name}"] = float(column[-1]), 0.0
    return numbers


def _of_phase(phases: dict[str, Any], name: str, end: str) -> float | None:
    phase = phases.get(name)
    return phase[end] if isinstance(phase, dict) else None


def _least(column: str, times: np.ndarray, distance: np.ndarray) -> dict[str, tuple[float, float]]:
    """The least distance, and its time, unless that is the end of the run or its start."""
    time, least = least_distance(times, distance)
    if time is None or not np.argmin(distance):
        return {}
    apart, below = between_saved_times(times, distance)
    return {f"least_{column}": (least, below), f"least_{column}_time": (time, apart)}


def intervals_of(directories: Sequence[Path], finer: float) -> dict[str, Interval]:
    """The intervals of all numbers of finished runs, by name.

    Args:
        directories: of the levels, from the coarsest on.
        finer: how many times finer each is than the one before.
    """
    found = [numbers_of_run(one) for one in directories]
    intervals = {}
    for name in dict.fromkeys(name for numbers in found for name in numbers):
        each = [numbers.get(name) for numbers in found]
        spread = each[-1][1] if each[-1] is not None else 0.0
        values = [None if one is None else one[0] for one in each]
        intervals[name] = interval(values, finer, spread)
    return intervals
