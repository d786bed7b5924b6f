"""Growth of time and memory with the cells of the sphere, and what ranks share of it; one thread.

    python -m tests.benchmarks.growth [--quick] [--part cells|ranks|large] [--beta B ...]
                                      [--density uniform|concentrated]      (half an hour)

Every row runs in processes of its own, so that the peak memory is that of one case. Times are the
processor time of one step (three attention sums, two diagnostics and compilation not counted).

The part `large` is a step on 1,310,720 cells on two ranks, with the memory of both.

The second table takes ranks, more than there are cores if need be, and leaves out the time that a
rank spends in exchanges with others, where it mostly waits. 'Repeated' is what is not dealt out:
the masses of all cells put in order, the upper levels of the tree, PETSc's TS. The model is

    t = a + b / ranks + c / min(ranks, 32)

with a as measured on the most ranks, a + b + c the step on one, and c the moments of the expansion,
which are dealt out in 32 groups.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any

import numpy as np

from meanfield_pde.attention.sum.harmonics import GROUPS
from tests.benchmarks.tables import Table, options, present, python

WORKER = """
import json, sys, time
import numpy as np
from mpi4py import MPI
from meanfield_pde import Attention, sphere_mesh
from meanfield_pde.solver.diagnostics import Snapshot
from meanfield_pde.solver.observables import row_of
from meanfield_pde.solver.simulation import Simulation
from meanfield_pde.support.memory import peak_memory

class Exchanging:
    # Stands for an object some of whose methods exchange numbers, and adds up the time they take.
    spent = 0.0

    def __init__(self, inner):
        self._inner = inner

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if name not in ("Allgatherv", "Allreduce", "allreduce", "exchange"):
            return found
        def timed(*arguments):
            begun = time.process_time()
            try:
                return found(*arguments)
            finally:
                Exchanging.spent += time.process_time() - begun
        return timed

class Dealt:
    spent = moments = 0.0

def dealt_out(owner, name):
    # Adds up the time that a method takes whose work is dealt out to the ranks.
    inner = getattr(owner, name)
    def timed(*arguments):
        begun, exchanged = time.process_time(), Exchanging.spent
        try:
            return inner(*arguments)
        finally:
            spent = time.process_time() - begun - (Exchanging.spent - exchanged)
            Dealt.spent += spent
            Dealt.moments += spent * (name == "moments")
    setattr(owner, name, timed)

comm, one, steps = MPI.COMM_WORLD, np.eye(3), int(sys.argv[3])
begun = time.process_time()
run = Simulation(
    Attention(one, one, np.diag([1.0, 0.6, 0.3]), float(sys.argv[2])),
    sphere_mesh(int(sys.argv[1])), sys.argv[4], threads=1,
)
evolution = run.evolution
evolution.advance(1e-4)  # loads what was compiled, or compiles
prepared = time.process_time() - begun
term, transport = evolution.rhs.terms[0], evolution.rhs.transport
run.volumes.comm = term._sum._comm = Exchanging(comm)
transport._halo = Exchanging(transport._halo)
attention_sum = term._sum._sum
for name in ("moments", "sums", "_survey"):
    dealt_out(attention_sum, name)
for series in attention_sum._expansions:
    dealt_out(series, "costs")
    for name in {"_fit", "_gather"} & set(dir(series._clusters)):
        dealt_out(series._clusters, name)
dealt_out(attention_sum.sources, "_summary")
dealt_out(term, "_facet_flux")
for name in ("euler", "outflow_rate"):
    dealt_out(transport, name)
best = repeated = np.inf
for number in range(steps):
    Exchanging.spent = Dealt.spent = Dealt.moments = 0.0
    begun = time.process_time()
    evolution.advance(1e-4 * (number + 2))
    computed = time.process_time() - begun - Exchanging.spent
    best, repeated = min(best, computed), min(repeated, computed - Dealt.spent)
run.volumes.comm = comm
masses = run.volumes.gather(evolution.masses)
row = row_of(run.observables, Snapshot(masses, run.diagnostics, masses))
assert abs(row["mass"] - 1) < 1e-12 and masses.min() > 0
memory = peak_memory() / 2**20
found = comm.gather((prepared, best, repeated, Dealt.moments, memory))
if comm.rank == 0:
    print(json.dumps([run.volumes.global_cells, *map(list, zip(*found))]))
"""
# Two clusters with tails of 1e-80, as in the other benchmarks of sums.
DENSITIES = {"uniform": "1 + 0.3*x", "concentrated": "exp(184.2*(sqrt((0.6*x + 0.8*z)**2) - 1))"}
LARGE, LARGE_BETAS = 1_310_720, (1.0, 10.0, 100.0, 1000.0, 10_000.0)
SIZES = (5120, 20_480, 81_920, 327_680)
RANKS = (1, 2, 4, 8)
BETAS = (10.0, 1000.0)


def measure(
    cells: int, beta: float, ranks: int = 1, steps: int = 1, density: str = "uniform"
) -> list[Any]:
    """Cells, and of each rank the seconds to prepare, of a step, repeated, and of moments; MB."""
    arguments = str(cells), str(beta), str(steps), DENSITIES[density]
    command = python("-c", WORKER, *arguments, ranks=ranks)
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return list(json.loads(output.splitlines()[-1]))


def with_cells(sizes: tuple[int, ...]) -> None:
    """The table of one rank."""
    table = Table(
        "Growth with the number of cells, one rank",
        ["cells", "beta", "prepare s", "step s", "growth", "memory MB"],
    )
    for beta in BETAS:
        before = 0.0
        for cells in sizes:
            count, (prepared,), (step,), _, _, (memory,) = measure(cells, beta)
            growth = f"{step / before:.1f}" if before else "-"
            before = step
            table.row(count, f"{beta:g}", f"{prepared:.2f}", f"{step:.3f}", growth, f"{memory:.0f}")
    print("\n'Growth' is the factor in time for four times the cells; all pairs would give 16.\n")


def with_ranks(sizes: tuple[int, ...], ranks: tuple[int, ...]) -> None:
    """The table of several ranks, and the model."""
    table = Table(
        "A step among ranks",
        ["cells", "beta", "ranks", "step s", "repeated ms", "first rank MB", "others MB"],
    )
    models = []
    for cells in sizes:
        for beta in BETAS:
            whole = a = c = 0.0
            for number in ranks:
                count, _, step, repeated, sums, memory = measure(cells, beta, number, steps=3)
                if number == 1:
                    whole, c = step[0], sums[0]
                a = float(np.median(repeated))
                others = f"{max(memory[1:]):.0f}" if number > 1 else "-"
                row = (f"{max(step):.4f}", f"{1e3 * a:.2f}", f"{memory[0]:.0f}", others)
                table.row(count, f"{beta:g}", number, *row)
            models.append((count, beta, a, whole - a - c, c))
    for cells, beta, a, b, c in models:
        projected = ", ".join(
            f"{(a + b + c) / (a + b / many + c / min(many, GROUPS)):.0f}" for many in (16, 64, 256)
        )
        print(
            f"\n{cells} cells, beta = {beta:g}, milliseconds: t = {1e3 * a:.2f} + {1e3 * b:.1f} / "
            f"ranks + {1e3 * c:.1f} / min(ranks, {GROUPS}), repeated {a / (a + b + c):.2%}; "
            f"projected, without exchanges: {projected} times as fast on 16, 64, 256 ranks"
        )
    print()


def of_the_largest(cells: int, betas: Sequence[float], densities: Sequence[str]) -> None:
    """The table of a step on two ranks."""
    table = Table(
        "A step on two ranks",
        ["cells", "density", "beta", "step s", "repeated ms", "MB together"],
    )
    for density in densities:
        for beta in betas:
            count, _, step, repeated, _, memory = measure(cells, beta, 2, density=density)
            row = (f"{max(step):.2f}", f"{1e3 * max(repeated):.1f}", f"{sum(memory):.0f}")
            table.row(count, density, f"{beta:g}", *row)
    print()


PARTS = ("cells", "ranks", "large")
OPTIONS = options("growth", __doc__)
OPTIONS.add_argument("--part", choices=PARTS, nargs="+", default=PARTS)
OPTIONS.add_argument("--beta", type=float, nargs="+", default=LARGE_BETAS)
OPTIONS.add_argument("--density", choices=list(DENSITIES), nargs="+", default=list(DENSITIES))


def main() -> None:
    """Print the tables."""
    asked = OPTIONS.parse_args()
    quick = asked.quick
    if "cells" in asked.part:
        with_cells(SIZES[:2] if quick else SIZES)
    if "ranks" in asked.part:
        with_ranks(SIZES[1:2] if quick else (SIZES[1], SIZES[-1]), RANKS[:2] if quick else RANKS)
    if "large" in asked.part:
        of_the_largest(SIZES[1] if quick else LARGE, asked.beta, asked.density)


if __name__ == "__main__":
    present(main, OPTIONS)
