"""What is read of an agent's own files, in one shape for all: sessions, and the turns of one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from helmsman.agents.protocol import PastTurn
from helmsman.model.events import AgentMessage, UserMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    from helmsman.agents.protocol import SessionInfo
    from helmsman.model.events import Item, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """A turn as the agent's files have it: what was asked, what was done, and what it used."""

    items: tuple[Item, ...] = ()
    usage: Usage | None = None
    model: str | None = None
    began_at: datetime | None = None
    last_at: datetime | None = None

    @property
    def message(self) -> str | None:
        """The last thing the agent said."""
        said = [item.text for item in self.items if isinstance(item, AgentMessage) and item.text]
        return said[-1] if said else None


class SessionReader(Protocol):
    """Reads the files of one agent. Calls block, briefly; what cannot be read is left out."""

    def sessions(self) -> Iterator[SessionInfo]:
        """All sessions, in any order. May be without what only a look into the file would tell."""
        ...

    def find(self, session_id: str) -> SessionInfo | None:
        """One session; None if it is not there."""
        ...

    def turns(self, session_id: str) -> list[StoredTurn] | None:
        """Its turns, oldest first; None if it is not there."""
        ...

    def history(self, session_id: str) -> tuple[PastTurn, ...] | None:
        """Its turns as callers see them; None if it is not there."""
        ...


class Gathering:
    """Turns in the making: each begins with what a person said."""

    def __init__(self) -> None:
        self.turns: list[StoredTurn] = []
        self._count = 0

    def asked(self, words: str, at: datetime | None) -> None:
        self._count += 1
        item = UserMessage(id=f"u{self._count}", text=words)
        self.turns.append(StoredTurn(items=(item,), began_at=at, last_at=at))

    def said(self, words: str, at: datetime | None) -> None:
        if words:
            self._count += 1
            self.did(AgentMessage(id=f"m{self._count}", text=words), at)

    def did(self, item: Item, at: datetime | None) -> None:
        if self.turns:
            last = self.turns[-1]
            self.turns[-1] = replace(last, items=(*last.items, item), last_at=at or last.last_at)

    def used(self, usage: Usage, model: str | None, at: datetime | None) -> None:
        if self.turns:
            last = self.turns[-1]
            total = usage if last.usage is None else last.usage + usage
            self.turns[-1] = replace(last, usage=total, model=model or last.model, last_at=at or last.last_at)


def past_turns(turns: list[StoredTurn] | None) -> tuple[PastTurn, ...] | None:
    """Turns as callers see them. No agent names its turns, so they are counted."""
    if turns is None:
        return None
    return tuple(PastTurn(id=str(number), status="completed", items=turn.items) for number, turn in enumerate(turns, 1))


def json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """The objects in a file of lines; what is no object is left out."""
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    continue
                if isinstance(value, dict):
                    yield value
    except OSError:
        return


@dataclass(slots=True)
class Cache:
    """What was read of files, by path; of a file that has changed since it is read again."""

    _known: dict[Path, tuple[tuple[int, int], SessionInfo | None]] = field(
        default_factory=dict["Path", "tuple[tuple[int, int], SessionInfo | None]"]
    )

    def get(self, path: Path, read: Callable[[Path], SessionInfo | None]) -> SessionInfo | None:
        try:
            status = path.stat()
        except OSError:
            return None
        stamp = (status.st_mtime_ns, status.st_size)
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            known = self._known[path] = (stamp, read(path))
        return known[1]
