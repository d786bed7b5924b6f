"""What a run writes as it goes on: history, densities, moments, and checkpoints between them."""

from __future__ import annotations

import math
import time as clock
from importlib.metadata import version
from pathlib import Path

from mpi4py import MPI

from meanfield_pde.errors import StoppedError
from meanfield_pde.history.file_store import FileStore
from meanfield_pde.results.checkpoint import write_checkpoint
from meanfield_pde.results.moments import MomentsFile
from meanfield_pde.results.names import COARSEST, DENSITY, HISTORY
from meanfield_pde.results.tables import HistoryFile
from meanfield_pde.solver.simulation import Observer, Simulation
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.signals import noted
from meanfield_pde.support.timings import timed

# Checkpoints may take at most this fraction of the run.
WRITING_SHARE = 0.05


def density_store(directory: Path, simulation: Simulation, case: str) -> FileStore:
    """The store behind density.h5, as it is in the folder. Collective."""
    cells = simulation.cells
    # Where the mesh moves, each saved time comes with its own.
    prefix = "" if simulation.evolution.adapt is None else COARSEST
    constants = {prefix + name: array for name, array in cells.arrays().items()}
    limit = None if simulation.distances is None else simulation.distances.limit
    if limit is not None:
        constants |= {"limit/points": limit.points, "limit/masses": limit.masses}
        if limit.spread is not None:
            constants["limit/spread"] = limit.spread
    return FileStore.open(
        directory / DENSITY,
        simulation.comm,
        constants=constants,
        attributes={"version": version("meanfield_pde"), "case": case},
    )


class ResultWriter(Observer):
    """Appends to history.csv as times are saved, and writes checkpoints between them.

    A checkpoint is written whole. So that this never dominates, it is skipped when it would take
    more than a small share of the run; at the last time it is always written, and when a signal
    asks the run to stop, which then ends.

    Args:
        directory: the result folder.
        steps: steps between checkpoints; 0 for none.
        seconds: time between checkpoints, instead of steps.
    """

    def __init__(self, directory: Path, steps: int, seconds: float = math.inf) -> None:
        self._directory = directory
        self._steps = steps
        self._seconds = seconds
        self._history: HistoryFile | None = None
        self._moments = MomentsFile(directory)
        self._spent = 0.0
        self._begun = self._latest = clock.perf_counter()

    def started(self, simulation: Simulation) -> None:
        """Begin the history, with the rows from before a restart. Collective."""
        on_root(simulation.comm, self._begin, simulation.rows)
        self._moments.begin(simulation.evolution)

    @timed("Output")
    def saved(self, simulation: Simulation) -> None:
        """Write a row of the history, and a last checkpoint. Collective."""
        on_root(simulation.comm, self._append, simulation.rows[-1])
        self._moments.add(simulation.evolution)
        if simulation.evolution.time < simulation.until:
            return
        self._moments.flush(simulation.comm)
        if self._steps > 0 or self._seconds < math.inf:
            self._checkpoint(simulation)

    def stepped(self, simulation: Simulation) -> None:
        """Write a checkpoint if it is time, and stop if a signal asks for it. Collective."""
        self._moments.stepped(simulation.evolution)
        due = simulation.comm.rank == 0 and self._due(simulation.evolution.step)
        wanted = simulation.comm.allreduce(2 if noted() else int(due), MPI.MAX)
        if wanted:
            self._checkpoint(simulation)
        if wanted == 2:
            evolution = simulation.evolution
            raise StoppedError(
                f"{self._directory}: stopped by a signal at t = {evolution.time:.6g}, step "
                f"{evolution.step}; everything is saved, and the run can be resumed",
                "--resume",
            )

    def _begin(self, rows: list[dict[str, float]]) -> None:
        self._history = HistoryFile(self._directory / HISTORY, rows)

    def _append(self, row: dict[str, float]) -> None:
        assert self._history is not None  # begun when the run started
        self._history.append(row)

    def _due(self, step: int) -> bool:
        """Whether a checkpoint is wanted now, and may take its time."""
        now = clock.perf_counter()
        by_steps = self._steps > 0 and step % self._steps == 0
        if not (by_steps or now - self._latest >= self._seconds):
            return False
        return self._spent <= WRITING_SHARE * (now - self._begun)

    def _checkpoint(self, simulation: Simulation) -> None:
        start = clock.perf_counter()
        self._moments.flush(simulation.comm)
        write_checkpoint(self._directory, simulation)
        self._latest = clock.perf_counter()
        self._spent += self._latest - start
