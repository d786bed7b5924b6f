"""The two ways in which a run can fail: the input is wrong, or the computation failed."""

from __future__ import annotations


class MeanfieldError(Exception):
    """Base class of the errors that this package raises on purpose."""

    exit_code = 1


class InputError(MeanfieldError, ValueError):
    """What the user gave is wrong; the message says where, what was expected, what to change."""

    exit_code = 2


class SolverError(MeanfieldError, RuntimeError):
    """The computation itself failed, on input that was accepted."""

    exit_code = 1
