"""`meanfield-pde lifetime`: lifetimes of a case for several beta and N, and the two laws.

lifetime.csv has a row for each measurement, with the predicted terms beside it; summary.json the
fits, linear and with the next term (`theory.lifetime_law`), beside the predictions, and the stages.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde.attention.layers import single
from meanfield_pde.case.case import Case
from meanfield_pde.case.text import MAX_CELLS_KEY
from meanfield_pde.errors import InputError
from meanfield_pde.experiments.case_mesh import case_mesh
from meanfield_pde.experiments.folder import check_betas, check_counts, experiment_folder
from meanfield_pde.experiments.levels import Level, level, ratio
from meanfield_pde.experiments.lifetime import (
    Lifetime,
    density_lifetime,
    given_up,
    switching_progress,
    token_lifetime,
)
from meanfield_pde.figures.failures import drawn_if_possible
from meanfield_pde.results.checked_text import write_summary
from meanfield_pde.results.tables import Row, read_table, write_table
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.checks import whole
from meanfield_pde.support.old_names import accept_old_keywords
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.versions import versions
from meanfield_pde.theory.fits import LinearFit, fit_or_none
from meanfield_pde.theory.lifetime_law import fit_law
from meanfield_pde.theory.progress import Progress
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.richardson import FEWEST, interval, interval_columns
from meanfield_pde.theory.stages import departure

LOG = logging.getLogger("meanfield_pde")
TABLE = "lifetime.csv"
# What may differ between the case of an experiment and that of its continuation.
_FREE = ("attention.beta", "time", "compare", "output", MAX_CELLS_KEY)
# What names a measurement: kind, beta, number of cells or tokens, and the seed of the tokens.
_Key = tuple[str, float, int, int | None]


@accept_old_keywords
@typed
def measure_lifetimes(
    case: Case,
    betas: Sequence[float],
    counts: Sequence[int] = (),
    *,
    seeds: int = 4,
    directory: Path,
    until: float | None = None,
    check: bool = False,
    allow_long: bool = False,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> dict[str, Any]:
    """Measure, fit and draw; what is in the folder already is not measured again. Collective.

    Args:
        case: matrices, mesh, initial density and solver.
        betas: inverse temperatures of the density.
        counts: numbers of tokens; each is measured at the two largest beta.
        seeds: samples of tokens for each of them.
        directory: where lifetime.csv, summary.json and the figure go.
        until: when to give up a measurement.
        check: measure the density on two finer meshes, too (`levels`), and conclude from the
            finest, with intervals.
        allow_long: do not refuse measurements of more than 1e9 steps.
        comm: the ranks that share the work.

    Returns:
        What summary.json says.
    """
    betas, counts = check_betas(betas), check_counts(counts)
    seeds = whole(seeds, "seeds", 1)
    attention = single(case.attention, "a lifetime")
    # Refuses what has no lifetime, and a time that is none.
    given_up(switching_progress(attention.with_beta(betas[-1])).projection, until)
    if not case.mesh.there and not counts:
        raise InputError(
            f"without a mesh there are lifetimes of tokens alone: give their numbers (--tokens), "
            f"d = {case.dimension}"
        )
    if check and case.mesh.cells is None:
        kind = case.mesh.kind
        raise InputError(f"mesh.kind = '{kind}' has no finer meshes, and intervals need three")
    sequence = [level(case, number) for number in range(FEWEST if check else 1)]
    meshes = {}
    for one in sequence if case.mesh.there else ():
        mesh = case_mesh(one.case.mesh, attention, comm)
        meshes[int(mesh.topology.index_map(mesh.topology.dim).size_global)] = (one, mesh)
    cells = list(meshes)
    wanted = _wanted(betas, (), seeds, cells[:-1])
    concluded = _wanted(betas, counts, seeds, cells[-1:])
    for beta in betas:
        predicted = ProjectionLimit(attention.with_beta(beta))
        if predicted.exists and predicted.lifetime < predicted.log_beta_time:
            LOG.warning("beta = %g: %s: no metastable phase", beta, predicted.no_metastable_phase)
    with experiment_folder(directory, case, ignore=_FREE, comm=comm):
        rows = on_root(comm, read_table, directory / TABLE)
        for key in wanted + concluded:
            same = [row for row in rows if _key(row) == key]
            kind, beta, count, _ = key
            limit = ProjectionLimit(attention.with_beta(beta))
            latest = given_up(limit, until, count if kind == "tokens" else None)
            if any(row["lifetime"] is not None or row["until"] >= latest for row in same):
                continue
            found = _measure(meshes, case, key, until, allow_long, comm)
            LOG.info("%s%s", _line(found), _why_not_ended(found, limit, given=until is not None))
            # A measurement that was given up earlier than now is replaced.
            rows = [row for row in rows if row not in same] + [_row(limit, found)]
            on_root(comm, write_table, directory / TABLE, _complete(rows))
        if check:
            rows = _checked(rows, betas, cells, ratio(case))
            on_root(comm, write_table, directory / TABLE, _complete(rows))
        chosen = [row for row in rows if _key(row) in concluded]
        summary = on_root(comm, summarise_lifetimes, case, chosen)
        on_root(comm, write_summary, directory, summary | {"versions": versions()})
        on_root(comm, drawn_if_possible, _draw, directory, ProjectionLimit(attention), chosen)
    return summary


def drawn_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows that a figure shows: of a beta that was checked, the one with the interval."""
    checked = {row["beta"] for row in rows if _has_interval(row)}
    return [
        row
        for row in rows
        if row["kind"] == "tokens" or row["beta"] not in checked or _has_interval(row)
    ]


def _has_interval(row: Row) -> bool:
    return row.get("lifetime_converging") is not None


def _draw(directory: Path, limit: ProjectionLimit, rows: list[Row]) -> None:
    from meanfield_pde.figures.lifetime import draw_lifetimes  # matplotlib: see `_lazy`

    draw_lifetimes(directory, limit, rows)


def _wanted(
    betas: Sequence[float], counts: Sequence[int], seeds: int, cells: Sequence[int]
) -> list[_Key]:
    """The measurements to make: of the density on meshes, of tokens at the two largest beta."""
    density: list[_Key] = [("density", beta, count, None) for count in cells for beta in betas]
    return density + [
        ("tokens", beta, count, seed)
        for count in counts
        for beta in betas[-2:]
        for seed in range(seeds)
    ]


def _checked(
    rows: Sequence[Row], betas: Sequence[float], cells: Sequence[int], finer: float
) -> list[Row]:
    """The rows, those of the finest mesh with intervals from it and the coarser ones."""
    measured = {_key(row): row for row in rows}
    intervals = {}
    for beta in betas:
        each = [measured["density", beta, count, None] for count in cells]
        columns: Row = {}
        for name in ("lifetime", "half"):
            columns |= interval([row[name] for row in each], finer).columns(name)
        intervals[_key(each[-1])] = columns
    return [row | intervals.get(_key(row), {}) for row in rows]


def _measure(
    meshes: Mapping[int, tuple[Level, dolfinx_mesh.Mesh]],
    case: Case,
    key: _Key,
    until: float | None,
    allow_long: bool,
    comm: MPI.Comm,
) -> Lifetime:
    _, beta, count, seed = key
    attention = single(case.attention, "a lifetime").with_beta(beta)
    noise = case.noise.strength
    if seed is not None:
        return token_lifetime(
            attention, case.initial, count, seed, until=until, noise=noise, comm=comm
        )
    at, mesh = meshes[count]
    return density_lifetime(
        attention,
        mesh,
        case.initial,
        until=until,
        settings=at.case.solver,
        adapt=at.case.adapt,
        noise=noise,
        steps=at.steps,
        allow_long=allow_long,
    )


def summarise_lifetimes(case: Case, rows: Sequence[Row]) -> dict[str, Any]:
    """The two fits, beside the two predictions."""
    limit = ProjectionLimit(single(case.attention, "a lifetime"))
    density = [row for row in rows if row["kind"] == "density"]
    tokens = [row for row in rows if row["kind"] == "tokens"]
    beta_fit, count_fit = fits(rows)
    law = fit_law(
        limit, *(_column(density, name) for name in ("beta", "lifetime", "min_cell_width"))
    )
    summary: dict[str, Any] = {
        "noise": case.noise.strength,
        "definition": "the principal axis leaves the eigenspace of A, when it has gone half of the "
        "way to its first plateau towards that of V",
        "density": {
            "lifetimes": [[row["beta"], row["lifetime"]] for row in density],
            "intervals": [
                {"beta": row["beta"]} | {name: row[name] for name in interval_columns("lifetime")}
                for row in density
                if _has_interval(row)
            ],
            "fit_in_beta": None if beta_fit is None else beta_fit.describe(),
            "predicted_slope": limit.lifetime_per_beta,
            "slope_over_predicted": None
            if beta_fit is None
            else beta_fit.slope / limit.lifetime_per_beta,
            "final_angle_to_value_eigenspace": [[row["beta"], row["angle"]] for row in density],
            "not_reached": [row["beta"] for row in density if row["lifetime"] is None],
            "predicted_stops": [list(stop) for stop in Progress(limit).stops],
            "law": None if law is None else law.describe(),
            "stages": [
                {"beta": row["beta"], "stages": json.loads(row["stages"])}
                for row in density
                if row.get("stages")
            ],
        },
    }
    if tokens:
        summary["tokens"] = {
            "means": [
                {"beta": beta, "count": count, "mean": mean, "error": error, "samples": samples}
                for beta, count, mean, error, samples in token_means(rows)
            ],
            "fit_in_log_count": None if count_fit is None else count_fit.describe(),
            "fit_by_beta": {
                f"{beta:g}": fit.describe()
                for beta in sorted({row["beta"] for row in tokens})
                if (fit := _count_fit([row for row in tokens if row["beta"] == beta])) is not None
            },
            "predicted_slope": 1 / limit.tail_rate,
            "slope_over_predicted": None
            if count_fit is None
            else count_fit.slope * limit.tail_rate,
            "not_reached": [
                [row["beta"], row["count"], row["seed"]]
                for row in tokens
                if row["lifetime"] is None
            ],
        }
    return summary


def _row(limit: ProjectionLimit, found: Lifetime) -> Row:
    """A row of the table: the measurement, and what is predicted of the density."""
    row = asdict(found)
    if found.seed is not None:
        return row | {"linear": None, "next_term": None}
    terms = departure(limit)
    beyond = None if terms is None else terms.beyond(found.beta, found.min_cell_width or 0.0)
    return row | {"linear": limit.lifetime, "next_term": beyond}


def _complete(rows: Sequence[Row]) -> list[Row]:
    """Rows with the same columns, those of an older table too."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def _key(row: Row) -> _Key:
    return (row["kind"], row["beta"], row["count"], row["seed"])


def fits(rows: Sequence[Row]) -> tuple[LinearFit | None, LinearFit | None]:
    """The density's lifetime against beta, and that of tokens against log N."""
    density = [row for row in rows if row["kind"] == "density"]
    beta_fit = fit_or_none(_column(density, "beta"), _column(density, "lifetime"))
    return beta_fit, _count_fit([row for row in rows if row["kind"] == "tokens"])


def token_means(rows: Sequence[Row]) -> list[tuple[float, int, float, float, int]]:
    """Beta, N, mean lifetime, its standard error (nan for one sample), and samples."""
    found = []
    tokens = [row for row in rows if row["kind"] == "tokens"]
    for beta, count in sorted({(row["beta"], row["count"]) for row in tokens}):
        same = [r for r in tokens if (r["beta"], r["count"]) == (beta, count)]
        values = _column(same, "lifetime")
        values = values[np.isfinite(values)]
        if len(values):
            spread = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
            found.append((beta, int(count), float(values.mean()), float(spread), len(values)))
    return found


def _count_fit(tokens: Sequence[Row]) -> LinearFit | None:
    return fit_or_none(np.log(_column(tokens, "count")), _column(tokens, "lifetime"))


def _column(rows: Sequence[Row], name: str) -> np.ndarray:
    values = [row.get(name) for row in rows]
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _line(found: Lifetime) -> str:
    what, sample = f"{found.count} cells", ""
    if found.seed is not None:
        what, sample = f"{found.count} tokens", f", seed {found.seed}"
    elif found.most_cells is not None and found.most_cells > found.count:
        what = f"up to {found.most_cells} cells ({found.count} given)"
    end = (
        f"not ended at t = {found.until:.4g}"
        if found.lifetime is None
        else f"ended at t = {found.lifetime:.4f}"
    )
    return f"beta = {found.beta:g}, {what}{sample}: {end} ({found.wall_time:.0f} s)"


def _why_not_ended(found: Lifetime, limit: ProjectionLimit, *, given: bool) -> str:
    """Where the axis is and why the measurement was given up, if the metastable state lives on."""
    if found.lifetime is not None:
        return ""
    if found.angle < limit.terminal_angle / 2:
        return "; the axis was never at the eigenspace of A, but is at that of V"
    given_up = "as --until says"
    if not given:
        expected = "log(N) / r" if found.seed is not None else "the predicted lifetime"
        given_up = f"beyond three times {expected}; a later --until goes on"
    gone, way = (math.degrees(one) for one in (found.angle, limit.terminal_angle))
    return f"; given up {given_up}, with the axis {gone:.1f} of {way:.1f} degrees from that of V"


# By the name of its command, as the package exports it.
lifetime = measure_lifetimes
