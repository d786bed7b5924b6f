"""Observers: what is told of the steps and the saved times of a simulation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meanfield_pde.support.ranks import shared_errors

if TYPE_CHECKING:
    from meanfield_pde.solver.simulation import Simulation


class Observer:
    """Something that watches a simulation; the methods do nothing unless overridden."""

    def started(self, simulation: Simulation) -> None:
        """Before the first step, and after a restart."""

    def stepped(self, simulation: Simulation) -> None:
        """After every time step."""

    def saved(self, simulation: Simulation) -> None:
        """After a time has been added to the history."""

    def finished(self, simulation: Simulation) -> None:
        """After the last step, or when the run has failed."""


class SharedObserver(Observer):
    """A user's observer: what it raises on one rank, all raise, so that none waits for it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer

    def started(self, simulation: Simulation) -> None:
        """Collective."""
        with shared_errors(simulation.comm):
            self._observer.started(simulation)

    def stepped(self, simulation: Simulation) -> None:
        """Collective."""
        with shared_errors(simulation.comm):
            self._observer.stepped(simulation)

    def saved(self, simulation: Simulation) -> None:
        """Collective."""
        with shared_errors(simulation.comm):
            self._observer.saved(simulation)

    def finished(self, simulation: Simulation) -> None:
        """Not shared: a rank may come here alone, with an error of its own."""
        self._observer.finished(simulation)
