"""How far a run is: a bar on a terminal, lines at growing intervals in a log."""

from __future__ import annotations

import logging
import sys
import time as clock

from tqdm import tqdm

from meanfield_pde.solver.simulation import Observer, Simulation

# A logger of its own, so that lines can be kept off the terminal that shows the bar.
LOG = logging.getLogger("meanfield_pde.progress")

_FORMAT = "t = {n:.4g} of {total:.4g} |{bar}| {elapsed}, {remaining} to go"
# Seconds from one line to the next: a tenth of what has passed, within these bounds (chosen).
SHORTEST, LONGEST = 10.0, 600.0


class ProgressBar(Observer):
    """Shown by rank 0, and only if its standard error is a terminal."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None

    def started(self, simulation: Simulation) -> None:
        """Show the bar."""
        if simulation.comm.rank == 0 and sys.stderr.isatty():
            self._bar = tqdm(
                total=simulation.until,
                initial=simulation.evolution.time,
                bar_format=_FORMAT,
                file=sys.stderr,
                leave=False,
            )

    def stepped(self, simulation: Simulation) -> None:
        """Move it on; tqdm itself decides how often to draw."""
        if self._bar is None:
            return
        self._bar.update(simulation.evolution.time - self._bar.n)

    def finished(self, simulation: Simulation) -> None:
        """Take it away."""
        if self._bar is not None:
            self._bar.close()


class ProgressLines(Observer):
    """A line of the log now and then, with the time that the rest will take at this pace."""

    def __init__(self) -> None:
        self._begun = clock.monotonic()
        # When the first step had been taken, and how far it went: kernels are compiled in it, and
        # its time says nothing about the rest.
        self._first: tuple[float, float] | None = None
        self._next = self._begun + SHORTEST

    def started(self, simulation: Simulation) -> None:
        """Begin to count."""
        self._begun, self._first = clock.monotonic(), None
        self._next = self._begun + SHORTEST

    def stepped(self, simulation: Simulation) -> None:
        """Write a line if it is time for one."""
        now, evolution = clock.monotonic(), simulation.evolution
        if self._first is None:
            self._first = now, evolution.time
        if now < self._next:
            return
        passed = now - self._begun
        self._next = now + min(max(0.1 * passed, SHORTEST), LONGEST)
        began, at = self._first
        rest = ""
        if evolution.time > at:
            pace = (now - began) / (evolution.time - at)
            rest = f", about {pace * (simulation.until - evolution.time):.0f} s to go"
        LOG.info(
            "t = %.4g of %.4g, %d steps, %.0f s%s",
            evolution.time,
            simulation.until,
            evolution.step,
            passed,
            rest,
        )
