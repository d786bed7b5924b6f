"""The flow of a velocity that stands still, with noise: masses after any time.

Without noise it is transport, in as many steps of an integrator as the cells want (a CFL
condition). With noise it is

    ( T(h) D(2h) T(h) )^n,     2 h n the time,

of second order (Strang), T the transport and D the noise alone; h follows an estimate of the error
(`splitting`).
"""

from __future__ import annotations

import math

from meanfield_pde.errors import SolverError
from meanfield_pde.solver.diffusion import Diffusion
from meanfield_pde.solver.integrator import Integrator, Velocity
from meanfield_pde.solver.masses import Doubles, Masses
from meanfield_pde.solver.transport import Transport

# The last of several steps of one length is not to leave a sliver, by rounding.
_ROUNDING = 1 + 1e-9
# Of the longest step that keeps masses positive, whatever the density: the rest is for rounding, of
# 1e-9 above and 1e-15 in the stages, and costs 2 % of the steps. Schemes leave as much: 0.98 of 1,
# and 0.36 of exp(-1).
_ROOM = 0.98


class Flow:
    """The flow on one mesh. Everything is collective.

    Attributes:
        transport: what carries the masses.
        integrator: takes its steps.
        noise: acts between them; None without.
        courant: dt / C x outflow rate at which steps are taken.
    """

    def __init__(
        self,
        transport: Transport,
        integrator: Integrator,
        noise: Diffusion | None,
        courant: float | None,
    ) -> None:
        scheme = transport.scheme
        self.transport = transport
        self.integrator = integrator
        self.noise = noise
        usual, safe = scheme.share(transport.volumes.dimension), _ROOM * scheme.positive
        most = max(usual, safe) if integrator.checks_stages else safe
        self.courant = min(usual if courant is None else courant, most)
        self._safe = min(self.courant, safe)

    def longest_step(self, rate: float) -> float:
        """How long a step of the integrator may be, at an outflow rate; infinity if none flows."""
        return self._step_of(self.courant, rate)

    def safe_step(self, rate: float) -> float:
        """How long a step may be in which no cell can give away more than it holds."""
        return self._step_of(self._safe, rate)

    def _step_of(self, courant: float, rate: float) -> float:
        return self.integrator.coefficient * courant / rate if rate > 0 else math.inf

    def __call__(
        self, masses: Masses, velocity: Velocity, time: float, longest_split: float = math.inf
    ) -> tuple[Masses, float]:
        """Masses after a time, and -log of the smallest.

        Args:
            masses: of own cells.
            velocity: stands still.
            time: how long it acts.
            longest_split: the largest h.
        """
        if self.noise is None:
            return self.carried(masses, velocity, time)
        # A power of two, so that few lengths of noise have to be factorised.
        count = 2 ** math.ceil(math.log2(max(1.0, time / (2 * longest_split * _ROUNDING))))
        part, smallest = time / count, 0.0
        for _ in range(count):
            masses, _ = self.carried(masses, velocity, part / 2)
            masses = Doubles(self.noise.advance(masses.doubles, part))
            masses, smallest = self.carried(masses, velocity, part / 2)
        return masses, smallest

    def carried(self, masses: Masses, velocity: Velocity, time: float) -> tuple[Masses, float]:
        """Masses after a time of transport alone, in equal steps, and -log of the smallest.

        A step in which a cell would give away more than it holds is taken in shorter ones.
        """
        count = max(1, math.ceil(time / self.longest_step(velocity.rate)))
        limit, now, smallest = time / count * _ROUNDING, 0.0, 0.0
        while now < time:
            found = self.integrator.many(masses, velocity, now, time, limit)
            if not found.steps:
                safe = min(limit, self.safe_step(velocity.rate))
                end = min(time, now + limit)
                found = self.integrator.many(masses, velocity, now, end, safe)
            if not found.steps:
                raise SolverError(
                    f"at t = {velocity.time:.6g} no step keeps the density non-negative, down to "
                    f"dt = {safe:.1e}; please report the case"
                )
            masses, now, smallest = found.masses, found.time, found.smallest
        return masses, smallest
