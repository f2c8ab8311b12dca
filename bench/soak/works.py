"""Expected state of each session of the soak, and counts of events."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(slots=True)
class Work:
    """Session from the point of view of its client."""

    number: int
    story: str
    session_id: str | None = None
    numbers: set[int] = field(default_factory=set[int])
    """Prompts that may have reached it; the answer must belong to one of them."""
    approved: set[int] = field(default_factory=set[int])
    """Prompts whose command was approved."""
    acknowledged: dict[int, str] = field(default_factory=dict[int, str])
    """Messages that were acknowledged to the client, and how they were sent."""
    by_key: bool = True
    """True if its client can request the same session again, also through another server."""
    was_interrupted: bool = False
    repository: Path | None = None
    """Working directory."""
    is_applied: bool = False
    """True if its client was told that its changes are applied."""
    starts_refused: int = 0
    refused: int = 0
    """Number of times that its client was told that a session or message could not begin."""
    was_not_found: bool = False
    """True if its client was told that Codex has no such session."""
    told: str | None = None
    """End of the session, as its client was told."""
    result: str | None = None


@dataclass(slots=True)
class Books:
    """Everything of one soak."""

    works: list[Work] = field(default_factory=list[Work])
    counts: Counter[str] = field(default_factory=Counter[str])
    """Faults and what clients did, by name."""
    errors: Counter[str] = field(default_factory=Counter[str])
    """Errors that tools answered with, by tool and code."""
    examples: dict[str, str] = field(default_factory=dict[str, str])
    """One error text of each kind."""
    problems: list[str] = field(default_factory=list[str])
    """Violations."""
    connections_lost: list[str] = field(default_factory=list[str])
    """Clients on a pipe of which neither was killed, and which lost their connection, or had no answer."""
    hub_deaths: int = 0
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def new_work(self, story: str) -> Work:
        number = self.next_number()
        work = Work(number, story, numbers={number})
        self.works.append(work)
        return work

    def work_of(self, number: int) -> Work | None:
        """Return the work whose prompt has this number."""
        return next((work for work in reversed(self.works) if number in work.numbers), None)

    def next_number(self) -> int:
        return next(self._numbers)
