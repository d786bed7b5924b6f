"""What the benchmarks share: timing, tables in Markdown, and the command line."""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence


def is_quick(docstring: str) -> bool:
    """Whether `--quick` was given on the command line."""
    parser = argparse.ArgumentParser(description=docstring.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short form, of small cases")
    return bool(parser.parse_known_args()[0].quick)


def cpu_seconds(work: Callable[[], object], repeat: int) -> float:
    """Least processor time of this process in several runs.

    Processor time is not stretched by other programs on the machine as wall time is; for one thread
    on a machine that is otherwise idle they are the same.
    """
    return _least(work, repeat, time.process_time)


def wall_seconds(work: Callable[[], object], repeat: int) -> float:
    """Least wall time in several runs."""
    return _least(work, repeat, time.perf_counter)


def _least(work: Callable[[], object], repeat: int, now: Callable[[], float]) -> float:
    times = []
    for _ in range(repeat):
        gc.collect()
        started = now()
        work()
        times.append(now() - started)
    return min(times)


class Table:
    """A table in Markdown, printed row by row as the numbers come in."""

    def __init__(self, title: str, columns: Sequence[str]) -> None:
        self._widths = [max(len(name), 8) for name in columns]
        print(f"\n### {title}\n")
        self.row(*columns)
        print("|" + "|".join("-" * (width + 1) + ":" for width in self._widths) + "|")

    def row(self, *cells: object) -> None:
        """Print a row."""
        padded = (f" {cell!s:>{width}} " for cell, width in zip(cells, self._widths, strict=True))
        print("|" + "|".join(padded) + "|", flush=True)


def milliseconds(seconds: float) -> str:
    """A time in milliseconds to three figures."""
    return f"{1e3 * seconds:.3g}"
