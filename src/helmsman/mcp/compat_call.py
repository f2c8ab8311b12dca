"""Call of `codex` or `codex-reply` in progress: notifications and approvals for its client.

The events of the turn go out as `codex/event` notifications, in order and before the call's result. Progress uses the
caller's token, so that its timeout does not expire. Approvals use elicitation on the call's own stream.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from pydantic import BaseModel, ConfigDict, Field

from helmsman.mcp.compat_events import CodexEvent, Translation, rate_limits
from helmsman.mcp.compat_questions import answer, elicitation
from helmsman.mcp.current_call import current_form
from helmsman.mcp.elicitation import by_form, form_name
from helmsman.mcp.waiting import report_progress, session_progress
from helmsman.model.answered_by import Answered
from helmsman.model.question_forms import form_answers, form_message, form_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from helmsman.agents.protocol import Engine
    from helmsman.mcp.call import CallContext
    from helmsman.model.events import Event
    from helmsman.model.questions import Question
    from helmsman.sessions.session import Session

log = logging.getLogger(__name__)

_BACKLOG: Final = 1000
"""Notifications that may wait for a slow client. Beyond that, text deltas are dropped."""


class _Notification:
    """`codex/event` as JSON. The SDK only requires that a notification can be dumped."""

    def __init__(self, params: dict[str, Any]) -> None:
        self._params = params

    def model_dump(self, **_options: Any) -> dict[str, Any]:
        return {"method": "codex/event", "params": self._params}


class _Approval(BaseModel):
    """`elicitation/create` whose reply may be the original's `{decision}`.

    The SDK validates a reply by the `method` of the request, and leaves unknown methods alone, so this uses another
    method name internally. On the wire it is `name`.
    """

    method: ClassVar[str] = "codex/elicitation"
    name: str = Field("elicitation/create", serialization_alias="method")
    params: dict[str, Any]


class _Reply(BaseModel):
    model_config = ConfigDict(extra="allow")


class CallInFlight:
    """Notifies the caller of events in the session in which its call runs a turn."""

    def __init__(self, call: CallContext, *, is_new: bool) -> None:
        self._call = call
        self.is_new = is_new
        self._session_id: str | None = None
        self._engine: Engine | None = None
        self._translation: Translation | None = None
        # Events arrive synchronously and are sent in order by one task: a slow client does not hold back the session.
        self._queue: deque[CodexEvent] = deque()
        self._news = anyio.Event()
        self._sending = anyio.Lock()

    def follow(self, session: Session) -> None:
        """Send the events of this session from now on."""
        self._session_id = session.id

    def listen(self, session: Session, event: Event) -> None:
        """Handle events for `Helmsman.listen`.

        A new session is ours if its questions come to us: its id is unknown before it starts.
        """
        # Bound methods compare equal by object and function, so `==` recognizes this call's own handler.
        if self._session_id is None and session.on_question == self.ask:
            self._session_id = session.id
        if session.id != self._session_id:
            return
        if self._translation is None:
            name = str(self._call.context.request_id) if self.is_new else None
            self._translation = Translation(session.id, directory=session.directory, turn_name=name, is_new=self.is_new)
        self._engine = session.engine
        for told in self._translation.translate(event):
            # Deltas are also part of the finished item, so only they may be lost.
            if len(self._queue) < _BACKLOG or not told.message["type"].endswith("_delta"):
                self._queue.append(told)
        self._news.set()

    async def send_events(self) -> None:
        """Send queued events as they come, until cancelled."""
        while True:
            await self._news.wait()
            # Before the flush: an event that arrives during it must wake the loop again.
            self._news = anyio.Event()
            await self.flush()

    async def flush(self) -> None:
        """Send all queued events."""
        context = self._call.context
        # `flush` is called by the sender, by questions and at the end. The lock keeps their messages in order.
        async with self._sending:
            while self._queue:
                told = self._queue.popleft()
                meta = {"requestId": context.request_id, "threadId": self._session_id}
                message = told.message
                if message["type"] == "token_count":  # Codex tells of the limits just after the tokens
                    message = {**message, "rate_limits": self._rate_limits()}
                params = {"_meta": meta, "id": told.id, "msg": message}
                notification = cast("Any", _Notification(params=params))
                await context.session.send_notification(notification, context.request_id)

    def _rate_limits(self) -> dict[str, Any] | None:
        return None if self._engine is None else rate_limits(self._engine.known_rate_limits)

    async def report_progress(self, session: Session) -> None:
        """Report progress on the caller's token, if it gave one, now and then also when nothing happens."""
        # A client without a token did not ask for progress.
        if "progress_token" not in (self._call.context.meta or {}):
            return
        await report_progress(self._call, lambda: session_progress(session), session.feed.changed)

    # --- questions ---------------------------------------------------------------------------------------------------

    async def ask(self, session: Session, question: Question) -> Answered | None:
        """Ask the client's user, like the original. Return None if the client cannot be asked.

        The question then stays open until another answer or its timeout.
        """
        context = self._call.context
        capabilities = context.session.client_capabilities
        if capabilities is None or capabilities.elicitation is None or not context.session.can_send_request:
            return None
        await self.flush()  # what led to the question comes before it
        # Named for the next hub, which must find the form that the client still shows.
        current_form.set(form_name(session, question))
        close_form = session.open_form(question.id)
        try:
            async with session.on_screen(question):
                answers = await self._elicit(question)
        except MCPError as error:
            log.info("the client could not be asked question %s, which stays open: %s", question.id, error)
            return None
        finally:
            close_form()
        return None if answers is None else Answered(answers, by_form(context))

    async def _elicit(self, question: Question) -> Sequence[str] | None:
        context = self._call.context
        call_id = str(context.request_id)
        message = None if self._translation is None else self._translation.approvals.get(question.id)
        if message is None:
            # The original could not ask these questions, so there is no older form to imitate.
            form = await context.session.elicit_form(form_message(question), form_schema(question), context.request_id)
            return form_answers(question, form.action, form.content)
        # The original named a session's first turn after the call, and later turns by Codex's id.
        event_id = call_id if self.is_new else question.turn_id or call_id
        params = elicitation(question, message, call_id=call_id, event_id=event_id)
        request = cast("Any", _Approval(params=params))
        metadata = ServerMessageMetadata(related_request_id=context.request_id)
        reply = await context.session.send_request(request, _Reply, metadata=metadata)
        chosen = answer(question, reply.model_extra or {})
        return None if chosen is None else [chosen]
