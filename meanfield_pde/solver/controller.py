"""The controller: a state advanced in time, step by step, layer by layer, mesh by mesh.

Each step is one of three:

    many     velocities that never change: steps of transport in one compiled loop
    frozen   on an adaptive mesh: transport by the velocity of its middle (`step_control`)
    plain    an integrator's step, whose stages each ask for the velocity

With noise a step is T(h) D(2h) T(h), of second order (Strang): transport T for half of the step,
noise D alone for its whole length, and T again. It is no longer than an estimated error allows.

On an adaptive mesh the indicators are taken after steps; clusters are extracted into patches, and
the mesh is changed, by the functions of `amr`, which know of nothing here.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from meanfield_pde.amr.extraction import extract, joined, patch_width, point_patches, retire
from meanfield_pde.amr.indicators import Indicators
from meanfield_pde.amr.patches import Patches, moved
from meanfield_pde.amr.regrid import limited, mark, regrid
from meanfield_pde.amr.remap import Remap
from meanfield_pde.amr.settings import AdaptSettings
from meanfield_pde.attention.heads import Layer, inverse_kernel_width_squared
from meanfield_pde.attention.layers import pieces
from meanfield_pde.errors import InputError, SolverError
from meanfield_pde.initial.given import InitialLike
from meanfield_pde.initial.masses import cell_masses
from meanfield_pde.initial.tokens import Tokens
from meanfield_pde.solver.chosen_integrator import integrator_class
from meanfield_pde.solver.diffusion import Diffusion
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.integrator import (
    Velocity,
    fitting_step,
    time_after,
)
from meanfield_pde.solver.masses import LEAVE_DOUBLES, Doubles, ExtendedRange, Masses
from meanfield_pde.solver.settings import LOG_MASSES
from meanfield_pde.solver.splitting import longest_split
from meanfield_pde.solver.state import Arrays, Clocks, Grid, State
from meanfield_pde.solver.step_control import (
    StepSettings,
    longest_frozen,
    longest_step,
)
from meanfield_pde.support.ranks import largest, on_root, total

LOG = logging.getLogger("meanfield_pde")

# The last of several substeps of one length is not to leave a sliver, by rounding.
_ROUNDING = 1 + 1e-9


class Controller:
    """Advances a state. Everything is collective.

    Attributes:
        equation: what is solved, on the present mesh.
        state: the present one.
        rhs: the right-hand side of the present layer.
        integrator: that of the present mesh.
        steps: what steps are allowed to do.
        adapt: of an adaptive mesh; None where the mesh stays.
        mass: total mass after the last step.
        frozen: whether the last step had a frozen velocity.
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
        self.frozen = False
        self._velocity: Velocity | None = None
        self._announced: set[int] = set()
        self._extended = LOG_MASSES[equation.settings.log_masses]
        if equation.noise:
            self._extended = False  # noise fills the tails again
        self.state = state
        self._bind_mesh(equation, equation.attention.layers[0])
        if self._extended and not self.integrator.extended:
            self.close()
            raise InputError(
                "solver.log_masses = 'on' needs the compiled rks2; leave the options -ts_... of "
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
        return self.integrator.extended and not self.rhs.fixed

    def advance(self, until: float, after_step: Callable[[Controller], None] | None = None) -> None:
        """Advance to the time `until` exactly; steps end where a layer does. Collective.

        Args:
            until: the time at which to stop.
            after_step: called after every accepted step.
        """
        for layer, _, end in pieces(self.equation.attention, self.time, until):
            if self.rhs.layer is not layer:
                self._bind_layer(layer)
            together = self.rhs.fixed and self.integrator.many_at_once
            together = together and not (after_step or self.adapt or self.equation.noise)
            while self.time < end:
                if not (together and self._take_many(end)):
                    self._take_step(end)
                if self.adapt is not None:
                    self._adapt(self.adapt)
                if after_step is not None:
                    after_step(self)

    def velocity(self) -> Velocity:
        """The velocity of the present state, which the next step begins with. Collective."""
        if self._velocity is None:
            self._velocity = self._velocity_of(self.state.masses, self.state.patches)
            self._announce()
        return self._velocity

    def longest_step(self) -> float:
        """How long a step of transport may be at the present state. Collective."""
        coefficient, rate = self.integrator.coefficient, self.velocity().rate
        limit = longest_step(self.rhs, coefficient, rate, self.time, self.steps)
        if self.equation.noise:
            # Few lengths of step, so that the noise can use its factorisations again.
            limit = min(limit, self.state.clocks.split_limit)
            lengths = self.steps.lengths
            limit = 2.0 ** (math.floor(lengths * math.log2(limit)) / lengths)
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
        self.integrator.close()
        if self.equation.diffusion is not None:
            self.equation.diffusion.close()

    def _bind_mesh(self, equation: Equation, layer: Layer) -> None:
        """Take an equation on the mesh of the state, and an integrator on it."""
        self.equation = equation
        self.integrator = integrator_class()(equation.transport)
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

    def _velocity_of(self, masses: Masses, patches: Patches, *, at_points: bool = True) -> Velocity:
        """The velocity of masses of own cells and of patches. Collective."""
        log_masses = masses.log
        flux = self.rhs.facet_flux(log_masses, patches)
        rate = largest(self.state.volumes.comm, self.rhs.transport.outflow_rate(flux))
        field = self.rhs.field(log_masses, patches) if patches and at_points else None
        return Velocity(flux, rate, field, self.time)

    def _announce(self) -> None:
        """Log, once for each layer, how velocities are computed."""
        if id(self.rhs.layer) in self._announced:
            return
        self._announced.add(id(self.rhs.layer))
        for term in self.rhs.terms:
            if term.method and self.state.volumes.comm.rank == 0:
                LOG.info("%s", term.method)

    def _choose_format(self, smallest: float) -> None:
        """Leave doubles where the settings say so, or once tails that velocities see leave them.

        Args:
            smallest: -log of the smallest mass, of this rank or of all.
        """
        if self.extended or not self.may_be_extended:
            return
        if not self._extended and largest(self.state.volumes.comm, smallest) < LEAVE_DOUBLES:
            return
        LOG.info("t = %g: log masses: the tail is followed below the range of doubles", self.time)
        masses = ExtendedRange.of(self.state.masses.doubles)
        self.state = replace(self.state, masses=masses)

    def _take_step(self, until: float) -> None:
        noise, remaining = self.equation.diffusion, until - self.time
        if noise is None:
            dt, smallest = self._transport(remaining, self.adapt)
            self._choose_format(smallest)
        else:
            if self.step % self.steps.splitting_every == 0:
                self._estimate_splitting(noise, remaining / 2)
            half, _ = self._transport(remaining / 2)
            self._diffuse(noise, 2 * half)
            done = 0.0
            while half - done > 1e-14 * half:  # in several steps where the flow has become faster
                done += self._transport(half - done)[0]
            dt = 2 * half
        self._count(1, time_after(self.time, dt, until), dt)

    def _transport(
        self, remaining: float, adapt: AdaptSettings | None = None
    ) -> tuple[float, float]:
        """Let transport act for some of the time that remains. Collective.

        Args:
            remaining: at most this long.
            adapt: of a mesh on which velocities may be frozen.

        Returns:
            For how long it has acted, and -log of the smallest mass then.
        """
        limit, velocity, state = self.longest_step(), self.velocity(), self.state
        self.frozen = False
        if adapt is not None and not self.rhs.fixed:
            patches = state.patches
            longest = longest_frozen(self.rhs, self.masses, velocity, patches, self.steps, adapt)
            if patches or longest > self.steps.frozen_from * limit:
                dt = fitting_step(remaining, longest)
                smallest = self._frozen_step(velocity, dt)
                self.frozen = smallest is not None
                if smallest is not None:
                    return dt, smallest
        dt = fitting_step(remaining, limit)
        velocity_of = None if self.rhs.fixed else self._stage_velocity
        while (found := self.integrator.step(state.masses, velocity, velocity_of, dt)) is None:
            clocks = self.state.clocks
            self.state = replace(self.state, clocks=replace(clocks, rejected=clocks.rejected + 1))
            dt /= 2
            if dt < self.steps.smallest * max(1.0, self.time):
                raise SolverError(
                    f"at t = {self.time:.6g} no step keeps the density non-negative, down to "
                    f"dt = {dt:.1e}; please report the case"
                )
        self._change(found[0], self._moved(state.patches, velocity, dt))
        return dt, found[1]

    def _stage_velocity(self, masses: Masses) -> Velocity:
        return self._velocity_of(masses, self.state.patches, at_points=False)

    def _frozen_step(self, velocity: Velocity, dt: float) -> float | None:
        """Take a step with the velocity of its middle; None where it is too long. Collective."""
        masses, patches = self.state.masses, self.state.patches
        half = self._flow(masses, velocity, dt / 2)
        if half is None:
            return None
        middle = self._velocity_of(half[0], self._moved(patches, velocity, dt / 2))
        whole = self._flow(masses, middle, dt)
        if whole is None:
            return None
        self._change(whole[0], self._moved(patches, middle, dt))
        return whole[1]

    def _flow(
        self, masses: Masses, velocity: Velocity, duration: float
    ) -> tuple[Masses, float] | None:
        """The masses after a time in a frozen velocity, in equal substeps. Collective."""
        accurate = self.integrator.coefficient * self.steps.courant_of(self.rhs)
        count = max(1, math.ceil(duration * velocity.rate / accurate))
        limit, time = duration / count * _ROUNDING, 0.0
        smallest = 0.0
        while time < duration:
            found = self.integrator.many(masses, velocity, time, duration, limit)
            if not found.steps:
                return None
            masses, time, smallest = found.masses, found.time, found.smallest
        return masses, smallest

    def _moved(self, patches: Patches, velocity: Velocity, time: float) -> Patches:
        if velocity.field is None:
            return patches
        kernel = max(1.0, inverse_kernel_width_squared(self.rhs.layer)) ** -0.5
        return moved(patches, velocity.field, time, kernel)

    def _change(self, masses: Masses, patches: Patches) -> None:
        """Take other masses and patches on the same mesh."""
        self.state = replace(self.state, masses=masses, patches=patches)
        if not self.rhs.fixed:
            self._velocity = None

    def _diffuse(self, noise: Diffusion, length: float) -> None:
        clocks, limited_before = self.state.clocks, noise.limited
        noise.first, noise.error = clocks.noise_step, self.steps.diffusion
        masses = Doubles(noise.advance(self.masses, length))
        counted = clocks.limited + noise.limited - limited_before
        clocks = replace(clocks, noise_step=noise.first, limited=counted)
        self._change(masses, self.state.patches)
        self.state = replace(self.state, clocks=clocks)

    def _take_many(self, until: float) -> bool:
        """Steps of one length, taken at once, as `_take_step` would; whether there were any."""
        limit = self.longest_step()
        found = self.integrator.many(self.state.masses, self.velocity(), self.time, until, limit)
        if found.steps:
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

    def _estimate_splitting(self, noise: Diffusion, longest: float) -> None:
        """Set `split_limit` at the present state. Collective."""
        self._set_split_limit(math.inf)
        if self.rhs.speed > 0:
            length = fitting_step(longest, self.longest_step())
            given = self.masses, self.velocity().flux, length, self.steps.splitting
            noise.first = self.state.clocks.noise_step
            self._set_split_limit(longest_split(self.rhs.transport, noise, *given))

    def _set_split_limit(self, limit: float) -> None:
        clocks = replace(self.state.clocks, split_limit=limit)
        self.state = replace(self.state, clocks=clocks)

    def _adapt(self, adapt: AdaptSettings) -> None:
        """Extract clusters into patches, and change the mesh if it has to be. Collective."""
        clocks, comm = self.state.clocks, self.state.volumes.comm
        short = clocks.last_dt * self.rhs.speed < adapt.short_step
        if short and not self.frozen and clocks.step % adapt.check_every:
            return
        width = 0.0 if self.equation.noise else patch_width(self.rhs.layer, adapt.patches)
        if width:
            self._extract(width, adapt)
        kept, retired = retire(self.state.patches, width, adapt.patches)
        indicators = self.indicators()
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
    equation = equation.on(grid.volumes, sub_cell=True)
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
