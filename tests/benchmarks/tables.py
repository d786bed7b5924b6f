"""What the benchmarks share: timing, tables in Markdown, the command line, and what is kept."""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import gc
import io
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TextIO

KEPT = Path(__file__).parents[2] / "demos/records/results.json"


def options(name: str, docstring: str) -> argparse.ArgumentParser:
    """The options that all benchmarks have; a benchmark adds its own."""
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.benchmarks.{name}", description=docstring.splitlines()[0]
    )
    parser.add_argument("--quick", action="store_true", help="a short form, of small cases")
    parser.add_argument("--keep", action="store_true", help=f"put what is printed into {KEPT.name}")
    return parser


def present(main: Callable[[], None], parser: argparse.ArgumentParser) -> None:
    """Run a benchmark, and keep what it prints if the command line asks for that.

    What the same command printed before is replaced. `python -m tests.benchmarks.records` writes
    the page from what is kept.
    """
    printed, begun = _Copied(sys.stdout), time.perf_counter()
    asked = parser.parse_args().keep
    with contextlib.redirect_stdout(printed):
        main()
    if asked and printed.getvalue():  # under mpiexec the first rank prints
        arguments = [argument for argument in sys.argv[1:] if argument != "--keep"]
        command = shlex.join([parser.prog.rpartition(".")[2], *arguments])
        keep(command, printed.getvalue(), time.perf_counter() - begun)


def keep(command: str, printed: str, seconds: float) -> None:
    """Put what a command has printed, and took, into the kept file."""
    found = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.is_file() else {}
    found[command] = {
        "version": version("meanfield_pde"),
        "date": dt.date.today().isoformat(),
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "seconds": round(seconds),
        "lines": printed.strip().splitlines(),
    }
    text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
    KEPT.write_text(text + "\n", encoding="utf-8")


class _Copied(io.StringIO):
    """Standard output, and a copy of it."""

    def __init__(self, shown: TextIO) -> None:
        super().__init__()
        self._shown = shown

    def write(self, text: str) -> int:
        """Write to both."""
        self._shown.write(text)
        return super().write(text)

    def flush(self) -> None:
        """Show what was written."""
        self._shown.flush()


def python(*arguments: str, ranks: int = 1) -> list[str]:
    """The command of this Python with some arguments, on some ranks."""
    command = [sys.executable, *arguments]
    if ranks > 1:
        command = [str(Path(sys.executable).with_name("mpiexec")), "-n", str(ranks), *command]
    return command


def processor() -> str:
    """The name of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except FileNotFoundError:
        return platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


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
