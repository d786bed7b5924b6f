"""The ways in which a run ends before its time: wrong input, a failure, a signal to stop."""

from __future__ import annotations


class MeanfieldError(Exception):
    """Base class of the errors that this package raises on purpose.

    Attributes:
        options: options of the command line that are a remedy; it names them after the message.
    """

    exit_code = 1

    def __init__(self, message: str = "", options: str = "") -> None:
        super().__init__(message)
        self.options = options

    def __reduce__(self) -> tuple[type[MeanfieldError], tuple[str, str]]:
        """Errors travel between ranks, with their options."""
        return type(self), (str(self), self.options)


class InputError(MeanfieldError, ValueError):
    """What the user gave is wrong; the message says where, what was expected, what to change."""

    exit_code = 2


class TimeIndexError(InputError, IndexError):
    """There is no saved time of this index; an IndexError, too, as of any sequence."""


class SolverError(MeanfieldError, RuntimeError):
    """The computation itself failed, on input that was accepted."""

    exit_code = 1


class StorageError(SolverError):
    """What was computed cannot be written: a full disk, a folder that has gone or is read-only."""


class StoppedError(MeanfieldError):
    """A signal asked the run to stop, and what it takes to go on has been written."""

    exit_code = 75
