"""What the soak knows of each session it asked for, and what happened on the way, counted."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(slots=True)
class Work:
    """One session, from the side of whoever asked for it."""

    number: int
    story: str
    session_id: str | None = None
    numbers: set[int] = field(default_factory=set[int])
    """The prompts that may have reached it; the answer has to be to one of them."""
    approved: set[int] = field(default_factory=set[int])
    """The prompts for whose command somebody said yes."""
    acknowledged: dict[int, str] = field(default_factory=dict[int, str])
    """The messages of which its client was told that they will be seen to, and how they were sent."""
    by_key: bool = True
    """Whether its client can ask again for the same session, also through another door."""
    was_interrupted: bool = False
    repository: Path | None = None
    """Where it was started."""
    is_applied: bool = False
    """Whether its client was told that its changes are there."""
    starts_refused: int = 0
    refused: int = 0
    """How often its client was told that a session or a message could not be begun."""
    was_not_found: bool = False
    """Whether its client was told that Codex has no such session."""
    told: str | None = None
    """How it ended, as its own client was told."""
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
    """The text of one error of each kind."""
    problems: list[str] = field(default_factory=list[str])
    """What should never happen."""
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
        """Whose prompt has this number."""
        return next((work for work in reversed(self.works) if number in work.numbers), None)

    def next_number(self) -> int:
        return next(self._numbers)
