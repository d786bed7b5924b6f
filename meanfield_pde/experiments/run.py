"""One run of a case: from the case file's contents to a complete result folder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpi4py import MPI

from meanfield_pde.case.case import Case
from meanfield_pde.case.text import case_text
from meanfield_pde.errors import InputError
from meanfield_pde.experiments.case_mesh import case_mesh
from meanfield_pde.experiments.cost import check_steps
from meanfield_pde.experiments.forecast import Forecast, LongRun, forecast
from meanfield_pde.experiments.summary import findings, summarise
from meanfield_pde.figures.failures import drawing, drawn_if_possible
from meanfield_pde.history.history import History
from meanfield_pde.history.store import Store
from meanfield_pde.results.checked_text import read_summary, write_summary
from meanfield_pde.results.checkpoint import restore_checkpoint
from meanfield_pde.results.claim import begins_anew, check_folder, claim_folder
from meanfield_pde.results.folder import Result, read_result, warn_unchecked
from meanfield_pde.results.lock import FolderLock
from meanfield_pde.results.moments import MOMENTS_CHECKSUM, moments_digest, phases_of_run
from meanfield_pde.results.names import HISTORY, SUMMARY
from meanfield_pde.results.paraview import FieldWriter
from meanfield_pde.results.progress import ProgressBar, ProgressLines
from meanfield_pde.results.tables import HistoryFile
from meanfield_pde.results.writer import ResultWriter, density_store
from meanfield_pde.solver.simulation import Observer, Simulation
from meanfield_pde.solver.solution import Solution
from meanfield_pde.solver.steadiness import Steadiness
from meanfield_pde.solver.step_control import StepSettings
from meanfield_pde.support.arguments import typed
from meanfield_pde.support.old_names import accept_old_keywords
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.signals import stop_if_noted
from meanfield_pde.theory.phases import Phases
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.theory.push_forward import limit_of

LOG = logging.getLogger("meanfield_pde")


@accept_old_keywords
@typed
def run_case(
    case: Case,
    *,
    comm: MPI.Comm = MPI.COMM_WORLD,
    overwrite: bool = False,
    resume: bool = False,
    quiet: bool = False,
    allow_long: bool = False,
    steps: StepSettings | None = None,
    figures: bool = True,
) -> Solution:
    """Solve a case and write its result folder. Collective.

    Finished results of the same case are left as they are, and returned.

    Args:
        case: what to solve.
        comm: the ranks that share the work.
        overwrite: replace the results in the output folder, finished or not.
        resume: go on from the checkpoint in the output folder; start where there is nothing yet.
        quiet: show no progress bar.
        allow_long: do not refuse a run of more than 1e9 steps.
        steps: what steps are allowed to do, for studies of the error in time; not in case.toml.
        figures: draw them, which takes 0.8 s; `plot` does later.

    Returns:
        The solution, whose densities are in the folder and read when they are asked for.
    """
    directory, text = case.output.directory, case_text(case)
    if resume and on_root(comm, begins_anew, directory, text):
        LOG.info("%s: there is nothing to resume yet; the run starts", directory)
        resume, overwrite = False, True

    def check() -> bool:
        return check_folder(directory, text, source=case.source, overwrite=overwrite, resume=resume)

    if on_root(comm, check):
        solution = _finished(case, comm)
        LOG.warning(
            "%s: holds the finished results of this case; they are left as they are", directory
        )
        return solution
    lock = FolderLock(directory)
    simulation: Simulation | None = None
    try:
        if resume:
            on_root(comm, lock.acquire)
        simulation = _simulation(case, comm, steps)
        stop_if_noted(comm)
        if not resume:
            on_root(comm, lock.acquire)
            on_root(comm, check)  # another run may have been there since
        store, saved = _resumed(simulation, case, text) if resume else (None, 0)
        _announce(simulation, case)
        check_steps(
            simulation.evolutions.values(), case.time.until, "time.until", allow_long=allow_long
        )
        _open_folder(simulation, case, text, store, saved)
        simulation.run(
            case.time.save_times,
            _observers(case, quiet),
            steady=case.time.steady,
            steady_metastable=case.time.steady_metastable,
        )
        solution = simulation.solution()
        on_root(comm, _conclude, case, simulation, solution, figures)
    finally:
        lock.release()
        if simulation is not None:
            simulation.close()
    return solution


@typed
def forecast_run(
    case: Case,
    *,
    comm: MPI.Comm = MPI.COMM_WORLD,
    overwrite: bool = False,
    allow_long: bool = False,
) -> Forecast | None:
    """Forecast what `run_case` will take, by a trial that writes nothing. Collective.

    None if the folder holds the finished results of the case, which are left as they are.

    Args:
        case: what would be solved.
        comm: the ranks that would share the work.
        overwrite: as for `run_case`.
        allow_long: likewise.
    """
    directory, text = case.output.directory, case_text(case)

    def check() -> bool:
        return check_folder(directory, text, source=case.source, overwrite=overwrite, resume=False)

    if on_root(comm, check):
        return None
    simulation = _simulation(case, comm)
    try:
        check_steps(
            simulation.evolutions.values(), case.time.until, "time.until", allow_long=allow_long
        )
        return forecast(simulation, case)
    finally:
        simulation.close()


def _finished(case: Case, comm: MPI.Comm) -> Solution:
    """The results in its folder as the solution of a case. Collective."""
    directory = case.output.directory
    result, summary = on_root(comm, _read_finished, directory)
    return Solution(
        attention=result.attention,
        cells=result.cells,
        store=result.store,
        history=result.history,
        limit=result.limit,
        cost=result.cost,
        noise=result.noise,
        steps=summary["steps"],
        rejected=summary["rejected_steps"],
        wall_time=summary["wall_time_seconds"],
        tolerance=case.solver.tolerance,
        steadiness=Steadiness(**known) if (known := summary.get("steadiness")) else None,
        mesh=case_mesh(case.mesh, case.attention, comm),
    )


def _read_finished(directory: Path) -> tuple[Result, dict[str, Any]]:
    """What is in the folder, and what its summary says."""
    result = read_result(directory)
    rows = result.store.rows
    result.store.check(rows)  # finished is what can be read
    summary = read_summary(directory, rows, checked=result.store.checked)
    for name, kinds in (
        ("steps", int),
        ("rejected_steps", int),
        ("wall_time_seconds", (int, float)),
    ):
        if not isinstance(summary.get(name), kinds):
            raise InputError(
                f"{directory / SUMMARY}: not the summary of a run ({name} is no number)"
            )
    return result, summary


def _simulation(case: Case, comm: MPI.Comm, steps: StepSettings | None = None) -> Simulation:
    try:
        mesh = case_mesh(case.mesh, case.attention, comm)
        stop_if_noted(comm)  # large ones take minutes
        return Simulation(
            case.attention,
            mesh,
            case.initial,
            noise=case.noise.strength,
            settings=case.solver,
            compare=case.compare,
            adapt=case.adapt,
            steps=steps,
            observables=case.observables,
        )
    except InputError as error:
        raise InputError(f"{case.source}: {error}" if case.source else str(error)) from None


def _resumed(simulation: Simulation, case: Case, text: str) -> tuple[Store, int]:
    """Put the simulation where its checkpoint stands: the store, and the times it knows of."""
    store = density_store(case.output.directory, simulation, text)
    saved = restore_checkpoint(case.output.directory, simulation, store)
    if not store.checked:
        warn_unchecked(case.output.directory)
    store.check(simulation.rows)  # before anything is written
    simulation.ahead(case.time.save_times)  # refuses times that are past
    return store, saved


def _open_folder(
    simulation: Simulation, case: Case, text: str, store: Store | None, saved: int
) -> None:
    """Make the folder, or take up the run that is in it, if there is a store of it. Collective."""
    directory, comm = case.output.directory, simulation.comm
    resume = store is not None
    on_root(comm, lambda: claim_folder(directory, text, RUN_FIGURES, resume=resume))
    if store is not None:
        store.truncate(saved)
        on_root(comm, HistoryFile, directory / HISTORY, simulation.rows)
        LOG.info(
            "resumed at t = %.6g, step %d", simulation.evolution.time, simulation.evolution.step
        )
    else:
        simulation.store = density_store(directory, simulation, text)


def _announce(simulation: Simulation, case: Case) -> None:
    surface = "circle" if case.dimension == 2 else "sphere"
    mesh = f"{simulation.evolution.equation.volumes.global_cells} cells"
    if case.adapt is not None:
        mesh = f"an adaptive mesh, tolerance {case.adapt.tolerance:g}, {mesh} at first"
    LOG.info(
        "the density on the %s to t = %g, on %s, by %s x %s",
        surface,
        case.time.until,
        mesh,
        _counted(simulation.comm.size, "rank"),
        _counted(simulation.threads, "thread"),
    )


def _observers(case: Case, quiet: bool) -> list[Observer]:
    directory = case.output.directory
    output = case.output
    writer = ResultWriter(directory, output.checkpoint_steps, output.checkpoint_seconds)
    observers: list[Observer] = [ProgressLines(), LongRun(case), writer]
    if output.fields != "none":
        observers.append(FieldWriter(directory, output.fields))
    if not quiet:
        observers.append(ProgressBar())
    return observers


def _conclude(case: Case, simulation: Simulation, solution: Solution, figures: bool) -> None:
    """Figures, if they are wanted, and summary, on rank 0."""
    directory, projection = case.output.directory, simulation.projection
    phases = phases_of_run(directory, solution.history, projection)
    if figures:
        drawn_if_possible(draw_run, directory, solution, projection, phases)
    limit = solution.limit
    if limit is None and projection.dimension == 1:
        limit = limit_of(projection, case.initial, solution.cells.vertices)
    summary = summarise(simulation, solution, phases, limit)
    summary[MOMENTS_CHECKSUM] = moments_digest(directory)
    write_summary(directory, summary, simulation.rows)
    for line in findings(summary, phases):
        LOG.info("%s", line)


@dataclass(frozen=True)
class Drawing:
    """What a figure of a run is drawn from.

    Attributes:
        directory: in which figures/ is.
        history: of the run.
        projection: what is predicted.
        phases: of the run.
        form: "png", "pdf" or "svg".
        times: at which densities are wanted; by default a few, evenly chosen.
    """

    directory: Path
    history: History
    projection: ProjectionLimit
    phases: Phases
    form: str
    times: Sequence[float]


def _density(one: Drawing) -> Path | None:
    from meanfield_pde.figures.density import draw_density  # matplotlib: see `_lazy`

    return draw_density(one.directory, one.history, one.projection, one.form, one.times)


def _views(one: Drawing) -> Path | None:
    from meanfield_pde.figures.views import draw_views

    return draw_views(one.directory, one.history, one.projection, one.form, one.times)


def _distances(one: Drawing) -> Path | None:
    from meanfield_pde.figures.distances import draw_distances

    return draw_distances(one.directory, one.history, one.projection, one.phases, one.form)


def _history(one: Drawing) -> Path | None:
    from meanfield_pde.figures.history import draw_history

    return draw_history(one.directory, one.history, one.form)


# The figures of a run, by the names of their files: a new one is a function, and a line here.
RUN_FIGURES: dict[str, Callable[[Drawing], Path | None]] = {
    "density": _density,
    "views": _views,
    "distances": _distances,
    "history": _history,
}


def draw_run(
    directory: Path,
    history: History,
    projection: ProjectionLimit,
    phases: Phases,
    form: str = "png",
    times: Sequence[float] = (),
) -> list[Path]:
    """Draw all figures of a run, and return their paths."""
    what = Drawing(directory, history, projection, phases, form, times)
    with history.store.kept_open():
        drawn = [drawing(draw)(what) for draw in RUN_FIGURES.values()]
    return [path for path in drawn if path is not None]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
