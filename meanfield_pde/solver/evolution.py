"""Time evolution: steps of the drift (see `flow`) and of noise, layer by layer.

With noise a step is T(h) D(2h) T(h), of second order (Strang): transport T for half of the step,
noise D alone for its whole length, and T again. It is no longer than an estimated error allows.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from meanfield_pde.attention.layers import layers_of, pieces
from meanfield_pde.history.store import MASSES, Arrays
from meanfield_pde.mesh.transfer import Transfer
from meanfield_pde.solver import spots as gathered
from meanfield_pde.solver.diffusion import Diffusion
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.flow import Flow
from meanfield_pde.solver.follower import Follower
from meanfield_pde.solver.splitting import ERROR_PER_STEP, longest_split
from meanfield_pde.solver.spots import Spots
from meanfield_pde.solver.stages import many_steps, settle
from meanfield_pde.solver.stepper import fitting_step, time_after
from meanfield_pde.support.ranks import total

# With noise, the error of the splitting is estimated at every so many steps,
_ESTIMATED_EVERY = 10
# and steps have one of so many lengths between any number and its double.
_LENGTHS = 8


class Evolution(Flow):
    """The state of the cells and its time, advanced by `advance` through the layers.

    Attributes:
        step: number of steps taken.
        last_dt: length of the last step.
        split_error: bound on the error of a step by the splitting, in total variation.
        split_limit: longest time for which transport may act without noise, as last estimated.
        mass: total mass after the last step.
        limited: number of steps of noise that had to be limited.
        follower: what changes the mesh between steps, if it follows the mass.
    """

    compiled = True  # the steps of this class are those of `stages.many_steps`

    def __init__(
        self, equation: Equation, initial: np.ndarray, follower: Follower | None = None
    ) -> None:
        self.step = 0
        self.limited = 0
        self.last_dt = 0.0
        self.split_error = ERROR_PER_STEP
        self.split_limit = math.inf
        self.mass = 1.0
        self.follower = follower
        super().__init__(equation, layers_of(equation.attention)[0], initial)

    @property
    def noise_step(self) -> float:
        """Length of a first step of noise, from which the next is chosen."""
        noise = self.equation.diffusion
        return math.inf if noise is None else noise.first

    @noise_step.setter
    def noise_step(self, length: float) -> None:
        if self.equation.diffusion is not None:
            self.equation.diffusion.first = length

    def carried(self, transfer: Transfer, arrays: Arrays | None = None) -> dict[str, np.ndarray]:
        """The state, or the arrays given instead, on another mesh. Collective."""
        arrays = self.state.gather() if arrays is None else arrays
        return {name: transfer.masses(values) for name, values in arrays.items()}

    def go_on(self, arrays: Arrays, spots: Spots) -> None:
        """Go on with these arrays of all cells, and spots beside them. Collective."""
        self.state.restore(arrays)
        self.spots = spots
        self._flux = None

    def changed(
        self, arrays: Arrays, left: np.ndarray | float, added: np.ndarray | float
    ) -> dict[str, np.ndarray]:
        """Arrays of all cells with a part of the masses left, and others added."""
        return {**arrays, MASSES: arrays[MASSES] * left + added}

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

    def shown(self, masses: np.ndarray) -> np.ndarray:
        """Masses of all cells with those of the spots in them."""
        if self.follower is None or not self.spots:
            return masses
        return masses + self.follower.shown(self.spots)

    def record(self) -> dict[str, np.ndarray]:
        """What `restore` takes: the arrays of all cells, and the mesh if it moves. Collective."""
        mesh = {} if self.follower is None else self.follower.record()
        return self.state.gather() | mesh | gathered.record(self.spots)

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
        arrays = {name: a for name, a in record.items() if not name.startswith(("leaf_", "spot_"))}
        self.spots = gathered.recorded(record)
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
            dt = self._transport(remaining, may_hold=self.follower is not None)
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
        self.mass += sum(spot.mass for spot in self.spots)

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
            self.split_limit = longest_split(
                self.terms.transport, noise, self.masses, self._flux, length, self.split_error
            )

    def longest_step(self) -> float:
        """How long a step of transport may be at the present state. Collective."""
        limit = super().longest_step()
        if self.equation.noise:
            # Few lengths of step, so that the noise can use its factorisations again.
            limit = min(limit, self.split_limit)
            limit = 2.0 ** (math.floor(_LENGTHS * math.log2(limit)) / _LENGTHS)
        return limit
