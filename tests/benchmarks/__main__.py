"""Run all benchmarks: `python -m tests.benchmarks [--quick] [--keep]` prints Markdown."""

from __future__ import annotations

import datetime as dt
import os

from tests.benchmarks import (
    adaptivity,
    agreement,
    attention,
    damage,
    disk,
    dry_run,
    early_signals,
    exact_solutions,
    first_start,
    fuzz,
    growth,
    hostile,
    intervals,
    kills,
    lifetimes,
    memory,
    million,
    noise,
    public_solvers,
    ranks,
    saved_times,
    step,
    sums,
    tails,
    time_to_accuracy,
    verification,
    wasserstein,
    ways,
)
from tests.benchmarks.tables import present, processor


def main() -> None:
    """Print all tables."""
    today = dt.date.today()
    print(f"# Benchmarks, {today}, {processor()}, {os.cpu_count()} cores")
    for module in (
        attention,
        step,
        sums,
        tails,
        exact_solutions,
        ranks,
        time_to_accuracy,
        public_solvers,
        growth,
        memory,
        noise,
        saved_times,
        adaptivity,
        intervals,
        lifetimes,
        verification,
        agreement,
        million,
        ways,
        first_start,
        kills,
        early_signals,
        fuzz,
        damage,
        hostile,
        disk,
        dry_run,
        wasserstein,
    ):
        present(module.main, module.OPTIONS)


if __name__ == "__main__":
    main()
