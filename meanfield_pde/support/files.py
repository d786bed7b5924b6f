"""Files that are never half written: made beside their place, flushed, and moved there at once.

What this relies on: `rename` puts a file in the place of another at once, and `fsync` returns when
the data are on the disk. POSIX and local file systems keep both; network file systems keep the
first for readers on other machines only after their caches expire.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from meanfield_pde.errors import InputError, StorageError
from meanfield_pde.support.checks import check_no_device

# In the name of every temporary file, so that what a killed program has left is not mistaken for
# what is somebody else's.
_MARK = "meanfield_pde-tmp"
# What is wrong with a path, whatever the disk: a folder, a name too long, a loop of links.
_NO_SUCH_PLACE = (errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
# Files that this process has put into their places, in this order.
_WRITTEN: list[Path] = []
_TEMPORARY = re.compile(rf"\.(?P<stem>.+)\.{_MARK}-\d+(?P<suffix>\.\w+)?")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error of the system in the block into one line that names the path."""
    try:
        yield
    except OSError as error:
        kind = InputError if error.errno in _NO_SUCH_PLACE else StorageError
        raise kind(f"{path}: cannot be written ({_reason(error)})") from error


def check_appendable(path: Path) -> None:
    """InputError, or StorageError, unless a file can be written to, which is made if need be.

    A pipe is refused, too: opened for writing, it waits for a reader.
    """
    with contextlib.suppress(OSError):
        mode = path.stat().st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
            raise InputError(f"{path} is a pipe or a socket; name a file to write to")
    with writing(path):
        if not path.parent.is_dir():
            raise InputError(f"{path}: there is no folder {path.parent}")
        with path.open("ab"):
            pass


def make_folder(path: Path) -> None:
    """Make a folder, with those above it, unless it exists; InputError if no such path can be."""
    with writing(path):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileNotFoundError, NotADirectoryError, FileExistsError) as error:
            raise InputError(f"{path}: cannot write the results ({_reason(error)})") from error


def check_writable(folder: Path) -> None:
    """StorageError unless files can be made in a folder, which is made if it is not there."""
    make_folder(folder)
    with writing(folder), tempfile.TemporaryFile(dir=folder):
        pass


def check_output(path: Path) -> None:
    """InputError unless a path can be that of a file; StorageError if it cannot be made now."""
    check_no_device(path)
    if path.is_dir():
        raise InputError(f"{path}: cannot be written (it is a folder)")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")
    with writing(path):
        try:
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except FileNotFoundError as error:  # there is such a folder, but no files are made in it
            raise InputError(f"{path}: cannot be written ({_reason(error)})") from error


def replace_file(
    path: Path,
    write: Callable[[Path], object],
    *,
    keep: Path | None = None,
    wait: bool = True,
) -> None:
    """Let `write` make a file under a temporary name, then put it in the place of `path`.

    InputError if that is a pipe, a device or a socket, whose place no file is to take.

    Args:
        path: where it is to stand.
        write: makes the file.
        keep: where the file that it takes the place of is kept; at no time is there neither.
        wait: for the disk, so that the file outlives the machine. What can be made again need not.
    """
    if not path.name:
        raise InputError(f"{path}: cannot be written (it is a folder)")
    check_no_device(path)
    # The suffix stays, since writers such as matplotlib choose the format by it.
    temporary = _temporary(path)
    with writing(path):
        try:
            write(temporary)
            if wait:
                flush(temporary)
            if keep is not None and path.exists():
                os.replace(path, keep)
            put_in_place(temporary, path)
            if wait:
                flush(path.parent)
        finally:
            _discard(temporary)


def put_in_place(made: Path, path: Path) -> None:
    """Give a file that is whole its name, and remember that it was written."""
    os.replace(made, path)
    if path not in _WRITTEN:
        _WRITTEN.append(path)


def said_of_written() -> str:
    """What an interrupted command says of the files that this process has written, each whole."""
    if not _WRITTEN:
        return "no file was written"
    more = f" and {len(_WRITTEN) - 1} more" if len(_WRITTEN) > 1 else ""
    return f"written before, and whole: {_WRITTEN[0]}{more}"


def replace_text(path: Path, text: str, *, wait: bool = True) -> None:
    """Put a text file in the place of `path`; `wait` as for `replace_file`."""
    replace_file(path, lambda temporary: temporary.write_text(text, encoding="utf-8"), wait=wait)


def append(path: Path, position: int, content: bytes) -> None:
    """Put content at a position at the end of a file, and cut off what stood behind it.

    If it cannot be written whole the file ends at the position. A link is not followed.
    """
    with writing(path):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o666)
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


def remove_file(path: Path) -> None:
    """Remove a file, if it is there; never a folder."""
    if path.is_file() or path.is_symlink():
        path.unlink(missing_ok=True)


def remove_leftovers(folder: Path, ours: Callable[[str], object]) -> None:
    """Remove what a killed program has left in a folder under the temporary names used here.

    Args:
        folder: the folder; those in it are left alone.
        ours: whether a name is one of a file that the program writes there.
    """
    for path in folder.glob(f".*.{_MARK}-*"):
        match = _TEMPORARY.fullmatch(path.name)
        if match and ours(match["stem"] + (match["suffix"] or "")):
            remove_file(path)


def flush(path: Path) -> None:
    """Have the system write a file, or the entries of a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _reason(error: OSError) -> str:
    return error.strerror or " ".join(str(error).split())


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.stem}.{_MARK}-{os.getpid()}{path.suffix}")


def _discard(path: Path) -> None:
    """Remove a temporary file if it can be; the error that matters is another."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
