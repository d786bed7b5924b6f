"""Mean-field dynamics of attention as a density on the circle and the sphere.

    d/dt mu + div( mu P_x V m[mu](x) ) = 0

is solved on a mesh, at finite beta and at zero temperature:

    from meanfield_pde import (Attention, circle_mesh, solve)
    attention = Attention(query, key, value, beta=40)
    solution = solve(attention, circle_mesh(800), "1 + x*y", until=10, save_every=0.5)
"""

from meanfield_pde import _signals

_signals.hold_signals()  # before whatever takes time

from typing import TYPE_CHECKING  # noqa: E402

from meanfield_pde import _lazy, _platform, _startup  # noqa: E402

if _signals.is_command():
    _platform.settle_streams()  # before any file is opened
    _startup.report_in_one_line()
_startup.check_surroundings()
if _signals.is_command():
    _startup.check_figure_settings()
_platform.load()  # before anything that imports DOLFINx, PETSc or h5py

if TYPE_CHECKING:
    from meanfield_pde.amr.settings import AdaptSettings as AdaptSettings
    from meanfield_pde.attention.field import ConstantField as ConstantField
    from meanfield_pde.attention.head import Attention as Attention
    from meanfield_pde.attention.heads import Heads as Heads
    from meanfield_pde.attention.layers import Layers as Layers
    from meanfield_pde.attention.perceptron import Perceptron as Perceptron
    from meanfield_pde.case.file import read_case as read_case
    from meanfield_pde.errors import InputError as InputError
    from meanfield_pde.errors import MeanfieldError as MeanfieldError
    from meanfield_pde.errors import SolverError as SolverError
    from meanfield_pde.errors import StorageError as StorageError
    from meanfield_pde.experiments.converge import converge as converge
    from meanfield_pde.experiments.lifetimes import lifetime as lifetime
    from meanfield_pde.experiments.run import forecast_run as forecast_run
    from meanfield_pde.experiments.run import run_case as run_case
    from meanfield_pde.experiments.sweep import sweep as sweep
    from meanfield_pde.experiments.transition import transition as transition
    from meanfield_pde.initial.formula import ExpressionDensity as ExpressionDensity
    from meanfield_pde.initial.noisy_uniform import NoisyUniform as NoisyUniform
    from meanfield_pde.initial.poisson_kernel import PoissonKernel as PoissonKernel
    from meanfield_pde.initial.sampling import sample_tokens as sample_tokens
    from meanfield_pde.initial.tokens import Tokens as Tokens
    from meanfield_pde.initial.uniform import Uniform as Uniform
    from meanfield_pde.initial.von_mises import Component as Component
    from meanfield_pde.initial.von_mises import VonMises as VonMises
    from meanfield_pde.mesh.files import read_mesh as read_mesh
    from meanfield_pde.mesh.surface import circle_mesh as circle_mesh
    from meanfield_pde.mesh.surface import sphere_mesh as sphere_mesh
    from meanfield_pde.results.folder import read_result as read_result
    from meanfield_pde.results.sample import sample as sample
    from meanfield_pde.results.sample import to_xarray as to_xarray
    from meanfield_pde.solver.settings import CompareCase as CompareCase
    from meanfield_pde.solver.simulation import Observer as Observer
    from meanfield_pde.solver.solution import Solution as Solution
    from meanfield_pde.solver.solve import solve as solve
    from meanfield_pde.solver.stationary_density import StationaryDensity as StationaryDensity
    from meanfield_pde.solver.stationary_density import stationary as stationary
    from meanfield_pde.solver.steadiness import Steadiness as Steadiness
    from meanfield_pde.theory.projection_limit import ProjectionLimit as ProjectionLimit
    from meanfield_pde.theory.push_forward import push_forward as push_forward
    from meanfield_pde.tokens.cloud import TokenCloud as TokenCloud
    from meanfield_pde.tokens.cloud import read_tokens as read_tokens
    from meanfield_pde.tokens.cloud import write_tokens as write_tokens
    from meanfield_pde.tokens.code import simulate_tokens as simulate_tokens
    from meanfield_pde.verification.comparison import compare_tokens as compare_tokens
    from meanfield_pde.verification.report import TokenComparison as TokenComparison
    from meanfield_pde.wasserstein.distance import WassersteinResult as WassersteinResult
    from meanfield_pde.wasserstein.distance import wasserstein as wasserstein
    from meanfield_pde.wasserstein.measure import Measure as Measure

# Where each name stands, in which `_lazy` finds it; the imports above are for checkers of types.
_HOMES = {
    "AdaptSettings": "meanfield_pde.amr.settings",
    "Attention": "meanfield_pde.attention.head",
    "CompareCase": "meanfield_pde.solver.settings",
    "Component": "meanfield_pde.initial.von_mises",
    "ConstantField": "meanfield_pde.attention.field",
    "ExpressionDensity": "meanfield_pde.initial.formula",
    "Heads": "meanfield_pde.attention.heads",
    "InputError": "meanfield_pde.errors",
    "Layers": "meanfield_pde.attention.layers",
    "MeanfieldError": "meanfield_pde.errors",
    "Measure": "meanfield_pde.wasserstein.measure",
    "NoisyUniform": "meanfield_pde.initial.noisy_uniform",
    "Observer": "meanfield_pde.solver.simulation",
    "Perceptron": "meanfield_pde.attention.perceptron",
    "PoissonKernel": "meanfield_pde.initial.poisson_kernel",
    "ProjectionLimit": "meanfield_pde.theory.projection_limit",
    "Solution": "meanfield_pde.solver.solution",
    "SolverError": "meanfield_pde.errors",
    "StationaryDensity": "meanfield_pde.solver.stationary_density",
    "Steadiness": "meanfield_pde.solver.steadiness",
    "StorageError": "meanfield_pde.errors",
    "TokenCloud": "meanfield_pde.tokens.cloud",
    "TokenComparison": "meanfield_pde.verification.report",
    "Tokens": "meanfield_pde.initial.tokens",
    "Uniform": "meanfield_pde.initial.uniform",
    "VonMises": "meanfield_pde.initial.von_mises",
    "WassersteinResult": "meanfield_pde.wasserstein.distance",
    "circle_mesh": "meanfield_pde.mesh.surface",
    "compare_tokens": "meanfield_pde.verification.comparison",
    "converge": "meanfield_pde.experiments.converge",
    "forecast_run": "meanfield_pde.experiments.run",
    "lifetime": "meanfield_pde.experiments.lifetimes",
    "push_forward": "meanfield_pde.theory.push_forward",
    "read_case": "meanfield_pde.case.file",
    "read_mesh": "meanfield_pde.mesh.files",
    "read_result": "meanfield_pde.results.folder",
    "read_tokens": "meanfield_pde.tokens.cloud",
    "run_case": "meanfield_pde.experiments.run",
    "sample": "meanfield_pde.results.sample",
    "sample_tokens": "meanfield_pde.initial.sampling",
    "simulate_tokens": "meanfield_pde.tokens.code",
    "solve": "meanfield_pde.solver.solve",
    "sphere_mesh": "meanfield_pde.mesh.surface",
    "stationary": "meanfield_pde.solver.stationary_density",
    "sweep": "meanfield_pde.experiments.sweep",
    "to_xarray": "meanfield_pde.results.sample",
    "transition": "meanfield_pde.experiments.transition",
    "wasserstein": "meanfield_pde.wasserstein.distance",
    "write_tokens": "meanfield_pde.tokens.cloud",
}
__all__ = list(_HOMES)
_lazy.import_when_asked(__name__)
