"""Starts the next hub if the one that followed the agent was killed.

The hub sets whether it is needed (`directory.mark_needed`), and holds a lock while it is attached. The command that starts
the next hub came with the order to the supervisor, so that no file decides what is run.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from helmsman.agents.supervisor.descendants import become_subreaper
from helmsman.agents.supervisor.directory import is_needed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_ALONE_SECONDS: Final = 1.0
"""How long the supervisor waits before it starts a hub: a connected client starts one sooner."""
_LONGEST_SECONDS: Final = 60.0
"""The longest pause between two attempts."""
_LOOK_SECONDS: Final = 0.25
_SELDOM_SECONDS: Final = 60.0


class Successor:
    """Starts the next hub. `command` is empty if there is none to start."""

    def __init__(self, directory: Path, command: Sequence[str], log: Callable[[bytes], None]) -> None:
        self._directory = directory
        self._command = tuple(map(str, command))
        self._log = log
        self._alone_since: float | None = None
        self._patience = _ALONE_SECONDS

    def until_next_look(self) -> float:
        """Return the seconds until the next check, unless the supervisor is woken."""
        return _LOOK_SECONDS if self._command and is_needed(self._directory) else _SELDOM_SECONDS

    def look(self, *, nobody_attached: bool) -> None:
        """Start the next hub if one is needed and none has been attached for a while."""
        now = time.monotonic()
        if not self._command or not nobody_attached or not is_needed(self._directory):
            self._alone_since, self._patience = None, _ALONE_SECONDS
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since >= self._patience:
            self._alone_since, self._patience = now, min(2 * self._patience, _LONGEST_SECONDS)
            self._log(b"supervisor: no hub is attached, so the next one is started\n")
            try:
                _start_elsewhere(self._command)
            except OSError as error:
                self._log(f"supervisor: the hub cannot be started: {error}\n".encode())


def _start_elsewhere(command: tuple[str, ...]) -> None:
    """Start a program that is no descendant of the supervisor.

    Orphans become children of a subreaper, so the supervisor is none for that moment.
    """
    become_subreaper(really=False)
    try:
        between = os.fork()
        if between == 0:
            try:
                if os.fork() == 0:
                    os.setsid()
                    os.execv(command[0], command)  # noqa: S606 - there is nothing to shell out to
            finally:
                os._exit(0)
        os.waitpid(between, 0)
    finally:
        become_subreaper()
