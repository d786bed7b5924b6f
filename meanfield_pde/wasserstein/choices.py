"""What a user chooses of a distance: the cost, and how it is computed."""

from __future__ import annotations

COSTS = ("geodesic", "chordal")
# "auto" takes a closed form where there is one; "lp" never does, and "scipy" has scipy's HiGHS
# solve the same linear programs.
METHODS = ("auto", "lp", "scipy")
