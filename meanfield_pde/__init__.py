"""Mean-field dynamics of attention as a density on the circle and the sphere.

    d/dt mu + div( mu P_x V m[mu](x) ) = 0

is solved on a mesh, at finite beta and at zero temperature:

    from meanfield_pde import (Attention, circle_mesh, solve)
    attention = Attention(query, key, value, beta=40)
    solution = solve(attention, circle_mesh(800), "1 + x*y", until=10, save_every=0.5)
"""

from meanfield_pde import _signals

_signals.hold_signals()  # before whatever takes time

from meanfield_pde import _platform, _startup  # noqa: E402

if _signals.is_command():
    _platform.settle_streams()  # before any file is opened
    _startup.report_in_one_line()
_startup.check_surroundings()
_platform.settle_cache()
if _signals.is_command():
    _startup.check_figure_settings()
_platform.load()  # before anything that imports DOLFINx, PETSc or h5py

from meanfield_pde.amr.settings import AdaptSettings  # noqa: E402
from meanfield_pde.attention.field import ConstantField  # noqa: E402
from meanfield_pde.attention.head import Attention  # noqa: E402
from meanfield_pde.attention.heads import Heads  # noqa: E402
from meanfield_pde.attention.layers import Layers  # noqa: E402
from meanfield_pde.attention.perceptron import Perceptron  # noqa: E402
from meanfield_pde.case.file import read_case  # noqa: E402
from meanfield_pde.errors import (  # noqa: E402
    InputError,
    MeanfieldError,
    SolverError,
    StorageError,
)
from meanfield_pde.experiments.run import run_case  # noqa: E402
from meanfield_pde.initial.formula import ExpressionDensity  # noqa: E402
from meanfield_pde.initial.sampling import sample_tokens  # noqa: E402
from meanfield_pde.initial.tokens import Tokens  # noqa: E402
from meanfield_pde.initial.uniform import Uniform  # noqa: E402
from meanfield_pde.initial.von_mises import Component, VonMises  # noqa: E402
from meanfield_pde.mesh.files import read_mesh  # noqa: E402
from meanfield_pde.mesh.surface import circle_mesh, sphere_mesh  # noqa: E402
from meanfield_pde.results.folder import read_result  # noqa: E402
from meanfield_pde.solver.settings import CompareCase  # noqa: E402
from meanfield_pde.solver.simulation import Observer  # noqa: E402
from meanfield_pde.solver.solution import Solution  # noqa: E402
from meanfield_pde.solver.solve import solve  # noqa: E402
from meanfield_pde.theory.projection_limit import ProjectionLimit  # noqa: E402
from meanfield_pde.theory.push_forward import push_forward  # noqa: E402
from meanfield_pde.tokens.cloud import TokenCloud, read_tokens, write_tokens  # noqa: E402
from meanfield_pde.tokens.code import simulate_tokens  # noqa: E402
from meanfield_pde.verification.comparison import compare_tokens  # noqa: E402
from meanfield_pde.verification.verdict import TokenComparison  # noqa: E402
from meanfield_pde.wasserstein import WassersteinResult, wasserstein  # noqa: E402
from meanfield_pde.wasserstein.measure import Measure  # noqa: E402

_signals.note_signals()

__all__ = [
    "AdaptSettings",
    "Attention",
    "CompareCase",
    "Component",
    "ConstantField",
    "ExpressionDensity",
    "Heads",
    "InputError",
    "Layers",
    "MeanfieldError",
    "Measure",
    "Observer",
    "Perceptron",
    "ProjectionLimit",
    "Solution",
    "SolverError",
    "StorageError",
    "TokenCloud",
    "TokenComparison",
    "Tokens",
    "Uniform",
    "VonMises",
    "WassersteinResult",
    "circle_mesh",
    "compare_tokens",
    "push_forward",
    "read_case",
    "read_mesh",
    "read_result",
    "read_tokens",
    "run_case",
    "sample_tokens",
    "simulate_tokens",
    "solve",
    "sphere_mesh",
    "wasserstein",
    "write_tokens",
]
