"""Disks that are full, vanish or turn read-only while a run writes, injected for real.

    python -m tests.benchmarks.disk [--quick]

Needs the right to mount (root): every round has a tmpfs of its own. A round is sound if the run
ends within ten seconds of the fault with its exit code and one line that names the path, and what
was saved before can be read.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from meanfield_pde import InputError, read_result
from tests.benchmarks.tables import Table, options, present
from tests.problems import CIRCLE

SIZES = (100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1200)  # KB
MOST_SECONDS = 10.0
CASE = CIRCLE.replace("until = 5.0", "until = 400.0").replace(
    "save_every = 0.5", "save_every = 0.05"
)
OFTEN = '[output]\ncheckpoint_every = 5\nfields = "{fields}"\n'


@contextmanager
def small_disk(kilobytes: int) -> Iterator[Path]:
    """A folder on a file system of its own."""
    folder = Path(tempfile.mkdtemp(prefix="disk-"))
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", str(folder)], check=True
    )
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", "-R", str(folder)], check=True)
        folder.rmdir()


def start(case: Path, out: Path, ranks: int) -> subprocess.Popen[str]:
    """A run in the background."""
    line = ["mpiexec", "-n", str(ranks)] if ranks > 1 else []
    return subprocess.Popen(
        [*line, "meanfield-pde", "run", str(case), "--output", str(out), "--quiet"],
        env=os.environ | {"MEANFIELD_PDE_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )


def verdict(
    process: subprocess.Popen[str], out: Path, fault: float | None = None
) -> tuple[str, bool]:
    """What the run said, and whether that is sound.

    Args:
        process: the run.
        out: its folder.
        fault: when the fault came; by default when the disk took something for the last time.
    """
    try:
        _, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        return "hung", False
    ended = time.time()
    if fault is None:
        files = [path for path in out.parent.rglob("*") if path.is_file()]
        fault = max((path.stat().st_mtime for path in files), default=ended)
    seconds = ended - fault
    lines = err.splitlines()
    sound = process.returncode == 1 and len(lines) == 1 and len(err) <= 300
    sound = sound and f"{out}" in err and "cannot be written (" in err
    said = f"exit {process.returncode}, {len(lines)} lines, {seconds:.1f} s: {err.strip()[:150]}"
    return said, sound and seconds < MOST_SECONDS


def readable(out: Path) -> str:
    """What can be read of the results."""
    try:
        found = read_result(out)
        return f"{len(found.times)} times, {int(found.masses.sum(axis=1).round().sum())} whole"
    except InputError as error:
        return "nothing saved" if "missing" in str(error) or "no such" in str(error) else str(error)


def full(case: Path, kilobytes: int, ranks: int) -> tuple[str, bool]:
    """A disk of that size."""
    with small_disk(kilobytes) as disk:
        said, sound = verdict(start(case, disk / "out", ranks), disk / "out")
        return f"{said}; {readable(disk / 'out')}", sound


def changed(case: Path, ranks: int, change: Callable[[Path], object]) -> tuple[str, bool]:
    """A disk on which something happens once a checkpoint has been written."""
    with small_disk(100_000) as disk:
        out = disk / "out"
        process = start(case, out, ranks)
        limit = time.monotonic() + 60
        while not (out / "checkpoint.h5").exists() and time.monotonic() < limit:
            time.sleep(0.01)
        change(out)
        return verdict(process, out, time.time())


def read_only(out: Path) -> None:
    """Nothing can be written there any more."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(out)], check=True)


def vanish(out: Path) -> None:
    """The folder goes, and does not come back."""
    out.rename(out.with_name("gone"))
    shutil.rmtree(out.with_name("gone"), ignore_errors=True)


def file_for_folder(out: Path) -> None:
    """A file in the place of fields."""
    (out / "fields").rename(out / "moved")
    (out / "fields").write_text("a file")


OPTIONS = options("disk", __doc__)


def main() -> None:
    """Print the table."""
    quick = OPTIONS.parse_args().quick
    if os.geteuid():
        print("\nDisks that fail are not tried without the right to mount.\n")
        return
    table = Table("Disks that fail", ["what", "ranks", "sound", "outcome"])
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, 2):
            for fields in ("pvd", "xdmf"):
                case = Path(folder) / f"{fields}.toml"
                case.write_text(CASE + OFTEN.format(fields=fields))
                for size in SIZES[::4] if quick else SIZES:
                    said, sound = full(case, size, ranks)
                    table.row(f"full, {size} KB, {fields}", ranks, sound, said)
            for change in (read_only, vanish, file_for_folder):
                said, sound = changed(Path(folder) / "pvd.toml", ranks, change)
                table.row(change.__name__, ranks, sound, said)


if __name__ == "__main__":
    present(main, OPTIONS)
