"""The controller: a state advanced in time, step by step, layer by layer, mesh by mesh.

Where velocities never change, a step is one of transport, many of them in one compiled loop. Where
they follow the density, it is as long as an estimate of its error allows, and is tried again where
that turns out too long (`step_control`).

On an adaptive mesh the indicators are taken after steps; clusters are extracted into patches, and
the mesh is changed, by the functions of `amr`, which know of nothing here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from meanfield_pde.amr.extraction import extract, joined, patch_width, point_patches, retire
from meanfield_pde.amr.indicators import Indicators
from meanfield_pde.amr.patches import Field, Patches, moved
from meanfield_pde.amr.regrid import limited, mark, regrid
from meanfield_pde.amr.remap import Remap
from meanfield_pde.amr.settings import AdaptSettings
from meanfield_pde.attention.heads import Layer, kernel_width
from meanfield_pde.attention.layers import pieces
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.initial.given import InitialLike
from meanfield_pde.initial.masses import cell_masses
from meanfield_pde.initial.tokens import Tokens
from meanfield_pde.solver.chosen_integrator import integrator_class
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.flow import Flow
from meanfield_pde.solver.integrator import Velocity, fitting_step, time_after
from meanfield_pde.solver.masses import LEAVE_DOUBLES, Doubles, ExtendedRange, Masses
from meanfield_pde.solver.settings import LOG_MASSES
from meanfield_pde.solver.splitting import longest_split
from meanfield_pde.solver.state import Arrays, Clocks, Grid, State
from meanfield_pde.solver.step_control import Estimate, StepSettings, estimate, longest_crossing
from meanfield_pde.support.ranks import largest, on_root, total

LOG = logging.getLogger("meanfield_pde")

# The part of the tolerance that a step aims at; how much longer than the one before it may be, and
# how much shorter than one that was refused (as is usual; chosen, not tuned).
_AIM, _LONGER, _SHORTER = 0.7, 2.0, 0.2
# Velocities that jump, as where one of two far clusters takes over, have an error of the size of
# the jump in a step of any length; so none is made shorter than this part of growth / |V|, which is
# how far the time of a jump may be off (chosen, not tuned).
_SHORTEST = 1e-3
# Velocities that change by less than this many tolerances of the sums stand still: what ranks round
# differently, about 1e-12 of velocities, is not seen in the rates of others.
STILL = 1e4


@dataclass(frozen=True, eq=False)
class _Step:
    """A step that was tried.

    Attributes:
        masses, patches: what it leads to.
        smallest: -log of the smallest mass.
        velocity: with which it ends.
        estimate: of its error.
    """

    masses: Masses
    patches: Patches
    smallest: float
    velocity: Velocity
    estimate: Estimate


class Controller:
    """Advances a state. Everything is collective.

    Attributes:
        equation: what is solved, on the present mesh.
        state: the present one.
        rhs: the right-hand side of the present layer.
        flow: that of the present mesh.
        steps: what steps are allowed to do.
        adapt: of an adaptive mesh; None where the mesh stays.
        mass: total mass after the last step.
        taken: the states between which the last step led, before the mesh changed; None after many
            steps at once, and before the first.
    """

    def __init__(
        self,
        equation: Equation,
        state: State,
        *,
        steps: StepSettings | None = None,
        adapt: AdaptSettings | None = None,
    ) -> None:
        self.steps = steps or StepSettings()
        self.adapt = adapt
        self.mass = 1.0
        self._velocity: Velocity | None = None
        self._ended: Velocity | None = None  # the velocity with which the last step ended
        self._announced: set[int] = set()
        self.taken: tuple[State, State] | None = None
        self._extended = LOG_MASSES[equation.settings.log_masses]
        if equation.noise:
            self._extended = False  # noise fills the tails again
        self.state = state
        self._bind_mesh(equation, equation.attention.layers[0])
        if self._extended and not self.flow.integrator.extended:
            self.close()
            raise InputError(
                "solver.log_masses = 'on' needs the compiled rks3; leave the options -ts_... of "
                "PETSc out, or say 'auto' or 'off'"
            )
        self._choose_format(state.masses.copy().flush_and_check())

    @classmethod
    def start(
        cls,
        equation: Equation,
        initial: InitialLike,
        *,
        steps: StepSettings | None = None,
        adapt: AdaptSettings | None = None,
    ) -> Controller:
        """The controller of an evolution from an initial density. Collective.

        Args:
            equation: what to solve, where and how; its mesh is the coarsest of an adaptive one.
            initial: the density at time 0.
            steps: what steps are allowed to do.
            adapt: of an adaptive mesh; None keeps the mesh as it is.
        """
        if adapt is None:
            masses = Doubles(cell_masses(initial, equation.volumes))
            return cls(equation, State(Grid(equation.volumes), masses), steps=steps)
        fitted, state = _fitted(equation, initial, adapt)
        if isinstance(initial, Tokens) and not equation.noise:
            atoms = point_patches(initial.measure(), adapt.patches)
            if atoms:
                nothing = Doubles(np.zeros(fitted.volumes.owned))
                state = replace(state, masses=nothing, patches=atoms)
        return cls(fitted, state, steps=steps, adapt=adapt)

    @property
    def time(self) -> float:
        """Of the state."""
        return self.state.clocks.time

    @property
    def step(self) -> int:
        """Number of steps taken."""
        return self.state.clocks.step

    @property
    def last_dt(self) -> float:
        """Length of the last step."""
        return self.state.clocks.last_dt

    @property
    def masses(self) -> np.ndarray:
        """Masses of this rank's own cells, as doubles."""
        return self.state.masses.doubles

    @property
    def extended(self) -> bool:
        """Whether masses are held in the extended range."""
        return isinstance(self.state.masses, ExtendedRange)

    @property
    def may_be_extended(self) -> bool:
        """Whether masses are held in the extended range, or will be once doubles run out."""
        if self._extended is not None:
            return self._extended
        return self.flow.integrator.extended and not self.rhs.fixed

    def advance(
        self, until: float, after_step: Callable[[Controller], bool | None] | None = None
    ) -> None:
        """Advance to the time `until` exactly; steps end where a layer does. Collective.

        Args:
            until: the time at which to stop.
            after_step: called after every accepted step; where it says True, the state stays there.
        """
        for layer, _, end in pieces(self.equation.attention, self.time, until):
            if self.rhs.layer is not layer:
                self._bind_layer(layer)
            together = self.rhs.fixed and self.flow.integrator.many_at_once
            together = together and not (after_step or self.adapt or self.equation.noise)
            while self.time < end:
                if not (together and self._take_many(end)):
                    self._take_step(end)
                if self.adapt is not None:
                    self._adapt(self.adapt)
                if after_step is not None and after_step(self):
                    return

    def velocity(self) -> Velocity:
        """The velocity of the present state, with which the next step begins. Collective."""
        if self._velocity is None:
            self._velocity = self._velocity_of(self.state.masses, self.state.patches, self.time)
            self._announce()
        return self._velocity

    def longest_step(self) -> float:
        """How long a step of transport may be at the present state. Collective."""
        limit = min(self.flow.longest_step(self.velocity().rate), self._first_step())
        if limit < self.steps.smallest * max(1.0, self.time):
            raise SolverError(
                f"at t = {self.time:.6g} tokens move so fast that steps would have to be as short "
                f"as {limit:.1e}; scale attention.value down, or take larger cells"
            )
        return limit

    def indicators(self) -> Indicators:
        """What an adaptive mesh leaves open in the present state. Collective."""
        assert self.adapt is not None
        return _indicators(self.state, self.velocity().flux, self.rhs.layer, self.adapt)

    def shown(self) -> np.ndarray:
        """The masses of all cells, those of patches in the cells that show them. Collective."""
        if self.adapt is None:
            return self.state.gathered().doubles
        return self.state.deposited(self.adapt)

    def restore(self, arrays: Arrays, clocks: Clocks) -> None:
        """Take the state that `State.record` gave. Collective."""
        self._enter(self.state.restored(arrays, clocks))

    def set_masses(self, masses: np.ndarray) -> None:
        """Take these masses of all cells, at the same time. Collective."""
        self._change(Doubles(self.state.volumes.scatter(masses)), self.state.patches)

    def close(self) -> None:
        """Give PETSc's objects back. Collective."""
        self.flow.integrator.close()
        if self.equation.diffusion is not None:
            self.equation.diffusion.close()

    def _bind_mesh(self, equation: Equation, layer: Layer) -> None:
        """Take an equation on the mesh of the state, and the flow on it."""
        self.equation = equation
        integrator = integrator_class()(equation.transport)
        self.flow = Flow(equation.transport, integrator, equation.diffusion, self.steps.courant)
        self._bind_layer(layer)

    def _bind_layer(self, layer: Layer) -> None:
        self.rhs = self.equation.right_hand_side(layer)
        self._velocity = None

    def _enter(self, state: State) -> None:
        """Take another state, whose mesh may be another. Collective."""
        moved = state.volumes is not self.state.volumes
        self.state = state
        if moved:
            self.close()
            self._bind_mesh(self.equation.on(state.volumes), self.rhs.layer)
        elif not self.rhs.fixed:
            self._velocity = None

    def _velocity_of(self, masses: Masses, patches: Patches, time: float) -> Velocity:
        """The velocity of masses of own cells and of patches, at a time. Collective."""
        log_masses = masses.log
        flux = self.rhs.facet_flux(log_masses, patches)
        return self._velocity_by(
            flux, self.rhs.field(log_masses, patches) if patches else None, time
        )

    def _velocity_by(self, flux: np.ndarray, field: Field | None, time: float) -> Velocity:
        """The velocity of these fluxes. Collective."""
        rate = largest(self.state.volumes.comm, self.rhs.transport.outflow_rate(flux))
        return Velocity(flux, rate, field, time)

    def _announce(self) -> None:
        """Log, once for each layer, how velocities are computed."""
        if id(self.rhs.layer) in self._announced:
            return
        self._announced.add(id(self.rhs.layer))
        for term in self.rhs.terms:
            if term.method and self.state.volumes.comm.rank == 0:
                LOG.debug("%s", term.method)

    def _choose_format(self, smallest: float) -> None:
        """Leave doubles where the settings say so, or once tails that velocities see leave them.

        Args:
            smallest: -log of the smallest mass, of this rank or of all.
        """
        if self.extended or not self.may_be_extended:
            return
        if not self._extended and largest(self.state.volumes.comm, smallest) < LEAVE_DOUBLES:
            return
        LOG.debug("t = %g: log masses: the tail is followed below the range of doubles", self.time)
        masses = ExtendedRange.of(self.state.masses.doubles)
        self.state = replace(self.state, masses=masses)

    def _take_step(self, until: float) -> None:
        steps, noise = self.steps, self.equation.diffusion
        if noise is not None:
            limited_before = noise.limited
            if self.step % steps.splitting_every == 0:
                self._estimate_splitting()
        planned = self._planned()
        dt = fitting_step(until - self.time, planned)
        rejected, tolerance = 0, self.equation.settings.step_tolerance
        shortest = _SHORTEST * self._first_step()
        while (step := self._tried(dt)).estimate.error > tolerance and dt > shortest:
            rejected += 1
            planned = dt = self._rounded(dt * max(_SHORTER, self._longer(step)))
        length = dt * min(_LONGER, self._longer(step))
        if dt < planned:  # it ended at a saved time, which says nothing against what was planned
            length = max(length, planned)
        resolved = steps.growth / max(step.estimate.growth, 1e-300)
        length = min(length, max(self._first_step(), resolved), self._most())
        before, clocks = self.state, self.state.clocks
        clocks = replace(clocks, length=length, rejected=clocks.rejected + rejected)
        if noise is not None:
            counted = clocks.limited + noise.limited - limited_before
            clocks = replace(clocks, noise_step=noise.first, limited=counted)
        self._change(step.masses, step.patches)
        self._ended = step.velocity
        change = self.state.variation_from(before, kernel_width(self.rhs.layer)) / dt
        most = max(change, clocks.most_change)
        clocks = replace(clocks, change=change, most_change=most, steady=False)
        self.state = replace(self.state, clocks=clocks)
        self._choose_format(step.smallest)
        self.taken = before, self.state
        self._count(1, time_after(self.time, dt, until), dt)

    def _planned(self) -> float:
        """How long the next step is to be. Collective."""
        clocks, steps = self.state.clocks, self.steps
        if self.rhs.fixed and not self.equation.noise:
            longest = self.longest_step()
            if self.adapt is not None:  # the mesh, looked at between steps, has to follow the mass
                longest = min(longest, self.flow.safe_step(self.velocity().rate))
            return longest
        if self.rhs.fixed:
            return self._rounded(min(2 * clocks.split_limit, self._first_step()))
        longest = clocks.length or self._first_step()
        if self.adapt is not None:
            given = self.masses, self.velocity(), self.adapt.indicators.cluster_mass
            longest = min(longest, longest_crossing(self.rhs, *given, steps.crossed))
        return self._rounded(longest)

    def _most(self) -> float:
        """How long any step may be: beyond 1 / |V| the order in time is lost.

        Noise balances transport, both at rates of their own, where the state stands still.
        """
        return self._first_step() * (1.0 if self.equation.noise else 1 / self.steps.growth)

    def _first_step(self) -> float:
        """How long a step may be whatever the state: nothing grows faster than at this rate."""
        return self.steps.growth / max(self.rhs.speed, 1e-300)

    def _rounded(self, length: float) -> float:
        """The next length below it that steps may have; itself, but for rounding, if it may."""
        lengths = self.steps.lengths
        return float(2.0 ** (math.floor(lengths * math.log2(length) + 1e-6) / lengths))

    def _longer(self, step: _Step) -> float:
        """How many times as long a step would have the error that is aimed at, of order two."""
        aim = _AIM * self.equation.settings.step_tolerance
        return math.sqrt(aim / max(step.estimate.error, 1e-300))

    def _tried(self, dt: float) -> _Step:
        """A step of order three, see `step_control`. Collective."""
        masses, patches, k1 = self.state.masses, self.state.patches, self.velocity()
        if self.rhs.fixed:
            return _Step(*self._flow(masses, patches, k1, dt), k1, Estimate())
        third = self._flow(masses, patches, k1, dt / 3)[:2]
        k2 = self._velocity_of(*third, self.time + dt / 3)
        two_thirds = self._flow(masses, patches, k2, 2 * dt / 3)[:2]
        k3 = self._velocity_of(*two_thirds, self.time + 2 * dt / 3)
        last = self._combined(k1, -1 / 8, k3, 9 / 8)
        masses, patches, smallest = self._flow(*third, last, 2 * dt / 3)
        still = STILL * self.equation.settings.tolerance
        given = self.rhs, masses.doubles, patches, (k1, k2, k3), dt, still
        return _Step(masses, patches, smallest, last, estimate(*given))

    def _combined(self, one: Velocity, share: float, other: Velocity, rest: float) -> Velocity:
        """The velocity share x one + rest x other. Collective."""
        flux = share * one.flux + rest * other.flux
        first, second = one.field, other.field
        if first is None or second is None:
            return self._velocity_by(flux, None, other.time)
        return self._velocity_by(flux, lambda x: share * first(x) + rest * second(x), other.time)

    def _flow(
        self, masses: Masses, patches: Patches, velocity: Velocity, time: float
    ) -> tuple[Masses, Patches, float]:
        """Masses and patches after a time by a velocity, and -log of the smallest. Collective."""
        clocks, noise = self.state.clocks, self.equation.diffusion
        if noise is not None:
            noise.first, noise.error = clocks.noise_step, self.steps.diffusion
        # A stationary state has no error in time but that of the splitting, of second order.
        longest = min(clocks.split_limit, self._first_step() / 4)
        masses, smallest = self.flow(masses, velocity, time, longest)
        if velocity.field is not None:
            patches = moved(patches, velocity.field, time, kernel_width(self.rhs.layer))
        return masses, patches, smallest

    def _change(self, masses: Masses, patches: Patches) -> None:
        """Take other masses and patches on the same mesh."""
        self.state = replace(self.state, masses=masses, patches=patches)
        if not self.rhs.fixed:
            self._velocity = None

    def _take_many(self, until: float) -> bool:
        """Steps of one length, taken at once, as `_take_step` would; whether there were any."""
        limit = self.longest_step()
        found = self.flow.integrator.many(
            self.state.masses, self.velocity(), self.time, until, limit
        )
        if found.steps:
            self.taken = None
            self._change(found.masses, self.state.patches)
            self._count(found.steps, found.time, found.last)
        return found.steps > 0

    def _count(self, steps: int, time: float, dt: float) -> None:
        """Keep the books after steps that have been taken, the last of length dt."""
        clocks = self.state.clocks
        clocks = replace(clocks, step=clocks.step + steps, time=time, last_dt=dt)
        self.state = replace(self.state, clocks=clocks)
        self.mass = total(self.state.volumes.comm, float(self.masses.sum()))
        self.mass += self.state.patch_mass

    def _estimate_splitting(self) -> None:
        """Set `split_limit` at the present state. Collective."""
        noise, clocks = self.equation.diffusion, self.state.clocks
        assert noise is not None
        self._set_split_limit(math.inf)
        if self.rhs.speed > 0:
            length = self._rounded(min(clocks.length or math.inf, self._first_step())) / 2
            noise.first, noise.error = clocks.noise_step, self.steps.diffusion
            given = self.masses, self.velocity(), length, self.steps.splitting
            self._set_split_limit(longest_split(self.flow, *given))

    def _set_split_limit(self, limit: float) -> None:
        clocks = replace(self.state.clocks, split_limit=limit)
        self.state = replace(self.state, clocks=clocks)

    def _adapt(self, adapt: AdaptSettings) -> None:
        """Extract clusters into patches, and change the mesh if it has to be. Collective."""
        clocks, comm = self.state.clocks, self.state.volumes.comm
        short = self.rhs.fixed and clocks.last_dt * self.rhs.speed < adapt.short_step
        if short and clocks.step % adapt.check_every:
            return
        width = 0.0 if self.equation.noise else patch_width(self.rhs.layer, adapt.patches)
        if width:
            self._extract(width, adapt)
        kept, retired = retire(self.state.patches, width, adapt.patches)
        assert self._ended is not None
        # How fast mass moves is known well enough by the step: a sum is saved if the mesh changes.
        indicators = _indicators(self.state, self._ended.flux, self.rhs.layer, adapt)
        # Made by one rank: the same on all, of whatever machines.
        change = regrid(indicators, on_root(comm, mark, indicators), kept, retired, adapt)
        if change is not None:
            self._enter(self.state.regridded(change))

    def _extract(self, width: float, adapt: AdaptSettings) -> None:
        """Take clusters that are narrow enough from the cells. Collective."""
        state = self.state
        assert state.grid.leaves is not None
        masses = state.gathered()
        keep, found = extract(state.grid.leaves, masses.doubles, width, adapt, state.patches)
        if found:
            rest = masses.times(keep).each(state.volumes.scatter)
            self._change(rest, joined(state.patches, found, width))


def _indicators(state: State, flux: np.ndarray, layer: Layer, adapt: AdaptSettings) -> Indicators:
    """The indicators of a state on an adaptive mesh, for the fluxes of its velocity. Collective."""
    assert state.grid.leaves is not None
    volumes = state.volumes
    found = volumes.gather(np.column_stack([state.masses.log, volumes.speed(flux)]))
    log_masses, speed = found.T
    return Indicators(state.grid.leaves, log_masses, speed, layer, adapt, state.patches)


def _fitted(
    equation: Equation, initial: InitialLike, adapt: AdaptSettings
) -> tuple[Equation, State]:
    """Fit an adaptive mesh to an initial density: the equation on it, and the state. Collective."""
    layer, comm = equation.first_layer, equation.volumes.comm
    grid = Grid.adaptive(equation.volumes)
    if grid.forest.count > adapt.max_cells:
        raise InputError(
            f"the mesh has {grid.forest.count} cells, more than adapt.max_cells = "
            f"{adapt.max_cells}, and an adaptive mesh is never coarser; give fewer, or allow more"
        )
    equation = equation.on(grid.volumes)
    masses = cell_masses(initial, grid.volumes)
    for _ in range(adapt.initial_rounds):
        state = State(grid, Doubles(masses))
        flux = equation.right_hand_side(layer).facet_flux(state.masses.log)
        indicators = _indicators(state, flux, layer, adapt)
        refine, _ = on_root(comm, mark, indicators)
        if not refine.any():
            break
        old, every = grid.forest, grid.volumes.gather(masses)
        grid = grid.on(limited(old.refined(refine), adapt, InputError))  # it is what was given
        equation = equation.on(grid.volumes)
        # Masses are integrals over the new cells, unless they are all that is known.
        if isinstance(initial, np.ndarray):
            initial = Remap(old, grid.forest, indicators.log_density).doubles(every)
        masses = cell_masses(initial, grid.volumes)
    return equation, State(grid, Doubles(masses))
