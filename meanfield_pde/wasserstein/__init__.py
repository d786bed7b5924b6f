"""Certified Wasserstein distances between discrete measures.

In come two weighted sets of points, p and a cost; out come the distance and an interval that holds.

`distance` is the way in. `closed_forms` solves what has one, `sifting` (with `network_simplex` or
scipy's `linear_program` on the arcs of a round) everything else, and `certificate` (with `pricing`)
turns the candidates of either into an interval that holds.
"""

from meanfield_pde.wasserstein.distance import METHODS, WassersteinResult, wasserstein

__all__ = ["METHODS", "WassersteinResult", "wasserstein"]
