"""The kinds of initial density that a case file can name: a new one is one more entry here."""

from __future__ import annotations

from meanfield_pde.initial.base import InitialDensity
from meanfield_pde.initial.formula import ExpressionDensity
from meanfield_pde.initial.noisy_uniform import NoisyUniform
from meanfield_pde.initial.poisson_kernel import PoissonKernel
from meanfield_pde.initial.tokens import Tokens
from meanfield_pde.initial.uniform import Uniform
from meanfield_pde.initial.von_mises import VonMises

# In the order in which messages list them.
KINDS: dict[str, type[InitialDensity]] = {
    one.kind: one
    for one in (Uniform, NoisyUniform, VonMises, PoissonKernel, ExpressionDensity, Tokens)
}
