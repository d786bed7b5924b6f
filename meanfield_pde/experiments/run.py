"""One run of a case: from the case file's contents to a complete result folder."""

from __future__ import annotations

import logging
import platform
import time as clock
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mpi4py import MPI
from petsc4py import PETSc

import dolfinx
import numpy as np
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde.attention.layers import AttentionLike
from meanfield_pde.case.case import LOG_MASSES, Case, MeshCase
from meanfield_pde.case.text import case_text
from meanfield_pde.errors import InputError
from meanfield_pde.figures import density as figures
from meanfield_pde.figures.distances import draw_distances
from meanfield_pde.mesh.files import read_mesh
from meanfield_pde.mesh.surface import circle_mesh, sphere_mesh
from meanfield_pde.results import folder as results
from meanfield_pde.results.checkpoint import restore_checkpoint, write_checkpoint
from meanfield_pde.results.paraview import FieldWriter
from meanfield_pde.results.progress import ProgressBar
from meanfield_pde.solver.simulation import Observer, Simulation, Solution
from meanfield_pde.support.ranks import on_root
from meanfield_pde.theory.phases import phases_of_history
from meanfield_pde.theory.projection_limit import ProjectionLimit

LOG = logging.getLogger("meanfield_pde")

# Rewriting everything saved so far may take at most this fraction of the run.
WRITING_SHARE = 0.05


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
    """
    directory = case.output.directory
    text = case_text(case)

    def check_folder() -> None:
        results.check_folder(
            directory, text, source=case.source, overwrite=overwrite, resume=resume
        )

    on_root(comm, check_folder)
    try:
        simulation = Simulation(
            case.attention,
            case_mesh(case.mesh, case.attention, comm),
            case.initial,
            scheme=case.solver.scheme,
            tolerance=case.solver.tolerance,
            compare=case.compare,
            log_masses=LOG_MASSES[case.solver.log_masses],
        )
    except InputError as error:
        raise InputError(f"{case.source}: {error}" if case.source else str(error)) from None
    if resume:
        restore_checkpoint(directory, simulation)
        simulation.ahead(case.time.save_times)  # refuses times that are past
    on_root(comm, lambda: results.claim_folder(directory, text, resume=resume))
    if resume:
        LOG.info(
            "resumed at t = %.6g, step %d", simulation.evolution.time, simulation.evolution.step
        )
    observers: list[Observer] = [ResultWriter(directory, text, case.output.checkpoint_every)]
    if case.output.fields != "none":
        observers.append(FieldWriter(directory, case.output.fields))
    if not quiet:
        observers.append(ProgressBar())
    LOG.info(
        "%d cells, %s x %s, to t = %g",
        simulation.volumes.global_cells,
        _counted(comm.size, "rank"),
        _counted(simulation.threads, "thread"),
        case.time.until,
    )
    simulation.run(case.time.save_times, observers)
    solution = simulation.solution()
    on_root(comm, _conclude, directory, simulation, solution)
    return solution


def case_mesh(mesh: MeshCase, attention: AttentionLike, comm: MPI.Comm) -> dolfinx_mesh.Mesh:
    """The mesh that a case asks for. Collective."""
    if mesh.kind == "file":
        assert mesh.path is not None  # the case was checked
        try:
            found = read_mesh(mesh.path, comm)
        except InputError as error:
            raise InputError(f"mesh.path: {error}") from None
        if (dimension := found.geometry.dim) != attention.dimension:
            raise InputError(
                f"mesh.path: {mesh.path} is a mesh in dimension {dimension}, but attention.value "
                f"is {attention.dimension} x {attention.dimension}"
            )
        return found
    axis: np.ndarray | None = None
    if mesh.grade > 1:
        limit = ProjectionLimit(attention)
        space = limit.eigenspace
        if space.dimension != 1 or space.basis is None:
            reason = space.reason or f"the dominant eigenspace has dimension {space.dimension}"
            raise InputError(
                f"mesh.grade = {mesh.grade:g} refines toward the axis on which A = V B^T "
                f"concentrates, but A has no dominant eigenvector: {reason}; set mesh.grade = 1"
            )
        axis = space.basis[:, 0]
    make = circle_mesh if mesh.kind == "circle" else sphere_mesh
    assert mesh.cells is not None  # the case has filled in the default
    return make(mesh.cells, grade=mesh.grade, axis=axis, comm=comm)


class ResultWriter(Observer):
    """Writes history.csv and density.h5 as times are saved, and checkpoints between them.

    Each file holds everything so far and is written whole. So that this never dominates, writing is
    skipped when it would take more than a small share of the run; the last state is always written.
    """

    def __init__(self, directory: Path, case: str, checkpoint_every: int) -> None:
        self._directory = directory
        self._case = case
        self._every = checkpoint_every
        self._history = results.HistoryFile(directory)
        self._spent = 0.0
        self._begun = clock.perf_counter()

    def saved(self, simulation: Simulation) -> None:
        """Write the history and the densities, unless they were written a moment ago."""
        last = simulation.evolution.time >= simulation.until
        if last or self._has_time(simulation):
            self._timed(self._write, simulation)
            if last and self._every:
                self._timed(write_checkpoint, self._directory, simulation)

    def stepped(self, simulation: Simulation) -> None:
        """Write a checkpoint every so many steps."""
        due = self._every and simulation.evolution.step % self._every == 0
        if due and self._has_time(simulation):
            self._timed(write_checkpoint, self._directory, simulation)

    def _has_time(self, simulation: Simulation) -> bool:
        elapsed = clock.perf_counter() - self._begun
        return bool(simulation.comm.bcast(self._spent <= WRITING_SHARE * elapsed))

    def _timed(self, write: Any, *arguments: Any) -> None:
        start = clock.perf_counter()
        write(*arguments)
        self._spent += clock.perf_counter() - start

    def _write(self, simulation: Simulation) -> None:
        if simulation.comm.rank == 0:
            self._history.write(simulation.rows)
            results.write_density(self._directory, simulation, self._case)


def _conclude(directory: Path, simulation: Simulation, solution: Solution) -> None:
    """Figures and summary, on rank 0."""
    draw_figures(directory)
    results.write_summary(directory, summarise(simulation, solution))


def draw_figures(directory: Path) -> list[Path]:
    """Draw all figures of a result folder, and return their paths."""
    result = results.read_result(directory)
    drawn = (figures.draw_density(result), draw_distances(result))
    return [path for path in drawn if path is not None]


def summarise(simulation: Simulation, solution: Solution) -> dict[str, Any]:
    """What summary.json says."""
    mass = solution.history["mass"]
    densities = solution.history["min_density"]
    axis, share = principal_axis(solution.cells.points, solution.masses[-1])
    summary = {
        "time": simulation.evolution.time,
        "steps": solution.steps,
        "rejected_steps": solution.rejected,
        "wall_time_seconds": solution.wall_time,
        "cells": simulation.volumes.global_cells,
        "ranks": simulation.comm.size,
        "threads_per_rank": simulation.threads,
        "log_masses": simulation.log_masses,
        "mass_drift": float(np.abs(mass - mass[0]).max()),
        "min_density": float(densities.min()),
        "max_density": float(solution.history["max_density"].max()),
        "final_principal_axis": axis,
        "final_share_along_axis": share,
        "limit": ProjectionLimit(solution.attention).describe(),
        "phases": phases_of_history(solution.history, solution.attention).describe(),
        "versions": versions(),
    }
    if simulation.comparison is not None:
        names = [
            name
            for name in solution.history
            if name[0] == "w" and not name.endswith(("_low", "_high"))
        ]
        least = {name: int(np.argmin(solution.history[name])) for name in names}
        summary["least_distances"] = {
            name: {"value": solution.history[name][i], "time": solution.times[i]}
            for name, i in least.items()
        }
        summary["distances_not_closed"] = simulation.comparison.open
    return summary


def principal_axis(points: np.ndarray, masses: np.ndarray) -> tuple[np.ndarray, float]:
    """Eigenvector of ∫ x x^T dmu for its largest eigenvalue, and that eigenvalue (of sum 1)."""
    values, vectors = np.linalg.eigh((points * (masses / masses.sum())[:, None]).T @ points)
    axis = vectors[:, -1]
    return axis * np.sign(axis[np.abs(axis).argmax()]), float(values[-1])


def versions() -> dict[str, str]:
    """Versions of the package and of what it computes with."""
    names = ("meanfield_pde", "numpy", "scipy", "numba", "h5py", "mpi4py")
    return {name: version(name) for name in names} | {
        "python": platform.python_version(),
        "dolfinx": dolfinx.__version__,
        "petsc": ".".join(map(str, PETSc.Sys.getVersion())),
    }


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
