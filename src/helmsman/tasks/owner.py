"""Which process looks after a task: its pid together with the time it started.

A pid alone is reused sooner or later; with its start time it names one process for good, also across restarts of the
machine. Linux tells both in /proc, other systems through `ps`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

_PS_SECONDS: Final = 5
_ENDED_STATES: Final = ("Z", "X", "x")
"""A process that has ended and waits for its parent to notice still has a pid, and does nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One process. `started` is only ever compared: its form depends on the system."""

    pid: int
    started: str

    @classmethod
    def me(cls) -> Owner:
        """This process."""
        return _owner(os.getpid())

    def is_alive(self) -> bool:
        """Whether exactly this process still runs; another one with its pid does not count."""
        return bool(self.started) and start_time(self.pid) == self.started


@lru_cache(maxsize=1)
def _owner(pid: int) -> Owner:
    return Owner(pid=pid, started=start_time(pid) or "")


def start_time(pid: int) -> str | None:
    """When a process started, as its system tells it; None if there is no such process, or it has ended."""
    if pid <= 0:
        return None
    return _from_proc(pid) if sys.platform == "linux" else from_ps(pid)


def _from_proc(pid: int) -> str | None:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = status.rpartition(")")[2].split()  # the name before it is in brackets and may contain anything
    state, ticks_since_boot = fields[0], fields[19]
    return None if state in _ENDED_STATES else f"{_boot_id()}:{ticks_since_boot}"


@lru_cache(maxsize=1)
def _boot_id() -> str:
    """Start times count from the start of the system, so they need to say which start."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def from_ps(pid: int) -> str | None:
    """The start time by `ps`. Language and time zone are fixed, or two processes could read two different texts."""
    try:
        done = subprocess.run(
            ["ps", "-o", "stat=", "-o", "lstart=", "-p", str(pid)],
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PS_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    state, _, started = done.stdout.strip().partition(" ")
    return None if not started or state.startswith(_ENDED_STATES) else " ".join(started.split())
