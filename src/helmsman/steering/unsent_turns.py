"""Turns that were about to be sent to an agent when their hub died. The agent's supervisor knows whether they arrived.

The hub records its intent first, with the amount of input that the agent had received (`Engine.input_position`). If the
amount is unchanged when the next hub starts, the turn never arrived, and the task waits again as before.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from helmsman.errors import EngineLost
from helmsman.model.events import Usage
from helmsman.tasks.model import ASKED, INPUT_POSITION, OPENED, TaskChanges
from helmsman.tasks.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from helmsman.agents.protocol import Begun, Engine
    from helmsman.agents.registry import Agents, EngineHolder
    from helmsman.model.options import SessionOptions, TurnInput
    from helmsman.sessions.session import Session
    from helmsman.steering.shared import Shared
    from helmsman.tasks.model import Task
    from helmsman.tasks.writer import TaskWriter


_HEARD: Final[TaskChanges] = {"metadata": {INPUT_POSITION: None}}
_SENT: Final[TaskChanges] = {"spec": None, **_HEARD}
"""The agent has received it, or may have: it must not run again."""


class UnsentTurns(ABC):
    """Part of `helmsman.steering.turns.Turns`."""

    agents: Agents
    _shared: Shared
    _writer: TaskWriter

    @property
    @abstractmethod
    def _engines(self) -> EngineHolder: ...

    @abstractmethod
    async def _spec(
        self, task_id: str, turn: TurnInput, options: SessionOptions, engine: Engine | None = None
    ) -> dict[str, Any] | None:
        """Return the request that the next hub needs to run a turn."""

    async def _send(
        self,
        task_id: str,
        session: Session,
        engine: Engine,
        turn: TurnInput | None,
        run: Callable[[], Awaitable[Begun]],
    ) -> Begun:
        """Record the intent to send a task to an agent, and send it. The `turn` of a message is kept until the agent has it.

        Raises:
            RegistryUnavailable: See `TaskWriter.write_intent`.
        """
        position = None if self._shared.fence is None else engine.input_position(session.id)
        if position is None:
            self._writer.update(task_id, {"spec": None}, urgent=False)
        else:
            self._writer.update(task_id, {"metadata": {INPUT_POSITION: position}}, urgent=False)
            if turn is not None and not turn.images and session.worktree is None:  # as far as it is simple
                spec = await self._spec(task_id, turn, session.options, engine)
                self._writer.update(task_id, {"spec": spec}, urgent=False)
        await self._writer.write_intent(task_id)
        begun = await run()
        if position is not None:  # it may have ended by now, and wait for its next turn
            sent = _HEARD if self._writer.goes_on(task_id) else _SENT
            self._writer.update(task_id, sent, urgent=False)
        return begun

    async def take_back(self, task: Task) -> Task | None:
        """Requeue a task that its agent never received. Return None if it may have received it.

        A task without a stored request fails, and says that it can be sent again.

        Raises:
            RegistryUnavailable: It cannot be written.
        """
        if task.input_position is None or task.engine is None:
            return None
        engine = await self._engines.reach(task.agent, task.engine)
        session_id = task.session_id or task.metadata.get(OPENED)
        if engine is None or engine.input_position(str(session_id)) != task.input_position:
            self._writer.update(task.id, _SENT)
            return None
        if task.spec is None:
            title = self.agents.title(task.agent)
            self._writer.fail(
                task.id,
                EngineLost(f"The hub ended before {title} was told of this, so nothing was done. Send it again."),
            )
            await self._writer.write()
            return await self._writer.registry(partial(Registry.get, task_id=task.id))
        if task.used_before != Usage():
            self._writer.spent_before(task.id, task.used_before)
        again = partial(
            Registry.update,
            task_id=task.id,
            status="pending",
            spec=task.spec,
            engine=None,
            session_id=None if task.metadata.get(OPENED) else task.session_id,
            metadata={INPUT_POSITION: None, ASKED: None, OPENED: None},
        )
        return await self._writer.registry(again)
