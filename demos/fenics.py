# %% [markdown]
# # The density in FEniCS, out and in
#
# `solve` takes any DOLFINx mesh of the circle or the sphere, and its solution gives the density and
# the velocity as functions on that mesh. Here both are used in a problem of our own, written in
# UFL: a field u that the tokens feed, that spreads, fades, and is carried along by them,
#
#     u - D Laplace u + div(u v) = rho     on the sphere
#
# Values are keyed by the order in which the mesh was given, so they do not depend on the ranks.
#
# Import `meanfield_pde` before `dolfinx.fem.petsc`: the libraries below share HDF5, and h5py, which
# this package needs, has to be loaded before PETSc's.

# %%
import os
import sys

import numpy as np

from meanfield_pde import Attention, solve, sphere_mesh  # isort: split

import ufl
from dolfinx import fem
from dolfinx.fem.petsc import LinearProblem

SHORT = "--short" in sys.argv or "MEANFIELD_PDE_SHORT" in os.environ
mesh = sphere_mesh(320 if SHORT else 5120)


def integral(expression) -> float:
    """Over the whole mesh, the same on every rank."""
    return mesh.comm.allreduce(fem.assemble_scalar(fem.form(expression * ufl.dx)))


# %% [markdown]
# **In.** The initial density may be a scalar function on the mesh. It is integrated over each
# cell, and its mass does not matter.

# %%
start = fem.Function(fem.functionspace(mesh, ("Lagrange", 1)))
start.interpolate(lambda x: 1 + 0.5 * x[0] * x[1] - 0.3 * x[0])
attention = Attention(np.eye(3), np.eye(3), np.diag([1.0, 0.4, 0.2]), beta=8.0)
solution = solve(attention, mesh, start, until=1.0)

# %% [markdown]
# **Out.** The density is constant in each cell (DG0), the velocity linear (P1), with the values of
# the attention sum at the vertices. Integrals are over the straight cells, which fall short of the
# sphere by the second power of their width: the mass is not quite one.

# %%
density, velocity = solution.function(-1), solution.velocity(-1)
x = ufl.SpatialCoordinate(mesh)

# %% [markdown]
# **A problem of our own**, with UFL as always.

# %%
space = fem.functionspace(mesh, ("Lagrange", 1))
u, w = ufl.TrialFunction(space), ufl.TestFunction(space)
spreading = fem.Constant(mesh, 0.1)
form = (u * w + spreading * ufl.inner(ufl.grad(u), ufl.grad(w))) * ufl.dx
form -= u * ufl.inner(velocity, ufl.grad(w)) * ufl.dx
problem = LinearProblem(
    form,
    density * w * ufl.dx,
    petsc_options={"ksp_type": "preonly", "pc_type": "lu"},
    petsc_options_prefix="field_",
)
field = problem.solve()

# %% [markdown]
# Nothing is lost: the field has the mass of the density that feeds it. And it is carried to where
# the tokens go: its second moment along the x axis is more than a third.

# %%
numbers = {
    "mass of the density": integral(density),
    "mass of the field": integral(field),
    "second moment of the density": integral(density * x[0] ** 2),
    "second moment of the field": integral(field * x[0] ** 2),
    "mean square velocity": integral(density * ufl.inner(velocity, velocity)),
}
if mesh.comm.rank == 0:
    for name, number in numbers.items():
        print(f"{name:30} {number:.12f}")
