"""Who follows what runs in a child is needed, and may be killed: then its keeper starts the next one.

Whoever follows it says whether it is needed (`places.mark_needed`), and is seen to be there by its lock. The command that
starts the next one came with the order to the keeper, so that no file decides what is run.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from helmsman.agents.keeper.below import become_subreaper
from helmsman.agents.keeper.places import is_needed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

_ALONE_SECONDS: Final = 1.0
"""So long nobody may be there: a client that is connected brings the next one sooner."""
_LONGEST_SECONDS: Final = 60.0
"""Between two attempts, where nobody comes."""
_LOOK_SECONDS: Final = 0.25
_SELDOM_SECONDS: Final = 60.0


class Successor:
    """Starts the next one. `command` is empty where there is none to start."""

    def __init__(self, directory: Path, command: Sequence[str], log: Callable[[bytes], None]) -> None:
        self._directory = directory
        self._command = tuple(map(str, command))
        self._log = log
        self._alone_since: float | None = None
        self._patience = _ALONE_SECONDS

    def until_next_look(self) -> float:
        """In how many seconds it is worth looking again, unless somebody says that there is news."""
        return _LOOK_SECONDS if self._command and is_needed(self._directory) else _SELDOM_SECONDS

    def look(self, *, nobody_attached: bool) -> None:
        """Start the next one if it is needed and nobody has been there for a while."""
        now = time.monotonic()
        if not self._command or not nobody_attached or not is_needed(self._directory):
            self._alone_since, self._patience = None, _ALONE_SECONDS
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since >= self._patience:
            self._alone_since, self._patience = now, min(2 * self._patience, _LONGEST_SECONDS)
            self._log(b"keeper: nobody follows what runs here, so the next hub is started\n")
            try:
                _start_elsewhere(self._command)
            except OSError as error:
                self._log(f"keeper: it cannot be started: {error}\n".encode())


def _start_elsewhere(command: tuple[str, ...]) -> None:
    """Start a program that is nobody's: it is not below us, and does not end with us.

    What is left without a parent becomes ours, so for the moment in which that one is, nothing does.
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
