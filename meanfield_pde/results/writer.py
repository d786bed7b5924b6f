"""What a run writes as it goes on: the history, the densities, and checkpoints between them."""

from __future__ import annotations

import time as clock
from importlib.metadata import version
from pathlib import Path

from meanfield_pde.history.file_store import FileStore
from meanfield_pde.results.checkpoint import write_checkpoint
from meanfield_pde.results.names import COARSEST, DENSITY, HISTORY
from meanfield_pde.results.tables import HistoryFile
from meanfield_pde.solver.simulation import Observer, Simulation

# Checkpoints may take at most this fraction of the run.
WRITING_SHARE = 0.05


def density_store(directory: Path, simulation: Simulation, case: str) -> FileStore:
    """The store behind density.h5, as it is in the folder. Collective."""
    cells = simulation.cells
    # Where the mesh moves, each saved time comes with its own.
    prefix = "" if simulation.evolution.follower is None else COARSEST
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
    more than a small share of the run; at the last time it is always written.
    """

    def __init__(self, directory: Path, checkpoint_every: int) -> None:
        self._directory = directory
        self._every = checkpoint_every
        self._history: HistoryFile | None = None
        self._spent = 0.0
        self._begun = clock.perf_counter()

    def started(self, simulation: Simulation) -> None:
        """Begin the history, with the rows from before a restart."""
        if simulation.comm.rank == 0:
            self._history = HistoryFile(self._directory / HISTORY, simulation.rows)

    def saved(self, simulation: Simulation) -> None:
        """Write a row of the history, and a last checkpoint."""
        if self._history is not None:
            self._history.append(simulation.rows[-1])
        if self._every and simulation.evolution.time >= simulation.until:
            self._checkpoint(simulation)

    def stepped(self, simulation: Simulation) -> None:
        """Write a checkpoint every so many steps."""
        due = self._every and simulation.evolution.step % self._every == 0
        if due and self._has_time(simulation):
            self._checkpoint(simulation)

    def _has_time(self, simulation: Simulation) -> bool:
        elapsed = clock.perf_counter() - self._begun
        return bool(simulation.comm.bcast(self._spent <= WRITING_SHARE * elapsed))

    def _checkpoint(self, simulation: Simulation) -> None:
        start = clock.perf_counter()
        write_checkpoint(self._directory, simulation)
        self._spent += clock.perf_counter() - start
