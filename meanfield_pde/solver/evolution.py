"""Time evolution: PETSc's TS takes the steps, this module chooses their length.

A strong-stability-preserving Runge-Kutta method is a convex combination of forward Euler steps of
length dt / C (C its SSP coefficient). It keeps masses non-negative as long as each of them does,

    dt / C x outflow rate <= limit of the scheme,

and the outflow rate changes with the density. So dt is set from the rate at the start of a step,
with room to spare, the rate is watched at every stage, and a step in which it exceeded the limit is
taken back and repeated with half the length.

With noise a step is T(h) D(2h) T(h), of second order (Strang): transport T for half of the step,
noise D alone for its whole length, and transport again. The length follows an estimate of the
error of this splitting as well, made again every few steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from mpi4py import MPI
from petsc4py import PETSc

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
from meanfield_pde.solver.state import State
from meanfield_pde.solver.stepper import attached_stepper, fitting_step, ssp_coefficient

# Steps also resolve the growth of a density that hardly moves yet, whose outflow rate says nothing:
# rates of growth are of the order |V|, and dt |V| is kept below this.
GROWTH_PER_STEP = 0.1
SMALLEST_STEP = 1e-12
# With noise, the error of the splitting is estimated at every so many steps,
_ESTIMATED_EVERY = 10
# and steps have one of so many lengths between any number and its double.
_LENGTHS = 8
# Masses below the smallest normal double have lost their digits; they become exactly zero.
_TINY = float(np.finfo(float).tiny)


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
        self._failure: BaseException | None = None
        self._settle(equation, layers_of(equation.attention)[0], initial)

    def _settle(self, equation: Equation, layer: Layer, masses: np.ndarray) -> None:
        """Take up a mesh: the state on it, and PETSc's objects. Collective."""
        self.equation = equation
        volumes = equation.volumes
        self._comm = volumes.comm
        self.terms = equation.right_hand_side(layer)
        self.state = State(volumes, masses)
        # PETSc works on the array of the state itself.
        sizes = (volumes.owned, volumes.global_cells)
        own: Any = self.masses
        self._vector = PETSc.Vec().createWithArray(own, sizes, comm=volumes.comm)
        self._before = np.array(masses)
        self._flux: np.ndarray | None = None  # fluxes of the present state, once they are known
        self._rate = 0.0  # their outflow rate on this rank
        self._stage_rate = 0.0
        self._slopes = self._vector.duplicate()
        self._ts = attached_stepper(self._comm, self._right_hand_side, self._vector, self._slopes)
        self.coefficient = ssp_coefficient(self._ts)

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
            while self.time < end:
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
        for own in (self._ts, self._vector, self._slopes):
            own.destroy()
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
            self._flux = None
            done = 0.0
            while half - done > 1e-14 * half:  # in several steps where the flow has become faster
                done += self._transport(half - done)
            dt = 2 * half
        masses = self.masses
        masses[masses < _TINY] = 0.0
        self.last_dt = dt
        self.mass = self._comm.allreduce(float(masses.sum()))
        self.step += 1
        remaining = until - self.time - dt
        self.time = until if remaining <= 1e-14 * max(1.0, until) else self.time + dt

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
        rate = self._comm.allreduce(self._present_rate(), MPI.MAX)
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

    def _attempt(self, dt: float) -> bool:
        """Take a step of length dt; whether it stayed within the limits. Collective."""
        self._stage_rate = 0.0
        self._ts.setTime(self.time)
        self._ts.setTimeStep(dt)
        try:
            self._ts.step()
        except PETSc.Error as error:
            # PETSc reports an exception in the right-hand side as an opaque error of its own.
            raise self._failure or SolverError(f"PETSc TS failed: {error}") from error
        self._flux = None
        masses = self.masses
        valid = bool(np.isfinite(masses).all()) and not (masses < 0).any()
        worst = np.array([self._stage_rate, 0.0 if valid else 1.0])
        self._comm.Allreduce(MPI.IN_PLACE, worst, MPI.MAX)
        within = worst[0] * dt / self.coefficient <= self.terms.transport.scheme.positive
        return bool(within and worst[1] == 0)

    def _present_rate(self) -> float:
        """Outflow rate of the present state; its fluxes are kept for the first stage."""
        if self._flux is None:
            self._flux = self.terms.flux(self.masses)
            self._rate = self.terms.transport.outflow_rate(self._flux)
        return self._rate

    def _right_hand_side(self, ts: PETSc.TS, time: float, state: PETSc.Vec, out: PETSc.Vec) -> None:
        try:
            masses = state.array_r
            if self._flux is not None:  # the first stage is the present state itself
                flux, rate = self._flux, self._rate
                self._flux = None
            else:
                # A stage of a step that is too long may be negative; the step will be rejected.
                flux = self.terms.flux(np.maximum(masses, 0.0))
                rate = self.terms.transport.outflow_rate(flux)
            self._stage_rate = max(self._stage_rate, rate)
            self.terms.transport.rate_of_change(np.maximum(masses, 0.0), flux, out.array)
        except BaseException as error:
            self._failure = error
            raise
