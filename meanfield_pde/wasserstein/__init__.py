"""Certified Wasserstein distances between discrete measures.

In come two weighted sets of points, p and a cost; out come the distance and an interval that holds.

`distance` is the way in. `closed_forms` solves what has one, `sifting` (with `network_simplex` or
scipy's `linear_program` on the arcs of a round) everything else, and `certificate` (with `pricing`)
turns the candidates of either into an interval that holds.
"""

from typing import TYPE_CHECKING

from meanfield_pde import _lazy

if TYPE_CHECKING:
    from meanfield_pde.wasserstein.choices import METHODS as METHODS
    from meanfield_pde.wasserstein.distance import WassersteinResult as WassersteinResult
    from meanfield_pde.wasserstein.distance import wasserstein as wasserstein

_HOMES = {
    "METHODS": "meanfield_pde.wasserstein.choices",
    "WassersteinResult": "meanfield_pde.wasserstein.distance",
    "wasserstein": "meanfield_pde.wasserstein.distance",
}
__all__ = list(_HOMES)
_lazy.import_when_asked(__name__)
