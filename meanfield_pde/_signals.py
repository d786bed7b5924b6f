"""What signals do while the command is being imported; loaded before all else, and with little.

Ctrl-C ends the command at once, with one line, and so it does in imports that come later: of a
KeyboardInterrupt, extension modules that are being loaded make a crash. Signals that ask a run to
stop are held back by the kernel (`SIG_BLOCK`) until MPI and PETSc are imported, which put handlers
of their own in the place of those that are there; then they are noted, and `support.signals` says
what becomes of them. Threads that libraries start meanwhile inherit the mask, so that the main
thread gets them.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

COMMAND = "meanfield-pde"
MODULE = "meanfield_pde.cli.main"  # the same as `python -m`
STOPPING = (signal.SIGTERM, signal.SIGUSR1)
STOPPABLE = ("run", "sweep", "lifetime")  # the commands that finish what they are at, and stop
# Where launchers say which rank a process is, before MPI does: MPICH and Slurm's PMI, PMIx, Slurm.
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")

# Signals of a scheduler that came to this process.
NOTED: list[str] = []


def note(number: int, frame: object) -> None:
    """Note a signal: the handler of those that ask a run to stop."""
    NOTED.append(signal.Signals(number).name)


def is_command() -> bool:
    """Whether this process is the command; a script that imports the package is not."""
    started = os.path.basename(sys.argv[0] if sys.argv else "")
    return started == COMMAND or (started in ("-m", "main.py") and MODULE in sys.orig_argv)


def _is_stoppable() -> bool:
    named = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
    return is_command() and named[:1] != [] and named[0] in STOPPABLE


def _end(number: int, frame: object) -> None:
    """End the process at once, with one line of the first rank."""
    if next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0") == "0":
        os.write(2, f"{COMMAND}: interrupted\n".encode())
    os._exit(130)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or end the process if it is importing something."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            _end(number, frame)
        frame = frame.f_back
    raise KeyboardInterrupt


def let_interrupt() -> None:
    """Once the command has begun: Ctrl-C has it clean up behind itself."""
    signal.signal(signal.SIGINT, _interrupt if is_command() else signal.default_int_handler)


def let_go() -> None:
    """Once the command is done: Ctrl-C ends what is left of the process without a traceback."""
    if is_command():
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def hold_signals() -> None:
    """Hold back what asks a run to stop, if this process is a command that can be stopped."""
    if not is_command():
        return
    if _is_stoppable():
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    signal.signal(signal.SIGINT, _end)


def note_signals() -> None:
    """Note from now on what was held back, whatever handlers libraries have set meanwhile."""
    if _is_stoppable():
        for number in STOPPING:
            signal.signal(number, note)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
