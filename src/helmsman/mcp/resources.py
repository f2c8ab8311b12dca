"""Sessions as MCP resources, with update notifications in both eras of the protocol.

`codex://sessions` is the list, `codex://sessions/{id}` a transcript in Markdown, `codex://sessions/{id}/diff` the
changes as in `codex_diff`, and `codex://tasks/{id}` the state of one turn. A client of the handshake era subscribes
with `resources/subscribe`; one of 2026-07-28 listens with `subscriptions/listen`, which the subscription bus serves.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import anyio
import mcp_types as types
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import ResourceUpdated

from helmsman.base.truncate import LINE_CHARS, TEXT_CHARS, cut, within
from helmsman.capabilities.shown_diffs import fits_in_an_answer
from helmsman.errors import HelmsmanError
from helmsman.mcp.apps import SCHEME as CARDS
from helmsman.mcp.apps import card_content
from helmsman.mcp.skills import SCHEME, skill_content
from helmsman.shapes.listed_sessions import listed_sessions
from helmsman.shapes.rendering import task_as_dict
from helmsman.shapes.transcript import transcript

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.session import ServerSession
    from mcp.server.subscriptions import SubscriptionBus

    from helmsman.mcp.elicitation import Context
    from helmsman.model.events import Event
    from helmsman.service import HelmsmanService
    from helmsman.sessions.session import Session

SESSIONS: Final = "codex://sessions"
TASKS: Final = "codex://tasks"
_MARKDOWN: Final = "text/markdown"
_DIFF: Final = "text/x-diff"
_JSON: Final = "application/json"
_TEMPLATES: Final = (
    (f"{SESSIONS}/{{id}}", "session", "A session's transcript", _MARKDOWN),
    (f"{SESSIONS}/{{id}}/diff", "diff", "What a session changed", _DIFF),
    (f"{TASKS}/{{id}}", "task", "A task, local or in the cloud", _JSON),
)
_MAX_SUBSCRIBERS: Final = 1000
_MIN_INTERVAL: Final = 0.25
"""Seconds between updates of one resource. A session may change many times per second."""


class Resources:
    """Resources of one server. `run` sends the updates and belongs into the server's task group."""

    def __init__(self, helm: HelmsmanService, bus: SubscriptionBus) -> None:
        self._helm = helm
        self._bus = bus
        self.listen = ListenHandler(bus)
        self._subscribers: dict[str, dict[str, ServerSession]] = {}
        self._changed: set[str] = set()
        self._wake = anyio.Event()

    # --- reading -----------------------------------------------------------------------------------------------------

    async def list(self, _context: Context, _params: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
        everything = types.Resource(uri=SESSIONS, name="sessions", title="Sessions", mime_type=_JSON)
        # Only open sessions: `codex://sessions` has all, and a client may load every listed resource.
        known = [
            types.Resource(
                uri=f"{SESSIONS}/{session.id}",
                name=session.id,
                title=cut(session.state.about or session.id, LINE_CHARS),
                mime_type=_MARKDOWN,
            )
            for session in self._helm.sessions.values()
        ]
        return types.ListResourcesResult(resources=[everything, *known])

    async def templates(
        self, _context: Context, _params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(
            resource_templates=[
                types.ResourceTemplate(uri_template=uri, name=name, title=title, mime_type=mime_type)
                for uri, name, title, mime_type in _TEMPLATES
            ]
        )

    async def read(self, context: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        uri = str(params.uri)
        # URIs of the extensions are served by the same method.
        if uri.startswith(SCHEME):
            return types.ReadResourceResult(contents=[skill_content(uri)])
        if uri.startswith(CARDS):
            return types.ReadResourceResult(contents=[card_content(uri)])
        try:
            mime_type, text = await self._content(context, uri)
        except HelmsmanError as error:
            raise MCPError(types.INVALID_PARAMS, error.message, {"uri": uri, "code": error.code}) from error
        return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=mime_type, text=text)])

    async def _content(self, context: Context, uri: str) -> tuple[str, str]:
        if uri == SESSIONS:
            found, _ = await self._helm.list()
            # Within the size that clients accept.
            return _JSON, json.dumps(within({"sessions": await listed_sessions(self._helm, found)}), indent=1)
        if uri.startswith(f"{TASKS}/"):
            task = await self._helm.tasks.get(uri.removeprefix(f"{TASKS}/"))
            return _JSON, json.dumps(within(task_as_dict(task, self._helm.task_writer)), indent=1)
        session_id, _, part = uri.removeprefix(f"{SESSIONS}/").partition("/")
        if not uri.startswith(f"{SESSIONS}/") or part not in ("", "diff"):
            raise MCPError(types.INVALID_PARAMS, f"There is no resource {uri}.", {"uri": uri})
        if part == "diff":
            changes = self._helm.extras.changes
            changed = await changes.diff(session_id)
            # A diff that was read whole as a resource may be applied, as after `codex_diff`.
            if fits_in_an_answer(changed.diff.text):
                changes.shown.show(client_of(context), session_id, changed.diff.patch)
            return _DIFF, cut(changed.diff.text, TEXT_CHARS, f"all of it: helmsman diff {session_id}")
        session = await self._helm.session(session_id)
        return _MARKDOWN, transcript(session, await self._helm.history(session.id))

    # --- subscriptions -----------------------------------------------------------------------------------------------

    async def subscribe(self, context: Context, params: types.SubscribeRequestParams) -> types.EmptyResult:
        clients = self._subscribers.setdefault(str(params.uri), {})
        clients[client_of(context)] = context.session
        if len(clients) > _MAX_SUBSCRIBERS:
            clients.pop(next(iter(clients)))  # the oldest: nothing tells us when a client over HTTP is gone for good
        return types.EmptyResult()

    async def unsubscribe(self, context: Context, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
        self._subscribers.get(str(params.uri), {}).pop(client_of(context), None)
        return types.EmptyResult()

    async def run(self) -> None:
        """Notify subscribers of changes, until cancelled."""
        stop = self._helm.listen(self._on_event)
        try:
            while True:
                await self._wake.wait()
                self._wake = anyio.Event()
                # Taken together: changes that arrive during the notifications are for the next round.
                changed, self._changed = self._changed, set()
                for uri in changed:
                    await self._notify(uri)
                await anyio.sleep(_MIN_INTERVAL)
        finally:
            stop()

    def _on_event(self, session: Session, _event: Event) -> None:
        self._changed |= {SESSIONS, f"{SESSIONS}/{session.id}", f"{SESSIONS}/{session.id}/diff"}
        # The newest task is the turn that runs.
        self._changed |= {f"{TASKS}/{task_id}" for task_id in session.task_ids[-1:]}
        self._wake.set()

    async def _notify(self, uri: str) -> None:
        # Listeners of 2026-07-28 hear it by the bus, subscribers of the handshake era each by their session.
        await self._bus.publish(ResourceUpdated(uri=uri))
        # A copy: a client may unsubscribe while another is notified.
        for client in list(self._subscribers.get(uri, {}).values()):
            await client.send_resource_updated(uri)  # to a client that is gone it is dropped


def client_of(context: Context) -> str:
    """Return which client a request comes from: over HTTP its session, or its name where it has none; "" on a pipe."""
    if context.request is None:
        return ""
    told = context.session.client_params
    return session_of(context) or f"client {'' if told is None else told.client_info.name}"


def session_of(context: Context) -> str:
    """Return the id of a client's session over HTTP; "" on a pipe, and from protocol 2026-07-28 on."""
    headers: Mapping[str, str] = getattr(context.request, "headers", None) or {}
    return headers.get(MCP_SESSION_ID_HEADER, "")
