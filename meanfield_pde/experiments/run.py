"""One run of a case: from the case file's contents to a complete result folder."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from mpi4py import MPI

from meanfield_pde.case.case import Case
from meanfield_pde.case.text import case_text
from meanfield_pde.errors import InputError
from meanfield_pde.experiments.case_mesh import case_mesh
from meanfield_pde.experiments.findings import findings
from meanfield_pde.experiments.summary import summarise
from meanfield_pde.figures.density import draw_density
from meanfield_pde.figures.distances import draw_distances
from meanfield_pde.figures.history import draw_history
from meanfield_pde.history.history import History
from meanfield_pde.results.checkpoint import restore_checkpoint
from meanfield_pde.results.folder import check_folder, claim_folder
from meanfield_pde.results.paraview import FieldWriter
from meanfield_pde.results.progress import ProgressBar
from meanfield_pde.results.tables import write_summary
from meanfield_pde.results.writer import ResultWriter, density_store
from meanfield_pde.solver.simulation import Observer, Simulation
from meanfield_pde.solver.solution import Solution
from meanfield_pde.support.ranks import on_root
from meanfield_pde.theory.phases import Phases, phases_of_history
from meanfield_pde.theory.projection_limit import ProjectionLimit

LOG = logging.getLogger("meanfield_pde")


def run_case(
    case: Case,
    *,
    comm: MPI.Comm = MPI.COMM_WORLD,
    overwrite: bool = False,
    resume: bool = False,
    quiet: bool = False,
) -> Solution:
    """Solve a case and write its result folder. Collective.

    Args:
        case: what to solve.
        comm: the ranks that share the work.
        overwrite: replace the results of another case in the output folder.
        resume: go on from the checkpoint in the output folder.
        quiet: show no progress bar.

    Returns:
        The solution, whose densities are in the folder and read when they are asked for.
    """
    directory, text = case.output.directory, case_text(case)

    def check() -> None:
        check_folder(directory, text, source=case.source, overwrite=overwrite, resume=resume)

    on_root(comm, check)
    simulation = _simulation(case, comm)
    try:
        _open_folder(simulation, case, text, resume=resume)
        simulation.run(case.time.save_times, _observers(case, quiet))
        solution = simulation.solution()
        on_root(comm, _conclude, directory, simulation, solution)
    finally:
        simulation.close()
    return solution


def _simulation(case: Case, comm: MPI.Comm) -> Simulation:
    try:
        return Simulation(
            case.attention,
            case_mesh(case.mesh, case.attention, comm),
            case.initial,
            settings=case.solver,
            compare=case.compare,
            resolution=case.mesh.resolution,
        )
    except InputError as error:
        raise InputError(f"{case.source}: {error}" if case.source else str(error)) from None


def _open_folder(simulation: Simulation, case: Case, text: str, *, resume: bool) -> None:
    """Make the folder, or take up the run that is in it; refused before anything is written."""
    directory, comm = case.output.directory, simulation.comm
    if resume:
        store = density_store(directory, simulation, text)
        saved = restore_checkpoint(directory, simulation, store)
        simulation.ahead(case.time.save_times)  # refuses times that are past
    on_root(comm, lambda: claim_folder(directory, text, resume=resume))
    if resume:
        store.truncate(saved)
        LOG.info(
            "resumed at t = %.6g, step %d", simulation.evolution.time, simulation.evolution.step
        )
    else:
        simulation.store = density_store(directory, simulation, text)
    LOG.info(
        "%d cells, %s x %s, to t = %g",
        simulation.evolution.equation.volumes.global_cells,
        _counted(comm.size, "rank"),
        _counted(simulation.threads, "thread"),
        case.time.until,
    )


def _observers(case: Case, quiet: bool) -> list[Observer]:
    directory = case.output.directory
    observers: list[Observer] = [ResultWriter(directory, case.output.checkpoint_every)]
    if case.output.fields != "none":
        observers.append(FieldWriter(directory, case.output.fields))
    if not quiet:
        observers.append(ProgressBar())
    return observers


def _conclude(directory: Path, simulation: Simulation, solution: Solution) -> None:
    """Figures and summary, on rank 0."""
    phases = phases_of_history(solution.history, simulation.projection)
    draw_run(directory, solution, simulation.projection, phases)
    summary = summarise(simulation, solution, phases)
    write_summary(directory, summary)
    for line in findings(summary, phases):
        LOG.info("%s", line)


def draw_run(
    directory: Path,
    history: History,
    projection: ProjectionLimit,
    phases: Phases,
    form: str = "png",
    times: Sequence[float] = (),
) -> list[Path]:
    """Draw all figures of a run, and return their paths."""
    drawn = (
        draw_density(directory, history, projection, form, times),
        draw_distances(directory, history, projection, phases, form),
        draw_history(directory, history, form),
    )
    return [path for path in drawn if path is not None]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
