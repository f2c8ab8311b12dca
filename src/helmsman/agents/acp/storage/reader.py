"""Common form of sessions and turns that are read from agents' files."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from helmsman.base.files import size_and_time
from helmsman.base.json_values import json_object
from helmsman.base.structs import replace
from helmsman.model.events import (
    AgentMessage,
    CommandExecution,
    FileChange,
    PastTurn,
    PathChange,
    UnknownItem,
    Usage,
    UserMessage,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime
    from pathlib import Path

    from helmsman.agents.protocol import SessionInfo
    from helmsman.model.events import Item, ItemStatus, TurnOutcome

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_PATHS: Final = ("file_path", "filePath", "path")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTurn:
    """Turn in the agent's files: its items and its usage. These agents give turns no ids."""

    items: tuple[Item, ...] = ()
    usage: Usage | None = None
    model: str | None = None
    began_at: datetime | None = None
    last_at: datetime | None = None
    cut_off: bool = False
    """True if it was interrupted, as far as the files say."""

    @property
    def message(self) -> str | None:
        """Last message of the agent."""
        said = [item.text for item in self.items if isinstance(item, AgentMessage) and item.text]
        return said[-1] if said else None

    @property
    def outcome(self) -> TurnOutcome | None:
        """Outcome; None if no end is recorded: no message follows the last action."""
        if self.cut_off:
            return "interrupted"
        return "completed" if self.items and isinstance(self.items[-1], AgentMessage) else None


class SessionReader(ABC):
    """Reads the files of one agent. Calls block, briefly; what cannot be read is left out."""

    home: Path
    """Directory that contains all sessions."""

    @abstractmethod
    def sessions(self) -> Iterator[SessionInfo]:
        """Yield all sessions, in any order."""

    @abstractmethod
    def find(self, session_id: str) -> SessionInfo | None:
        """Return a session, or None."""

    @abstractmethod
    def gather(self, session_id: str) -> Gathering | None:
        """Return the turns of a session, or None."""

    @abstractmethod
    def stamps(self) -> Iterator[tuple[str, int, int]]:
        """Yield a key for every session, with its size and its modification time in nanoseconds, to detect changes."""

    @abstractmethod
    def by_key(self, key: str) -> tuple[SessionInfo, Gathering] | None:
        """Return the session of such a key, or None if it was removed."""

    def turns(self, session_id: str) -> list[StoredTurn] | None:
        """Its turns, oldest first; None if it is not there."""
        gathered = self.gather(session_id) if _ID.fullmatch(session_id) else None
        return None if gathered is None else gathered.turns

    def history(self, session_id: str) -> tuple[PastTurn, ...] | None:
        """Its turns as callers see them, by their numbers; None if it is not there."""
        turns = self.turns(session_id)
        if turns is None:
            return None
        return tuple(
            PastTurn(id=str(number), status=turn.outcome or "interrupted", items=turn.items)
            for number, turn in enumerate(turns, 1)
        )

    def spent(self, session_id: str) -> Usage:
        """Return the usage of all its turns."""
        return used_in(self.turns(session_id) or ())


def used_in(turns: Iterable[StoredTurn]) -> Usage:
    """Return the total usage of turns."""
    return sum((turn.usage for turn in turns if turn.usage is not None), Usage())


class Gathering:
    """Collects turns: each begins with a message of the user."""

    def __init__(self) -> None:
        self.turns: list[StoredTurn] = []
        self._count = 0

    def asked(self, words: str, at: datetime | None) -> None:
        item = UserMessage(id=self._id("u"), text=words)
        self.turns.append(StoredTurn(items=(item,), began_at=at, last_at=at))

    def said(self, words: str, at: datetime | None) -> None:
        if words:
            self.did(AgentMessage(id=self._id("m"), text=words), at)

    def called(
        self,
        name: str,
        given: Mapping[str, Any],
        at: datetime | None,
        *,
        output: str = "",
        exit_code: int | None = None,
        failed: bool = False,
    ) -> None:
        """Record a tool call."""
        item_id = self._id("t")
        status: ItemStatus = "failed" if failed else "completed"
        path = next((str(given[key]) for key in _PATHS if isinstance(given.get(key), str)), None)
        item: Item
        if isinstance(given.get("command"), str) and path is None:
            item = CommandExecution(
                id=item_id, status=status, command=given["command"], output=output, exit_code=exit_code
            )
        elif path is not None and re.match(r"(?i)edit|write|create|replace|str_replace", name):
            item = FileChange(id=item_id, status=status, changes=(PathChange(path=path, kind="update"),))
        else:
            item = UnknownItem(id=item_id, status=status, name=name, payload=dict(given))
        self.did(item, at)

    def did(self, item: Item, at: datetime | None) -> None:
        self._change(lambda turn: replace(turn, items=(*turn.items, item), last_at=at or turn.last_at))

    def used(self, usage: Usage, model: str | None, at: datetime | None) -> None:
        self._change(
            lambda turn: replace(
                turn, usage=(turn.usage or Usage()) + usage, model=model or turn.model, last_at=at or turn.last_at
            )
        )

    def cut_off(self) -> None:
        self._change(lambda turn: replace(turn, cut_off=True))

    def _change(self, change: Callable[[StoredTurn], StoredTurn]) -> None:
        if self.turns:
            self.turns[-1] = change(self.turns[-1])

    def _id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"


class SeenFiles:
    """Cache of parsed files. A changed file is parsed again."""

    def __init__(self, read: Callable[[Path], SessionInfo | None]) -> None:
        self._read = read
        self._known: dict[Path, tuple[tuple[int, int], SessionInfo | None]] = {}

    def get(self, path: Path) -> SessionInfo | None:
        seen = size_and_time(path)
        known = self._known.get(path)
        if known is None or known[0] != seen:
            known = self._known[path] = (seen, self._read(path))
        return known[1]


def is_id(session_id: str) -> bool:
    """Return whether this is a valid session id, and thus safe in a path."""
    return _ID.fullmatch(session_id) is not None


def json_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of a file, one per line; skip anything else."""
    try:
        with path.open("rb") as file:
            for line in file:
                if value := json_object(line):
                    yield value
    except OSError:
        return
