"""Run a program so that none of its descendants can escape: `python -I -S reaper.py PROGRAM [ARGUMENT]...` (Linux).

The reaper is a subreaper: a daemon that forks twice and clears its environment becomes its child, and stays below it.
It starts the program in a separate session on its own standard streams, and forwards SIGTERM, SIGINT and SIGHUP to the
program's group. After the program it ends all remaining descendants, and then itself with the same exit code or signal.
It has no threads and imports little, so that it starts fast.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import subprocess

_PDEATHSIG: Final = 1
_CHILD_SUBREAPER: Final = 36
_FORWARDED: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_PATIENCE_SECONDS: Final = 0.5
"""Seconds that descendants may take to end: for example the login shell of which Codex takes a snapshot."""
_NO_SUCH_PROGRAM: Final = 127


def main() -> None:
    """Run the program of the command line."""
    child = _start(sys.argv[1:])

    def forward(number: int, _frame: object) -> None:
        # The group may have ended between the signal and this call.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)  # signals that arrived before are forwarded now
    # The reaper itself must not hold the program's streams open.
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)  # the streams are the program's: both ends notice when it closes them
    code = _wait_for(child.pid)
    for number in _FORWARDED:
        signal.signal(number, signal.SIG_IGN)  # its group may be another's from now on
    if _reap():
        _end_the_rest()
    if code < 0:
        _end_like(-code)
    os._exit(code)


def _start(argv: list[str]) -> subprocess.Popen[bytes]:
    import ctypes
    import subprocess

    prctl = ctypes.CDLL(None, use_errno=True).prctl
    # Before the program starts: orphans go to the nearest subreaper.
    prctl(_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Blocked until the handlers exist. A signal in between would end the reaper alone.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)

    def before_exec() -> None:
        # If the reaper is killed, the program ends too.
        prctl(_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)

    try:
        return subprocess.Popen(argv, start_new_session=True, preexec_fn=before_exec)
    except (OSError, subprocess.SubprocessError) as error:
        os.write(2, f"Cannot run {argv[0]}: {error}\n".encode())
        os._exit(_NO_SUCH_PROGRAM)


def _wait_for(pid: int) -> int:
    while True:
        # Orphans of other descendants are reaped on the way.
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _reap() -> bool:
    """Reap what has ended below this process; whether anything is left."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def _end_the_rest() -> None:
    # `-S -I` leaves the package off the path.
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))  # noqa: PTH100, PTH120 - no pathlib for this
    try:
        from helmsman.base.process_ending import end_processes
        from helmsman.base.processes import Process, descendants
    except ImportError:  # Helmsman was removed: its own sweep finds the marked processes
        return

    def wait(seconds: float) -> None:
        time.sleep(seconds)
        _reap()

    end_processes(lambda: descendants(Process.me()), patience=_PATIENCE_SECONDS, wait=wait)


def _end_like(number: int) -> None:
    """End by the same signal as the program, without a core dump of this process."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):  # SIGKILL cannot be set
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pause()


if __name__ == "__main__":
    main()
