"""Adaptive mesh refinement: where the mesh is fine, and what it hands to cells that move.

In come the density on the leaves of a forest of bisected cells and the velocities at its facets;
out come refinement indicators, the next forest with the remap of the masses to it, and Lagrangian
patches. Plain numpy, the same on every rank: nothing here knows of states, steps or MPI.
"""
