"""A simulation: the density on a mesh, evolved from one saved time to the next.

`solve` is the front door for scripts; the command line uses the same `Simulation` and adds
observers that write files, checkpoints and a progress bar.
"""

from __future__ import annotations

import logging
import math
import time as clock
from collections.abc import Iterable, Sequence

import numpy as np
from dolfinx import mesh as dolfinx_mesh

from meanfield_pde.amr.overlay import Overlay, overlay
from meanfield_pde.amr.settings import AdaptSettings
from meanfield_pde.attention.heads import Layer
from meanfield_pde.attention.layers import AttentionLike, acting, pieces
from meanfield_pde.errors import InputError
from meanfield_pde.history.store import MASSES, ZERO, ZERO_MASSES, Arrays, MemoryStore, Store
from meanfield_pde.initial.given import InitialLike, as_initial
from meanfield_pde.mesh.cells import Cells
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.controller import Controller
from meanfield_pde.solver.diagnostics import Diagnostics, Snapshot
from meanfield_pde.solver.distances import Distances
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.observables import (
    Kind,
    OwnObservables,
    columns_of,
    own_observables,
    row_of,
)
from meanfield_pde.solver.saved_state import arrays_to_save
from meanfield_pde.solver.settings import (
    CompareCase,
    NoiseCase,
    SolverCase,
    check_noise,
)
from meanfield_pde.solver.solution import Solution
from meanfield_pde.solver.steadiness import Steadiness, SteadyWatch
from meanfield_pde.solver.step_control import StepSettings
from meanfield_pde.support.memory import give_back_freed
from meanfield_pde.support.old_names import Columns, accept_old_keywords
from meanfield_pde.support.ranks import on_root, shared_errors
from meanfield_pde.support.threads import set_threads
from meanfield_pde.theory.projection_limit import ProjectionLimit
from meanfield_pde.wasserstein.measure import Measure

LOG = logging.getLogger("meanfield_pde")


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


_CALLS = ("started", "stepped", "saved", "finished")


class Simulation:
    """One problem on one mesh: the state, and what has been saved of it so far.

    It sets the number of threads that numba uses in this process, and has it give back what is
    freed.

    Attributes:
        projection: the projection map of the attention, from which all predictions come.
        equation: the right-hand side on the mesh given, and what it is solved with.
        evolution: the controller, with the state and its time.
        observables: the columns of the history, those of the user last.
        zero: the controller of the same problem at zero temperature, alongside; or None.
        store: the saved densities.
        rows: the row of the history of each of them.
        seconds: what each part of the run has taken so far.
        steadiness: what the state was when the run ended; None before, and where no step was taken.
    """

    @accept_old_keywords
    def __init__(
        self,
        attention: AttentionLike,
        mesh: dolfinx_mesh.Mesh,
        initial: InitialLike,
        *,
        noise: float = 0.0,
        settings: SolverCase | None = None,
        threads: int | None = None,
        compare: CompareCase | None = None,
        adapt: float | AdaptSettings | None = None,
        steps: StepSettings | None = None,
        observables: OwnObservables | None = None,
    ) -> None:
        settings = settings or SolverCase()
        initial = as_initial(initial)
        check_noise(NoiseCase(noise).strength, settings, compare)
        mesh_settings = AdaptSettings.of(adapt, attention.dimension)
        self.attention = attention
        self.comm = mesh.comm
        self.threads = set_threads(mesh.comm, threads)
        give_back_freed()
        self.volumes = FiniteVolumes(mesh)
        kind = Kind(noise > 0, mesh_settings is not None, compare)
        with shared_errors(mesh.comm):  # functions of the user's are called
            own = own_observables(observables or {}, attention.dimension)
        self.observables = (*columns_of(attention.dimension, kind), *own)
        self.projection = ProjectionLimit(attention)
        self.equation = Equation(attention, self.volumes, settings, noise)
        self.evolution = Controller.start(self.equation, initial, steps=steps, adapt=mesh_settings)
        self.cells = Cells.of(self.volumes)
        self._places = {MASSES: (self.volumes, self.cells), ZERO_MASSES: (self.volumes, self.cells)}
        self.diagnostics = self._diagnostics(attention.layers[0])
        self.distances: Distances | None = None
        self.zero: Controller | None = None
        if compare is not None:
            self.distances = Distances(compare, self.projection, initial, self.cells)
            if compare.zero_temperature:
                cold = self.equation.at(attention.with_beta(math.inf))
                self.zero = Controller.start(cold, initial, steps=steps, adapt=mesh_settings)
        self.until = 0.0
        self.store: Store = MemoryStore()
        self.rows: list[dict[str, float]] = []
        self.steadiness: Steadiness | None = None
        self.seconds = {"steps": 0.0, "distances": 0.0, "output": 0.0}
        self._lap = 0.0
        self._running = False

    @property
    def log_masses(self) -> bool:
        """Whether the state is mantissas and exponents, because doubles have run out."""
        return self.evolution.extended

    @property
    def evolutions(self) -> dict[str, Controller]:
        """What evolves, by the name it has in a checkpoint."""
        zero = {} if self.zero is None else {"zero_state": self.zero}
        return {"state": self.evolution, **zero}

    def run(
        self,
        save_times: Sequence[float],
        observers: Iterable[Observer] = (),
        users: Iterable[Observer] = (),
        *,
        steady: float | None = None,
        steady_metastable: bool = False,
    ) -> None:
        """Evolve through the times ahead. Collective.

        Args:
            save_times: those to be saved; the last is the end.
            observers: see every step, and every saved time.
            users: likewise; what they raise on one rank, all do.
            steady: end where the density changes by less per unit of time, and is to stay so.
            steady_metastable: end there, too, where it is to change later.
        """
        if self._running:
            raise InputError("a simulation that runs cannot be run, as by one of its observers")
        watching, foreign = list(observers), list(users)
        with shared_errors(self.comm):
            for observer in foreign:
                has_all = all(callable(getattr(observer, name, None)) for name in _CALLS)
                if isinstance(observer, type) or not has_all:
                    raise InputError(
                        f"observers must have the methods {', '.join(_CALLS)}, and be no "
                        f"classes, got {observer!r:.80}"
                    )
        ahead = self.ahead(save_times)
        self.until = save_times[-1]
        pieces(self.attention, 0.0, self.until)  # refuses layers that end before
        watch = SteadyWatch(
            self.evolution, self.projection, self.until, steady, metastable=steady_metastable
        )
        begin = self.evolution.step
        self._lap = clock.perf_counter()

        def tell(what: str) -> None:
            self._spent_on("output")
            for observer in watching:
                getattr(observer, what)(self)
            if foreign:
                with shared_errors(self.comm):
                    for observer in foreign:
                        getattr(observer, what)(self)
            self._spent_on("output")

        def stepped(_: Controller) -> bool:
            stopped = watch.stepped()
            self._spent_on("steps")
            tell("stepped")
            return stopped

        self._running = True
        try:
            tell("started")
            for time in () if watch.stopped else ahead:
                self.evolution.advance(time, stepped)
                if self.zero is not None:
                    self.zero.advance(self.evolution.time)
                self._spent_on("steps")
                if watch.stopped:
                    self.until = self.evolution.time
                self.save()
                tell("saved")
                if watch.stopped:
                    break
            known = self.evolution.step > begin or watch.stopped
            self.steadiness = watch.verdict() if known else None
            self.store.finish()
        finally:
            self._running = False
            for observer in (*watching, *foreign):  # each rank by itself: one may be alone here
                observer.finished(self)

    def _spent_on(self, part: str) -> None:
        """Count the seconds since the last call for a part of the run."""
        now = clock.perf_counter()
        self.seconds[part] += now - self._lap
        self._lap = now

    def ahead(self, save_times: Sequence[float]) -> list[float]:
        """The times still to be saved; after a restart the state may stand between two of them."""
        saved = [row["time"] for row in self.rows]
        ahead = [time for time in save_times if not saved or time > saved[-1]]
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

    def save(self) -> None:
        """Add the present state to what has been saved. Collective."""
        state = self.evolution.state
        rest = state.gathered().doubles
        arrays = {MASSES: rest if self.evolution.adapt is None else self.evolution.shown()}
        arrays |= self._place(self.evolution, MASSES)
        cold: dict[str, np.ndarray] = {}
        both: Overlay | None = None
        if self.zero is not None:
            cold[ZERO_MASSES] = self.zero.shown()
            places = self._place(self.zero, ZERO_MASSES)
            cold |= {ZERO + name: array for name, array in places.items()}
            both = self._on_common_cells(arrays | cold)
        layer = acting(self.attention, self.evolution.time)
        if self.diagnostics.volumes is not self.evolution.equation.volumes:
            self.diagnostics = self._diagnostics(layer)
        elif self.diagnostics.layer is not layer:
            self.diagnostics.use(layer)
        distances: dict[str, float] = {}
        if self.distances is not None:
            self._spent_on("output")
            given = self.distances, arrays | cold, both
            distances = on_root(self.comm, self._row_of_distances, *given)
            self._spent_on("distances")
        saved = Snapshot(
            arrays[MASSES],
            self.diagnostics,
            rest,
            patches=state.patches,
            time=self.evolution.time,
            step=self.evolution.step,
            noise=self.equation.noise,
            distances=distances,
            mesh=None if self.evolution.adapt is None else self.evolution.indicators(),
        )
        row = row_of(self.observables, saved)
        if self.rows:  # the columns of a run that an earlier version began stay as they are
            row = {name: row.get(name, math.nan) for name in self.rows[0]}
        arrays |= arrays_to_save(self.evolution, self.store) | cold
        self.store.append(self.evolution.time, arrays, row)
        self.rows.append(row)

    def _place(self, evolution: Controller, name: str) -> dict[str, np.ndarray]:
        """Take the cells on which an evolution stands; their arrays if they move. Collective."""
        volumes = evolution.equation.volumes
        if self._places[name][0] is not volumes:
            self._places[name] = (volumes, Cells.of(volumes))
        return {} if evolution.adapt is None else self._places[name][1].arrays()

    def _row_of_distances(
        self, distances: Distances, arrays: Arrays, both: Overlay | None
    ) -> dict[str, float]:
        """Distances of masses of all cells; for one rank alone."""
        found = {
            name: Measure(cells.points, arrays[name], cells.spread)
            for name, (_, cells) in self._places.items()
            if name in arrays
        }
        return distances.row(found[MASSES], found.get(ZERO_MASSES), both)

    def _on_common_cells(self, arrays: Arrays) -> Overlay | None:
        """The density and that at zero temperature on common cells, if each has its own."""
        found = []
        for evolution, name in ((self.evolution, MASSES), (self.zero, ZERO_MASSES)):
            if evolution is None or evolution.adapt is None:
                return None
            found.append((evolution.state.grid.forest, self._places[name][1], arrays[name]))
        return overlay(*found)

    def _diagnostics(self, layer: Layer) -> Diagnostics:
        """The numbers of a row, on the mesh where the evolution stands."""
        equation = self.evolution.equation
        return Diagnostics(
            equation.volumes,
            equation.settings.tolerance,
            layer,
            self._projection_of_layers,
        )

    @property
    def _projection_of_layers(self) -> ProjectionLimit | None:
        """The projection map of the first layer, if it is the only one."""
        return self.projection if len(self.attention.layers) == 1 else None

    def solution(self) -> Solution:
        """What has been saved so far."""
        names = self.rows[0] if self.rows else {}
        return Solution(
            attention=self.attention,
            cells=self.cells,
            store=self.store,
            history=Columns({name: np.array([row[name] for row in self.rows]) for name in names}),
            limit=None if self.distances is None else self.distances.limit,
            noise=self.equation.noise,
            cost=CompareCase.cost if self.distances is None else self.distances.settings.cost,
            steps=self.evolution.step,
            rejected=self.evolution.state.clocks.rejected,
            wall_time=sum(self.seconds.values()),
            tolerance=self.equation.settings.tolerance,
            steadiness=self.steadiness,
            mesh=self.volumes.mesh,
        )

    def close(self) -> None:
        """Give PETSc's objects back. Collective."""
        for evolution in self.evolutions.values():
            evolution.close()
