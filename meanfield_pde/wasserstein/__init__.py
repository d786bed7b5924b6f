"""Certified Wasserstein distances between discrete measures.

In come two weighted sets of points, p and a cost; out come the distance and an interval that holds.

`distance` is the way in. `circle`, `atoms` and `assignment` are closed forms, `sifting` (with
`hierarchy`, and `network_simplex` on a `spanning_tree` or scipy's `linear_program`) solves
everything else, and `certificate` (with `pricing`) turns the candidates of either into an interval
that holds.
"""

from meanfield_pde.wasserstein.distance import METHODS, WassersteinResult, wasserstein

__all__ = ["METHODS", "WassersteinResult", "wasserstein"]
