"""Where the density lives: meshes of the circle and the sphere, and their geometry.

In come a number of cells or a mesh file; out come a DOLFINx mesh, its finite volumes (cells,
facets and neighbours as flat arrays, on each rank), and its cells as every rank has them.
"""
