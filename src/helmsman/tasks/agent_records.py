"""Determine the state of tasks that no process follows, from the remaining evidence.

Three witnesses are left: the detached engine, which may still run the turn; the agent's own files, which have the end of
every turn that ended; and the time since the last event. `AgentRecords` asks them, and `reconcile` draws the conclusion.

The most important rule: nothing stays `working` for ever, and nothing is called `failed` that may still come to an end.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import anyio.to_thread

from helmsman.agents.registry import HOMES
from helmsman.errors import InvalidInput
from helmsman.model.events import USAGE_LIMIT
from helmsman.tasks.model import TaskChanges

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from helmsman.agents.protocol import RecordedTurn, SessionIndex, SessionInfo
    from helmsman.agents.registry import Agents
    from helmsman.model.events import PastTurn
    from helmsman.settings import Settings
    from helmsman.tasks.model import Task

WAITS: Final = timedelta(days=7)
"""Longest time that a task waits for a client that can run it."""
WAITING: Final = (
    "It was acknowledged by a hub that ended before it began. It begins by itself when a client connects that has the "
    "same environment and settings as the one that asked for it; cancel it if it is not wanted any more."
)

GRACE: Final = timedelta(seconds=10)
"""Grace period: a Codex whose parent has died records the end of its turn a moment later; some versions finish the turn
first.
"""

CLOCK_SKEW: Final = timedelta(seconds=2)
_LAST_TURNS_KEPT: Final = 10_000

_ROUNDING: Final = timedelta(milliseconds=10)
"""Tolerance between two clocks if the time of the request was recorded: Codex records milliseconds."""


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

    async def changes(self, task: Task, siblings: Sequence[Task]) -> TaskChanges | None:
        """Return the necessary changes of a local task, or None if it is correct. `siblings` are its session's tasks."""
        return await anyio.to_thread.run_sync(self._changes, task, siblings)

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
                f"Session {session_id} is archived. Bring it back with unarchive, then go on.", parameter="session_id"
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

    def _changes(self, task: Task, siblings: Sequence[Task]) -> TaskChanges | None:
        if task.has_living_owner:
            return None
        agent, engine = self._agents.get(task.agent), task.engine
        engine_alive: bool | None = None
        if agent is not None and engine is not None:
            engine_alive = any(agent.engine_is_alive(settings, engine) for settings, _ in tuple(self._homes.values()))
        return reconcile(
            task,
            self._own_turn(task, siblings),
            datetime.now(UTC),
            self._agents.title(task.agent),
            engine_alive=engine_alive,
        )

    def _own_turn(self, task: Task, siblings: Sequence[Task]) -> RecordedTurn | None:
        """Return the turn of this task. If its id was not recorded, its time distinguishes it from those of other tasks."""
        if task.session_id is None:
            return None
        others = [other for other in siblings if other.id != task.id and not other.is_waiting]
        begin = _asked(task)
        earlier = [other for other in others if _asked(other) < begin]
        if task.status == "pending" and earlier:
            return None  # a session's later tasks record their start before they begin
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


def reconcile(
    task: Task, turn: RecordedTurn | None, now: datetime, agent: str, *, engine_alive: bool | None = None
) -> TaskChanges | None:
    """Return the changes for `Registry.update` of a task without a living owner, or None if it is correct.

    Cloud tasks are left alone: only the cloud knows about them.

    Args: task: The task. turn: The record of the turn that it names or, if one of both has no id, of the likeliest. now: The
    time. agent: The agent's name in sentences. engine_alive: Whether its detached engine runs; None if it has none.
    """
    if task.origin == "cloud" or task.has_ended:
        return None
    if task.is_waiting:
        return _of_waiting(task, now)
    turn = _own_turn(task, turn)
    if turn is not None and turn.outcome != "open":
        return None if may_go_on(task, turn) else _ended(task, turn, now, agent)
    if engine_alive and (turn is not None or task.turn_id is not None):
        return None if task.status == "working" else TaskChanges(status="working")
    # Ignore signs from the future: the clock was set back. Allow for an engine that has not recorded its input yet.
    may_be_known = engine_alive is None or (engine_alive and task.status == "working")
    if task.is_running and may_be_known and abs(now - _last_sign_of(task, turn)) < GRACE:
        return None
    if turn is not None:
        return _lost(task, agent)
    if task.status == "unknown" or (engine_alive and task.input_position is not None):
        return None  # the next hub asks the agent's supervisor how much input it received
    return TaskChanges(status="unknown", note=_what_is_known(task, agent))


def may_go_on(task: Task, turn: RecordedTurn) -> bool:
    """Return whether a usage limit ended the turn while no hub ran, and its caller wants it to resume, or to be asked.

    The next hub does that (`helmsman.capabilities.limits`).
    """
    reached = turn.outcome == "failed" and turn.error is not None and turn.error.code == USAGE_LIMIT
    return task.is_hubs and task.engine is not None and reached and task.on_limit in ("ask", "wait")


def _of_waiting(task: Task, now: datetime) -> TaskChanges | None:
    if now - (task.resumes_at or task.created_at) > WAITS:
        note = f"It never began: no client came in {WAITS.days} days with the environment it was asked from. Start it again."
        return TaskChanges(status="canceled", note=note, idempotency_key=None)
    return None if task.note is not None else TaskChanges(note=WAITING)


def _own_turn(task: Task, turn: RecordedTurn | None) -> RecordedTurn | None:
    """Return the turn if it belongs to this task. A turn without a known id must not have begun before the task."""
    if turn is None or (task.turn_id is not None and turn.turn_id is not None):
        return turn
    began = turn.began_at is not None and turn.began_at >= task.created_at - CLOCK_SKEW
    return turn if began else None


def _ended(task: Task, turn: RecordedTurn, now: datetime, agent: str) -> TaskChanges:
    changes = TaskChanges(completed_at=turn.ended_at or now)
    if turn.message is not None:
        changes["result"] = turn.message
    if turn.usage is not None:
        changes["usage"] = task.used_before + turn.usage
    if turn.model is not None:
        changes["model"] = turn.model
    if turn.turn_id is not None:
        changes["turn_id"] = turn.turn_id
    if turn.outcome == "completed":
        changes["status"] = "completed"
    elif turn.outcome == "interrupted":
        changes["status"] = "canceled"
        changes["note"] = "The turn was interrupted. Send the session a message to continue."
    else:
        error = turn.error
        changes["status"] = "failed"
        changes["error"] = {
            "code": "turn_failed" if error is None else error.code,
            "message": f"{agent} ended the turn as failed and did not say why." if error is None else error.message,
            "retryable": error is not None and error.retryable,
        }
    return changes


def _lost(task: Task, agent: str) -> TaskChanges:
    message = f"{agent} was stopped in the middle of this turn, and nothing is left that could finish it. "
    message += f"Send the session {task.session_id or ''} a message such as “continue” to continue.".replace("  ", " ")
    return TaskChanges(status="failed", error={"code": "engine_lost", "message": message, "retryable": True})


def _what_is_known(task: Task, agent: str) -> str:
    owner = "The process that followed this task has ended"
    if task.session_id is None:
        return f"{owner} before a session had begun, so it probably never ran. Start it again if it is still wanted."
    if task.turn_id is None:
        return f"{owner} before {agent} had begun the turn. Look at session {task.session_id} before starting it again."
    return f"{owner}, and {agent}'s storage has no record of its turn. Look at session {task.session_id} for what was done."


def _last_sign_of(task: Task, turn: RecordedTurn | None) -> datetime:
    written = None if turn is None else turn.last_written_at
    return max(time for time in (task.updated_at, task.last_event_at, written) if time is not None)
