"""Memory and file handles of a process over time."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from bench.processes import memory_mb
from helmsman.base.processes import running_process

_Number = TypeVar("_Number", int, float)

WARM_UP: Final = 0.25
"""Share of the time in which a process is still loading; it does not count for trends."""


@dataclass(slots=True)
class Gauges:
    """Readings of one process."""

    pid: int
    times: list[float] = field(default_factory=list[float])
    memory: list[float] = field(default_factory=list[float])
    handles: list[int] = field(default_factory=list[int])
    sessions: list[int] = field(default_factory=list[int])

    def read(self, time: float, sessions: int) -> None:
        """Take a reading; `sessions` is how many there have been until now. A process that has ended gives none."""
        if running_process(self.pid) is None:
            return
        self.times.append(time)
        self.memory.append(memory_mb(self.pid))
        self.handles.append(open_handles(self.pid))
        self.sessions.append(sessions)

    def peaks(self) -> str:
        """Describe the maximum values."""
        return f"at most {max(self.memory, default=0):.0f} MB and {max(self.handles, default=0)} file handles"

    def memory_per_hour(self) -> float:
        """MB an hour, by linear regression over all readings after the warm-up."""
        return _slope(self._late(self.times), self._late(self.memory)) * 3600

    def memory_per_session(self) -> float:
        """KB for each session, in the same way."""
        return _slope(self._late(self.sessions), self._late(self.memory)) * 1024

    def late_handles(self) -> list[int]:
        return self._late(self.handles)

    def _late(self, values: list[_Number]) -> list[_Number]:
        return values[int(len(values) * WARM_UP) :]


def open_handles(pid: int) -> int:
    """Return the number of a process's open files, sockets and pipes; 0 if the system does not say."""
    folder = Path(f"/proc/{pid}/fd")
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0


def _slope(xs: list[float] | list[int], ys: list[float]) -> float:
    return statistics.linear_regression(xs, ys).slope if len(set(xs)) > 1 else 0.0
