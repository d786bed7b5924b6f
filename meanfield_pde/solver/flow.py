"""Steps of the drift alone: the state, its fluxes, and how long they may act.

A strong-stability-preserving Runge-Kutta method is a convex combination of forward Euler steps of
length dt / C (C its SSP coefficient). It keeps masses non-negative as long as each of them does,

    dt / C x outflow rate <= limit of the scheme,

and the outflow rate changes with the density. So dt is set from the rate at the start of a step,
with room to spare, the rate is watched at every stage, and a step in which it exceeded the limit is
taken back and repeated with half the length. Where cells are far narrower than the kernel,
velocities may be held for longer than such a step (see `step_length`).
"""

from __future__ import annotations

import math

import numpy as np

from meanfield_pde.attention.heads import Layer, sharpness
from meanfield_pde.errors import SolverError
from meanfield_pde.history.store import MASSES
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.spots import NONE, Field, Spots
from meanfield_pde.solver.stages import settle
from meanfield_pde.solver.state import State
from meanfield_pde.solver.step_length import SMALLEST_STEP, longest_hold, longest_step
from meanfield_pde.solver.stepper import Stepper, fitting_step
from meanfield_pde.support.ranks import largest

# Velocities are held if that is so many times longer than a step.
HELD_FROM = 1.5


class Flow:
    """The state of the cells, moved by the drift of one layer.

    Attributes:
        equation: what is solved.
        terms: the right-hand side of the present layer.
        state: the arrays of this rank's own cells, the masses among them.
        time: where it stands.
        coefficient: SSP coefficient of the method.
        rejected: number of steps of transport that were taken back.
        held: whether velocities were held over several steps of transport, last time.
        spots: mass beside that of the cells, the same on all ranks (see `spots`).
    """

    def __init__(self, equation: Equation, layer: Layer, initial: np.ndarray) -> None:
        self.time = 0.0
        self.rejected = 0
        self.held = False
        self.spots: Spots = NONE
        self._settle(equation, layer, initial)

    def _settle(self, equation: Equation, layer: Layer, masses: np.ndarray) -> None:
        """Take up a mesh: the state on it, and PETSc's objects. Collective."""
        self.equation = equation
        self._comm = equation.volumes.comm
        self.terms = equation.right_hand_side(layer)
        self.state = State(equation.volumes, masses)
        self._before = np.array(masses)
        self._flux: np.ndarray | None = None  # fluxes of the present state, once they are known
        self._rate = 0.0  # their outflow rate on this rank
        self._field: Field | None = None  # the velocities that they come from, if there are spots
        self._stage_rate = 0.0
        self._holding = False  # whether fluxes stay while the state changes
        self._stepper = Stepper(equation.transport, self.masses, self._stage_flux)
        self.coefficient = self._stepper.coefficient

    @property
    def masses(self) -> np.ndarray:
        """Masses of this rank's own cells."""
        return self.state[MASSES]

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

    def longest_step(self) -> float:
        """How long a step of transport may be at the present state. Collective."""
        rate = largest(self._comm, self._present_rate())
        return longest_step(self.terms, self.coefficient, rate, self.time)

    def _transport(self, remaining: float, *, may_hold: bool = False) -> float:
        """Let the drift act for some of the time that remains; for how long it has. Collective."""
        limit = self.longest_step()
        self.held = False
        if may_hold and not self.terms.fixed:
            flux = self.present_flux()
            hold = longest_hold(self.terms, self.masses, flux, self.spots, self._field)
            dt = fitting_step(remaining, hold)
            worth = bool(self.spots) or hold > HELD_FROM * limit
            self.held = worth and self._attempt_held(dt)
            if self.held:
                return dt
        dt = fitting_step(remaining, limit)
        self._before[:] = self.masses
        before, field = (self._flux, self._rate), self._field
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
        self._move_spots(field, dt)
        return dt

    def _attempt(self, dt: float) -> bool:
        """Take a step of length dt; whether it stayed within the limits. Collective."""
        self._stage_rate = 0.0
        self._stepper.step(self.time, dt, self._before)
        self._forget_flux()
        worst = self._stage_rate if settle(self.masses) else math.inf
        return self._within(largest(self._comm, worst), dt)

    def _attempt_held(self, dt: float) -> bool:
        """Take a step with the velocities of its middle; if it fails, take it back. Collective."""
        before = {name: values.copy() for name, values in self.state.items()}
        spots = self.spots
        within = self._hold(dt / 2)
        self._present_rate()
        self.state.update(before)
        self.spots = spots
        within = self._hold(dt) and within
        if not within:
            self.state.update(before)
            self.spots = spots
        return within

    def _hold(self, time: float) -> bool:
        """Let the present velocities act, in as many steps as that takes. Collective."""
        rate = largest(self._comm, self._present_rate())
        accurate = self.coefficient * self.terms.transport.scheme.accurate
        count = max(1, math.ceil(time * rate / accurate))
        self._holding, within = True, True
        for _ in range(count):
            self._before[:] = self.masses
            within = self._attempt(time / count) and within
        self._move_spots(self._field, time)
        self._holding, self._flux = False, None
        return within

    def _move_spots(self, field: Field | None, time: float) -> None:
        if field is not None:
            kernel = max(1.0, sharpness(self.terms.layer)) ** -0.5
            self.spots = tuple(spot.moved(field, time, kernel) for spot in self.spots)

    def _within(self, rate: float, dt: float) -> bool:
        """Whether a step keeps masses non-negative at this outflow rate."""
        return rate * dt / self.coefficient <= self.terms.transport.scheme.positive

    def _forget_flux(self) -> None:
        """The state has changed, and the fluxes with it, unless they are fixed or held."""
        if not (self.terms.fixed or self._holding):
            self._flux = None

    def _present_rate(self) -> float:
        """Outflow rate of the present state; its fluxes are kept for the first stage."""
        if self._flux is None:
            self._flux = self._flux_of_state()
            self._rate = self.terms.transport.outflow_rate(self._flux)
            self._field = None
            if self.spots:
                self._field = self.terms.field(self.log_masses, self.spots)
        return self._rate

    def _flux_of_state(self) -> np.ndarray:
        return self.terms.flux(self.masses, self.spots)

    def _stage_flux(self, masses: np.ndarray) -> np.ndarray:
        """Fluxes of a stage; the first is the present state, whose fluxes may be known."""
        flux, rate = self._flux, self._rate
        if flux is None:
            # A stage of a step that is too long may be negative; the step will be rejected.
            flux = self.terms.flux(np.maximum(masses, 0.0), self.spots)
            rate = self.terms.transport.outflow_rate(flux)
        self._forget_flux()
        self._stage_rate = max(self._stage_rate, rate)
        return flux
