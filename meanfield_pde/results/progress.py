"""A progress bar on a terminal: how far the run is, its step and mass, and the time left."""

from __future__ import annotations

import sys

from tqdm import tqdm

from meanfield_pde.solver.simulation import Observer, Simulation

_FORMAT = "t = {n:.4g}/{total:.4g} |{bar}| {elapsed}<{remaining}{postfix}"


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
        evolution = simulation.evolution
        self._bar.set_postfix_str(
            f"step {evolution.step}, dt {evolution.last_dt:.1e}, mass {evolution.mass:.12f}",
            refresh=False,
        )
        self._bar.update(evolution.time - self._bar.n)

    def finished(self, simulation: Simulation) -> None:
        """Take it away."""
        if self._bar is not None:
            self._bar.close()
