"""A simulation: the density on a mesh, evolved from one saved time to the next.

`solve` is the front door for scripts; the command line uses the same `Simulation` and adds
observers that write files, checkpoints and a progress bar.
"""

from __future__ import annotations

import time as clock
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde import geometry
from meanfield_pde.attention import Attention
from meanfield_pde.case import TimeCase
from meanfield_pde.diagnostics import Diagnostics
from meanfield_pde.errors import InputError
from meanfield_pde.evolution import Evolution
from meanfield_pde.finite_volume import FiniteVolumes
from meanfield_pde.initial import Uniform
from meanfield_pde.initial_masses import InitialLike, cell_masses
from meanfield_pde.mean_field import MeanField
from meanfield_pde.measure import Measure
from meanfield_pde.threads import set_threads
from meanfield_pde.transport import Transport, scheme_named


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of the whole mesh in input order, the same on every rank.

    Attributes:
        points: the centre of each cell, on the sphere.
        volumes: arc length or spherical area.
        spread: mean squared geodesic distance of a cell's points from its centre.
        vertices: the corners of each cell, cells x d x d.
    """

    points: np.ndarray
    volumes: np.ndarray
    spread: np.ndarray
    vertices: np.ndarray

    @classmethod
    def of(cls, volumes: FiniteVolumes) -> Cells:
        """Gather the cells of all ranks. Collective."""
        own = slice(0, volumes.owned)
        points, corners = volumes.centre[own], volumes.cell_points[own]
        nodes, weights = geometry.quadrature(corners)
        squared = geometry.geodesic_distance(nodes, points[:, None]) ** 2
        spread = (weights * squared).sum(axis=1) / weights.sum(axis=1)
        arrays = (points, volumes.volume[own], spread, corners)
        return cls(*(volumes.gather(array) for array in arrays))


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
    """

    attention: Attention
    cells: Cells
    times: np.ndarray
    masses: np.ndarray
    history: dict[str, np.ndarray]
    steps: int
    rejected: int
    wall_time: float
    mesh: dolfinx_mesh.Mesh

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
        attention: Attention,
        mesh: dolfinx_mesh.Mesh,
        initial: InitialLike,
        *,
        scheme: str = "muscl",
        tolerance: float = 1e-10,
        threads: int | None = None,
    ) -> None:
        if not 0 < tolerance < 1:
            raise InputError(f"the tolerance must lie between 0 and 1, got {tolerance}")
        self.attention = attention
        self.comm = mesh.comm
        self.threads = set_threads(mesh.comm, threads)
        self.volumes = FiniteVolumes(mesh)
        field = MeanField(attention, self.volumes, tolerance)
        transport = Transport(self.volumes, scheme_named(scheme))
        self.evolution = Evolution(field, transport, cell_masses(initial, self.volumes))
        self.diagnostics = Diagnostics(attention, self.volumes, tolerance)
        self.cells = Cells.of(self.volumes)
        self.until = 0.0
        self.times: list[float] = []
        self.masses: list[np.ndarray] = []
        self.rows: list[dict[str, float]] = []
        self.wall_time = 0.0

    def run(self, save_times: Sequence[float], observers: Iterable[Observer] = ()) -> None:
        """Evolve through the saved times that are still ahead. Collective."""
        watching = list(observers)
        self.until = save_times[-1]
        begun = clock.perf_counter() - self.wall_time

        def after_step(_: Evolution) -> None:
            self.wall_time = clock.perf_counter() - begun
            for observer in watching:
                observer.stepped(self)

        for observer in watching:
            observer.started(self)
        try:
            for time in self._ahead(save_times):
                self.evolution.advance(time, after_step)
                self._save()
                self.wall_time = clock.perf_counter() - begun
                for observer in watching:
                    observer.saved(self)
        finally:
            for observer in watching:
                observer.finished(self)

    def _ahead(self, save_times: Sequence[float]) -> list[float]:
        """The times still to be saved; after a restart the state may stand between two of them."""
        ahead = [time for time in save_times if not self.times or time > self.times[-1]]
        if ahead and ahead[0] < self.evolution.time:
            raise InputError(
                f"the checkpoint stands at t = {self.evolution.time:.6g}, beyond the time to save "
                f"{ahead[0]:.6g}; start again, or leave that time out"
            )
        return ahead

    def _save(self) -> None:
        masses = self.volumes.gather(self.evolution.masses)
        row = {"time": self.evolution.time, "step": float(self.evolution.step)}
        self.times.append(self.evolution.time)
        self.masses.append(masses)
        self.rows.append(row | self.diagnostics.row(masses))

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
        )


def solve(
    attention: Attention,
    mesh: dolfinx_mesh.Mesh,
    initial: InitialLike | None = None,
    *,
    until: float,
    save_at: Sequence[float] = (),
    save_every: float | None = None,
    scheme: str = "muscl",
    tolerance: float = 1e-10,
    threads: int | None = None,
    observers: Iterable[Observer] = (),
) -> Solution:
    """Solve d/dt mu + div(mu P_x V m) = 0 on the mesh, from time 0 to `until`. Collective.

    Args:
        attention: the matrices and the inverse temperature.
        mesh: a mesh of the circle or the sphere, distributed over its communicator.
        initial: an initial density from `meanfield_pde.initial`, a formula in x, y, z, a function
            of points, or the masses of the cells in input order; uniform if left out.
        until: end time.
        save_at: times to save besides the start and the end.
        save_every: the interval between saved times, instead of `save_at`.
        scheme: "muscl" (second order) or "upwind" (first order).
        tolerance: bound on the error of the attention sum.
        threads: threads of each rank; by default the cores divided by the ranks of the machine.
        observers: called after every step and every saved time.
    """
    times = TimeCase(until, tuple(save_at), save_every).save_times
    initial = Uniform() if initial is None else initial
    simulation = Simulation(
        attention, mesh, initial, scheme=scheme, tolerance=tolerance, threads=threads
    )
    simulation.run(times, observers)
    return simulation.solution()
