"""The routes that do something: start, say, steer, interrupt, answer, cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

from pydantic import Field

from helmsman.errors import QuestionNotOpen
from helmsman.events import QuestionClosed
from helmsman.mcp.contract import Input, StartInput
from helmsman.mcp.session_tools import started
from helmsman.rendering import task_as_dict
from helmsman.web.json_http import NothingInput, body
from helmsman.web.views import present

if TYPE_CHECKING:
    from starlette.requests import Request

    from helmsman.service import Helmsman
    from helmsman.sessions.session import Session

_BY: Final = "person"


class SayInput(Input):
    message: str
    images: list[str] = Field(default_factory=list[str])
    when_busy: Literal["error", "steer", "queue"] = "error"


class SteerInput(Input):
    message: str


class AnswersInput(Input):
    answers: list[str]


class CancelInput(Input):
    reason: str | None = None


class Acting:
    """Answers requests that change something."""

    def __init__(self, helm: Helmsman) -> None:
        self._helm = helm

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def start(self, request: Request) -> dict[str, Any]:
        given = await body(request, StartInput)
        options = given.model_dump(exclude={"prompt", "working_directory"})  # they have the names of the library's
        session = await self._helm.start(given.prompt, cwd=given.working_directory, **options)
        return started(session).model_dump(by_alias=True, mode="json", exclude_none=True)

    async def say(self, request: Request) -> dict[str, Any]:
        given = await body(request, SayInput)
        session = await self._helm.say(
            _session_id(request), given.message, images=given.images, when_busy=given.when_busy
        )
        return _state(session) | present({"taskId": session.task_ids[-1] if session.task_ids else None})

    async def steer(self, request: Request) -> dict[str, Any]:
        given = await body(request, SteerInput)
        await self._helm.steer(_session_id(request), given.message)
        return _state(await self._helm.session(_session_id(request)))

    async def interrupt(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        return _state(await self._helm.interrupt(_session_id(request)))

    async def answer(self, request: Request) -> dict[str, Any]:
        given = await body(request, AnswersInput)
        question_id: str = request.path_params["question_id"]
        try:
            return _state(await self._helm.respond(_session_id(request), question_id, given.answers, by=_BY))
        except QuestionNotOpen as error:
            raise _answered(await self._helm.session(_session_id(request)), question_id, error) from error

    # --- tasks -------------------------------------------------------------------------------------------------------

    async def cancel(self, request: Request) -> dict[str, Any]:
        given = await body(request, CancelInput)
        task = await self._helm.tasks.get(request.path_params["task_id"])
        task, message = await self._helm.tasks.cancel(task, reason=given.reason)
        return {"task": task_as_dict(task), "message": message}


def _answered(session: Session, question_id: str, error: QuestionNotOpen) -> QuestionNotOpen:
    """The error, saying who was faster where that is still known."""
    for event in reversed(session.feed.since(0).events):
        if isinstance(event, QuestionClosed) and event.question_id == question_id:
            what = event.answer or "withdrawn"
            told = f"This question was answered already: {what}, by {event.by}. Nothing was sent; go on."
            return QuestionNotOpen(told, answer=event.answer, by=event.by)
    return error


def _session_id(request: Request) -> str:
    return str(request.path_params["session_id"])


def _state(session: Session) -> dict[str, Any]:
    return {"sessionId": session.id, "status": session.status}
