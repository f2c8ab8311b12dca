"""Upkeep of a session: forget its last turns, compact it, name it, put it away, bring it back, give it a goal.

All of it works on any session Codex has on disk, whether or not it is loaded. What would change the history under a running
turn is refused while one is running.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread

from helmsman.agents.protocol import Begun, Capability, Engine, Goal, OwnTerminal
from helmsman.agents.registry import usable
from helmsman.base.truncate import counted
from helmsman.errors import EngineTimeout, InvalidInput, SessionLocked, SessionNotFound
from helmsman.git.turn_snapshots import forget_snapshots
from helmsman.model.events import (
    AgentMessage,
    GoalChanged,
    MessageQueued,
    MessageUnqueued,
    PastTurn,
    SessionRenamed,
    TurnsForgotten,
)
from helmsman.model.inputs import turn_input
from helmsman.model.nature import ACTS, ARRANGES, BEGINS, READS, STOPS, verb
from helmsman.steering.turn_errors import busy
from helmsman.steering.turn_runner import towards

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.sessions.state import QueuedMessage
    from helmsman.steering.core import Steering

MAX_NAME_CHARS: Final = 200
MAX_LABEL_CHARS: Final = 50
MAX_GOAL_CHARS: Final = 4000

_BEGIN_SECONDS: Final = 10.0
"""Timeout for Codex to report that a requested turn has begun; it usually takes some milliseconds."""

_NAMED_SECONDS: Final = 2.0


class Upkeep:
    """`Helmsman.extras.upkeep`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm

    @verb(ACTS)
    async def roll_back(self, session_id: str, turns: int = 1) -> Session:
        """Forget the last turns of a session. Files stay as the turns left them.

        Raises:
            InvalidInput: The session has fewer turns.
            SessionBusy: A turn is running in it.
            Unsupported: This Codex cannot.
        """
        if turns < 1:
            raise InvalidInput(f"turns cannot be {turns}. Use a number from 1 on.", parameter="turns")
        await self._helm.require_own(session_id, "make it forget turns")
        await self._helm.agent_records.refuse_archived(session_id)
        session, engine = await self._helm.load(session_id, Capability.ROLL_BACK)
        past = await engine.history(session.id)
        if turns > len(past):
            raise InvalidInput(
                f"Session {session.id} has {counted(len(past), 'turn')}, not {turns}. Forget fewer of them.",
                parameter="turns",
            )
        await engine.roll_back(session.id, turns)
        left = past[:-turns]
        message = _final_message(left[-1]) if left else None
        session.apply(TurnsForgotten(session_id=session.id, count=turns, final_message=message))
        return session

    @verb(BEGINS)
    async def compact(self, session_id: str) -> Session:
        """Let Codex replace a session's history by a summary. That is a turn and a task; returns when it is under way.

        An active goal of a session that has to be loaded for it is paused. Set it again to continue.

        Raises:
            SessionBusy: A turn is running in it.
            Unsupported: This Codex cannot.
        """
        await self._helm.require_own(session_id, "compact it")
        return await self._run(
            session_id, "Compact the history", lambda engine: engine.compact(session_id), Capability.COMPACT
        )

    @verb(ACTS)
    async def rename(self, session_id: str, name: str) -> Session:
        """Give a session a name, which lists then show.

        Raises:
            InvalidInput: The name is empty, too long, or not one line.
        """
        name = name.strip()
        if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise InvalidInput(
                f"A name is one line of 1 to {MAX_NAME_CHARS} characters. Choose another one.", parameter="name"
            )
        await self._helm.require_own(session_id, "rename it")
        await self._helm.agent_records.refuse_archived(session_id)
        session = await self._helm.session(session_id)
        engine = await self._helm.engine(Capability.RENAME, agent=session.options.agent)
        try:
            await engine.rename(session.id, name)
        except SessionNotFound:  # the oldest Codex names only loaded sessions
            await self._helm.load(session.id)
            await engine.rename(session.id, name)
        if session.engine is engine:
            with anyio.move_on_after(_NAMED_SECONDS):  # it answers before the name is written, and tells when it is
                while session.state.name != name and not session.feed.closed:
                    await session.feed.changed()
        session.apply(SessionRenamed(session_id=session.id, name=name))
        return session

    async def label(self, session_ids: Sequence[str], *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        """Give labels to sessions, and take others from them. No agent knows them.

        Raises:
            InvalidInput: A label is empty, too long, or not one line.
        """
        add = [label.strip() for label in add]
        if any(not label or len(label) > MAX_LABEL_CHARS or not label.isprintable() for label in add):
            raise InvalidInput(f"A label is one line of 1 to {MAX_LABEL_CHARS} characters.", parameter="add")
        for session_id in session_ids:
            await self._helm.require_own(session_id, "label it")
            await self._helm.session(session_id)
        await anyio.to_thread.run_sync(partial(self._helm.labels.change, session_ids, add=add, remove=remove))

    @verb(ACTS)
    async def archive(self, session_id: str) -> None:
        """Archive a session: lists show it only on request, and it must be unarchived before it can continue.

        Raises:
            SessionBusy: A turn is running in it, or a message waits for its turn.
        """
        await self._helm.require_own(session_id, "archive it")
        session = await self._helm.session(session_id)
        await self._helm.agent_records.refuse_archived(session.id)
        # A message that waits would begin a turn in an archived session.
        if session.state.is_running or session.queue:
            raise busy(session.id)
        await (await self._helm.engine(Capability.ARCHIVE, agent=session.options.agent)).archive(session.id)
        await anyio.to_thread.run_sync(forget_snapshots, self._helm.settings.state_dir, session.id)
        self._helm.forget(session.id)

    @verb(ACTS)
    async def unarchive(self, session_id: str) -> Session:
        """Bring a session back from the archive.

        Raises:
            InvalidInput: It is not archived.
        """
        await self._helm.require_own(session_id, "bring it back")
        session = await self._helm.session(session_id)
        info = await self._helm.agent_records.find(session.id)
        if info is None or not info.archived:
            raise InvalidInput(
                f"Session {session.id} is not archived. Send it a message to continue.", parameter="session_id"
            )
        await (await self._helm.engine(Capability.ARCHIVE, agent=session.options.agent)).unarchive(session.id)
        return session

    @verb(READS)
    async def own_terminal(self, session_id: str) -> OwnTerminal:
        """Return how to open a session in its agent's own terminal program, in parallel: both see everything, both can
        answer.

        The session is loaded first if necessary, as for its next turn. Leaving the program stops nothing.

        Raises:
            Unsupported: It cannot be joined there.
            SessionLocked: Another process has it.
        """
        session = await self._helm.session(session_id)
        engine = session.engine
        if not usable(engine):
            if session.state.is_running and session.elsewhere is not None:
                raise SessionLocked(session.elsewhere)
            await self._helm.agent_records.refuse_archived(session.id)
            session, engine = await self._helm.load(session.id, Capability.ATTACH)
        assert engine is not None
        self._helm.agents.require(engine, Capability.ATTACH)
        return await engine.own_terminal(session.id)

    # --- goals -------------------------------------------------------------------------------------------------------

    @verb(READS)
    async def goal(self, session_id: str) -> Goal | None:
        """Return the objective of a session, if it has one.

        Raises:
            Unsupported: This Codex keeps no goals.
        """
        return await (await self._goal_keeper(session_id)).goal(session_id)

    @verb(ACTS)
    async def set_goal(
        self, session_id: str, objective: str, *, on_question: QuestionHandler | None = None
    ) -> Goal | None:
        """Give a session a goal. Codex starts immediately and continues, turn after turn.

        It stops when it says that the goal is reached or blocked, or when it is interrupted. Each turn is a task.

        Raises:
            SessionBusy: A turn is running in it.
            Unsupported: This Codex keeps no goals.
        """
        objective = objective.strip()
        if not objective or len(objective) > MAX_GOAL_CHARS:
            raise InvalidInput(f"A goal has 1 to {MAX_GOAL_CHARS} characters. Say it shorter.", parameter="goal")
        await self._helm.require_own(session_id, "give it a goal")
        await self.goal(session_id)  # a Codex that keeps no goals says so before anything is begun
        session = await self._helm.session(session_id)
        session.handle_questions(on_question)
        goals: list[Goal | None] = []

        async def begin(engine: Engine) -> None:
            goals.append(await engine.set_goal(session_id, objective))

        session = await self._run(session_id, towards(objective), begin, Capability.GOALS)
        session.apply(GoalChanged(session_id=session.id, goal=objective))
        return goals[0]

    @verb(ACTS)
    async def clear_goal(self, session_id: str) -> None:
        """Clear a session's goal. A running turn continues to its end, and no further one follows.

        Raises:
            Unsupported: This Codex keeps no goals.
        """
        await self._helm.require_own(session_id, "take its goal away")
        await (await self._goal_keeper(session_id)).set_goal(session_id, None)
        (await self._helm.session(session_id)).apply(GoalChanged(session_id=session_id))

    async def _goal_keeper(self, session_id: str) -> Engine:
        """Return the engine that stores the goal of an existing session that is not archived."""
        session = await self._helm.session(session_id)
        await self._helm.agent_records.refuse_archived(session_id)
        return await self._helm.engine(Capability.GOALS, agent=session.options.agent)

    # --- shared ------------------------------------------------------------------------------------------------------

    async def _run(
        self, session_id: str, what: str, ask: Callable[[Engine], Awaitable[object]], needed: Capability
    ) -> Session:
        """Run a turn that is requested without getting a turn id. It has begun when its events say so."""
        await self._helm.agent_records.refuse_archived(session_id)
        session = await self._helm.session(session_id)
        await self._helm.engine(needed, agent=session.options.agent)  # refused before anything is registered

        async def begin(engine: Engine) -> Begun:
            await ask(engine)
            with anyio.move_on_after(_BEGIN_SECONDS):
                while session.state.is_running and session.state.turn_id is None and not session.feed.closed:
                    await session.feed.changed()
                return Begun(session_id=session.id)  # its events have named it
            raise EngineTimeout(
                f"Codex did not begin a turn within {_BEGIN_SECONDS:g} s. Look at the status, try again."
            )

        return await self._helm.run_other_turn(session.id, turn_input(what), begin)


def _final_message(turn: PastTurn) -> str | None:
    messages = [item.text for item in turn.items if isinstance(item, AgentMessage)]
    return messages[-1] if messages else None


# --- Messages that wait for the end of a session's turn: take one back, or send it earlier ----------------------------

_TAKEN_BACK = "It was taken back before it was sent."


class MessageQueue:
    """The queues of all sessions. Made by `helmsman.capabilities.extras.Extras`."""

    def __init__(self, helm: Steering) -> None:
        self._helm = helm

    @verb(STOPS)
    async def drop(self, session_id: str, task_id: str) -> None:
        """Take a queued message back. Its task is then canceled.

        Raises:
            InvalidInput: It does not wait there: it was sent or taken back.
        """
        session, _ = await self._find(session_id, task_id)
        self._helm.task_writer.cancel(task_id, _TAKEN_BACK)
        session.apply(MessageUnqueued(session_id=session.id, task_id=task_id))

    @verb(ARRANGES)
    async def move(self, session_id: str, task_id: str, place: int) -> None:
        """Put a queued message at this place of the queue, counted from 1.

        Raises:
            InvalidInput: It does not wait there, or there is no such place.
        """
        session, message = await self._find(session_id, task_id)
        others = [one for one in session.queue if one.task_id != task_id]
        if not 1 <= place <= len(others) + 1:
            raise InvalidInput(f"There is no place {place} in a queue of {len(others) + 1}.", parameter="place")
        ordered = [*others[: place - 1], message, *others[place - 1 :]]
        for one in ordered:  # each goes to the end
            session.apply(
                MessageQueued(session_id=session.id, task_id=one.task_id, text=one.text, not_before=one.not_before)
            )

    async def _find(self, session_id: str, task_id: str) -> tuple[Session, QueuedMessage]:
        await self._helm.require_own(session_id, "change its queue")
        session = await self._helm.session_with_queue(session_id)
        session.require_here()
        found = next((one for one in session.queue if one.task_id == task_id), None)
        if found is None:
            raise InvalidInput(f"Message {task_id} does not wait in session {session.id}.", parameter="task_id")
        return session, found
