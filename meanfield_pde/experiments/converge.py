"""`meanfield-pde converge`: a case on a sequence of meshes, and an interval for each number.

Each level (`levels`) is a run in a folder of its own, `level-0` the case as it is given. The
numbers that runs conclude, and the columns of their histories at the end, then have an observed
order and an interval (`theory.richardson`). converge.csv has a row for each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

from meanfield_pde.case.case import Case
from meanfield_pde.case.text import MAX_CELLS_KEY
from meanfield_pde.experiments.conclusions import EVENTS, intervals_of
from meanfield_pde.experiments.cost import check_memory
from meanfield_pde.experiments.folder import experiment_folder, in_folder, run_unless_finished
from meanfield_pde.experiments.levels import Level, level, ratio
from meanfield_pde.figures.failures import drawn_if_possible
from meanfield_pde.results.checked_text import write_summary
from meanfield_pde.results.tables import Row, write_table
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.checks import whole
from meanfield_pde.support.columns import in_columns
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.versions import versions
from meanfield_pde.theory.richardson import FEWEST, Interval, in_words

TABLE = "converge.csv"
# What may differ between the case of the folder and that of its continuation.
_FREE = ("output", MAX_CELLS_KEY)


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
        `converging` and `values`; the `levels`; and `not_reached`, the events of a metastable
        phase that were seen on no level.
    """
    levels = whole(levels, "levels", FEWEST)
    directory = case.output.directory / "converge" if directory is None else directory
    sequence = [level(case, number) for number in range(levels)]
    check_memory(sequence[-1].case.mesh, comm)  # before the first is run
    sequence = [
        replace(one, case=in_folder(one.case, directory / f"level-{number}"))
        for number, one in enumerate(sequence)
    ]

    def conclude() -> dict[str, Any]:
        found = intervals_of([one.case.output.directory for one in sequence], ratio(case))
        numbers = {name: one.describe() for name, one in found.items()}
        summary = {
            "ratio": ratio(case),
            "levels": _described(sequence),
            "numbers": numbers,
            "not_reached": [name for name in EVENTS if name not in numbers],
        }
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


def intervals_table(numbers: Mapping[str, Mapping[str, Any]]) -> str:
    """The intervals of a summary as text, a line for each number."""
    rows = [("number", "order", "value on the finest mesh, half width of the interval")]
    for name, one in numbers.items():
        order = "-" if one["order"] is None else f"{one['order']:.2f}"
        rows.append((name, order, in_words(**one)))
    return "\n".join(in_columns(rows, right=(1,)))


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
