"""Sessions in the files of agents, which are read without starting the agents.

An agent's reader finds its sessions and collects their turns. Pages of a list, records of turns, history and spending follow
from these here, for all agents with a file or a database per session (Codex has too many and too large files for that).
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final

from helmsman.agents.protocol import RecordedTurn
from helmsman.agents.spending import SessionSpending, TurnSpending
from helmsman.base.files import is_one_of, size_and_time
from helmsman.base.json_values import json_object
from helmsman.errors import InvalidInput
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
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from helmsman.agents.protocol import SessionInfo
    from helmsman.model.events import Failure, Item, ItemStatus, TurnOutcome

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,80}")
_PATHS: Final = ("file_path", "filePath", "path")


@dataclass(slots=True, kw_only=True)
class StoredTurn:
    """Turn in the files: its items by their ids, and its usage. Not every agent gives turns ids.

    `outcome` is None if no end is recorded.
    """

    id: str | None = None
    items: dict[str, Item] = field(default_factory=dict[str, "Item"])
    outcome: TurnOutcome | None = None
    failure: Failure | None = None
    usage: Usage | None = None
    model: str | None = None
    began_at: datetime | None = None
    last_at: datetime | None = None

    @property
    def message(self) -> str | None:
        """Last message of the agent."""
        said = [item.text for item in self.items.values() if isinstance(item, AgentMessage) and item.text]
        return said[-1] if said else None

    def recorded(self, before: Usage | None = None) -> RecordedTurn:
        """Return the record of the turn. `before` is the usage of the session until then."""
        return RecordedTurn(
            turn_id=self.id,
            outcome=self.outcome or "open",
            message=self.message,
            error=self.failure,
            usage=self.usage,
            spent_before=None if self.usage is None else before,
            model=self.model,
            began_at=self.began_at,
            ended_at=None if self.outcome is None else self.last_at,
            last_written_at=self.last_at,
        )


class SessionReader(ABC):
    """Reads the files of one agent. Calls block, briefly; what cannot be read is left out.

    It is the agent's `helmsman.agents.protocol.SessionIndex` and its `helmsman.agents.spending.SpendingFiles`.
    """

    unfinished: ClassVar[str] = "interrupted"
    """Status in the history of a turn without a recorded end."""
    home: Path
    """Directory that contains all sessions."""

    # --- implemented for each agent ----------------------------------------------------------------------------------

    @abstractmethod
    def sessions(self) -> Iterator[SessionInfo]:
        """Yield all sessions, in any order."""

    @abstractmethod
    def find(self, session_id: str) -> SessionInfo | None:
        """Return a session, or None."""

    @abstractmethod
    def stored_turns(self, session_id: str) -> Sequence[StoredTurn] | None:
        """Return the turns of a session, oldest first; None if it is not there."""

    @abstractmethod
    def files(self) -> Iterator[tuple[str, int, int]]:
        """Yield a key for every session, with its size and its modification time in nanoseconds, to detect changes."""

    def read(self, key: str) -> SessionSpending | None:
        """Return the spending of the session of a key, by default its id; None if it was removed."""
        info, turns = self.find(key), self.stored_turns(key)
        return None if info is None or turns is None else spending_of(info, turns)

    def spent(self, session_id: str) -> Usage:
        """Return the usage of all turns of a session."""
        return used_in(self.stored_turns(session_id) or ())

    # --- the same for all agents -------------------------------------------------------------------------------------

    def list(
        self,
        *,
        directories: Collection[str] | None = None,
        query: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        include_archived: bool = False,
        include_sub_agents: bool = False,
    ) -> tuple[Sequence[SessionInfo], str | None]:
        found = [
            info
            for info in self.sessions()
            if (include_sub_agents or info.parent_id is None)  # sub-agents have separate sessions
            and is_one_of(info.directory, directories)
            and (include_archived or not info.archived)
            and (query is None or query.casefold() in _words(info))
        ]
        found.sort(key=_place, reverse=True)
        if cursor is not None:
            _check_cursor(cursor)
            found = [info for info in found if _cursor(info) < cursor]
        page = found[:limit]
        return page, _cursor(page[-1]) if page and len(found) > limit else None

    def turn(self, session_id: str, turn_id: str | None, *, since: datetime | None = None) -> RecordedTurn | None:
        turns = self.stored_turns(session_id) or ()
        # Ids can decide only if this agent records any.
        if turn_id is not None and any(turn.id is not None for turn in turns):
            turns = [turn for turn in turns if turn.id == turn_id]
        elif since is not None:
            # Without ids, the first turn that began after the message was sent is its turn.
            turns = [turn for turn in turns if turn.began_at is not None and turn.began_at >= since][:1]
        return turns[-1].recorded() if turns else None

    def last_turn(self, info: SessionInfo) -> RecordedTurn | None:
        return next(iter(self.turns(info.session_id)), None)

    def turns(self, session_id: str) -> Iterable[RecordedTurn]:
        # Spending before a turn needs all earlier turns, so read forwards and reverse.
        recorded: list[RecordedTurn] = []
        spent = Usage()
        for turn in self.stored_turns(session_id) or ():
            recorded.append(turn.recorded(spent))
            spent += turn.usage or Usage()
        return reversed(recorded)

    def history(self, info: SessionInfo) -> tuple[PastTurn, ...] | None:
        return self.past_turns(info.session_id)

    def past_turns(self, session_id: str) -> tuple[PastTurn, ...] | None:
        """Return the turns of a session with their items, by their numbers if they have no ids; None if it is not there."""
        turns = self.stored_turns(session_id)
        if turns is None:
            return None
        return tuple(
            PastTurn(
                id=turn.id or str(number), status=turn.outcome or self.unfinished, items=tuple(turn.items.values())
            )
            for number, turn in enumerate(turns, 1)
        )

    def names(self, _turn_id: str) -> bool:
        return False

    def session_of(self, _key: str) -> str | None:
        return None


def used_in(turns: Iterable[StoredTurn]) -> Usage:
    """Return the total usage of turns."""
    return sum((turn.usage for turn in turns if turn.usage is not None), Usage())


def spending_of(info: SessionInfo, turns: Iterable[StoredTurn]) -> SessionSpending:
    """Return the spending of a session on each turn that has reported usage."""
    return SessionSpending(
        agent=info.agent,
        session_id=info.session_id,
        directory=info.directory,
        created_at=None if info.created_at is None else info.created_at.timestamp(),
        parent_id=info.parent_id,
        forked_from=None,
        turns=tuple(
            TurnSpending(None, _seconds(turn.began_at), turn.model, *turn.usage.counts, turn.usage.cost_usd)
            for turn in turns
            if turn.usage is not None
        ),
    )


def _seconds(at: datetime | None) -> float:
    return 0.0 if at is None else at.timestamp()


def _words(info: SessionInfo) -> str:
    return " ".join(filter(None, (info.name, info.first_prompt, info.directory, info.session_id))).casefold()


def _place(info: SessionInfo) -> tuple[datetime, str]:
    return info.updated_at, info.session_id


def _cursor(info: SessionInfo) -> str:
    when, session_id = _place(info)
    return f"{when.astimezone(UTC).isoformat(timespec='microseconds')} {session_id}"


def _check_cursor(cursor: str) -> None:
    try:
        datetime.fromisoformat(cursor.partition(" ")[0])
    except ValueError:
        raise InvalidInput(f"{cursor!r:.80} is not a cursor. Use one that a list gave.", parameter="cursor") from None


# --- turns without ids, from messages in order ------------------------------------------------------------------------


class Gathering:
    """Collects turns: each begins with a message of the user, and is completed if it ends in a message of the agent."""

    def __init__(self) -> None:
        self.turns: list[StoredTurn] = []
        self._count = 0

    def asked(self, words: str, at: datetime | None) -> None:
        item = UserMessage(id=self._id("u"), text=words)
        self.turns.append(StoredTurn(items={item.id: item}, began_at=at, last_at=at))

    def said(self, words: str, at: datetime | None) -> None:
        if words:
            self._did(AgentMessage(id=self._id("m"), text=words), at)

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
        # A path comes with tools on files, even if they also have a command.
        if isinstance(given.get("command"), str) and path is None:
            item = CommandExecution(
                id=item_id, status=status, command=given["command"], output=output, exit_code=exit_code
            )
        elif path is not None and re.match(r"(?i)edit|write|create|replace|str_replace", name):
            item = FileChange(id=item_id, status=status, changes=(PathChange(path=path, kind="update"),))
        else:
            item = UnknownItem(id=item_id, status=status, name=name, payload=dict(given))
        self._did(item, at)

    def _did(self, item: Item, at: datetime | None) -> None:
        # Anything before the first message of the user belongs to no turn.
        for turn in self.turns[-1:]:
            turn.items[item.id] = item
            turn.last_at = at or turn.last_at
            if turn.outcome != "interrupted":
                # A turn that continues after a message is not complete.
                turn.outcome = "completed" if isinstance(item, AgentMessage) else None

    def used(self, usage: Usage, model: str | None, at: datetime | None) -> None:
        for turn in self.turns[-1:]:
            turn.usage = (turn.usage or Usage()) + usage
            turn.model, turn.last_at = model or turn.model, at or turn.last_at

    def cut_off(self) -> None:
        for turn in self.turns[-1:]:
            turn.outcome = "interrupted"

    def _id(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"


# --- files ------------------------------------------------------------------------------------------------------------


class SeenFiles:
    """Cache of parsed files. A changed file is parsed again."""

    def __init__(self, read: Callable[[Path], SessionInfo | None]) -> None:
        self._read = read
        self._known: dict[Path, tuple[tuple[int, int], SessionInfo | None]] = {}

    def get(self, path: Path) -> SessionInfo | None:
        # Size and time, as agents only append to these files.
        seen = size_and_time(path)
        known = self._known.get(path)
        if known is None or known[0] != seen:
            known = self._known[path] = (seen, self._read(path))
        return known[1]

    def all(self, paths: Iterable[Path]) -> Iterator[SessionInfo]:
        """Yield the sessions in these files."""
        return (info for path in paths if (info := self.get(path)) is not None)


def is_id(session_id: str) -> bool:
    """Return whether this is a valid session id, and thus safe in a path."""
    return _ID.fullmatch(session_id) is not None


def json_lines(path: Path, is_wanted: Callable[[bytes], object] = lambda line: True) -> Iterator[Mapping[str, Any]]:
    """Yield the JSON objects of a file, one per line; skip anything else, such as half a line that is being written.

    Only lines that are wanted are parsed: parsing every line of a large file takes seconds.
    """
    try:
        with path.open("rb") as file:
            for line in file:
                if is_wanted(line) and (value := json_object(line)):
                    yield value
    except OSError:
        return
