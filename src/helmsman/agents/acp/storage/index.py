"""Index of the sessions of one agent on disk (`helmsman.agents.protocol.SessionIndex`)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from helmsman.agents.protocol import RecordedTurn
from helmsman.agents.spending import SessionSpending, TurnSpending
from helmsman.base.files import is_one_of
from helmsman.model.events import Usage

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from helmsman.agents.acp.storage.reader import SessionReader, StoredTurn
    from helmsman.agents.protocol import SessionInfo
    from helmsman.model.events import PastTurn


class AgentSessions:
    """See `helmsman.agents.protocol.SessionIndex`."""

    def __init__(self, reader: SessionReader) -> None:
        self._reader = reader

    def list(
        self,
        *,
        directories: Collection[str] | None = None,
        query: str | None = None,
        limit: int = 50,
        cursor: str | None = None,
        include_archived: bool = False,
    ) -> tuple[Sequence[SessionInfo], str | None]:
        found = [
            info
            for info in self._reader.sessions()
            if info.parent_id is None  # sub-agents have separate sessions
            and is_one_of(info.directory, directories)
            and (include_archived or not info.archived)
            and (query is None or query.lower() in _words(info))
        ]
        found.sort(key=_place, reverse=True)
        if cursor is not None:
            found = [info for info in found if _cursor(info) < cursor]
        page = found[:limit]
        return page, _cursor(page[-1]) if page and len(found) > limit else None

    def find(self, session_id: str) -> SessionInfo | None:
        return self._reader.find(session_id)

    def turn(self, session_id: str, turn_id: str | None, *, since: datetime | None = None) -> RecordedTurn | None:
        """Find a turn by its time: these agents give turns no ids."""
        turns = self._reader.turns(session_id) or []
        if since is not None:
            turns = [turn for turn in turns if turn.began_at is not None and turn.began_at >= since][:1]
        return _recorded(turns[-1], None) if turns else None

    def last_turn(self, info: SessionInfo) -> RecordedTurn | None:
        return next(iter(self.turns(info.session_id)), None)

    def turns(self, session_id: str) -> Iterator[RecordedTurn]:
        turns = self._reader.turns(session_id) or []
        before: list[Usage] = []
        spent = Usage()
        for turn in turns:
            before.append(spent)
            spent += turn.usage or Usage()
        for turn, used in zip(reversed(turns), reversed(before), strict=True):
            yield _recorded(turn, used)

    def history(self, info: SessionInfo) -> tuple[PastTurn, ...] | None:
        return self._reader.history(info.session_id)


class AgentSpending:
    """See `helmsman.agents.spending.SpendingFiles`."""

    def __init__(self, agent: str, reader: SessionReader) -> None:
        self.home = reader.home
        self._agent = agent
        self._reader = reader

    def files(self) -> Iterator[tuple[str, int, int]]:
        return self._reader.stamps()

    def names(self, _turn_id: str) -> bool:
        return False

    def read(self, key: str) -> SessionSpending | None:
        found = self._reader.by_key(key)
        if found is None:
            return None
        info, gathered = found
        return SessionSpending(
            agent=self._agent,
            session_id=info.session_id,
            directory=info.directory,
            created_at=None if info.created_at is None else info.created_at.timestamp(),
            parent_id=info.parent_id,
            forked_from=None,
            turns=tuple(_spending(turn) for turn in gathered.turns if turn.usage is not None),
        )


def _spending(turn: StoredTurn) -> TurnSpending:
    usage = turn.usage or Usage()
    began = 0.0 if turn.began_at is None else turn.began_at.timestamp()
    return TurnSpending(None, began, turn.model, *usage.counts, usage.cost_usd)


def _recorded(turn: StoredTurn, before: Usage | None) -> RecordedTurn:
    is_over = turn.outcome is not None
    return RecordedTurn(
        outcome=turn.outcome or "open",
        message=turn.message,
        usage=turn.usage,
        spent_before=before if turn.usage is not None else None,
        model=turn.model,
        began_at=turn.began_at,
        ended_at=turn.last_at if is_over else None,
        last_written_at=turn.last_at,
    )


def _words(info: SessionInfo) -> str:
    return " ".join(filter(None, (info.name, info.first_prompt, info.directory, info.session_id))).lower()


def _place(info: SessionInfo) -> tuple[datetime, str]:
    return info.updated_at, info.session_id


def _cursor(info: SessionInfo) -> str:
    when, session_id = _place(info)
    return f"{when.astimezone(UTC).isoformat(timespec='microseconds')} {session_id}"
