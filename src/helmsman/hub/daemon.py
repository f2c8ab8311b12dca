"""What a daemon takes off of whoever started it. Done before anything else is imported."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

from helmsman.hub.launch import LISTENER_FD, LOCK_FD


def become_daemon() -> None:
    """Let go of everything that the process inherited, except lock, listener and log."""
    if os.fork():
        os._exit(0)
    import resource

    os.closerange(LISTENER_FD + 1, min(os.sysconf("SC_OPEN_MAX"), 65536))
    for descriptor in (LOCK_FD, LISTENER_FD):
        os.set_inheritable(descriptor, False)
    os.chdir("/")
    os.umask(0o077)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # a door is a descriptor
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGINT}:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):
        os.nice(-os.nice(0))  # where we may
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
