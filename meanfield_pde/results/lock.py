"""One run at a time in a result folder.

The lock is the system's own on an open file (`flock`), which goes with the process that holds it:
what a killed run leaves is a file that nobody holds. On NFS it works between machines from version
4 on; where a file system has no locks at all, the run goes on with a warning.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import stat
from pathlib import Path

from meanfield_pde.errors import InputError
from meanfield_pde.results.names import LOCK
from meanfield_pde.support.files import make_folder, writing

LOG = logging.getLogger("meanfield_pde")

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)


class FolderLock:
    """The right to write in a result folder, from `acquire` to `release`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / LOCK
        self._handle: int | None = None
        self._made = False

    def acquire(self) -> None:
        """Make the folder and take it; InputError if another run has it."""
        self._made = not self._directory.exists()
        make_folder(self._directory)
        while self._handle is None:
            with writing(self._directory):
                self._check_ours()
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                handle = os.open(self._path, flags, 0o644)
            try:
                self._take(handle)
                # Whoever had it before may have removed the file that was just opened.
                if self._is_there(handle):
                    self._handle = handle
            finally:
                if self._handle is None:
                    os.close(handle)
        holder = {"host": socket.gethostname(), "process": os.getpid()}
        with writing(self._path):
            os.ftruncate(handle, 0)
            os.pwrite(handle, (json.dumps(holder) + "\n").encode(), 0)

    def release(self) -> None:
        """Give the folder back, if it was taken."""
        if self._handle is None:
            return
        try:
            self._path.unlink(missing_ok=True)
            # A run that was refused leaves no folder behind.
            if self._made and self._directory.is_dir() and not any(self._directory.iterdir()):
                self._directory.rmdir()
        except OSError as error:  # read-only by now, or another disk; nobody holds what is left
            LOG.debug("%s: %s", self._path, error.strerror)
        os.close(self._handle)
        self._handle = None

    def _check_ours(self) -> None:
        """InputError if a file that is not a lock has the name, or is reached by it."""
        try:
            found = os.lstat(self._path)
        except FileNotFoundError:
            return
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            kind = "a link" if stat.S_ISLNK(found.st_mode) or found.st_nlink > 1 else "no file"
            raise InputError(
                f"{self._path}: is {kind}, and the lock of a run is to stand there; remove it, or "
                "choose another folder",
                "--output",
            )

    def _take(self, handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{self._directory}: another run is writing there{_holder(handle)}; wait for its "
                "end, or choose another folder",
                "--output",
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            LOG.warning("%s: this file system has no locks; run once only", self._directory)

    def _is_there(self, handle: int) -> bool:
        """Whether the open file is the one that has the name."""
        try:
            return os.path.samestat(os.fstat(handle), os.stat(self._path))
        except FileNotFoundError:
            return False


def _holder(handle: int) -> str:
    """What the file says of who has the lock."""
    try:
        found = json.loads(os.pread(handle, 4096, 0))
        return f" (process {int(found['process'])} on {str(found['host'])[:60]})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
