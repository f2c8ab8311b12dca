"""Calls of operations by the user: over the HTTP API, or in the dashboard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import anyio

from helmsman.model.answered_by import PROGRAM
from helmsman.sessions.session import first_change

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from helmsman.capabilities.service import AgentService
    from helmsman.operations.table import Deferred
    from helmsman.sessions.session import Session
    from helmsman.tasks.model import Task


@dataclass(frozen=True)
class ProgramCall:
    """Call of an operation by the user or one of the user's programs (`helmsman.operations.table.OperationCall`)."""

    helm: AgentService
    viewer: str
    agent: str = ""
    on_question: None = None

    async def respond(self, session_id: str, question_id: str, answers: Sequence[str]) -> Session:
        return await self.helm.respond(session_id, question_id, answers, by=PROGRAM)

    async def wait(
        self, sessions: Sequence[Session], *, seconds: float, until: Literal["attention", "change", "all"] = "attention"
    ) -> Deferred | None:
        # The time limit ends the wait without an error: the caller then gets the status as it is.
        with anyio.move_on_after(seconds):
            while running := [session for session in sessions if session.state.is_running]:
                if any(session.questions for session in running) or (until != "all" and len(running) < len(sessions)):
                    break
                # One change of any session wakes the loop, which then looks at all of them again.
                await first_change(running)
                if until == "change":
                    break
        return None

    async def wait_for_job(self, task: Task, *, seconds: float) -> Deferred | None:
        with anyio.move_on_after(seconds):
            while not task.has_ended and not task.input_required:
                task = await self.helm.tasks.wait(task)
        return None

    async def watch(self, session: Session, *, seconds: float) -> None:
        await session.wait(until="attention", timeout=seconds)

    def confirmation(self) -> _NotAsked:
        return _NotAsked()


# A model's proposal needs a person. A program of the user already acts for that person.
class _NotAsked:
    """Confirmation for programs of the user, which act on the user's behalf: always granted."""

    answered: str | None = None
    is_yes = False

    async def ask(self, what: str, message: str, confirmed: Callable[[], Awaitable[object]]) -> Deferred | None:
        return None

    async def by_person(self, confirmed: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        await confirmed(*arguments)
