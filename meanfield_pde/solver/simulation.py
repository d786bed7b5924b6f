"""A simulation: the density on a mesh, evolved from one saved time to the next.

`solve` is the front door for scripts; the command line uses the same `Simulation` and adds
observers that write files, checkpoints and a progress bar.
"""

from __future__ import annotations

import logging
import math
import time as clock
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde.attention.layers import AttentionLike, acting, layers_of, pieces
from meanfield_pde.case.case import CompareCase, TimeCase
from meanfield_pde.errors import InputError
from meanfield_pde.initial.densities import Uniform
from meanfield_pde.initial.masses import InitialLike, cell_masses
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.diagnostics import Diagnostics
from meanfield_pde.solver.distances import Comparison
from meanfield_pde.solver.evolution import Evolution
from meanfield_pde.solver.transport import Transport, scheme_named
from meanfield_pde.solver.velocity import MeanField
from meanfield_pde.solver.wide_evolution import LogEvolution, doubles_run_out
from meanfield_pde.support.ranks import on_root
from meanfield_pde.support.threads import set_threads
from meanfield_pde.wasserstein.measure import Measure

LOG = logging.getLogger("meanfield_pde")


@dataclass(frozen=True, eq=False)
class Solution:
    """The density at the saved times, the same on every rank.

    Attributes:
        attention: what drove it.
        cells: the cells of the mesh.
        times: the saved times.
        masses: the masses of all cells, times x cells.
        history: a list of numbers, one for each saved time, by name.
        steps: number of time steps taken.
        rejected: number of steps that had to be repeated.
        wall_time: seconds.
        mesh: the DOLFINx mesh.
        limit: the push-forward of the initial density, if it was compared with.
        zero_masses: the masses at zero temperature, if they were compared with.
    """

    attention: AttentionLike
    cells: Cells
    times: np.ndarray
    masses: np.ndarray
    history: dict[str, np.ndarray]
    steps: int
    rejected: int
    wall_time: float
    mesh: dolfinx_mesh.Mesh
    limit: Measure | None = None
    zero_masses: np.ndarray | None = None

    @property
    def density(self) -> np.ndarray:
        """Masses per arc length or area, times x cells."""
        return self.masses / self.cells.volumes

    def measure(self, index: int = -1) -> Measure:
        """The density at a saved time as a discrete measure; by default the last."""
        return Measure(self.cells.points, self.masses[index], self.cells.spread)


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


class Simulation:
    """One problem on one mesh: the state, and what has been saved of it so far."""

    def __init__(
        self,
        attention: AttentionLike,
        mesh: dolfinx_mesh.Mesh,
        initial: InitialLike,
        *,
        scheme: str = "muscl",
        tolerance: float = 1e-10,
        threads: int | None = None,
        compare: CompareCase | None = None,
        log_masses: bool | None = None,
    ) -> None:
        if not 0 < tolerance < 1:
            raise InputError(f"the tolerance must lie between 0 and 1, got {tolerance}")
        self.attention = attention
        self.comm = mesh.comm
        self.threads = set_threads(mesh.comm, threads)
        self.volumes = FiniteVolumes(mesh)
        transport = Transport(self.volumes, scheme_named(scheme))
        masses = cell_masses(initial, self.volumes)

        # The state is mantissas and exponents where doubles run out (see `log_evolution`).
        self.log_masses = doubles_run_out(attention) if log_masses is None else log_masses
        if self.log_masses:
            LOG.info("log masses: the tail is followed below the range of doubles")
        kind = LogEvolution if self.log_masses else Evolution

        def evolve(followed: AttentionLike) -> Evolution:
            return kind(
                MeanField(layers_of(followed)[0], self.volumes, tolerance), transport, masses
            )

        self._tolerance = tolerance
        self.evolution = evolve(attention)
        self.diagnostics = Diagnostics(layers_of(attention)[0], self.volumes, tolerance)
        self.cells = Cells.of(self.volumes)
        self.comparison: Comparison | None = None
        self.zero: Evolution | None = None  # the same problem at zero temperature, alongside
        if compare is not None:
            self.comparison = Comparison(compare, attention, initial, self.cells)
            if compare.zero_temperature:
                self._cold = attention.with_beta(math.inf)
                self.zero = evolve(self._cold)
        self.until = 0.0
        self.times: list[float] = []
        self.masses: list[np.ndarray] = []
        self.zero_masses: list[np.ndarray] = []
        self.rows: list[dict[str, float]] = []
        self.wall_time = 0.0

    def run(self, save_times: Sequence[float], observers: Iterable[Observer] = ()) -> None:
        """Evolve through the saved times that are still ahead. Collective."""
        watching = list(observers)
        ahead = self.ahead(save_times)
        self.until = save_times[-1]
        pieces(self.attention, 0.0, self.until)  # refuses layers that end before
        begun = clock.perf_counter() - self.wall_time

        def after_step(_: Evolution) -> None:
            self.wall_time = clock.perf_counter() - begun
            for observer in watching:
                observer.stepped(self)

        for observer in watching:
            observer.started(self)
        try:
            for time in ahead:
                self._follow(self.evolution, self.attention, time, after_step)
                if self.zero is not None:
                    self._follow(self.zero, self._cold, time)
                self._save()
                self.wall_time = clock.perf_counter() - begun
                for observer in watching:
                    observer.saved(self)
        finally:
            for observer in watching:
                observer.finished(self)

    def _follow(
        self,
        evolution: Evolution,
        attention: AttentionLike,
        until: float,
        after_step: Callable[[Evolution], None] | None = None,
    ) -> None:
        """Advance through the layers; steps end where a layer does."""
        for layer, _, end in pieces(attention, evolution.time, until):
            if evolution.field.attention is not layer:
                evolution.switch(MeanField(layer, self.volumes, self._tolerance))
            evolution.advance(end, after_step)

    def ahead(self, save_times: Sequence[float]) -> list[float]:
        """The times still to be saved; after a restart the state may stand between two of them."""
        ahead = [time for time in save_times if not self.times or time > self.times[-1]]
        now = self.evolution.time
        if save_times[-1] < now:
            raise InputError(
                f"the checkpoint stands at t = {now:.6g}, beyond time.until = {save_times[-1]:.6g}"
            )
        if ahead and ahead[0] < now:
            raise InputError(
                f"the checkpoint stands at t = {now:.6g}, beyond the time to save "
                f"{ahead[0]:.6g}; start again, or leave that time out"
            )
        return ahead

    def _save(self) -> None:
        masses = self.volumes.gather(self.evolution.masses)
        row = {"time": self.evolution.time, "step": float(self.evolution.step)}
        self.times.append(self.evolution.time)
        self.masses.append(masses)
        layer = acting(self.attention, self.evolution.time)
        if self.diagnostics.attention is not layer:
            self.diagnostics = Diagnostics(layer, self.volumes, self._tolerance)
        row |= self.diagnostics.row(masses)
        zero_masses: np.ndarray | None = None
        if self.zero is not None:
            zero_masses = self.volumes.gather(self.zero.masses)
            self.zero_masses.append(zero_masses)
        if self.comparison is not None:
            row |= on_root(self.comm, self.comparison.row, masses, zero_masses)
        row["log_energy"] = row.pop("log_energy")  # last: not one of the columns users know
        self.rows.append(row)

    def solution(self) -> Solution:
        """What has been saved so far."""
        names = self.rows[0] if self.rows else {}
        return Solution(
            attention=self.attention,
            cells=self.cells,
            times=np.array(self.times),
            masses=np.array(self.masses),
            history={name: np.array([row[name] for row in self.rows]) for name in names},
            steps=self.evolution.step,
            rejected=self.evolution.rejected,
            wall_time=self.wall_time,
            mesh=self.volumes.mesh,
            limit=None if self.comparison is None else self.comparison.limit,
            zero_masses=np.array(self.zero_masses) if self.zero is not None else None,
        )


def solve(
    attention: AttentionLike,
    mesh: dolfinx_mesh.Mesh,
    initial: InitialLike | None = None,
    *,
    until: float,
    save_at: Sequence[float] = (),
    save_every: float | None = None,
    scheme: str = "muscl",
    tolerance: float = 1e-10,
    threads: int | None = None,
    compare: CompareCase | None = None,
    log_masses: bool | None = None,
    observers: Iterable[Observer] = (),
) -> Solution:
    """Solve d/dt mu + div(mu P_x V m) = 0 on the mesh, from time 0 to `until`. Collective.

    Args:
        attention: the matrices and the inverse temperature; `Layers` change with time.
        mesh: a mesh of the circle or the sphere, distributed over its communicator.
        initial: a density of `meanfield_pde.initial.densities`, a formula in x, y, z, a function
            of points, or the masses of the cells in input order; uniform if left out.
        until: end time.
        save_at: times to save besides the start and the end.
        save_every: the interval between saved times, instead of `save_at`.
        scheme: "muscl" (second order) or "upwind" (first order).
        tolerance: bound on the error of the attention sum.
        threads: threads of each rank; by default the cores divided by the ranks of the machine.
        compare: Wasserstein distances to add to the history.
        log_masses: whether masses may leave the range of doubles; by default if the tail is
            predicted to do so before the metastable state ends. What is saved are doubles.
        observers: called after every step and every saved time.
    """
    times = TimeCase(until, tuple(save_at), save_every).save_times
    initial = Uniform() if initial is None else initial
    simulation = Simulation(
        attention,
        mesh,
        initial,
        scheme=scheme,
        tolerance=tolerance,
        threads=threads,
        compare=compare,
        log_masses=log_masses,
    )
    simulation.run(times, observers)
    return simulation.solution()
