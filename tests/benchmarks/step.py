"""A whole time step: where the time goes, one thread.

    python -m tests.benchmarks.step [--quick]

A step has three stages, each with one evaluation of the attention sum. Its parts are timed by
wrapping the methods that do them; 'shared' is what every rank repeats (loading the masses, the
survey of the cost model, the moments' recurrences). 'Facets' is gathering the masses and taking the
velocity from vertices to facets, 'rest' checks and the choice of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from meanfield_pde import Attention, circle_mesh, sphere_mesh
from meanfield_pde.solver.simulation import Simulation
from tests.benchmarks.tables import Table, milliseconds, options, present

# Circle or sphere, cells, beta.
CASES = [
    (2, 800, 40.0),
    (2, 3200, 640.0),
    (3, 5120, 40.0),
    (3, 20_480, 1.0),
    (3, 20_480, 10.0),
    (3, 20_480, 100.0),
    (3, 20_480, 1000.0),
    (3, 81_920, 1000.0),
]
STEPS = 6


class Stopwatch:
    """Processor time spent in methods, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def watch(self, owner: Any, method: str, name: str) -> None:
        """Time all calls of a method of an object from now on."""
        inner: Callable[..., Any] = getattr(owner, method)
        self.seconds[name] = 0.0

        def timed(*arguments: Any) -> Any:
            started = time.process_time()
            result = inner(*arguments)
            self.seconds[name] += time.process_time() - started
            return result

        setattr(owner, method, timed)


OPTIONS = options("step", __doc__)


def main() -> None:
    """Print the table."""
    quick = OPTIONS.parse_args().quick
    table = Table(
        "A time step, one thread: milliseconds, and per cent of it",
        ["mesh", "cells", "beta", "ms", "sum", "shared", "facets", "transport", "rest", "method"],
    )
    for d, cells, beta in CASES[:3] if quick else CASES:
        value = np.diag([1.0, 0.6, 0.3])[:d, :d]
        mesh = (circle_mesh if d == 2 else sphere_mesh)(cells)
        run = Simulation(Attention(np.eye(d), np.eye(d), value, beta), mesh, "1 + 0.3*x", threads=1)
        evolution = run.evolution
        field: Any = evolution.rhs.terms[0]
        evolution.advance(1e-3)
        attention_sum = field._sum._sum
        watch = Stopwatch()
        watch.watch(field, "facet_flux", "flux")
        watch.watch(attention_sum, "sums", "sums")
        watch.watch(attention_sum, "moments", "moments")
        watch.watch(field, "_sum", "whole sum")
        watch.watch(evolution.rhs.transport, "euler", "transport")
        watch.watch(evolution.rhs.transport, "outflow_rate", "outflow")
        best, parts = np.inf, watch.seconds
        for number in range(STEPS):
            watch.seconds.update(dict.fromkeys(watch.seconds, 0.0))
            started = time.process_time()
            evolution.advance(1e-3 * (number + 2))
            seconds = time.process_time() - started
            if seconds < best:
                best, parts = seconds, dict(watch.seconds)
        sums = parts["sums"] + parts["moments"]
        transport = parts["transport"] + parts["outflow"]
        shares = [
            sums,
            parts["whole sum"] - sums,
            parts["flux"] - parts["whole sum"],
            transport,
            best - parts["flux"] - transport,
        ]
        table.row(
            "circle" if d == 2 else "sphere",
            cells,
            f"{beta:g}",
            milliseconds(best),
            *(f"{share / best:.1%}" for share in shares),
            str(attention_sum.estimate).split()[0],
        )
    print()


if __name__ == "__main__":
    present(main, OPTIONS)
