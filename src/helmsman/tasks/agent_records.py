"""Read the records that agents keep of their sessions and turns: the evidence where no process follows a task."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import anyio.to_thread

from helmsman.agents.registry import HOMES
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from helmsman.agents.protocol import RecordedTurn, SessionIndex, SessionInfo
    from helmsman.agents.registry import Agents
    from helmsman.model.events import PastTurn
    from helmsman.settings import Settings
    from helmsman.tasks.model import Task

CLOCK_SKEW: Final = timedelta(seconds=2)
WRITES_AFTER: Final = timedelta(seconds=5)
"""Time after the last event of a session in which its agent may still write to its files."""
_LAST_TURNS_KEPT: Final = 10_000

_ROUNDING: Final = timedelta(milliseconds=10)
"""Tolerance between two clocks if the time of the request was recorded: Codex records milliseconds."""


class TaskEvidence(NamedTuple):
    """What an agent has recorded of a task's turn, and whether its detached engine runs; None if it has none."""

    turn: RecordedTurn | None
    engine_alive: bool | None


class AgentRecords:
    """Records that agents keep of their sessions and turns. All methods read from disk, on a thread."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self._homes: dict[tuple[object, ...], tuple[Settings, Mapping[str, SessionIndex]]] = {}
        self._last_turns: dict[str, tuple[datetime, RecordedTurn | None]] = {}
        """Last turns by session, valid until the session changes: lists ask for the same ones repeatedly."""

    def indexes_for(self, settings: Settings, env: Mapping[str, str]) -> Mapping[str, SessionIndex]:
        """Return the agents' session indexes for these settings and this environment, by name. They are searched from now
        on.
        """
        homes = tuple(sorted((name, value) for name, value in env.items() if name in HOMES))
        key = settings.codex_home, settings.codex_remote, settings.claude_home, homes
        if key not in self._homes:
            self._homes[key] = settings, self._agents.indexes(settings, env)
        return self._homes[key][1]

    async def evidence(self, task: Task, siblings: Sequence[Task]) -> TaskEvidence:
        """Return the evidence about a local task without a living owner. `siblings` are its session's tasks."""
        return await anyio.to_thread.run_sync(self._evidence, task, siblings)

    async def find(self, session_id: str) -> SessionInfo | None:
        """Return a session on disk."""
        return await anyio.to_thread.run_sync(self.look_up, session_id)

    def look_up(self, session_id: str) -> SessionInfo | None:
        """Return the same, for callers on a worker thread."""
        found = self._find(session_id)
        return None if found is None else found[0]

    async def refuse_archived(self, session_id: str) -> None:
        """Make sure that a session is not archived. Versions of Codex differ: some refuse, some find nothing, one continues.

        Raises:
            InvalidInput: It is.
        """
        info = await self.find(session_id)
        if info is not None and info.archived:
            raise InvalidInput(
                f"Session {session_id} is archived. Unarchive it first, then send the message again.",
                parameter="session_id",
            )

    async def turn(self, session_id: str, turn_id: str | None = None) -> RecordedTurn | None:
        """Return Codex's record of a turn, by default the last one."""
        return await anyio.to_thread.run_sync(self._turn, session_id, turn_id, None)

    async def last_turns(
        self, sessions: Sequence[SessionInfo], indexes: Mapping[str, SessionIndex]
    ) -> dict[str, RecordedTurn | None]:
        """Return the last turn of each of these sessions, by its id; `indexes`, by agent, are those that have listed
        them.
        """
        known = {info.session_id: self._last_turns.get(info.session_id) for info in sessions}
        if any((last := known[info.session_id]) is None or last[0] != info.updated_at for info in sessions):
            return await anyio.to_thread.run_sync(self._read_last_turns, sessions, indexes)
        return {session_id: last[1] for session_id, last in known.items() if last is not None}

    def _read_last_turns(
        self, sessions: Sequence[SessionInfo], indexes: Mapping[str, SessionIndex]
    ) -> dict[str, RecordedTurn | None]:
        turns: dict[str, RecordedTurn | None] = {}
        for info in sessions:
            last = self._last_turns.get(info.session_id)
            if last is None or last[0] != info.updated_at:
                # Dropped as a whole, because each entry is quickly read again.
                if len(self._last_turns) >= _LAST_TURNS_KEPT:
                    self._last_turns.clear()
                last = self._last_turns[info.session_id] = info.updated_at, indexes[info.agent].last_turn(info)
            turns[info.session_id] = last[1]
        return turns

    async def turns(self, session_id: str) -> list[RecordedTurn]:
        """Return an agent's records of a session's turns, last first."""
        return await anyio.to_thread.run_sync(self._turns, session_id)

    async def history(self, session_id: str) -> tuple[PastTurn, ...]:
        """Return the turns of a session, oldest first, as far as its agent has recorded them."""
        return await anyio.to_thread.run_sync(self._history, session_id)

    def _history(self, session_id: str) -> tuple[PastTurn, ...]:
        found = self._find(session_id)
        return (None if found is None else found[1].history(found[0])) or ()

    def _turns(self, session_id: str) -> list[RecordedTurn]:
        found = self._find(session_id)
        return [] if found is None else list(found[1].turns(session_id))

    def _evidence(self, task: Task, siblings: Sequence[Task]) -> TaskEvidence:
        agent, engine = self._agents.get(task.agent), task.engine
        engine_alive: bool | None = None
        if agent is not None and engine is not None:
            # The engine belongs to the home of one client, and the task does not say of which.
            engine_alive = any(agent.engine_is_alive(settings, engine) for settings, _ in tuple(self._homes.values()))
        return TaskEvidence(self._own_turn(task, siblings), engine_alive)

    def _own_turn(self, task: Task, siblings: Sequence[Task]) -> RecordedTurn | None:
        """Return the turn of this task. If its id was not recorded, its time distinguishes it from those of other tasks."""
        if task.session_id is None:
            return None
        others = [other for other in siblings if other.id != task.id and not other.is_waiting]
        begin = _asked(task)
        earlier = [other for other in others if _asked(other) < begin]
        if task.status == "pending" and earlier:
            return None  # a session's later tasks record their start before they begin
        # The turns of a session follow each other, so this one began after those of earlier tasks had ended.
        ends = [other.completed_at for other in earlier if other.completed_at is not None]
        skew = CLOCK_SKEW if task.asked_at is None else _ROUNDING
        turn = self._turn(task.session_id, task.turn_id, max([begin - skew, *ends]))
        if turn is None or task.turn_id is not None or turn.began_at is None:
            return turn
        named = turn.turn_id is not None and any(other.turn_id == turn.turn_id for other in others)
        is_a_later_one = any(begin < _asked(other) <= turn.began_at for other in others)
        return None if named or is_a_later_one else turn

    def _turn(self, session_id: str, turn_id: str | None, since: datetime | None) -> RecordedTurn | None:
        found = self._find(session_id)
        return None if found is None else found[1].turn(session_id, turn_id, since=since)

    def _find(self, session_id: str) -> tuple[SessionInfo, SessionIndex] | None:
        for index in self._indexes():
            if (info := index.find(session_id)) is not None:
                return info, index
        return None

    def _indexes(self) -> Iterator[SessionIndex]:
        for _, indexes in tuple(self._homes.values()):
            yield from indexes.values()


def _asked(task: Task) -> datetime:
    return task.asked_at or task.created_at
