"""The schemes of transport that a user chooses from, by name, and their limits on a step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meanfield_pde.mesh.gradients import STEEPEST


@dataclass(frozen=True)
class Scheme:
    """A choice of rho_f, with its limits on dt x outflow rate of a forward Euler step.

    Attributes:
        positive: beyond this, a mass could become negative.
        accurate: the value at which steps are taken, with room for the velocity to change.
    """

    name: str
    positive: float
    accurate: float


SCHEMES = {
    "muscl": Scheme("muscl", positive=math.exp(-STEEPEST), accurate=0.3),
    "upwind": Scheme("upwind", positive=1.0, accurate=0.9),
}
