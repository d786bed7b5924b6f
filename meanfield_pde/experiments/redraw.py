"""`meanfield-pde plot`: the figures of any folder, of a run or an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from meanfield_pde.attention.layers import single
from meanfield_pde.case.file import read_case
from meanfield_pde.errors import InputError
from meanfield_pde.experiments import converge, lifetimes, sweep, vary
from meanfield_pde.experiments.run import draw_run
from meanfield_pde.experiments.sweep_analysis import summarise_sweep
from meanfield_pde.results.checked_text import read_case_text, read_summary
from meanfield_pde.results.folder import read_result
from meanfield_pde.results.moments import phases_of_run
from meanfield_pde.results.names import CASE, SUMMARY
from meanfield_pde.results.sample import saved_index
from meanfield_pde.results.tables import read_table
from meanfield_pde.theory.projection_limit import ProjectionLimit


def draw_figures(
    directory: Path,
    form: str = "png",
    times: Sequence[float] = (),
    *,
    output: Path | None = None,
) -> list[Path]:
    """Draw all figures of a folder, and return their paths.

    Args:
        directory: the folder.
        output: the folder in which figures/ goes; by default the same.
        form: "png", "pdf" or "svg".
        times: at which the densities of a run are drawn; by default a few, evenly chosen.
    """
    into = output or directory
    of_experiments = {
        converge.TABLE: _draw_converge,
        lifetimes.TABLE: _draw_lifetimes,
        sweep.TABLE: _draw_sweep,
        vary.TABLE: _draw_points,
    }
    for table, draw in of_experiments.items():
        if (directory / table).is_file():
            if times:
                raise InputError(f"{directory}: times can be chosen for the folder of a run only")
            return draw(directory, into, form)
    result = read_result(directory)
    for time in times:
        saved_index(result, time, "drawn")
    projection = ProjectionLimit(result.attention)
    phases = phases_of_run(directory, result.history, projection)
    return draw_run(into, result, projection, phases, form, times)


def _draw_converge(directory: Path, into: Path, form: str) -> list[Path]:
    return [converge.draw_levels(into, read_summary(directory), form)]


def _draw_points(directory: Path, into: Path, form: str) -> list[Path]:
    return [vary.draw_points(into, read_summary(directory), form)]


def _draw_lifetimes(directory: Path, into: Path, form: str) -> list[Path]:
    from meanfield_pde.figures.lifetime import draw_lifetimes  # matplotlib: see `_lazy`

    read_case_text(directory)  # refuses one that was edited
    limit = ProjectionLimit(
        single(read_case(directory / CASE, meshless=True).attention, "a lifetime")
    )
    rows = lifetimes.drawn_rows(read_table(directory / lifetimes.TABLE))
    return [draw_lifetimes(into, limit, rows, form)]


def _draw_sweep(directory: Path, into: Path, form: str) -> list[Path]:
    from meanfield_pde.figures.sweep import draw_sweep  # matplotlib: see `_lazy`

    levels = sorted(directory.glob("level-*"))  # of `sweep --check`
    finest = levels[-1] if levels else directory
    found = [read_result(path.parent) for path in finest.glob(f"beta-*/{SUMMARY}")]
    if not found:
        raise InputError(f"{directory}: the runs of the sweep are not there, no folder beta-...")
    runs = sorted(found, key=lambda run: run.attention.beta)
    limit = ProjectionLimit(single(runs[0].attention, "a sweep"))
    rows = read_table(directory / sweep.TABLE)
    return draw_sweep(into, runs, rows, limit, summarise_sweep(runs, rows, limit), form)
