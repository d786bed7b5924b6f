"""What is kept of a run: saved times, the densities at them, and a row of numbers for each.

In come the cells of a mesh and arrays of numbers per cell; out goes a `History`, which everything
that looks at a finished run reads, whether its densities are in memory or in a file.
"""
