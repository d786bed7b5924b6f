"""`meanfield-pde converge`: a case on a sequence of meshes, and an interval for each number.

Each level (`levels`) is a run in a folder of its own, `level-0` the case as it is given. The
numbers that runs conclude, and the columns of their histories at the end, then have an observed
order and an interval (`theory.richardson`). converge.csv has a row for each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np

from meanfield_pde.case.case import Case, OutputCase
from meanfield_pde.case.text import MAX_CELLS_KEY
from meanfield_pde.experiments.cost import check_memory
from meanfield_pde.experiments.folder import experiment_folder, run_unless_finished
from meanfield_pde.experiments.levels import Level, level, ratio
from meanfield_pde.experiments.sweep_analysis import between_saved_times, least_distance
from meanfield_pde.figures.failures import drawn_if_possible
from meanfield_pde.results.checked_text import read_summary, write_summary
from meanfield_pde.results.folder import read_result
from meanfield_pde.results.tables import Row, write_table
from meanfield_pde.solver.settings import COMPARED, ORDERS
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.checks import whole
from meanfield_pde.support.columns import in_columns
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.versions import versions
from meanfield_pde.theory.richardson import FEWEST, Interval, in_words, interval

TABLE = "converge.csv"
# What may differ between the case of the folder and that of its continuation.
_FREE = ("output", MAX_CELLS_KEY)
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


@typed
def converge(
    case: Case,
    *,
    levels: int = FEWEST,
    directory: Path | None = None,
    quiet: bool = False,
    allow_long: bool = False,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> dict[str, Any]:
    """Run, analyse and draw; levels that are finished are not run again. Collective.

    Args:
        case: of level 0.
        levels: how many, three or more.
        directory: where the levels, converge.csv, summary.json and the figure go; by default
            `converge` in the result folder of the case.
        quiet: no progress bar.
        allow_long: do not refuse runs of more than 1e9 steps.
        comm: the ranks that share the work.

    Returns:
        What summary.json says: `numbers` by name, each with `value`, `low`, `high`, `order`,
        `converging` and `values`, and the `levels`.
    """
    levels = whole(levels, "levels", FEWEST)
    directory = case.output.directory / "converge" if directory is None else directory
    sequence = [level(case, number) for number in range(levels)]
    check_memory(sequence[-1].case.mesh, comm)  # before the first is run
    sequence = [
        replace(one, case=_in_folder(one.case, directory / f"level-{number}"))
        for number, one in enumerate(sequence)
    ]

    def conclude() -> dict[str, Any]:
        found = intervals_of(sequence, ratio(case))
        numbers = {name: one.describe() for name, one in found.items()}
        summary = {"ratio": ratio(case), "levels": _described(sequence), "numbers": numbers}
        write_table(directory / TABLE, [_row(name, one) for name, one in found.items()])
        write_summary(directory, summary | {"versions": versions()})
        drawn_if_possible(draw_levels, directory, summary)
        return summary

    with experiment_folder(directory, case, ignore=_FREE, comm=comm):
        for number, one in enumerate(sequence):
            run_unless_finished(
                one.case,
                f"level {number}",
                steps=one.steps,
                quiet=quiet,
                allow_long=allow_long,
                comm=comm,
            )
        return on_root(comm, conclude)


def draw_levels(directory: Path, summary: dict[str, Any], form: str = "png") -> Path:
    """Draw figures/converge.png of a summary, or the same in another format."""
    from meanfield_pde.figures.converge import draw_convergence  # matplotlib: see `_lazy`

    names = [one["name"] for one in summary["levels"]]
    return draw_convergence(directory, summary["numbers"], names, form)


def intervals_of(sequence: list[Level], finer: float) -> dict[str, Interval]:
    """The intervals of all numbers of finished levels, by name."""
    found = [_numbers(one.case.output.directory) for one in sequence]
    intervals = {}
    for name in dict.fromkeys(name for numbers in found for name in numbers):
        each = [numbers.get(name) for numbers in found]
        spread = each[-1][1] if each[-1] is not None else 0.0
        values = [None if one is None else one[0] for one in each]
        intervals[name] = interval(values, finer, spread)
    return intervals


def intervals_table(numbers: Mapping[str, Mapping[str, Any]]) -> str:
    """The intervals of a summary as text, a line for each number."""
    rows = [("number", "order", "value on the finest mesh, half width of the interval")]
    for name, one in numbers.items():
        order = "-" if one["order"] is None else f"{one['order']:.2f}"
        rows.append((name, order, in_words(**one)))
    return "\n".join(in_columns(rows, right=(1,)))


def _in_folder(case: Case, directory: Path) -> Case:
    """The case with results in a folder, and no fields."""
    return replace(case, output=OutputCase(directory, "none", case.output.checkpoint_every))


def _numbers(directory: Path) -> dict[str, tuple[float, float]]:
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


def _described(sequence: list[Level]) -> list[dict[str, Any]]:
    """What each level was run with."""
    return [
        {
            "directory": one.case.output.directory.name,
            "name": _name(one.case),
            "cells": one.case.mesh.cells,
            "adapt_tolerance": None if one.case.adapt is None else one.case.adapt.tolerance,
            "step_tolerance": one.case.solver.step_tolerance,
            "tolerance": one.case.solver.tolerance,
        }
        for one in sequence
    ]


def _name(case: Case) -> str:
    """What a level is called in the figure."""
    return f"{case.mesh.cells:,} cells" if case.adapt is None else f"{case.adapt.tolerance:.1e} rad"


def _row(name: str, one: Interval) -> Row:
    row: Row = {"number": name, "value": one.value, "low": one.low, "high": one.high}
    row |= {"order": one.order, "converging": one.converging}
    return row | {f"level_{number}": value for number, value in enumerate(one.values)}
