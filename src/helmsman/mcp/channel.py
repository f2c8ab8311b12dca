"""Claude Code channel (`claude/channel`, a preview since 2.1.80): pushes finished turns and open questions to the client.

Off unless the user's own settings switch it on (`channel`). Only Claude Code over a pipe gets it, and only if it was started
with the channel; it ignores the messages otherwise. A channel has no acknowledgement, so nothing depends on it.

What is pushed becomes part of a prompt. So it consists of Helmsman's own words and the id of a session that this client
opened, and of no text of an agent: the client's model reads that by a tool, as the result of a call.

A channel needs the handshake of older protocols. Claude Code first probes for 2026-07-28, and falls back if that is refused
(`parse_message`).
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError

from helmsman.mcp.messages import CLAUDE_CODE
from helmsman.model.events import QuestionAsked, TurnEnded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from mcp.server.context import ServerRequestContext
    from mcp.server.session import ServerSession

    from helmsman.base.clients import McpClient
    from helmsman.model.events import Event
    from helmsman.service import HelmsmanService
    from helmsman.sessions.session import Session

log = logging.getLogger(__name__)

CAPABILITY: Final = "claude/channel"
INSTRUCTIONS: Final = """
A <channel source="helmsman"> message says that a session of yours has ended its turn or asks something. It holds no text of
an agent. Look at the session with {tool}_status; you need not wait for it.
"""
_METHOD: Final = "notifications/claude/channel"
_ODD: Final = re.compile(r"[^A-Za-z0-9_.:-]")
_ID_CHARS: Final = 100
# A client that does not read must not hold back the pushes that follow.
_SEND_SECONDS: Final = 5.0


class _Params(types.NotificationParams):
    content: str
    meta: dict[str, str]


class _Pushed(types.Notification[_Params, Literal["notifications/claude/channel"]]):
    method: Literal["notifications/claude/channel"] = _METHOD
    params: _Params


class Channel:
    """Channel of one server. It pushes what happens in the sessions that its client opened."""

    def __init__(self, helm: HelmsmanService, tool: str) -> None:
        self._helm = helm
        self._tool = tool
        self._client: McpClient | None = None
        self._session: ServerSession | None = None
        self._waited_for: Counter[str] = Counter()

    def meet(self, context: ServerRequestContext[Any, Any], client: McpClient) -> None:
        """Note the client, if it is one with channels on a pipe."""
        # Over HTTP many clients share a server, and only a session of the handshake era takes unasked messages.
        if context.request is None and _is_claude(context) and context.session.can_send_request:
            self._client, self._session = client, context.session

    @contextmanager
    def quiet(self, session_ids: Iterable[str]) -> Iterator[None]:
        """Push nothing about sessions for which the client waits: it gets the answer to its call."""
        # Counted, because two calls may wait for the same session.
        waited_for = Counter(session_ids)
        self._waited_for += waited_for
        try:
            yield
        finally:
            self._waited_for -= waited_for

    async def run(self) -> None:
        """Push, until cancelled."""
        stop = self._helm.listen(self._on_event)
        try:
            await anyio.sleep_forever()
        finally:
            stop()

    def _on_event(self, session: Session, event: Event) -> None:
        owner = session.opened_by
        # Only to the client that opened the session: text in a channel becomes part of its prompt.
        if self._client is None or owner is None or not self._client.is_same_as(owner):
            return
        if self._waited_for[session.id]:
            return
        name = _ODD.sub("", session.id)[:_ID_CHARS]  # an agent may choose the id of its session
        look = f"Look at it with {self._tool}_status."
        # With a queued message the next turn begins right away, and its end is reported instead.
        if isinstance(event, TurnEnded) and not session.queue:
            self._push(f"Session {name} has ended its turn: {event.outcome}. {look}", name, "turn_ended")
        elif isinstance(event, QuestionAsked):
            self._push(f"Session {name} asks a question. {look}", name, "question")

    def _push(self, content: str, session_id: str, kind: str) -> None:
        pushed = _Pushed(params=_Params(content=content, meta={"session_id": session_id, "event": kind}))
        # In the background: an event handler must not wait for a client.
        self._helm.in_background(partial(self._send, pushed))

    async def _send(self, pushed: _Pushed) -> None:
        if self._session is None:
            return
        try:
            with anyio.move_on_after(_SEND_SECONDS):
                await self._session.send_notification(cast("Any", pushed))  # the SDK's types name only its own
        except (MCPError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            # Nothing depends on a channel, which has no acknowledgement, so losing a message is not an error.
            log.info("a message on the channel did not reach the client: %s", error)


def _is_claude(context: ServerRequestContext[Any, Any]) -> bool:
    client = context.session.client_params
    return client is not None and client.client_info.name == CLAUDE_CODE
