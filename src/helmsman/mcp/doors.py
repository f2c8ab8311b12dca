"""How a question reaches a person through an MCP client, in both eras of the protocol.

- A client of the handshake era that can be elicited is sent the question as a form: over a pipe at once, whenever it
  arises; over HTTP while the client waits in `codex_wait`, whose response stream carries it.
- A client of 2026-07-28 has no way to be called: `codex_wait` returns that input is required, and the client calls again
  with the answer.
- Every client sees the question in `codex_status`, whatever else happens. The first answer wins and the other doors close.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from helmsman.errors import HelmsmanError
from helmsman.mcp.current_call import current_call, current_form
from helmsman.mcp.forms import form_answers, form_message, form_schema
from helmsman.model.answered_by import Answered, AnsweredBy
from helmsman.sessions.desk import cancel_when_closed

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from helmsman.model.questions import Question
    from helmsman.service import Helmsman
    from helmsman.sessions.session import QuestionHandler, Session

Context: TypeAlias = "ServerRequestContext[Any, Any]"
"""A request and the client that it came from."""

log = logging.getLogger(__name__)

_CODEX_CLIENT: Final = "codex-mcp-client"
_HANDED_OUT: Final = "handed out"
"""The viewer of a form that a client fetched: whichever client it was, it counts once."""


class Doors:
    """Remembers which questions a person has been shown, so that nobody is asked twice."""

    def __init__(self, helm: Helmsman) -> None:
        self._helm = helm
        self._shown: set[str] = set()

    def handler(self, context: Context) -> QuestionHandler | None:
        """What asks this client's person as soon as a question arises; None where that is not possible."""
        if context.request is not None or not _can_be_called(context):
            return None

        async def ask(session: Session, question: Question) -> Answered | None:
            if question.id in self._shown:
                return None
            answers = await self._elicit(context, session, question, None)
            return None if answers is None else Answered(answers, by_form(context))

        return ask

    async def ask_now(self, context: Context, session: Session, question: Question) -> None:
        """Ask the person on the response stream of this very request, if that is possible and was not done before."""
        if context.request is None or not _can_be_called(context):
            return
        await self._ask_until_closed(context, session, question, context.request_id)

    async def attach(self, context: Context, _params: types.RequestParams | None) -> types.EmptyResult:
        """Of sessions that this client began with an earlier hub, ask its person again; what it shows is found again."""
        numbered = current_call.get()
        if numbered is None:
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
        can_ask = self.handler(context) is not None
        for session_id in await numbered.calls.sessions_of(numbered.id.door) if can_ask else ():
            host, _ = self._helm.hosts.split(session_id)
            if host is None:
                await self._attach_to(context, session_id)
            else:
                self._helm.in_background(partial(self._attach_to, context, session_id))  # it may be slow, or away
        return types.EmptyResult()

    async def _attach_to(self, context: Context, reference: str) -> None:
        host, session_id = self._helm.hosts.split(reference)
        try:
            helm = self._helm if host is None else await self._helm.hosts.get(host)
            session = await helm.session(session_id)
        except HelmsmanError as error:
            log.info("session %s of an earlier hub cannot be attached to: %s", reference, error)
            return
        self.ask_from_now_on(context, session)

    def ask_from_now_on(self, context: Context, session: Session) -> None:
        """Ask this client's person what a session asks that it did not begin with this call, and what that will ask."""
        handler = self.handler(context)
        if handler is None:
            return
        session.on_question = handler
        for question in session.questions:
            self._helm.in_background(partial(self._ask_until_closed, context, session, question, None))

    async def _ask_until_closed(
        self, context: Context, session: Session, question: Question, request_id: types.RequestId | None
    ) -> None:
        """Ask the person, if that was not done before, until the question is answered here or elsewhere."""
        if question.id in self._shown:
            return
        answers: list[str] | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when_closed, session, question, tasks.cancel_scope)
                answers = await self._elicit(context, session, question, request_id)
                tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            self._shown.discard(question.id)  # the wait is over before the person was done: the next one asks again
            raise
        if answers is not None:
            await self._respond(context, session, question, answers)

    async def input_required(
        self, context: Context, session: Session, question: Question
    ) -> types.InputRequiredResult | None:
        """The answer to a client of 2026-07-28 that can ask its person; None where it cannot, or has done so."""
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS or not has_forms(context):
            return None
        if question.id in self._shown:
            return None
        return types.InputRequiredResult(input_requests={question.id: self.form(session, question)})

    def form(self, session: Session, question: Question) -> types.ElicitRequest:
        """The question as a request that the client puts to its person.

        It has gone out of our hands: that somebody looks at it is known for the length of a lease, and no longer.
        """
        self._shown.add(question.id)
        if (deadline := session.deadlines.get(question.id)) is not None:
            deadline.lease(_HANDED_OUT)
        form = types.ElicitRequestFormParams(message=form_message(question), requested_schema=form_schema(question))
        return types.ElicitRequest(params=form)

    async def take_responses(self, context: Context, responses: types.InputResponses | None, session: Session) -> None:
        """What the person answered, on the second leg of such a call."""
        for question_id, response in (responses or {}).items():
            question = session.state.questions.get(question_id)
            if question is None or not isinstance(response, types.ElicitResult):
                continue
            answers = form_answers(question, response.action, response.content)
            if answers is not None:
                await self._respond(context, session, question, answers)

    async def _elicit(
        self,
        context: Context,
        session: Session,
        question: Question,
        request_id: types.RequestId | None,
    ) -> list[str] | None:
        self._shown.add(question.id)
        current_form.set(form_name(session, question))
        try:
            async with session.on_screen(question):
                result = await context.session.elicit_form(form_message(question), form_schema(question), request_id)
        except MCPError as error:
            log.info("the client could not be asked question %s, which stays open: %s", question.id, error)
            return None
        if result.action == "decline" and _declines_by_itself(context):
            return None
        return form_answers(question, result.action, result.content)

    async def _respond(self, context: Context, session: Session, question: Question, answers: list[str]) -> None:
        try:
            is_here = self._helm.sessions.get(session.id) is session
            helm = self._helm if is_here else session.verbs  # of another machine
            await helm.respond(session.id, question.id, answers, by=by_form(context))
        except HelmsmanError as error:
            log.info("the answer to question %s came too late or does not fit: %s", question.id, error)


def form_name(session: Session, question: Question) -> str:
    """What a form is called, by whichever hub."""
    return f"{session.id}/{question.id}"


def has_forms(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    return capabilities is not None and capabilities.elicitation is not None


def _can_be_called(context: Context) -> bool:
    return has_forms(context) and context.session.can_send_request


def _declines_by_itself(context: Context) -> bool:
    """Codex declines every form that it has nobody to show to (`codex exec`, approval policy `never`), as if a person had.

    So its declining is no answer: its agent is to have the chance to decide with `codex_respond`.
    """
    client = context.session.client_params
    return client is not None and client.client_info.name == _CODEX_CLIENT


def by_form(context: Context) -> AnsweredBy:
    """The person who filled in a form of this client."""
    return AnsweredBy("person", client_name(context), "form")


def by_tool(context: Context) -> AnsweredBy:
    """The agent that called a tool from this client."""
    return AnsweredBy("agent", client_name(context), "tool")


def client_name(context: Context) -> str | None:
    """What the client calls itself, in either era of the protocol; one of 2026-07-28 need not say."""
    client = context.session.client_params
    return None if client is None else f"{client.client_info.name} {client.client_info.version}".strip() or None
