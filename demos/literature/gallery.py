# %% [markdown]
# # Shared by the scripts of the gallery
#
# A row of the table, intervals from refined meshes, and what is written.
#
#     python demos/literature/gallery.py        (writes the table of README.md from results.json)

# %%
import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mpi4py import MPI

import numpy as np
from dolfinx import mesh as dolfinx_mesh
from matplotlib.figure import Figure

from meanfield_pde import AdaptSettings, Attention, Solution, circle_mesh, solve, sphere_mesh
from meanfield_pde.case.case import Case, MeshCase
from meanfield_pde.experiments.levels import level, ratio
from meanfield_pde.figures.density import save
from meanfield_pde.initial.base import InitialDensity
from meanfield_pde.mesh.finite_volume import FiniteVolumes
from meanfield_pde.solver.equation import Equation
from meanfield_pde.solver.settings import SolverCase, TimeCase
from meanfield_pde.solver.stationary import Stationary
from meanfield_pde.theory.richardson import interval

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results.json", HERE / "README.md"
ORDER = (
    "noisy_circle",
    "noisy_sphere",
    "kuramoto",
    "lohe_sphere",
    "growth_rates",
    "lax_friedrichs",
    "five_atoms",
    "orthogonal_tokens",
    "synchronisation",
    "repelling_density",
    "one_or_two_clusters",
    "theorem",
)
NONE = "none"  # in the place of a published number
BEGIN, END = "<!-- table of results.json -->\n", "<!-- end of the table -->\n"


# %%
@dataclass(frozen=True)
class Row:
    """A published number beside ours.

    Attributes:
        result: what it is a number of.
        source: arXiv number, or the journal where there is none.
        published: its digits as they were printed, or those of a printed formula.
        value, low, high: ours, with its interval; NaN where none is known.
        independent: by a computation that shares nothing with the mesh, if there is one.
        chosen: what had to be chosen.
        wrong: why the published number is, where the interval excludes it.
    """

    result: str
    source: str
    published: str
    value: float
    low: float
    high: float
    independent: float | None = None
    chosen: str = ""
    wrong: str = ""

    @property
    def unit(self) -> float:
        """One in the last digit that was published; none of a count or a bound."""
        digits = "" if " " in self.published else self.published.partition(".")[2]
        return 10.0 ** -len(digits) if digits else 0.0

    @property
    def agrees(self) -> bool:
        """Whether the interval reaches the published number within one unit; or keeps a bound."""
        if self.published == NONE:
            return True
        if self.published.startswith("≥"):
            return self.low >= float(self.published[1:])
        if " to " in self.published:
            least, most = (float(end) for end in self.published.split(" to "))
            return least <= self.low and self.high <= most
        number = float(self.published)
        return self.low - self.unit <= number <= self.high + self.unit

    @property
    def consistent(self) -> bool:
        """Whether the interval holds the independent number, but for rounding."""
        if self.independent is None:
            return True
        rounding = 1e-9 * max(1.0, abs(self.independent))
        return self.low - rounding <= self.independent <= self.high + rounding


# %%
def refined(
    compute: Callable[[int], Sequence[float]], levels: int = 3, ratio: float = 2.0
) -> list[dict[str, float]]:
    """Value, low and high of each number of `compute(fine)`, fine = 1, 2, 4, ...

    By Richardson's extrapolation, as `meanfield-pde converge` does; NaN where nothing converges.
    With another ratio `compute` is given the numbers of levels, 0, 1, 2, ...
    """
    inputs = [number if ratio != 2 else 2**number for number in range(levels)]
    columns = zip(*(compute(one) for one in inputs), strict=True)
    found = [interval(list(column), ratio) for column in columns]
    names = ("value", "low", "high")
    return [
        {name: math.nan if (n := getattr(one, name)) is None else float(n) for name in names}
        for one in found
    ]


def evolved(
    attention: Attention,
    cells: int,
    initial: InitialDensity,
    observe: Callable[[Solution], Sequence[float]],
    *,
    adapt: float | None = None,
    levels: int = 3,
    **options: Any,
) -> list[dict[str, float]]:
    """The same for numbers of evolutions, on the levels of `meanfield-pde converge`."""
    mesh = MeshCase("circle" if attention.dimension == 2 else "sphere", cells)
    settings = None if adapt is None else AdaptSettings(adapt)
    time = TimeCase(options["until"])
    case = Case(attention=attention, mesh=mesh, initial=initial, adapt=settings, time=time)
    make = {2: circle_mesh, 3: sphere_mesh}[attention.dimension]

    def compute(number: int) -> Sequence[float]:
        one = level(case, number)
        solution = solve(
            attention,
            make(one.case.mesh.cells),
            initial,
            adapt=one.case.adapt,
            tolerance=one.case.solver.tolerance,
            step_tolerance=one.case.solver.step_tolerance,
            steps=one.steps,
            **options,
        )
        return observe(solution)

    if ratio(case) != 2:
        return refined(compute, levels, ratio(case))
    return refined(lambda fine: compute(fine.bit_length() - 1), levels)


# %%
def identity(beta: float, dimension: int = 2, **options: Any) -> Attention:
    """Attention with Q = K = V = I."""
    one = np.eye(dimension)
    return Attention(query=one, key=one, value=one, beta=beta, **options)


def problem(attention: Attention, mesh: dolfinx_mesh.Mesh) -> Stationary:
    """The stationary problem with noise, as `meanfield-pde transition` solves it."""
    settings = SolverCase("muscl", 1e-14, "off")
    return Stationary(Equation(attention, FiniteVolumes(mesh), settings, 1.0))


def angles(points: np.ndarray) -> np.ndarray:
    """The angles of points of the circle, from -pi to pi."""
    return np.asarray(np.arctan2(points[:, 1], points[:, 0]))


def rayleigh(stationary: Stationary, shape: np.ndarray | None = None) -> float:
    """The strength at which a perturbation of the uniform density neither grows nor decays.

    The quotient of <shape, J shape> and <shape, Laplace-Beltrami shape>; by default of the last
    coordinate. Where `shape` is an eigenfunction its error is that of the mesh, of second order.
    """
    shape = stationary.mean[:, -1] if shape is None else shape
    change = stationary.uniform * (shape - stationary.uniform @ shape)
    grown = shape @ stationary.derivative(stationary.uniform, 0.0)(change)
    return float(-grown / (shape @ (stationary.laplacian @ change)))


def branch(stationary: Stationary, orders: Sequence[float]) -> np.ndarray:
    """The strengths of the stationary states of these orders r, which leave the uniform density."""
    direction = stationary.mean[:, -1]
    masses = stationary.uniform * np.exp(2 * orders[0] * direction)
    strength, found = rayleigh(stationary), []
    for order in orders:
        state = stationary.at_order(masses, strength, order)
        masses, strength = state.masses, state.strength
        found.append(strength)
    return np.array(found)


def curvature(stationary: Stationary) -> float:
    """The c of strength = threshold + c r^2 + ... on the branch: < 0 where it is continuous."""
    orders = np.array([0.1, 0.15, 0.2, 0.25, 0.3])
    risen = branch(stationary, orders) - rayleigh(stationary)
    powers = orders[:, None] ** (2 * np.arange(1, len(orders) + 1))
    return float(np.linalg.solve(powers, risen)[0])


# %%
def draw_branches(figure: Figure, lines: Sequence[tuple[float, np.ndarray]], unit: str) -> None:
    """Orders of stationary states against the noise, in units of the threshold, for some beta."""
    axes = figure.subplots()
    for (beta, line), colour in zip(lines, ("#0072B2", "#D55E00"), strict=True):
        axes.plot(*line.T, "o-", ms=3, color=colour, label=f"β = {beta:g}")
    axes.axvline(1, color="0.6", lw=1, label="uniform density stable from here on")
    axes.set_xlabel(f"strength of the noise, in units of {unit}")
    axes.set_ylabel("order r of stationary states")
    axes.set_xlim(0.6, 1.05)
    axes.legend()


def run(
    path: str,
    compute: Callable[[bool], tuple[list[Row], Any]],
    draw: Callable[[Figure, Any], None],
    arguments: list[str] | None = None,
) -> list[Row]:
    """Compute, print and draw; returns the rows. Collective."""
    name = Path(path).stem
    parser = argparse.ArgumentParser(description=name)
    parser.add_argument("--short", action="store_true", help="coarse meshes, and fewer numbers")
    parser.add_argument("--record", action="store_true", help="into the page of the gallery")
    options = parser.parse_known_args(arguments)[0]
    rows, data = compute(options.short)
    if MPI.COMM_WORLD.rank == 0:
        for row in rows:
            print(f"{row.result}: {in_words(row)} (published {row.published}, arXiv {row.source})")
        figure = Figure(figsize=(6.6, 3.4), layout="constrained")
        draw(figure, data)
        folder = HERE if options.record else Path("results/literature")
        save(figure, folder / f"{name}.png")
        table = folder / RESULTS.name
        found = json.loads(table.read_text(encoding="utf-8")) if table.is_file() else {}
        found[name] = [asdict(row) for row in rows]
        table.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return rows


def in_words(row: Row) -> str:
    """Ours with the half width of its interval, to as many digits as that leaves."""
    half = (row.high - row.low) / 2
    if not half > 1e-9:  # of a count: that of `interval` for rounding is 1e-10
        return f"{row.value:.6g}"
    places = max(0, 1 - math.floor(math.log10(half)))
    return f"{(row.low + row.high) / 2:.{min(places, 12)}f} ± {half:.1g}"


# %%
def recorded() -> dict[str, list[Row]]:
    """The rows of results.json, by script."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {name: [Row(**row) for row in rows] for name, rows in found.items()}


def table() -> str:
    """The rows of results.json as tables of the page, one for each script, in its order."""
    lines = []
    known = recorded()
    for name in ORDER:
        title = (
            (HERE / f"{name}.py").read_text(encoding="utf-8").splitlines()[1].removeprefix("# # ")
        )
        lines += [f"## {title}", "", f"[{name}.py]({name}.py)", ""]
        lines += [f"![{title}]({name}.png)", ""]
        lines += [
            "| result | source | published | ours | independent | chosen |",
            "|---|---|--:|--:|--:|---|",
        ]
        for row in known[name]:
            source = f"arXiv {row.source}" if row.source[0].isdigit() else row.source
            other = "" if row.independent is None else f"{row.independent:.9g}"
            note = f"{row.chosen}; {row.wrong}" if row.wrong else row.chosen
            cells = (row.result, source, row.published, in_words(row), other, note)
            lines.append("| " + " | ".join(cells) + " |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Put the tables of results.json into the page."""
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    PAGE.write_text(before + BEGIN + "\n" + table() + END + after, encoding="utf-8")


if __name__ == "__main__":
    main()
