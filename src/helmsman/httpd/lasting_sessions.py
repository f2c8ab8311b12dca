"""Sessions of Streamable HTTP that outlive a hub.

The SDK knows only sessions that it has started itself, and answers requests of any other session that the session is over.
So the process that owns the port (`cli/http_front.py`) stores the state for the next hub. It passes the state to every later
hub without interpreting it:

    s/<session>                     the client's initialize request and its subscriptions
    c/<session>/<epoch>.<number>    a pending request, by the epoch of its hub and the hub's number for it

A session of an earlier hub is initialized again in the SDK when its client returns, and keeps the id that the client knows.

The stream that answers a request begins with an event id. A client whose connection breaks resumes the stream with it
(`Last-Event-ID`, from 2025-11-25 on). Only then does a new hub repeat the request, which is carried out once (`CallLog`).
A client without an event id has seen its request fail, and may have made another.

Clients of 2026-07-28 have neither sessions nor event ids: each request is independent, and one that is cut has failed. Its
response starts early, so that the client does not consider its other requests lost.
"""

from __future__ import annotations

import itertools
import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp_types import DEFAULT_NEGOTIATED_VERSION, INTERNAL_ERROR
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, is_version_at_least
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from helmsman.base.concurrency import OnceEach
from helmsman.base.json_values import json_object
from helmsman.hub.suspects import GAVE_UP, Suspect, note_death
from helmsman.mcp.current_call import NumberedCall, current_call
from helmsman.tasks.calls import CallId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from helmsman.base.processes import Process
    from helmsman.service import HelmsmanService
    from helmsman.tasks.calls import CallLog

log = logging.getLogger(__name__)

SESSION_HEADER: Final = "mcp-session-id"
_VERSION_HEADER: Final = "mcp-protocol-version"
_LAST_EVENT_HEADER: Final = "last-event-id"
_RESUMING_SINCE: Final = "2025-11-25"
_MOST_SESSIONS: Final = 10_000
"""As many as the SDK has at a time. Clients seldom say that they are done."""
_UNCLAIMED_SECONDS: Final = 300.0
"""Time for which an answer, or a request left by an earlier hub, waits for a client whose connection broke."""
_MOST_WAITING: Final = 16
"""Limit of messages that wait for a client that does not read. Above it, writers wait."""
_EARLY_SECONDS: Final = 0.01
"""Delay before a stream starts. A faster answer is sent as a plain response."""

_Said = dict[str, Any]
"""A message of JSON-RPC."""


class Kept:
    """State that is passed to the next hub. `report` sends changes to the process that stores it."""

    def __init__(self, known: Mapping[str, Any], report: Callable[..., None]) -> None:
        self._known = dict(known)
        self._report = report

    def __contains__(self, key: str) -> bool:
        return key in self._known

    def get(self, key: str) -> Any:
        return self._known.get(key)

    def below(self, prefix: str) -> list[str]:
        return [key for key in self._known if key.startswith(prefix)]

    def keep(self, values: Mapping[str, Any]) -> None:
        self._known.update(values)
        self._report(keep=values)

    def drop(self, keys: Iterable[str]) -> None:
        dropped = [key for key in keys if self._known.pop(key, None) is not None]
        if dropped:
            self._report(drop=dropped)


class LastingSessions:
    """Stands before the SDK's endpoint, in a hub."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        path: str,
        helm: HelmsmanService,
        calls: CallLog,
        door: tuple[str, Process],
        epoch: int,
        kept: Kept,
    ) -> None:
        """`door` identifies the process that owns the port."""
        self._app = app
        self._path = path
        self._helm = helm
        self._calls = calls
        self._door = door
        self._epoch = epoch
        self._kept = kept
        self._numbers = itertools.count(1)
        self._begun: OnceEach[str] = OnceEach()
        """The SDK's id of each session that this hub knows."""
        self._responses: dict[str, _Response] = {}
        """Requests that are running here, or whose answer waits for the client."""
        suspects = {key: self._suspect(key) for key in kept.below("c/")}
        note_death(suspects.values())
        for key, suspect in suspects.items():
            self._change(key, suspect=suspect.values())
        helm.in_background(partial(self._forget_unclaimed, kept.below("c/")))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != self._path:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        session = headers.get(SESSION_HEADER)
        if headers.get(_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION) not in HANDSHAKE_PROTOCOL_VERSIONS:
            async with anyio.create_task_group() as tasks:
                early = _EarlyStream(receive, send)
                tasks.start_soon(early.begin_soon)
                await self._app(scope, early.receive, early.send)
                tasks.cancel_scope.cancel()
        elif session is None and scope["method"] == "POST":
            await self._first(scope, receive, send)
        elif session is None or f"s/{session}" not in self._kept:
            await self._app(scope, receive, send)
        else:
            await self._next(session, scope, receive, send)

    async def _first(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request without a session, which may be `initialize`."""
        body, said = await _read(scope, receive)
        if said is None or said.get("method") != "initialize":
            await self._app(scope, _replay_body(body, receive), send)
            return

        async def send_on(message: Message) -> None:
            if message["type"] == "http.response.start":
                session = Headers(raw=message["headers"]).get(SESSION_HEADER)
                if session is not None and message["status"] < 400:
                    await self._begun.get(session, partial(_at_once, session))
                    self._forget(self._kept.below("s/")[: 1 - _MOST_SESSIONS])
                    self._kept.keep({f"s/{session}": {"initialize": said, "subscribed": {}}})
            await send(message)

        await self._app(scope, _replay_body(body, receive), send_on)

    async def _next(self, session: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request of a session that this hub or an earlier one knows."""
        theirs = await self._begun.get(session, partial(self._begin_again, session, scope))
        headers = Headers(scope=scope)
        scope = _in_session(scope, theirs)
        if scope["method"] == "GET" and (key := headers.get(_LAST_EVENT_HEADER)) is not None:
            await self._resume(session, key, _as_post(scope, theirs), receive, send)
            return
        if scope["method"] == "POST":
            body, said = await _read(scope, receive)
            if said is not None and "method" in said and "id" in said:
                await self._request(session, said, scope, body, receive, send)
                return
            if said is not None and (said := self._inward(session, said)) is None:
                await Response(status_code=202)(scope, receive, send)  # the addressee has gone
                return
            receive = _replay_body(body if said is None else json.dumps(said).encode(), receive)

        async def send_on(message: Message) -> None:
            await send(self._outward(session, message)[0])

        await self._app(scope, receive, send_on)
        if scope["method"] == "DELETE":
            self._forget([f"s/{session}"])

    async def _begin_again(self, session: str, scope: Scope) -> str:
        """Say to the SDK what the client said to an earlier hub; the id it gives."""
        kept = self._kept.get(f"s/{session}")
        said = kept["initialize"]
        # use the agreed version, not the one that was proposed
        if (agreed := Headers(scope=scope).get(_VERSION_HEADER)) is not None:
            said = {**said, "params": {**said["params"], "protocolVersion": agreed}}
        theirs = (await self._say(scope, said)).get(SESSION_HEADER, session)
        for following in ({"jsonrpc": "2.0", "method": "notifications/initialized"}, *kept["subscribed"].values()):
            await self._say(scope, following, theirs)
        log.info("an HTTP client goes on with a session of an earlier hub")
        return theirs

    async def _say(self, scope: Scope, said: _Said, theirs: str | None = None) -> Headers:
        """Say something in place of a client; the headers of the answer."""
        headers = Headers()

        async def send(message: Message) -> None:
            nonlocal headers
            if message["type"] == "http.response.start":
                headers = Headers(raw=message["headers"])

        body = json.dumps(said).encode()
        await self._app(_as_post(scope, theirs), _replay_body(body), send)
        return headers

    def _forget(self, sessions: Iterable[str]) -> None:
        for key in sessions:
            session = key.removeprefix("s/")
            self._begun.forget(session)
            self._kept.drop([key, *self._kept.below(f"c/{session}/")])

    # Requests, each of which may have to be asked again

    async def _request(
        self, session: str, said: _Said, scope: Scope, body: bytes, receive: Receive, send: Send
    ) -> None:
        key = f"c/{session}/{self._epoch}.{next(self._numbers)}"
        self._kept.keep({key: {"said": said, "suspect": [], "forms": []}})
        self._note_subscription(session, said)
        response = self._begin(session, key, scope, body)
        version = Headers(scope=scope).get(_VERSION_HEADER, DEFAULT_NEGOTIATED_VERSION)
        await response.read(receive, send, [_event_id(key)] if is_version_at_least(version, _RESUMING_SINCE) else [])

    async def _resume(self, session: str, key: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the rest of the response to a request."""
        call = self._kept.get(key) if key.startswith(f"c/{session}/") else None
        if call is None:
            await Response("This stream is over.", status_code=404)(scope, receive, send)
            return
        events = [_event_id(key)]
        if (response := self._responses.get(key)) is None:
            events += [_event(_withdrawn(form)) for form in call["forms"]]
            if self._suspect(key).is_guilty:
                self._kept.drop([key])
                error = {"code": INTERNAL_ERROR, "message": GAVE_UP}
                events.append(_event({"jsonrpc": "2.0", "id": call["said"]["id"], "error": error}))
                await Response(b"".join(events), media_type="text/event-stream")(scope, receive, send)
                return
            self._change(key, forms=[])
            body = json.dumps(call["said"]).encode()
            response = self._begin(session, key, scope, body)
        await response.read(receive, send, events)

    def _begin(self, session: str, key: str, scope: Scope, body: bytes) -> _Response:
        response = self._responses[key] = _Response()
        self._helm.in_background(partial(self._answer, session, key, scope, body, response))
        return response

    async def _answer(self, session: str, key: str, scope: Scope, body: bytes, response: _Response) -> None:
        """Have the SDK answer a request, whether or not the client is connected."""
        epoch, _, number = key.rpartition("/")[2].partition(".")
        suspect = self._suspect(key)

        def note(change: Callable[[], None]) -> None:
            change()
            self._change(key, suspect=suspect.values())

        if suspect.hold_back():
            self._change(key, suspect=suspect.values())
            await anyio.sleep(suspect.hold)
            note(suspect.release)
        door, process = self._door
        current_call.set(
            NumberedCall(
                CallId(f"{door}.{epoch}", int(number), process),
                self._calls,
                take=partial(note, suspect.take),
                rest=partial(note, suspect.clear),
            )
        )

        async def send(message: Message) -> None:
            message, said = self._outward(session, message)
            if said is not None and "method" in said and "id" in said and key in self._kept:
                self._change(key, forms=[*self._kept.get(key)["forms"], said["id"]])
            await response.put(message, said)

        try:
            await self._app(scope, _replay_body(body), send)
        except Exception:
            log.exception("a request over HTTP failed")
        response.end()
        note(suspect.clear)
        with anyio.move_on_after(_UNCLAIMED_SECONDS):
            await response.delivered.wait()
        del self._responses[key]
        self._kept.drop([key])

    async def _forget_unclaimed(self, left: list[str]) -> None:
        """Drop requests of an earlier hub that no client has resumed in time."""
        await anyio.sleep(_UNCLAIMED_SECONDS)
        self._kept.drop(key for key in left if key not in self._responses)

    def _suspect(self, key: str) -> Suspect:
        return Suspect(*self._kept.get(key)["suspect"])

    def _change(self, key: str, **changed: object) -> None:
        if key in self._kept:
            self._kept.keep({key: {**self._kept.get(key), **changed}})

    def _note_subscription(self, session: str, said: _Said) -> None:
        if said["method"] not in ("resources/subscribe", "resources/unsubscribe"):
            return
        kept = self._kept.get(f"s/{session}")
        uri = str((said.get("params") or {}).get("uri"))
        subscribed = {known: asked for known, asked in kept["subscribed"].items() if known != uri}
        if said["method"] == "resources/subscribe":
            subscribed[uri] = said
        self._kept.keep({f"s/{session}": {**kept, "subscribed": subscribed}})

    # Messages on their way, in which the ids of our requests say which hub has made them

    def _outward(self, session: str, message: Message) -> tuple[Message, _Said | None]:
        """Return a message with the client's session id, and the JSON-RPC message in it."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=list(message["headers"]))
            if SESSION_HEADER in headers:
                headers[SESSION_HEADER] = session
            if message["status"] == 404:
                self._forget([f"s/{session}"])
            return {**message, "headers": headers.raw}, None
        said = _said_in(message.get("body", b""))
        if said is None or "method" not in said:
            return message, said
        if "id" in said:
            said = {**said, "id": f"{self._epoch}.{said['id']}"}
        elif said["method"] == "notifications/cancelled":
            params = said["params"]
            said = {**said, "params": {**params, "requestId": f"{self._epoch}.{params['requestId']}"}}
        else:
            return message, said
        return {**message, "body": _event(said)}, said

    def _inward(self, session: str, said: _Said) -> _Said | None:
        """An answer or a notification as the SDK is to see it; None if it is for an earlier hub."""
        calls = self._kept.below(f"c/{session}/")
        if said.get("method") == "notifications/cancelled":
            named = (said.get("params") or {}).get("requestId")
            left = [key for key in calls if key not in self._responses and self._kept.get(key)["said"]["id"] == named]
            self._kept.drop(left)
            return None if left else said
        if "method" in said:
            return said
        for key in calls:
            if said.get("id") in (forms := self._kept.get(key)["forms"]):
                self._change(key, forms=[form for form in forms if form != said["id"]])
        epoch, _, number = str(said.get("id")).partition(".")
        return {**said, "id": int(number)} if epoch == str(self._epoch) and number.isdecimal() else None


class _Response:
    """A response in progress, for its current reader or a reader that resumes it. Progress goes only to a current reader."""

    def __init__(self) -> None:
        self.delivered = anyio.Event()
        self._start: Message | None = None
        self._waiting: list[tuple[bytes, bool]] = []
        """Pieces of the body, and whether each is the answer."""
        self._is_ended = False
        self._reader: object | None = self
        self._changed = anyio.Event()

    async def put(self, message: Message, said: _Said | None) -> None:
        if message["type"] == "http.response.start":
            self._start = message
        elif message.get("body"):
            is_progress = said is not None and "id" not in said
            while is_progress and self._reader is not None and len(self._waiting) >= _MOST_WAITING:
                await self._changed.wait()
            if not is_progress or self._reader is not None:
                self._waiting.append((message["body"], said is not None and "method" not in said))
        self._wake()

    def end(self) -> None:
        self._is_ended = True
        self._wake()

    async def read(self, receive: Receive, send: Send, events: list[bytes]) -> None:
        """Send it to a client, these events first, until it is there or the client is gone. The last to come is the one."""
        reader = self._reader = object()
        self._wake()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_until_gone, receive, tasks.cancel_scope)
                await self._send_all(reader, send, events)
                tasks.cancel_scope.cancel()
        finally:
            if self._reader is reader:
                self._reader = None
                self._wake()

    async def _send_all(self, reader: object, send: Send, events: list[bytes]) -> None:
        while self._start is None and not self._is_ended:
            await self._changed.wait()
        if self._start is None:
            return
        await send(self._start)
        if Headers(raw=self._start["headers"]).get("content-type", "").startswith("text/event-stream"):
            await send({"type": "http.response.body", "body": b"".join(events), "more_body": True})
        while self._reader is reader:
            if self._waiting:
                body, is_answer = self._waiting[0]
                await send({"type": "http.response.body", "body": body, "more_body": True})
                if is_answer:  # a client may disconnect as soon as it has the answer
                    self.delivered.set()
                    break
                if self._reader is reader:
                    del self._waiting[0]
                    self._wake()
            elif self._is_ended:
                self.delivered.set()
                break
            else:
                await self._changed.wait()
        await send({"type": "http.response.body", "body": b""})

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


class _EarlyStream:
    """A response that starts before its answer is ready.

    If a connection breaks before a response has started, the Python SDK considers its whole connection lost; if a stream
    ends, only its request. The server side of the SDK starts a response after 15 seconds. An invalid request is detected
    before the app waits for more input, and is answered with its own status.
    """

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._is_read = False
        self._at_work = anyio.Event()
        self._in_turn = anyio.Lock()
        self._is_begun = self._is_early = self._is_stream = False
        self._body = b""

    async def receive(self) -> Message:
        if self._is_read:
            self._at_work.set()
        message = await self._receive()
        self._is_read = not message.get("more_body", False)
        return message

    async def begin_soon(self) -> None:
        await self._at_work.wait()
        await anyio.sleep(_EARLY_SECONDS)
        async with self._in_turn:
            if not self._is_begun:
                self._is_early = True
                headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache, no-transform")]
                await self._send({"type": "http.response.start", "status": 200, "headers": headers})
                await self._send({"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True})

    async def send(self, message: Message) -> None:
        async with self._in_turn:
            if message["type"] == "http.response.start":
                self._is_begun = True
                self._is_stream = (
                    Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream")
                )
                if self._is_early:
                    return
            elif self._is_early and not self._is_stream:
                self._body += message.get("body", b"")
                if message.get("more_body", False):
                    return
                event = b"event: message\r\ndata: " + self._body + b"\r\n\r\n" if self._body else b""
                message = {"type": "http.response.body", "body": event}
            await self._send(message)


async def _until_gone(receive: Receive, reading: anyio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    reading.cancel()


async def _at_once(value: str) -> str:
    return value


async def _read(scope: Scope, receive: Receive) -> tuple[bytes, _Said | None]:
    """Return the body of a request, and its JSON-RPC message if it contains exactly one."""
    try:
        body = await Request(scope, receive).body()
    except ClientDisconnect:
        return b"", None
    return body, json_object(body)


def _replay_body(body: bytes, receive: Receive | None = None) -> Receive:
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


def _in_session(scope: Scope, theirs: str) -> Scope:
    """A request under the SDK's id of its session."""
    headers = MutableHeaders(raw=list(scope["headers"]))
    headers[SESSION_HEADER] = theirs
    return {**scope, "headers": headers.raw}


def _as_post(scope: Scope, theirs: str | None) -> Scope:
    """A request that brings a message, in place of this one."""
    headers = MutableHeaders(raw=list(scope["headers"]))
    for name in (SESSION_HEADER, _LAST_EVENT_HEADER, "content-length"):
        del headers[name]
    headers["accept"], headers["content-type"] = "application/json, text/event-stream", "application/json"
    if theirs is not None:
        headers[SESSION_HEADER] = theirs
    return {**scope, "method": "POST", "headers": headers.raw}


def _said_in(event: bytes) -> _Said | None:
    for line in event.splitlines():
        if line.startswith(b"data: {"):
            said: _Said = json.loads(line.removeprefix(b"data: "))
            return said
    return None


def _event(said: _Said) -> bytes:
    return b"event: message\r\ndata: " + json.dumps(said).encode() + b"\r\n\r\n"


def _event_id(key: str) -> bytes:
    return f"id: {key}\r\ndata: \r\n\r\n".encode()


def _withdrawn(form: str) -> _Said:
    params = {"requestId": form, "reason": "closed"}
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
