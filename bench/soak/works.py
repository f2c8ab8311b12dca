"""What the soak knows of each session it asked for, and what happened on the way, counted."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field


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
    refused: int = 0
    """How often its client was told that a session or a message could not be begun."""
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
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def new_work(self, story: str) -> Work:
        number = self.next_number()
        work = Work(number, story, numbers={number})
        self.works.append(work)
        return work

    def next_number(self) -> int:
        return next(self._numbers)
