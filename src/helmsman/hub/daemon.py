"""Detach a daemon from the process that started it. Runs before any other import."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress

_STREAMS = 2
"""Last descriptor of the standard streams, which stay."""


def become_daemon(*kept: int) -> None:
    """Let go of everything that the process inherited, except its streams and these descriptors."""
    # An orphan from now on: its starter need not wait for it as its child.
    if os.fork():
        os._exit(0)
    import resource

    # They may lie above any limit, if that was set when they were open. (`pathlib` is not worth its import here.)
    for name in os.listdir("/dev/fd"):  # noqa: PTH208
        if int(name) > _STREAMS and int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))
    for descriptor in kept:
        os.set_inheritable(descriptor, False)
    # A working directory would keep its file system in use.
    os.chdir("/")
    os.umask(0o077)
    for limit in {name for name in vars(resource) if name.startswith("RLIMIT_")} - {"RLIMIT_STACK"}:
        number: int = getattr(resource, limit)
        with suppress(OSError, ValueError):  # each client takes a descriptor, and a shell's CPU limit is too short
            _, most = resource.getrlimit(number)
            resource.setrlimit(number, (0 if limit == "RLIMIT_CORE" else most, most))
    # The starter's mask and ignored signals are inherited. An ignored SIGCHLD would break every `wait`.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    # Python handles SIGPIPE and SIGINT itself.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGINT}:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):
        os.nice(-os.nice(0))  # where we may
    if sys.platform == "linux":
        with suppress(OSError):
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
