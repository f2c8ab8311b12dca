"""Elicitation: show an agent's questions to the user of an MCP client, in both eras of the protocol.

- A client of the handshake era that supports elicitation receives the question as a form. Over a pipe it is sent when it
  arises; over HTTP while the client waits in `codex_wait`, whose response stream carries it.
- A client of 2026-07-28 cannot be called. `codex_wait` returns that input is required, and the client calls again with the
  answer.
- Where a form is too small for the question, or it asks for a secret, a client that can open web pages (`elicitation.url`)
  is asked to open the question in the dashboard, if that is served. The page asks for a login; what the client says of the
  page decides nothing.
- Every client sees the question in `codex_status`. The first answer wins, and the other forms close.
"""

from __future__ import annotations

import logging
import secrets
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import quote

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from helmsman.base.caller_context import current
from helmsman.base.clients import HTTP, McpClient
from helmsman.base.processes import Process
from helmsman.base.structs import replace
from helmsman.errors import HelmsmanError
from helmsman.mcp.current_call import current_call, current_form
from helmsman.model.answered_by import Answered, AnsweredBy
from helmsman.model.events import OwnerChanged
from helmsman.model.question_forms import fits_a_form, form_answers, form_message, form_schema, page_message
from helmsman.operations.table import Deferred
from helmsman.sessions.question_broker import cancel_when_closed
from helmsman.steering.ownership import may_answer, refuse_before_person

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mcp.server.context import ServerRequestContext

    from helmsman.capabilities.service import AgentService
    from helmsman.mcp.channel import Channel
    from helmsman.model.questions import Question
    from helmsman.service import HelmsmanService
    from helmsman.sessions.session import Session

Context: TypeAlias = "ServerRequestContext[Any, Any]"
"""Context of a request, with its client."""

log = logging.getLogger(__name__)

_CODEX_CLIENT: Final = "codex-mcp-client"
_HANDED_OUT: Final = "handed out"
"""Viewer of a form that a client fetched. All clients count as one viewer."""


_HANDED_OUT_SECONDS: Final = 600.0
"""Time for which a fetched form, or an opened page, counts as open: the client does not report that it was dropped."""
_COMPLETE_SECONDS: Final = 5.0


class FormHandler:
    """Asks the person at one MCP client with a form, as soon as a question arises."""

    opens_form: Final = True

    def __init__(self, elicitor: Elicitor, context: Context) -> None:
        self._elicitor = elicitor
        self._context = context

    async def __call__(self, session: Session, question: Question) -> Answered | None:
        answers = await self._elicitor.ask_once(self._context, session, question)
        return None if answers is None else Answered(answers, by_form(self._context))


class Elicitor:
    """Records which questions the user was shown, so that no question is asked twice."""

    def __init__(self, helm: HelmsmanService, channel: Channel | None = None) -> None:
        self._helm = helm
        self.channel: Final = channel
        # By question, not by client: each is asked once, in one place.
        self._shown: set[str] = set()
        # A pipe without a hub has no number, so the connection names itself.
        self._connection = secrets.token_hex(8)
        self._handed_out: dict[str, Callable[[], None]] = {}
        """Closes each form that the client of a pipe has fetched and not answered yet."""
        self._opened: set[str] = set()
        """Questions that a client's user has opened in the dashboard."""

    def client(self, context: Context) -> McpClient:
        """Return the client that a request comes from."""
        told = context.session.client_params
        name = "" if told is None else told.client_info.name
        # Over HTTP all clients share one token, so only the name tells them apart.
        if context.request is not None:
            return McpClient(HTTP, name)
        numbered, directory = current_call.get(), str(current().directory)
        if numbered is None:
            return McpClient(self._connection, name, directory, Process.me())
        return McpClient(numbered.id.client, name, directory, numbered.id.process)

    def close(self) -> None:
        """Note that the client of a pipe has gone: its forms are closed, and it may come back on another pipe."""
        # A form on a client that is gone must not hold back the model's answer.
        for close_form in self._handed_out.values():
            close_form()
        self._handed_out.clear()
        for session in self._helm.sessions.values():
            owner = session.opened_by
            if owner is not None and owner.connection == self._connection:
                # Without a process, the client may claim the session again when it reconnects.
                session.fold(OwnerChanged(session_id=session.id, owner=replace(owner, process=None)))

    def has_for_agent(self, session: Session) -> bool:
        """Return whether a session has an open question that the model that calls may answer now."""
        return any(may_answer(session, question.id, self._helm.settings) for question in session.questions)

    async def respond(
        self, helm: AgentService, context: Context, session_id: str, question_id: str, answers: Sequence[str]
    ) -> Session:
        """Answer a question as the model that calls a tool. `helm` has the session, here or on another machine.

        Raises:
            NotYours: Another client or a person opened the session, or a person has the question in a form.
        """
        if (session := helm.sessions.get(session_id)) is not None:
            # Checked here only for sessions of this machine; another hub checks its own.
            refuse_before_person(session, question_id, self._helm.settings)
        return await helm.respond(session_id, question_id, answers, by=by_tool(context))

    def confirmation(self, context: Context, responses: types.InputResponses | None) -> Confirmation:
        """Return how the person at the client confirms something."""
        return Confirmation(context, responses, self._helm)

    def handler(self, context: Context) -> FormHandler | None:
        """Return the handler that asks this client's user when a question arises, or None if the client cannot be called."""
        # Over HTTP a message needs the response stream of a request (`ask_now`).
        if context.request is not None or not _can_be_called(context):
            return None
        return FormHandler(self, context)

    async def ask_once(self, context: Context, session: Session, question: Question) -> list[str] | None:
        """Ask the person, unless that was done before; None leaves the question open."""
        # Dismissing a form leaves the question open, so the form must not reappear.
        if question.id in self._shown:
            return None
        return await self._elicit(context, session, question, None)

    async def ask_now(self, context: Context, session: Session, question: Question) -> None:
        """Ask the person on the response stream of this very request, if that is possible and was not done before."""
        if context.request is None or not _can_be_called(context):
            return
        await self._ask_until_closed(context, session, question, context.request_id)

    async def attach(self, context: Context, _params: types.RequestParams | None) -> types.EmptyResult:
        """Attach to the sessions that this client started with an earlier hub. Forms that it still shows are reused."""
        numbered = current_call.get()
        if numbered is None:
            raise MCPError(types.METHOD_NOT_FOUND, "Method not found")
        # Before the sessions are attached, so that what happens from now on is pushed.
        if self.channel is not None:
            self.channel.meet(context, self.client(context))
        can_ask = self.handler(context) is not None
        # The hub's log of calls knows which sessions belong to a pipe, also those of an earlier hub.
        for session_id in await numbered.calls.sessions_of(numbered.id.client) if can_ask else ():
            host, _ = self._helm.hosts.split(session_id)
            if host is None:
                await self.attach_to(context, session_id)
            else:
                self._helm.in_background(partial(self.attach_to, context, session_id))  # it may be slow, or away
        return types.EmptyResult()

    async def attach_to(self, context: Context, reference: str) -> None:
        """Attach this client to a session that a call to an earlier hub started."""
        host, session_id = self._helm.hosts.split(reference)
        try:
            helm = self._helm if host is None else await self._helm.hosts.get(host)
            session = await helm.session(session_id)
        except HelmsmanError as error:
            log.info("session %s of an earlier hub cannot be attached to: %s", reference, error)
            return
        self.ask_from_now_on(context, session)

    def ask_from_now_on(self, context: Context, session: Session) -> None:
        """Ask this client's user the open and future questions of a session that this call did not start."""
        handler = self.handler(context)
        if handler is None:
            return
        # From now on this client is asked, instead of the one that began the session.
        session.handle_questions(handler)
        for question in session.questions:
            if question.id not in self._shown:
                close_form = session.open_form(question.id)  # open it now: the agent may check before the form is sent
                self._helm.in_background(partial(self._ask_later, context, session, question, close_form))

    async def _ask_later(
        self, context: Context, session: Session, question: Question, close_form: Callable[[], None]
    ) -> None:
        try:
            await self._ask_until_closed(context, session, question, None)
        finally:
            close_form()

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
                # The other task would wait until the question is closed.
                tasks.cancel_scope.cancel()
        except anyio.get_cancelled_exc_class():
            self._shown.discard(question.id)  # the wait is over before the person was done: the next one asks again
            raise
        if answers is not None:
            await self._respond(context, session, question, answers)

    async def input_required(
        self, context: Context, session: Session, question: Question
    ) -> types.InputRequiredResult | None:
        """Return the reply that asks a 2026-07-28 client for an answer; None if it cannot ask its user, or already has."""
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS or not has_forms(context):
            return None
        if question.id in self._opened or (question.id in self._shown and question.id not in self._handed_out):
            # It is being answered in the dashboard, or was dismissed. A form that the client has dropped without an answer
            # is handed out again.
            return None
        return types.InputRequiredResult(input_requests={question.id: self.form(context, session, question)})

    def form(self, context: Context, session: Session, question: Question) -> types.ElicitRequest:
        """Return the question as a request that the client shows to its user.

        The client does not report whether the user sees the form, so it counts as shown only for the length of a lease.
        """
        self._shown.add(question.id)
        # Keeps the model from answering while the person may see the form.
        self._hand_out(context, session, question)
        if (deadline := session.deadlines.get(question.id)) is not None:
            # The deadline stands still for one lease only: the client does not say whether the form is still on screen.
            deadline.lease(_HANDED_OUT)
        page = self._page(context, session, question)
        if page is not None:
            return types.ElicitRequest(params=types.ElicitRequestURLParams(message=page_message(question), url=page))
        form = types.ElicitRequestFormParams(message=form_message(question), requested_schema=form_schema(question))
        return types.ElicitRequest(params=form)

    def is_opened(self, question: Question) -> bool:
        """Return whether a client's user has opened the question in the dashboard."""
        return question.id in self._opened

    def _page(self, context: Context, session: Session, question: Question) -> str | None:
        """Return the address of the question in the dashboard, if the client should open it instead of a form."""
        if fits_a_form(question) or not _opens_pages(context) or self._helm.sessions.get(session.id) is not session:
            return None
        server = None if context.request is None else context.request.scope.get("server")
        is_tcp = server is not None and server[1] is not None  # else it came by the hub's socket
        # Behind a tunnel the client knows the server by another address than we do; the request has it.
        base = (
            str(context.request.base_url).rstrip("/")
            if is_tcp and context.request is not None
            else self._helm.dashboard
        )
        return (
            None if base is None else f"{base}/#/s/{quote(session.id, safe='')}/question/{quote(question.id, safe='')}"
        )

    def _hand_out(self, context: Context, session: Session, question: Question) -> None:
        """Note that a client has fetched a form. It is open until the answer comes, the client goes, or some time is up."""
        # Handed out before: its time already runs.
        if question.id in self._handed_out:
            return
        close_form = self._handed_out[question.id] = session.open_form(question.id)

        async def close_later() -> None:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(cancel_when_closed, session, question, tasks.cancel_scope)
                await anyio.sleep(_HANDED_OUT_SECONDS)
                tasks.cancel_scope.cancel()
            close_form()
            self._handed_out.pop(question.id, None)

        self._helm.in_background(close_later)

    async def take_responses(self, context: Context, responses: types.InputResponses | None, session: Session) -> None:
        """Handle the user's answers in the second call."""
        for question_id, response in (responses or {}).items():
            # Not found: closed in the meantime, or a question of another session of the same job.
            question = session.state.questions.get(question_id)
            is_page = question is not None and self._page(context, session, question) is not None
            if is_page and isinstance(response, types.ElicitResult) and response.action == "accept":
                # Opening the page is no answer; it is given there, behind a login.
                self._opened.add(question_id)
                continue
            if (close_form := self._handed_out.pop(question_id, None)) is not None:
                close_form()
            if question is None or is_page or not isinstance(response, types.ElicitResult):
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
        close_form = session.open_form(question.id)
        page = self._page(context, session, question)
        try:
            if page is not None:
                await self._open_page(context, session, question, page, request_id)
                return None
            async with session.on_screen(question):
                result = await context.session.elicit_form(form_message(question), form_schema(question), request_id)
        except MCPError as error:
            log.info("the client could not be asked question %s, which stays open: %s", question.id, error)
            return None
        finally:
            close_form()
        # Codex declines automatically in `codex exec`, where no person has seen the form.
        if result.action == "decline" and _declines_by_itself(context):
            return None
        return form_answers(question, result.action, result.content)

    async def _open_page(
        self, context: Context, session: Session, question: Question, page: str, request_id: types.RequestId | None
    ) -> None:
        """Ask the client to open the question in the dashboard, and notify it when the question is closed.

        Nothing that the client says answers the question: the user answers it on the page, behind its login.
        """
        name = form_name(session, question)
        result = await context.session.elicit_url(page_message(question), page, name, request_id)
        if result.action != "accept":
            return
        try:
            with anyio.move_on_after(_HANDED_OUT_SECONDS):
                while question.id in session.state.questions:
                    await session.feed.changed()
        finally:
            # Also after a cancellation, since the client waits for this notification.
            with anyio.move_on_after(_COMPLETE_SECONDS, shield=True):
                await context.session.send_elicit_complete(name)

    async def _respond(self, context: Context, session: Session, question: Question, answers: list[str]) -> None:
        try:
            # A session of another machine is answered by its own hub.
            is_here = self._helm.sessions.get(session.id) is session
            helm = self._helm if is_here else session.verbs  # of another machine
            await helm.respond(session.id, question.id, answers, by=by_form(context))
        except HelmsmanError as error:
            # Another front end was faster, which is not an error for the person.
            log.info("the answer to question %s came too late or does not fit: %s", question.id, error)


class Confirmation:
    """Form in which the user of a client confirms a proposal of its model.

    A client of 2026-07-28 gets the form as the reply to its call, and calls again with the answer. Over a pipe the form
    stays open after the reply; over HTTP the call waits for the answer.
    """

    def __init__(self, context: Context, responses: types.InputResponses | None, helm: HelmsmanService) -> None:
        self._context = context
        self._helm = helm
        self.answered: str | None = None
        """Name of the action that the user confirmed or refused in the second call."""
        self.is_yes = False
        for name, response in (responses or {}).items():
            if name.startswith(_CONFIRM) and isinstance(response, types.ElicitResult):
                self.answered, self.is_yes = name.removeprefix(_CONFIRM), _says_yes(response)

    async def ask(self, what: str, message: str, confirmed: Callable[[], Awaitable[object]]) -> Deferred | None:
        """Ask the user, if the client can show a form. Returns the reply to give instead of a result, if there is one."""
        if not has_forms(self._context):
            return None
        if self._context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            form = types.ElicitRequestFormParams(message=message, requested_schema=_CONFIRM_SCHEMA)
            request = types.ElicitRequest(params=form)
            return Deferred(types.InputRequiredResult(input_requests={f"{_CONFIRM}{what}": request}))
        if _can_be_called(self._context):
            # Over a pipe the call returns while the form is open; over HTTP the form needs this call's stream.
            if self._context.request is None:
                self._helm.in_background(partial(self._elicit, message, confirmed, None))
            else:
                await self._elicit(message, confirmed, self._context.request_id)
        return None

    async def by_person(self, confirmed: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Run an action that the user has confirmed, no longer on behalf of the client's model."""
        # A proposal by the model becomes an act of the user, or the audit log would name the wrong one.
        with current().on_behalf_of(None).entered():
            await confirmed(*arguments)

    async def _elicit(
        self, message: str, confirmed: Callable[[], Awaitable[object]], request_id: types.RequestId | None
    ) -> None:
        try:
            result = await self._context.session.elicit_form(message, _CONFIRM_SCHEMA, request_id)
            if _says_yes(result):
                await self.by_person(confirmed)
        except (MCPError, HelmsmanError) as error:
            log.info("the person at the client did not confirm: %s", error)


_CONFIRM: Final = "confirm/"
_YES: Final = "confirm"
# One required choice: a form that is accepted unread must not confirm.
_CONFIRM_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    # Many clients have the first choice selected when the form opens.
    "properties": {"decision": {"type": "string", "title": "Decision", "enum": ["leave", _YES]}},
    "required": ["decision"],
}


def _says_yes(result: types.ElicitResult) -> bool:
    return result.action == "accept" and (result.content or {}).get("decision") == _YES


def form_name(session: Session, question: Question) -> str:
    """Return the name of a form. All hubs use the same name."""
    return f"{session.id}/{question.id}"


def has_forms(context: Context) -> bool:
    """Return whether a client shows forms. One that names no mode does; one that only opens pages does not."""
    capabilities = context.session.client_capabilities
    asks = None if capabilities is None else capabilities.elicitation
    # A client that names no mode means forms, as before modes existed.
    return asks is not None and (asks.form is not None or asks.url is None)


def _opens_pages(context: Context) -> bool:
    capabilities = context.session.client_capabilities
    asks = None if capabilities is None else capabilities.elicitation
    return asks is not None and asks.url is not None


def _can_be_called(context: Context) -> bool:
    return has_forms(context) and context.session.can_send_request


def _declines_by_itself(context: Context) -> bool:
    """Return whether the client is Codex, which declines forms automatically if it has no user to show them to.

    It does so in `codex exec` and with the approval policy `never`. Therefore its decline is not an answer: its agent may
    still decide with `codex_respond`.
    """
    client = context.session.client_params
    return client is not None and client.client_info.name == _CODEX_CLIENT


def by_form(context: Context) -> AnsweredBy:
    """Return the user who filled in a form of this client."""
    return AnsweredBy("person", client_name(context), "form")


def by_tool(context: Context) -> AnsweredBy:
    """Return the agent that called a tool from this client."""
    return AnsweredBy("agent", client_name(context), "tool")


def client_name(context: Context) -> str | None:
    """Return the client's name and version, in either era of the protocol. A client of 2026-07-28 may omit them."""
    client = context.session.client_params
    return None if client is None else f"{client.client_info.name} {client.client_info.version}".strip() or None
