"""Files that are never half written: made beside their place, flushed, and moved there at once."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` make a file under a temporary name, then put it in the place of `path`."""
    # The suffix stays, since writers such as matplotlib choose the format by it.
    temporary = path.with_name(f".{path.stem}.{os.getpid()}{path.suffix}")
    try:
        write(temporary)
        flush(temporary)
        os.replace(temporary, path)
        flush(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def replace_text(path: Path, text: str) -> None:
    """Put a text file in the place of `path`."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def append(path: Path, position: int, content: bytes) -> None:
    """Put content at a position at the end of a file, and cut off what stood behind it.

    If it cannot be written whole the file ends at the position.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT, 0o666)
    try:
        os.ftruncate(handle, position)
        try:
            written = 0
            while written < len(content):
                written += os.pwrite(handle, content[written:], position + written)
            os.fsync(handle)
        except OSError:
            os.ftruncate(handle, position)
            raise
    finally:
        os.close(handle)


def remove(path: Path) -> None:
    """Remove a file or a folder if it exists; a folder at once and whole, by renaming it first."""
    if path.is_dir():
        doomed = path.with_name(f".{path.name}.{os.getpid()}.old")
        path.rename(doomed)
        shutil.rmtree(doomed)
    else:
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Remove what a killed program has left in a folder under the temporary names used here."""
    for path in folder.glob(".*.*"):
        if re.fullmatch(r"\..+\.\d+\.\w+", path.name):
            remove(path)


def flush(path: Path) -> None:
    """Have the system write a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
