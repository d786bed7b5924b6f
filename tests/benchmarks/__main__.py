"""Run all benchmarks: `python -m tests.benchmarks [--quick]`; Markdown on standard output."""

from __future__ import annotations

import datetime as dt
import os
import platform
from pathlib import Path

from tests.benchmarks import (
    adaptivity,
    agreement,
    attention,
    damage,
    disk,
    dry_run,
    early_signals,
    first_start,
    fuzz,
    growth,
    hostile,
    intervals,
    kills,
    lifetimes,
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
from tests.benchmarks.tables import is_quick


def processor() -> str:
    """The name of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def main() -> None:
    """Print all tables."""
    today = dt.date.today()
    print(f"# Benchmarks, {today}, {processor()}, {os.cpu_count()} cores")
    for module in (
        attention,
        step,
        sums,
        tails,
        ranks,
        time_to_accuracy,
        public_solvers,
        growth,
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
    ):
        module.main()
    if not is_quick(__doc__):
        print("\n### Certified Wasserstein distances\n\n```")
        wasserstein.main()
        print("```")


if __name__ == "__main__":
    main()
