"""Time evolution: a `stepper` takes the steps, this module chooses their length.

A strong-stability-preserving Runge-Kutta method is a convex combination of forward Euler steps of
length dt / C (C its SSP coefficient). It keeps masses non-negative as long as each of them does,

    dt / C x outflow rate <= limit of the scheme,

and the outflow rate changes with the density. So dt is set from the rate at the start of a step,
with room to spare, the rate is watched at every stage, and a step in which it exceeded the limit is
taken back and repeated with half the length.

With noise a step is T(h) D(2h) T(h), of second order (Strang): transport T for half of the step,
noise D alone for its whole length, and T again. It is no longer than an estimated error allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from meanfield_pde.attention.heads import Layer
from meanfield_pde.attention.layers import layers_of, pieces
from meanfield_pde.errors import SolverError
from meanfield_pde.history.store import MASSES, Arrays
from meanfield_pde.mesh.transfer import Transfer
from meanfield_pde.solver.diffusion import Diffusion
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.follower import Follower
from meanfield_pde.solver.splitting import ERROR_PER_STEP, longest_step
from meanfield_pde.solver.stages import many_steps, settle
from meanfield_pde.solver.state import State
from meanfield_pde.solver.stepper import Stepper, fitting_step, time_after
from meanfield_pde.support.ranks import largest, total

# Steps also resolve the growth of a density that hardly moves yet, whose outflow rate says nothing:
# rates of growth are of the order |V|, and dt |V| is kept below this.
GROWTH_PER_STEP = 0.1
SMALLEST_STEP = 1e-12
# With noise, the error of the splitting is estimated at every so many steps,
_ESTIMATED_EVERY = 10
# and steps have one of so many lengths between any number and its double.
_LENGTHS = 8


class Evolution:
    """The state of the cells and its time, advanced by `advance` through the layers.

    Attributes:
        equation: what is solved.
        terms: the right-hand side of the present layer.
        state: the arrays of this rank's own cells, the masses among them.
        time, step: where the evolution stands.
        last_dt: length of the last step.
        split_error: bound on the error of a step by the splitting, in total variation.
        split_limit: longest time for which transport may act without noise, as last estimated.
        mass: total mass after the last step.
        rejected: number of steps of transport that were taken back.
        limited: number of steps of noise that had to be limited.
        follower: what changes the mesh between steps, if it follows the mass.
    """

    compiled = True  # the steps of this class are those of `stages.many_steps`

    def __init__(
        self, equation: Equation, initial: np.ndarray, follower: Follower | None = None
    ) -> None:
        self.time = 0.0
        self.step = 0
        self.rejected = 0
        self.limited = 0
        self.last_dt = 0.0
        self.split_error = ERROR_PER_STEP
        self.split_limit = math.inf
        self.mass = 1.0
        self.follower = follower
        self._settle(equation, layers_of(equation.attention)[0], initial)

    def _settle(self, equation: Equation, layer: Layer, masses: np.ndarray) -> None:
        """Take up a mesh: the state on it, and PETSc's objects. Collective."""
        self.equation = equation
        self._comm = equation.volumes.comm
        self.terms = equation.right_hand_side(layer)
        self.state = State(equation.volumes, masses)
        self._before = np.array(masses)
        self._flux: np.ndarray | None = None  # fluxes of the present state, once they are known
        self._rate = 0.0  # their outflow rate on this rank
        self._stage_rate = 0.0
        self._stepper = Stepper(equation.transport, self.masses, self._stage_flux)
        self.coefficient = self._stepper.coefficient

    @property
    def masses(self) -> np.ndarray:
        """Masses of this rank's own cells."""
        return self.state[MASSES]

    @property
    def noise_step(self) -> float:
        """Length of a first step of noise, from which the next is chosen."""
        noise = self.equation.diffusion
        return math.inf if noise is None else noise.first

    @noise_step.setter
    def noise_step(self, length: float) -> None:
        if self.equation.diffusion is not None:
            self.equation.diffusion.first = length

    @property
    def log_masses(self) -> np.ndarray:
        """Their logarithms; -inf where a mass is exactly zero."""
        with np.errstate(divide="ignore"):
            return np.log(self.masses)

    def present_flux(self) -> np.ndarray:
        """Fluxes through the facets of this rank, which the next step begins with. Collective."""
        self._present_rate()
        assert self._flux is not None
        return self._flux

    def carried(self, transfer: Transfer, arrays: Arrays | None = None) -> dict[str, np.ndarray]:
        """The state, or the arrays given instead, on another mesh. Collective."""
        arrays = self.state.gather() if arrays is None else arrays
        return {name: transfer.masses(values) for name, values in arrays.items()}

    def move(self, equation: Equation, arrays: Arrays) -> None:
        """Go on, at the same time, on another mesh. Collective.

        Args:
            equation: the equation on that mesh.
            arrays: of all its cells, as `carried` gives them.
        """
        noise_step = self.noise_step
        self.close()
        equation.told = True
        masses = equation.volumes.scatter(arrays[MASSES])
        self._settle(equation, self.terms.layer, masses)
        self.state.restore(arrays)
        self.noise_step = noise_step

    def record(self) -> dict[str, np.ndarray]:
        """What `restore` takes: the arrays of all cells, and the mesh if it moves. Collective."""
        mesh = {} if self.follower is None else self.follower.record()
        return self.state.gather() | mesh

    def advance(self, until: float, after_step: Callable[[Evolution], None] | None = None) -> None:
        """Advance to the time `until` exactly; steps end where a layer does. Collective.

        Args:
            until: the time at which to stop.
            after_step: called after every accepted step.
        """
        for layer, _, end in pieces(self.equation.attention, self.time, until):
            if self.terms.layer is not layer:
                self.terms = self.equation.right_hand_side(layer)
                self._flux = None
            many = self.compiled and self.terms.fixed and self._stepper.alone
            many = many and not (after_step or self.follower or self.equation.noise)
            while self.time < end:
                if not (many and self._take_many(end)):
                    self._take_step(end)
                if self.follower is not None:
                    self.follower.follow(self)
                if after_step is not None:
                    after_step(self)

    def restore(self, record: Arrays, *, time: float, step: int) -> None:
        """Continue from an earlier state, as `record` gave it. Collective."""
        arrays = {name: array for name, array in record.items() if not name.startswith("leaf_")}
        if self.follower is not None:
            volumes = self.follower.regrown(record)
            self.move(self.equation.on(volumes), arrays)
        self.state.restore(arrays)
        self._flux = None
        self.time, self.step = time, step

    def close(self) -> None:
        """Give PETSc's objects back. Collective."""
        self._stepper.close()
        if self.equation.diffusion is not None:
            self.equation.diffusion.close()

    def _take_step(self, until: float) -> None:
        noise, remaining = self.equation.diffusion, until - self.time
        if noise is None:
            dt = self._transport(remaining)
        else:
            if self.step % _ESTIMATED_EVERY == 0:
                self._estimate_splitting(noise, remaining / 2)
            half = self._transport(remaining / 2)
            limited = noise.limited
            self.state[MASSES] = noise.advance(self.masses, 2 * half)
            self.limited += noise.limited - limited
            self._forget_flux()
            done = 0.0
            while half - done > 1e-14 * half:  # in several steps where the flow has become faster
                done += self._transport(half - done)
            dt = 2 * half
        settle(self.masses)
        self._count(1, time_after(self.time, dt, until), dt)

    def _count(self, steps: int, time: float, dt: float) -> None:
        """Keep the books after steps that have been taken, the last of length dt."""
        self.step += steps
        self.time = time
        self.last_dt = dt
        self.mass = total(self._comm, float(self.masses.sum()))

    def _take_many(self, until: float) -> bool:
        """Steps of one length, taken at once, as `_take_step` would; whether there were any."""
        limit = self.longest_step()
        if not self._within(self._rate, limit):
            return False
        assert self._flux is not None
        arrays = self.masses, self._before, self._flux
        span = self.time, until, limit
        steps, time, dt = many_steps(self.terms.transport, arrays, span, self._stepper.stages)
        if steps:
            self._count(steps, time, dt)
        return steps > 0

    def _estimate_splitting(self, noise: Diffusion, longest: float) -> None:
        """Set `split_limit` at the present state. Collective."""
        self.split_limit = math.inf
        if self.terms.speed > 0:
            length = fitting_step(longest, self.longest_step())
            assert self._flux is not None  # that of the present state
            self.split_limit = longest_step(
                self.terms.transport, noise, self.masses, self._flux, length, self.split_error
            )

    def _transport(self, remaining: float) -> float:
        """Let the drift act for some of the time that remains; for how long it has. Collective."""
        limit = self.longest_step()
        dt = fitting_step(remaining, limit)
        self._before[:] = self.masses
        before = (self._flux, self._rate)
        while not self._attempt(dt):
            self.rejected += 1
            self.state[MASSES] = self._before
            self._flux, self._rate = before
            dt /= 2
            if dt < SMALLEST_STEP * max(1.0, self.time):
                raise SolverError(
                    f"at t = {self.time:.6g} no step keeps the density non-negative, down to "
                    f"dt = {dt:.1e}; please report the case"
                )
        return dt

    def longest_step(self) -> float:
        """How long a step of transport may be at the present state. Collective."""
        rate = largest(self._comm, self._present_rate())
        limit = GROWTH_PER_STEP / max(self.terms.speed, 1e-300)
        if rate > 0:
            limit = min(limit, self.coefficient * self.terms.transport.scheme.accurate / rate)
        if limit < SMALLEST_STEP * max(1.0, self.time):
            raise SolverError(
                f"at t = {self.time:.6g} tokens move so fast that steps would have to be as short "
                f"as {limit:.1e}; scale attention.value down, or take larger cells"
            )
        if self.equation.noise:
            # Few lengths of step, so that the noise can use its factorisations again.
            limit = min(limit, self.split_limit)
            limit = 2.0 ** (math.floor(_LENGTHS * math.log2(limit)) / _LENGTHS)
        return limit

    def _within(self, rate: float, dt: float) -> bool:
        """Whether a step keeps masses non-negative at this outflow rate."""
        return rate * dt / self.coefficient <= self.terms.transport.scheme.positive

    def _attempt(self, dt: float) -> bool:
        """Take a step of length dt; whether it stayed within the limits. Collective."""
        self._stage_rate = 0.0
        self._stepper.step(self.time, dt, self._before)
        self._forget_flux()
        worst = self._stage_rate if settle(self.masses) else math.inf
        return self._within(largest(self._comm, worst), dt)

    def _forget_flux(self) -> None:
        """The state has changed, and the fluxes with it, unless they are fixed."""
        if not self.terms.fixed:
            self._flux = None

    def _present_rate(self) -> float:
        """Outflow rate of the present state; its fluxes are kept for the first stage."""
        if self._flux is None:
            self._flux = self.terms.flux(self.masses)
            self._rate = self.terms.transport.outflow_rate(self._flux)
        return self._rate

    def _stage_flux(self, masses: np.ndarray) -> np.ndarray:
        """Fluxes of a stage; the first is the present state, whose fluxes may be known."""
        flux, rate = self._flux, self._rate
        if flux is None:
            # A stage of a step that is too long may be negative; the step will be rejected.
            flux = self.terms.flux(np.maximum(masses, 0.0))
            rate = self.terms.transport.outflow_rate(flux)
        self._forget_flux()
        self._stage_rate = max(self._stage_rate, rate)
        return flux
