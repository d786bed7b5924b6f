"""How long `meanfield-pde compare` takes as a user runs it: a process of its own, files and all."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meanfield_pde.tokens.cloud import TokenCloud, read_tokens, write_tokens
from tests.benchmarks.planted import DENSITY, matrices
from tests.benchmarks.tables import Table

_CASE = """
[attention]
query = {}
key = {}
value = {}
beta = 5.0
[mesh]
kind = "sphere"
cells = {}
[initial]
kind = "expression"
density = "{}"
[time]
until = 2.0
save_every = 0.5
[output]
fields = "none"
"""


def show_speed(counts: Sequence[int], cells: int) -> None:
    """Wall time and processor time of comparisons, the first of each with no samples kept."""
    table = Table(
        f"meanfield-pde compare, sphere of {cells} cells",
        ("N", "tokens", "exit code", "wall s", "processor s"),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        query, key, value = matrices(3)
        wrong = value * np.where(np.isin(np.arange(9), (1, 5)), -1, 1).reshape(3, 3)
        for case, own in (("right", value), ("wrong", wrong)):
            entries = (one.tolist() for one in (query, key, own))
            (folder / f"{case}.toml").write_text(_CASE.format(*entries, cells, DENSITY))
        _run("run", folder / "right.toml", "--output", folder / "out", "--quiet")
        for count in counts:
            for case in ("right", "wrong"):
                file = folder / f"{case}.npz"
                more = ("--count", str(count), "--step", "0.02", "--output", file)
                _run("tokens", folder / f"{case}.toml", *more)
            cloud = read_tokens(folder / "right.npz")
            generator = np.random.default_rng(0)
            dealt = np.array([generator.permutation(x) for x in cloud.tokens])
            write_tokens(folder / "dealt.npz", TokenCloud(cloud.times, dealt))
            for title, tokens in (
                ("right", "right"),
                ("right, samples kept", "right"),
                ("two signs of V wrong", "wrong"),
                ("no numbers", "dealt"),
            ):
                if "kept" not in title:
                    (folder / "out" / "tokens-band.npz").unlink(missing_ok=True)
                code, wall, processor = _run("compare", folder / "out", folder / f"{tokens}.npz")
                table.row(count, title, code, f"{wall:.1f}", f"{processor:.1f}")


def _run(*arguments: str | Path) -> tuple[int, float, float]:
    """Exit code, wall time and processor time of a command."""
    command = "from meanfield_pde.cli.main import main; main()"
    before, began = _processor(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", command, *map(str, arguments)], capture_output=True, text=True
    )
    if done.returncode not in (0, 3):
        raise RuntimeError(done.stderr)
    return done.returncode, time.perf_counter() - began, _processor() - before


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
