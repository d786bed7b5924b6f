"""What signals do while the command is being imported; loaded before all else, and with little.

Ctrl-C ends the command at once, with one line. Signals that ask a run to stop are noted, since MPI
would swallow SIGUSR1; `support.signals` says what becomes of them.
"""

from __future__ import annotations

import os
import signal
import sys

COMMAND = "meanfield-pde"
STOPPING = (signal.SIGTERM, signal.SIGUSR1)
STOPPABLE = ("run", "sweep", "lifetime")  # the commands that finish what they are at, and stop

# Signals of a scheduler that came to this process.
NOTED: list[str] = []


def note(number: int, frame: object) -> None:
    """Note a signal: the handler of those that ask a run to stop."""
    NOTED.append(signal.Signals(number).name)


def _is_command() -> bool:
    return os.path.basename(sys.argv[0] if sys.argv else "") == COMMAND


def let_go() -> None:
    """Once the command is done: Ctrl-C ends what is left of the process without a traceback."""
    if _is_command():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def settle_signals() -> None:
    """Set the handlers if this process is the command."""
    if not _is_command():
        return

    def end(number: int, frame: object) -> None:
        os.write(2, f"{COMMAND}: interrupted\n".encode())
        os._exit(130)

    signal.signal(signal.SIGINT, end)
    if sys.argv[1:2] and sys.argv[1] in STOPPABLE:
        for number in STOPPING:
            signal.signal(number, note)
