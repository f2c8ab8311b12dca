"""Routes that change something: say, steer, interrupt, answer, cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from helmsman.approvals.deadline import LEASE_SECONDS
from helmsman.base.json_values import present
from helmsman.model.answered_by import PERSON_IN_DASHBOARD, AnsweredBy
from helmsman.shapes.contract import Input, NothingInput
from helmsman.shapes.rendering import task_as_dict
from helmsman.web.json_http import body, session_id

if TYPE_CHECKING:
    from starlette.requests import Request

    from helmsman.service import HelmsmanService
    from helmsman.sessions.session import Session


class MessageInput(Input):
    message: str
    images: list[str] = Field(default_factory=list[str])
    when_busy: Literal["error", "steer", "queue"] = "error"


class SteerInput(Input):
    message: str


class AnswersInput(Input):
    answers: list[str]


class ShownInput(Input):
    page: str = Field(max_length=64)
    questions: list[str] = Field(default_factory=list[str], max_length=1000)
    sessions: list[str] = Field(default_factory=list[str], max_length=1000)
    hidden: list[str] = Field(default_factory=list[str], max_length=1000)


class CancelInput(Input):
    reason: str | None = None


class ResumeInput(Input):
    at: str | None = None


class Acting:
    """Answers requests that change something."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._helm = helm

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def say(self, request: Request) -> dict[str, Any]:
        given = await body(request, MessageInput)
        session = await self._helm.say(
            session_id(request), given.message, images=given.images, when_busy=given.when_busy
        )
        return state_of(session) | present({"taskId": session.task_id})

    async def steer(self, request: Request) -> dict[str, Any]:
        given = await body(request, SteerInput)
        await self._helm.steer(session_id(request), given.message)
        return state_of(await self._helm.session(session_id(request)))

    async def interrupt(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        return state_of(await self._helm.interrupt(session_id(request)))

    async def answer(self, request: Request) -> dict[str, Any]:
        given = await body(request, AnswersInput)
        question_id: str = request.path_params["question_id"]
        return state_of(await self._helm.respond(session_id(request), question_id, given.answers, by=_by(request)))

    async def shown(self, request: Request) -> dict[str, Any]:
        """Record which questions a page shows. Their deadlines are paused for the length of a lease."""
        given = await body(request, ShownInput)
        viewer = f"page {given.page}"
        told: list[dict[str, Any]] = []
        for session in list(self._helm.sessions.values()):
            if session.id in given.sessions:
                session.shown_for(LEASE_SECONDS)
            elif session.id in given.hidden:
                session.shown_for(0)
            for question_id, deadline in list(session.deadlines.items()):
                if question_id in given.questions:
                    deadline.lease(viewer)
                elif question_id in given.hidden:
                    deadline.release(viewer)
                else:
                    continue
                told.append({"id": question_id, "deadline": deadline.as_dict()})
        return {"questions": told}

    async def notice_shown(self, request: Request) -> dict[str, Any]:
        await body(request, NothingInput)
        await self._helm.extras.notices.shown(request.path_params["notice_id"])
        return {"ok": True}

    # --- tasks -------------------------------------------------------------------------------------------------------

    async def cancel(self, request: Request) -> dict[str, Any]:
        given = await body(request, CancelInput)
        task = await self._helm.tasks.get(request.path_params["task_id"])
        task, message = await self._helm.tasks.cancel(task, reason=given.reason)
        return {"task": task_as_dict(task, self._helm.task_writer), "message": message}

    async def resume(self, request: Request) -> dict[str, Any]:
        given = await body(request, ResumeInput)
        task = await self._helm.tasks.get(request.path_params["task_id"])
        resumed = await self._helm.extras.limits.go_on(task, given.at)
        return {"task": task_as_dict(resumed, self._helm.task_writer)}


def _by(request: Request) -> AnsweredBy:
    """Return who answers: a user with a login, or a program with the token."""
    return AnsweredBy("program", door="api") if "authorization" in request.headers else PERSON_IN_DASHBOARD


def state_of(session: Session) -> dict[str, Any]:
    """Return the result of an action on a session."""
    return {"sessionId": session.id, "status": session.status}
