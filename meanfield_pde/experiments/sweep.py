"""`meanfield-pde sweep --beta`: the concentration theorem, measured over a range of beta.

    W_p(mu_t^beta, limit)  <=  C1 sqrt(log(beta + 1) / beta) exp(C t)  +  C2 exp(-c t)

For each beta the case is run, with all three distances, into a folder of its own. The histories
give the time t*(beta) of least distance and that distance, the rate of the decay before it, an
envelope of the form of the theorem that holds at every measured point, and the error of the
Laplace principle. sweep.csv has a row for each beta and p.

A sweep over any other keys of a case is that of `vary`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mpi4py import MPI

from meanfield_pde.attention.layers import single
from meanfield_pde.case.case import Case, OutputCase
from meanfield_pde.case.text import MAX_CELLS_KEY
from meanfield_pde.errors import InputError
from meanfield_pde.experiments.folder import (
    check_betas,
    experiment_folder,
    run_all,
)
from meanfield_pde.experiments.levels import Level, level, ratio
from meanfield_pde.experiments.sweep_analysis import rows_of_run, summarise_sweep, with_intervals
from meanfield_pde.experiments.vary import run_varied
from meanfield_pde.figures.failures import drawn_if_possible
from meanfield_pde.results.checked_text import write_summary
from meanfield_pde.results.folder import read_result
from meanfield_pde.results.tables import write_table
from meanfield_pde.solver.settings import CompareCase
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.checks import whole
from meanfield_pde.support.old_names import accept_old_keywords
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.versions import versions
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.richardson import FEWEST

LOG = logging.getLogger("meanfield_pde")
TABLE = "sweep.csv"
# What may differ between the case of a sweep and that of its continuation.
_FREE = ("attention.beta", "output", MAX_CELLS_KEY)


@accept_old_keywords
@typed
def run_sweep(
    case: Case,
    betas: Sequence[float] | None = None,
    *,
    directory: Path,
    vary: Mapping[str, Sequence[Any]] | None = None,
    show: str | None = None,
    at_once: int | None = None,
    check: bool = False,
    quiet: bool = False,
    allow_long: bool = False,
    comm: MPI.Comm = MPI.COMM_WORLD,
) -> dict[str, Any]:
    """Run, analyse and draw; betas that are finished are not run again. Collective.

    Args:
        case: matrices, mesh, initial density, solver and times.
        betas: inverse temperatures, two or more, to measure the theorem; or give `vary`.
        directory: each run goes to a folder of its own in it, such as `beta-...`.
        vary: two values or more for each of some keys of the case, as in
            {"attention.beta": [1, 2, 4], "noise.strength": [0.1, 0.2]}, of which every combination
            is run, and what it concludes is a row of a table (`run_varied`).
        show: the column of that table that is drawn, `end.mean_norm` by default.
        at_once: runs that share the ranks at the same time, at most as many as there are ranks; by
            default one beta, or as many points of `vary`.
        check: run each on two finer meshes, too (`levels`), in folders `level-...`, and conclude
            from the finest, with intervals.
        quiet: no progress bar.
        allow_long: do not refuse runs of more than 1e9 steps.
        comm: the ranks that share the work.

    Returns:
        What summary.json says.
    """
    if (betas is None) == (vary is None):
        raise InputError("a sweep is over betas, or over the keys of vary; give one of them")
    if betas is None:
        assert vary is not None
        return run_varied(
            case,
            vary,
            directory=directory,
            show=show,
            at_once=at_once,
            check=check,
            quiet=quiet,
            allow_long=allow_long,
            comm=comm,
        )
    if show is not None:
        raise InputError("show names a column of the table of vary; a sweep over betas has figures")
    betas = check_betas(betas, fewest=2)
    at_once = min(whole(1 if at_once is None else at_once, "at_once", 1), comm.size, len(betas))
    attention = single(case.attention, "a sweep")
    if case.noise.strength:
        raise InputError(
            "a sweep measures a theorem about the flow without noise; set noise.strength = 0"
        )
    limit = ProjectionLimit(attention)
    if not limit.exists:
        raise InputError(f"there is no limit to measure the distance to: {limit.reason}")
    if not math.isfinite(limit.decay_rate(1)):
        raise InputError(
            "A = V B^T is a multiple of the identity: the limit is the initial density itself"
        )
    sequence = [[Level(case_at(case, beta, directory)) for beta in betas]]
    for number in range(1, FEWEST if check else 1):
        finer, within = level(case, number), directory / f"level-{number}"
        sequence.append([replace(finer, case=case_at(finer.case, b, within)) for b in betas])

    def conclude() -> dict[str, Any]:
        from meanfield_pde.figures.sweep import draw_sweep  # matplotlib: see `_lazy`

        levels = [[read_result(one.case.output.directory) for one in cases] for cases in sequence]
        runs = levels[-1]
        if check:
            rows = with_intervals(levels, limit, ratio(case))
        else:
            rows = [row for run in runs for row in rows_of_run(run, limit)]
        write_table(directory / TABLE, rows)
        summary = summarise_sweep(runs, rows, limit)
        write_summary(directory, summary | {"versions": versions()})
        drawn_if_possible(draw_sweep, directory, runs, rows, limit, summary)
        return summary

    with experiment_folder(directory, case, ignore=_FREE, comm=comm):
        levels = [one for cases in sequence for one in cases][::-1]  # the most costly first
        run_all(
            levels,
            [_name(one) for one in levels],
            at_once=at_once,
            quiet=quiet,
            allow_long=allow_long,
            comm=comm,
        )
        return on_root(comm, conclude)


def case_at(case: Case, beta: float, directory: Path) -> Case:
    """The case at one beta: compared with the limit and with zero temperature."""
    compare = replace(case.compare or CompareCase(limit=True, p=(1, 2)), limit=True)
    # The shortest name that is that of no other beta.
    name = f"{beta:g}" if float(f"{beta:g}") == beta else repr(beta)
    output = OutputCase(directory / f"beta-{name}", "none", case.output.checkpoint_every)
    return replace(
        case,
        attention=case.attention.with_beta(beta),
        compare=replace(compare, zero_temperature=True),
        output=output,
        source=None,
    )


def _name(one: Level) -> str:
    """What a run is called in messages."""
    return f"beta = {one.case.attention.beta:g}" + f", level {one.number}" * (one.number > 0)


# By the name of its command, as the package exports it.
sweep = run_sweep
