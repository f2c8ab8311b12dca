"""Running turn, as a step that can be followed to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

import anyio

from helmsman.errors import StepFailed, StepInterrupted, StepTimedOut, TurnTimedOut

if TYPE_CHECKING:
    from collections.abc import Callable

    from helmsman.client import Helmsman
    from helmsman.model.events import Event
    from helmsman.sessions.session import QuestionHandler, Session
    from helmsman.step import StepResult
    from helmsman.tasks.model import Task

_LOOK_SECONDS: Final = 0.5


class TurnStep(Protocol):
    """`run_step` with all arguments bound except the callbacks."""

    async def __call__(
        self, *, on_event: Callable[[Session, Event], None], on_question: QuestionHandler
    ) -> StepResult: ...


def followed(session: Session) -> TurnStep:
    """Return a step for the running or last turn of a session."""

    async def show(*, on_event: Callable[[Session, Event], None], on_question: QuestionHandler) -> StepResult:
        async for event in session.events(since=session.turn_cursor):
            on_event(session, event)
        return _ended(session)

    return show


async def until_sent(helm: Helmsman, session: Session, task_id: str | None) -> Task | None:
    """Wait until the agent has received a queued message. Return its task if it was withdrawn before.

    If the hub holds the queue, only the task of the message shows this.
    """
    while True:
        task = None if task_id is None else await helm.tasks.get(task_id)
        if not session.queue and (task is None or task.status != "pending"):
            return task if task is not None and task.status == "canceled" and task.turn_id is None else None
        with anyio.move_on_after(_LOOK_SECONDS):
            await session.feed.changed()


def _ended(session: Session) -> StepResult:
    """Return the result of the session's turn.

    Raises:
        StepFailed: The turn failed, or its outcome is unknown.
        StepTimedOut: The turn was stopped after being idle for too long.
        StepInterrupted: The turn was interrupted.
    """
    from helmsman.step import StepResult

    if session.state.is_running:
        raise StepFailed(
            "The process that ran this turn has ended, and the turn with it. Send the session a message to continue.",
            session_id=session.id,
        )
    if session.status == "interrupted":
        raise StepInterrupted(
            "The turn was interrupted. Send the session a message to continue.", session_id=session.id
        )
    if session.error is not None:
        kind = StepTimedOut if session.error.code == TurnTimedOut.code else StepFailed
        raise kind(session.error.message, session_id=session.id, cause_code=session.error.code)
    return StepResult(
        text=session.result or "", output=session.output, session_id=session.id, usage=session.usage, attempts=1
    )
