"""MCP sessions of Streamable HTTP that survive a hub, without anything being stored for them.

MCP lets a server forget its sessions: it answers 404, and the client initializes again. Codex does. The official SDKs for
Python and TypeScript do not (`tests/clients/test_forgotten_sessions.py`): every later call of such a client fails. So the
session id says, signed, what the client said in `initialize`, and a hub that does not know the id initializes the session in
the client's place. Ids that no hub has signed get 404.

A call during which its hub ends has failed. The TypeScript SDK, and so Claude Code, would wait for its answer for ever,
unless it can resume the stream (`Last-Event-ID`). So a stream begins with an event id that says which call it answers, and
the next hub answers that the call was cut. Nothing is repeated: what the call began continues, and the client looks.

Requests to the client have ids that name the hub, so that the answer to a form of an earlier hub answers nothing else.
"""

from __future__ import annotations

import base64
import hmac
import itertools
import json
import logging
import zlib
from collections import OrderedDict
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.server.streamable_http import EventMessage, EventStore
from mcp_types import CONNECTION_CLOSED, DEFAULT_NEGOTIATED_VERSION, JSONRPCNotification
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from helmsman.base.concurrency import OnceEach
from helmsman.base.json_values import json_object
from helmsman.errors import OutcomeUnknown
from helmsman.httpd.early_stream import EarlyStream
from helmsman.mcp.toolset import failed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mcp.server.streamable_http import EventCallback
    from mcp_types import JSONRPCMessage
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

SESSION_HEADER: Final = "mcp-session-id"
_VERSION_HEADER: Final = "mcp-protocol-version"
_LAST_EVENT_HEADER: Final = "last-event-id"
_MOST_SESSIONS: Final = 10_000
"""SDK's own limit."""
_MOST_STREAMS: Final = 1000
"""Limit of streams with stored messages, for clients that resume after a broken connection."""
_STANDALONE: Final = "_GET_stream"  # the SDK's name for the stream that answers no request
CUT: Final = (
    "The hub or the connection ended during this call. What the call began continues. Look at it with codex_list and "
    "codex_status before you repeat the call."
)

_Rpc = dict[str, Any]
"""Message of JSON-RPC."""


@dataclass(slots=True)
class _Caller:
    """Session of a request. The SDK's tasks for a session inherit it from the request that began the session."""

    session: str = ""
    is_tool: bool = False


_caller: ContextVar[_Caller] = ContextVar("caller")


class McpSessions:
    """Middleware before the SDK's endpoint. `key` signs session ids, `events` identify this hub."""

    def __init__(self, app: ASGIApp, *, path: str, key: bytes, events: RecentEvents) -> None:
        self._app = app
        self._path = path
        # A derived key: what else is signed with the token must never pass for a session id.
        self._key = hmac.digest(key, b"mcp session", "sha256")
        self._events = events
        self._epoch = events.epoch
        self._known: OnceEach[str] = OnceEach()
        """Id of the SDK for each session."""
        self._recent: OrderedDict[str, None] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        session = headers.get(SESSION_HEADER)
        if headers.get(_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION) not in HANDSHAKE_PROTOCOL_VERSIONS:
            await self._serve_modern(scope, receive, send)
        elif session is None:
            await self._first(scope, receive, send)
        elif session in self._ended or (hello := self._read_id(session)) is None:
            await _not_found()(scope, receive, send)
        else:
            await self._next(session, hello, scope, receive, send)

    async def _serve_modern(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request of MCP 2026-07-28, which has no sessions. A call of a tool begins with an event id there too."""
        last = Headers(scope=scope).get(_LAST_EVENT_HEADER)
        if scope["method"] == "GET" and last is not None:
            _, _, stream, is_tool = _parts(last)
            await _answer_cut(last, stream, is_tool=is_tool)(scope, receive, send)
            return
        said, receive = await _read(scope, receive)
        is_call = said is not None and said.get("method") == "tools/call"
        first = f"id: {self._epoch}.0.t.{said.get('id')}\r\ndata: \r\n\r\n".encode() if said and is_call else b""
        await EarlyStream.serve(self._app, scope, receive, send, first)

    # --- session ids -------------------------------------------------------------------------------------------------

    def _new_id(self, hello: _Rpc, theirs: str) -> str:
        """Return an id from which a later hub can initialize the session."""
        params = hello["params"]
        client = {name: params["clientInfo"].get(name) for name in ("name", "version")}
        # The SDK's random id makes it unique, since many clients say the same.
        content = json.dumps([theirs, params["protocolVersion"], params["capabilities"], client])
        packed = base64.urlsafe_b64encode(zlib.compress(content.encode())).decode()
        return f"{packed}.{self._signature(packed)}"

    def _read_id(self, session: str) -> _Rpc | None:
        """Return the `initialize` request that a session id encodes, or None if no hub has signed it."""
        packed, _, signature = session.rpartition(".")
        # Checked before it is unpacked: only what a hub has packed may be decompressed.
        if not hmac.compare_digest(signature.encode("utf-8", "replace"), self._signature(packed).encode()):
            return None
        content = json.loads(zlib.decompress(base64.urlsafe_b64decode(packed)))
        params = dict(zip(("protocolVersion", "capabilities", "clientInfo"), content[1:], strict=True))
        return {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}

    def _signature(self, packed: str) -> str:
        return hmac.digest(self._key, packed.encode("utf-8", "replace"), "sha256").hex()

    # --- requests ----------------------------------------------------------------------------------------------------

    async def _first(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request without a session, which may be `initialize`."""
        said, receive = await _read(scope, receive)
        hello = said if _is_hello(said) else None
        caller = _Caller()
        _caller.set(caller)

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start" and hello is not None and message["status"] < 400:
                headers = MutableHeaders(raw=list(message["headers"]))
                if (theirs := headers.get(SESSION_HEADER)) is not None:
                    # The SDK's tasks share this object, so they see an id that is set after they began.
                    ours = caller.session = headers[SESSION_HEADER] = self._new_id(hello, theirs)
                    await self._known.get(ours, partial(_at_once, theirs))
                    self._note(ours)
                    message = {**message, "headers": headers.raw}
            await send(message)

        await self._app(scope, receive, send_on)
        if said is not None:
            self._events.forget("", str(said.get("id")))

    async def _next(self, session: str, hello: _Rpc, scope: Scope, receive: Receive, send: Send) -> None:
        caller = _Caller(session)
        _caller.set(caller)
        # Of several requests that come at once, one initializes the session.
        theirs = await self._known.get(session, partial(self._initialize, hello, scope))
        self._note(session)
        scope = _with_headers(scope, {SESSION_HEADER: theirs})
        if scope["method"] == "GET" and (last := Headers(scope=scope).get(_LAST_EVENT_HEADER)) is not None:
            refusal, scope = self._resumed(session, last, scope)
            if refusal is not None:
                await refusal(scope, receive, send)
                return
        said = None
        if scope["method"] == "POST":
            said, receive = await _read(scope, receive)
            if said is not None and "method" not in said:
                if (number := self._form_number(said)) is None:
                    await Response(status_code=202)(scope, receive, send)  # the hub that asked is gone
                    return
                receive = _replay(json.dumps({**said, "id": number}).encode(), receive)
            caller.is_tool = said is not None and said.get("method") == "tools/call"

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 404:
                self._known.forget(session)  # idle for long: the next request initializes it again
            await send(self._outward(session, message))
            if message["type"] == "http.response.body" and not message.get("more_body", False) and said is not None:
                self._events.forget(session, str(said.get("id")))

        await self._app(scope, receive, send_on)
        if scope["method"] == "DELETE":
            self._known.forget(session)
            # The signature of the id stays valid, so its end is remembered.
            self._ended[session] = None
            _keep_newest(self._ended)

    def _resumed(self, session: str, last: str, scope: Scope) -> tuple[Response | None, Scope]:
        """Return the request that resumes a stream, or the answer where the stream cannot be resumed."""
        epoch, _, stream, is_tool = _parts(last)
        is_own = epoch == str(self._epoch)
        # It answers no request, so it can begin anew at any hub.
        if stream == _STANDALONE:
            return None, scope if is_own else _with_headers(scope, {_LAST_EVENT_HEADER: None})
        if not is_own:
            return _answer_cut(last, stream, is_tool=is_tool), scope
        return (None if self._events.has(session, stream) else _not_found()), scope

    async def _initialize(self, hello: _Rpc, scope: Scope) -> str:
        """Tell the SDK what the client told an earlier hub. Return the SDK's id of the session."""
        # The agreed version, which may be another than the one that the client proposed.
        agreed = Headers(scope=scope).get(_VERSION_HEADER, hello["params"]["protocolVersion"])
        hello = {**hello, "params": {**hello["params"], "protocolVersion": agreed}}
        answered = await self._tell(scope, hello, None)
        theirs = answered[SESSION_HEADER]
        await self._tell(scope, {"jsonrpc": "2.0", "method": "notifications/initialized"}, theirs)
        log.info("a client continues an MCP session of an earlier hub")
        return theirs

    async def _tell(self, scope: Scope, said: _Rpc, theirs: str | None) -> Headers:
        """Send a message in place of a client. Return the headers of the response."""
        headers = Headers()

        async def send(message: Message) -> None:
            nonlocal headers
            if message["type"] == "http.response.start":
                headers = Headers(raw=message["headers"])

        changed = {SESSION_HEADER: theirs, _LAST_EVENT_HEADER: None, "content-length": None}
        kinds = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
        post = {**_with_headers(scope, changed | kinds), "method": "POST"}
        await self._app(post, _replay(json.dumps(said).encode()), send)
        return headers

    def _note(self, session: str) -> None:
        self._recent[session] = None
        self._recent.move_to_end(session)
        for oldest in _keep_newest(self._recent):
            self._known.forget(oldest)

    # --- ids of requests to the client -------------------------------------------------------------------------------

    def _outward(self, session: str, message: Message) -> Message:
        """Return a message with the client's session id, and with this hub in the id of a request to the client."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message["headers"]))
            if SESSION_HEADER in headers:
                headers[SESSION_HEADER] = session
            return {**message, "headers": headers.raw}
        lines = message.get("body", b"").splitlines()
        place = next((place for place, line in enumerate(lines) if line.startswith(b"data: {")), None)
        # Parsing every message to find the few requests would take long: results may be large.
        if place is None or b'"method"' not in lines[place]:
            return message
        said: _Rpc = json.loads(lines[place].removeprefix(b"data: "))
        if "method" in said and "id" in said:
            said["id"] = f"{self._epoch}.{said['id']}"
        elif said.get("method") == "notifications/cancelled":
            said["params"]["requestId"] = f"{self._epoch}.{said['params']['requestId']}"
        else:
            return message
        lines[place] = b"data: " + json.dumps(said).encode()
        return {**message, "body": b"\r\n".join(lines) + b"\r\n\r\n"}

    def _form_number(self, answer: _Rpc) -> int | None:
        """Return the SDK's number of the request that a client answers, or None if this hub did not send it."""
        epoch, _, number = str(answer.get("id")).partition(".")
        return int(number) if epoch == str(self._epoch) and number.isdecimal() else None


@dataclass(slots=True)
class _Stream:
    is_tool: bool
    """True if it answers a call of a tool."""
    messages: list[tuple[int, JSONRPCMessage]] = field(default_factory=list)


class RecentEvents(EventStore):
    """Messages of open and of broken streams, for clients that resume them while the hub lives. Progress is not stored."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self._numbers = itertools.count(1)
        self._streams: OrderedDict[tuple[str, str], _Stream] = OrderedDict()

    def has(self, session: str, stream: str) -> bool:
        return (session, stream) in self._streams

    def forget(self, session: str, stream: str) -> None:
        self._streams.pop((session, stream), None)

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        caller, number = _caller.get(), next(self._numbers)
        stream = self._streams.setdefault((caller.session, stream_id), _Stream(caller.is_tool))
        if message is not None and not isinstance(message, JSONRPCNotification):
            stream.messages.append((number, message))
        _keep_newest(self._streams, _MOST_STREAMS)
        return self._id(number, stream_id, stream)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        _, after, stream_id, _ = _parts(last_event_id)
        stream = self._streams.get((_caller.get().session, stream_id), _Stream(is_tool=False))
        for number, message in tuple(stream.messages):
            if number > after:
                await send_callback(EventMessage(message, self._id(number, stream_id, stream)))
        return stream_id

    def _id(self, number: int, stream_id: str, stream: _Stream) -> str:
        return f"{self.epoch}.{number}.{'t' if stream.is_tool else 'r'}.{stream_id}"


def _parts(event_id: str) -> tuple[str, int, str, bool]:
    """Return the hub, the number, the stream, and whether the stream answers a call of a tool."""
    epoch, _, rest = event_id.partition(".")
    number, _, rest = rest.partition(".")
    kind, _, stream = rest.partition(".")
    return epoch, int(number) if number.isdecimal() else 0, stream, kind == "t"


def _answer_cut(last: str, stream: str, *, is_tool: bool) -> Response:
    """Answer a call that was cut. A client that comes again with the answer's id gets 404."""
    if last.endswith("!"):
        return _not_found()
    answer: _Rpc = {"jsonrpc": "2.0", "id": int(stream) if stream.isdecimal() else stream}
    if is_tool:  # a failed result: for the TypeScript SDK an error would leave the stream open
        result = failed(OutcomeUnknown(CUT)).model_dump(by_alias=True, exclude_none=True, mode="json")
        answer["result"] = {**result, "resultType": "complete"}
    else:
        answer["error"] = {"code": CONNECTION_CLOSED, "message": CUT}
    event = f"id: {last}!\r\nevent: message\r\ndata: {json.dumps(answer)}\r\n\r\n"
    return Response(event, media_type="text/event-stream")


def _not_found() -> Response:
    error = {"code": -32001, "message": "Session not found"}  # the code by which Claude Code knows it
    return Response(
        json.dumps({"jsonrpc": "2.0", "id": None, "error": error}), status_code=404, media_type="application/json"
    )


def _keep_newest(entries: OrderedDict[Any, Any], most: int = _MOST_SESSIONS) -> list[Any]:
    return [entries.popitem(last=False)[0] for _ in range(len(entries) - most)]


def _is_hello(said: _Rpc | None) -> bool:
    """Return whether this is an `initialize` request with all that it must have."""
    params = said.get("params") if said is not None and said.get("method") == "initialize" else None
    return (
        isinstance(params, dict)
        and isinstance(params.get("protocolVersion"), str)
        and isinstance(params.get("capabilities"), dict)
        and isinstance(params.get("clientInfo"), dict)
    )


async def _at_once(value: str) -> str:
    return value


async def _read(scope: Scope, receive: Receive) -> tuple[_Rpc | None, Receive]:
    """Return the JSON-RPC message in a request, if it contains exactly one, and a `receive` that replays the body."""
    try:
        body = await Request(scope, receive).body()
    except ClientDisconnect:
        body = b""
    return json_object(body), _replay(body, receive)


def _replay(body: bytes, receive: Receive | None = None) -> Receive:
    """Return a `receive` that replays a body that has been read."""
    is_read = False

    async def receive_on() -> Message:
        nonlocal is_read
        if not is_read:
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}
        if receive is None:
            await anyio.sleep_forever()
            raise AssertionError
        return await receive()

    return receive_on


def _with_headers(scope: Scope, changed: Mapping[str, str | None]) -> Scope:
    """Return a request with other headers. None removes one."""
    headers = MutableHeaders(raw=list(scope["headers"]))
    for name, value in changed.items():
        if value is None:
            del headers[name]
        else:
            headers[name] = value
    return {**scope, "headers": headers.raw}
