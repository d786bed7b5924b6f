"""What signals do to the command; loaded before all else, and with little.

Ctrl-C ends the command at once, with one line, and so it does in imports that come later: of a
KeyboardInterrupt, extension modules that are being loaded make a crash. Signals that ask it to stop
are held back by the kernel (`SIG_BLOCK`) until MPI and PETSc are imported, since these and UCX put
handlers of their own in the place of those that are there (SIGHUP asks UCX for its debug mode).
Then commands that can go on later note them, and `support.signals` says what becomes of them;
others end with one line. Threads that libraries start meanwhile inherit the mask, so that the main
thread gets them.

A signal that the parent has the command ignore, as `nohup` does with SIGHUP, stays ignored.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

COMMAND = "meanfield-pde"
MODULE = "meanfield_pde.cli.main"  # the same as `python -m`
STOPPING = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
# The commands that finish what they are at, and stop.
STOPPABLE = ("run", "converge", "sweep", "lifetime")
# Where launchers say which rank a process is, before MPI does: MPICH and Slurm's PMI, PMIx, Slurm.
RANK_VARIABLES = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")

# Signals that asked this process to stop.
NOTED: list[str] = []


class Interrupted(KeyboardInterrupt):
    """A signal has ended a command that cannot go on later; caught where Ctrl-C is.

    Attributes:
        exit_code: 128 and the number of the signal, as shells say it: 143 for SIGTERM.
    """

    def __init__(self, number: int) -> None:
        super().__init__(f"ended by {signal.Signals(number).name}")
        self.exit_code = 128 + number


def note(number: int, frame: object) -> None:
    """Note a signal: the handler of those that ask a run to stop."""
    NOTED.append(signal.Signals(number).name)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raise Interrupted, once: a second signal would come while the first is being reported."""
    for other in STOPPING:  # not SIG_IGN: Python says so of one that is on its way
        signal.signal(other, _let_pass)
    _end_imports(number, frame)
    raise Interrupted(number)


def _let_pass(number: int, frame: object) -> None:
    """Handle a signal that comes while another is ending the command: nothing is left to do."""


def heeded() -> list[signal.Signals]:
    """The signals that ask to stop, but for those that this process was started to ignore."""
    return [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]


def is_command() -> bool:
    """Whether this process is the command; a script that imports the package is not."""
    started = os.path.basename(sys.argv[0] if sys.argv else "")
    return started == COMMAND or (started in ("-m", "main.py") and MODULE in sys.orig_argv)


def command_named() -> str:
    """The first argument that is no option."""
    return next((one for one in sys.argv[1:] if not one.startswith("-")), "")


def _end(number: int, frame: object) -> None:
    """End the process at once, with one line of the first rank."""
    if next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0") == "0":
        files = sys.modules.get("meanfield_pde.support.files")
        written = getattr(files, "said_of_written", lambda: "no file was written")()
        ended = f"{command_named()} ended by {signal.Signals(number).name}; {written}"
        said = "interrupted" if number == signal.SIGINT else ended
        os.write(2, f"{COMMAND}: {said}\n".encode())
    os._exit(128 + number)


def _end_imports(number: int, frame: FrameType | None) -> None:
    """End the process if it is importing something."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib."):
            _end(number, frame)
        frame = frame.f_back


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, or end the process if it is importing something."""
    _end_imports(number, frame)
    raise KeyboardInterrupt


def let_interrupt() -> None:
    """Once the command has begun: Ctrl-C has it clean up behind itself."""
    signal.signal(signal.SIGINT, _interrupt if is_command() else signal.default_int_handler)


def let_go() -> None:
    """Once the command is done: Ctrl-C ends what is left of the process without a traceback."""
    if is_command():
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        # There is nothing left to stop, and Python would put their defaults back before it ends.
        signal.pthread_sigmask(signal.SIG_BLOCK, heeded())


def hold_signals() -> None:
    """Hold back what asks to stop, if this process is the command."""
    if not is_command():
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    signal.signal(signal.SIGINT, _end)


def heed_signals() -> None:
    """Note from now on what was held back, or end by it, whatever handlers libraries have set."""
    if not is_command():
        return
    found = heeded()
    for number in STOPPING:
        # What is ignored, too: UCX has set a handler of its own, of which Python knows nothing.
        handler = note if command_named() in STOPPABLE else interrupt
        signal.signal(number, handler if number in found else signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
