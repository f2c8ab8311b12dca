"""Stop a supervised process."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING, Final

from helmsman.agents.supervisor.descendants import surviving_descendants
from helmsman.agents.supervisor.directory import forget
from helmsman.base.process_ending import end_processes, send_signal
from helmsman.base.processes import KILL, Process, descendants, still_running

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STOP_TIMEOUT: Final = 20.0
"""How long a supervisor may take to end its child: it interrupts, terminates and kills, each within bounds."""

CHILD_GRACE: Final = 2.0
"""How long a child without a supervisor may take after SIGTERM."""

KILLED_GRACE: Final = 5.0
"""How long the system may take to remove a process that was killed."""

_POLL: Final = 0.02


def stop_supervised(directory: Path, sockets: Sequence[Path], supervisor: Process, child: Process) -> None:
    """End a supervisor, its agent and all that it has started. Blocks for a bounded time."""
    end(supervisor, STOP_TIMEOUT)
    started = surviving_descendants(directory)  # the supervisor was killed, or hung
    if child.is_alive():
        started |= descendants(child)
        end(child, CHILD_GRACE)
    end_processes(lambda: still_running(started) | surviving_descendants(directory))
    forget(directory, *sockets)


# --- processes that are not our children -----------------------------------------------------------------------------


def end(process: Process, grace: float) -> None:
    """Terminate a process, and kill it if it does not end."""
    send_signal(process, signal.SIGTERM)
    if not gone_within(process, grace):
        send_signal(process, KILL)
        gone_within(process, KILLED_GRACE)


def gone_within(process: Process, seconds: float) -> bool:
    """Wait until a process has ended, for so long. Blocks."""
    deadline = time.monotonic() + seconds
    while process.is_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)
    return True
