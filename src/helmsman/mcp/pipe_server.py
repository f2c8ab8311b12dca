"""Hub's end of a pipe: an MCP session on the frames of `helmsman.mcp.pipe`.

The SDK serves the session through the two streams of this module. They decide how the pipe treats each line: it forgets a
line that is answered, stores `initialize` and subscriptions and repeats them to the next hub, and forgets a cancelled call.
A repeated line may already be answered: the client knows the answer to a stored line, so the answer is not sent again. A
form that the client still shows is not shown again.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import anyio.lowlevel
from mcp.shared.message import ServerMessageMetadata, SessionMessage
from mcp_types import (
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)

from helmsman._version import __version__
from helmsman.base.caller_context import CallerContext
from helmsman.base.concurrency import background_tasks
from helmsman.base.processes import Process, running_process
from helmsman.base.sanitize import visible
from helmsman.errors import HelmsmanError
from helmsman.hub.process import NotServed
from helmsman.mcp.current_call import ATTACH, NumberedCall, current_call, current_form
from helmsman.mcp.messages import NoMessage, duplicate_error, parse_message
from helmsman.mcp.pipe import named
from helmsman.mcp.server import build_server
from helmsman.mcp.stdio import SdkStream
from helmsman.service import HelmsmanService
from helmsman.settings import Settings, load_settings
from helmsman.tasks.calls import CallId, CallLog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from helmsman.hub.connection import Connection
    from helmsman.hub.process import Hub
    from helmsman.steering.shared import Shared

log = logging.getLogger(__name__)

_USAGE: Final = 2
"""Exit code of a server with invalid settings."""
_LAST_WORDS_SECONDS: Final = 2.0
_KEPT: Final = frozenset({"initialize", "logging/setLevel", "resources/subscribe"})
"""Requests that a new hub must hear too; the client knows their answers."""
_HELD: Final = "subscriptions/listen"
"""Request that stays open while the client listens."""
_CLAIM_SECONDS: Final = 10.0
"""Time for which forms of an earlier hub wait for a session that asks the same question here."""


_SETTINGS: Final = {"-m": "default_model", "--model": "default_model", "--profile": "default_profile"}
"""Flags that are not called as the setting they are for."""


def _text_in(field: str) -> str:
    """Decode a text, which may be a path that is not UTF-8."""
    return os.fsdecode(bytes.fromhex(field))


def _texts_in(field: str) -> list[str]:
    return [_text_in(one) for one in field.split(",") if one]


def _in_hex(text: str) -> bytes:
    """Encode a text for an answer."""
    return os.fsencode(text).hex().encode()


class _Hello:
    def __init__(self, fields: list[str]) -> None:
        self.version, self.pipe, pid, directory, flags, environment, forms, *_ = fields
        self.pid = int(pid)
        self.directory = Path(_text_in(directory))
        self.flags = _flags(_texts_in(flags))
        pairs = (text.partition("=") for text in _texts_in(environment))
        self.environment = {name: value for name, _, value in pairs}
        self.forms = _texts_in(forms)


def _flags(words: list[str]) -> dict[str, object]:
    """Return the settings from the flags of `helmsman serve`, which the pipe has checked."""
    flags: dict[str, object] = {}
    config: list[str] = []
    rest = iter(words)
    for word in rest:
        name, equals, value = named(word)
        if name == "--expose-primitives":
            flags["expose_primitives"] = True
            continue
        value = value if equals else next(rest)
        if name in ("-c", "--config"):
            config.append(value)
        elif name != "--transport":
            # A pipe is stdio by definition.
            flags[_SETTINGS.get(name, name.removeprefix("--"))] = value
    return flags | ({"default_config": config} if config else {})


def _settings(hub: Hub, hello: _Hello, refused: str | None) -> Settings | bytes:
    """Return the settings of a pipe, or the frame that refuses it."""
    if refused is not None:
        # The pipe then runs the service itself. A refused process gets nothing from the hub.
        return b"s\t" + _in_hex(refused)
    try:
        settings = load_settings(hello.flags, hello.environment, hello.directory)
        hub.admit(settings)
    except HelmsmanError as error:
        return b"x\t%d\t%b" % (_USAGE, _in_hex(f"Error: {visible(error.message)}"))
    except NotServed as error:
        return b"s\t" + _in_hex(error.why) if error.go_to is None else b"g\t" + _in_hex(str(error.go_to))
    return settings


class PipeLogs(logging.Handler):
    """Sends log records of the hub's work for a pipe to that pipe, from the level in its settings."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()
        self._loop = asyncio.get_running_loop()
        self._levels: dict[Connection, int] = {}
        self._usual = logging.getLogger().level

    @contextmanager
    def to(self, connection: Connection, level: int) -> Iterator[None]:
        """Send log records of the block, and of tasks started in it, until the block ends."""
        self._levels[connection] = level
        self._adapt()
        # A service runs in many tasks; the context variable goes along with each of them.
        token = _LOGGED_TO.set(connection)
        try:
            yield
        finally:
            _LOGGED_TO.reset(token)
            del self._levels[connection]
            self._adapt()

    def _adapt(self) -> None:
        """Set the level of the logs to the lowest that a pipe wants: most records are never written."""
        logging.getLogger().setLevel(min(self._usual, *self._levels.values(), logging.CRITICAL))

    def emit(self, record: logging.LogRecord) -> None:
        connection = _LOGGED_TO.get()
        if connection is None or record.levelno < self._levels.get(connection, logging.CRITICAL + 1):
            return
        line = b"e" + f"{self.format(record)}\n".encode("utf-8", "backslashreplace").hex().encode("ascii")
        # A connection belongs to the thread of the event loop.
        if threading.get_ident() == self._thread:
            connection.put(line)
        else:
            self._loop.call_soon_threadsafe(connection.put, line)


_LOGGED_TO: Final[contextvars.ContextVar[Connection | None]] = contextvars.ContextVar("logged_to", default=None)


class PipeServer:
    """Serves the pipes that connect to a hub. `level_of` says from which level on a pipe with these settings wants logs."""

    def __init__(self, shared: Shared, calls: CallLog, logs: PipeLogs, level_of: Callable[[Settings], int]) -> None:
        self._shared = shared
        self._calls = calls
        self._logs = logs
        self._level_of = level_of

    async def serve(self, hub: Hub, connection: Connection, fields: list[str], refused: str | None) -> None:
        """Serve a pipe, until it leaves."""
        hello = _Hello(fields)
        settings = _settings(hub, hello, refused)
        if isinstance(settings, bytes):
            connection.put(settings)
            # The refusal must leave before the connection is closed.
            await connection.written()
            return
        pipe = PipeConnection(hello, connection, hub.epoch, self._calls)
        hub.clients[connection] = pipe
        connection.put(f"w\t1\t{__version__}\t{hub.epoch}\t{os.getpid()}".encode())
        where = CallerContext(hello.environment, hello.directory)
        # The service behaves as if it ran in the client's directory and environment.
        with where.entered(), self._logs.to(connection, self._level_of(settings)):
            async with HelmsmanService(settings, env=hello.environment, shared=self._shared) as helm:
                await pipe.serve(helm)


class PipeConnection:
    """Connected pipe."""

    def __init__(self, hello: _Hello, connection: Connection, epoch: int, calls: CallLog) -> None:
        self._calls = calls
        self._hello = hello
        self._connection = connection
        self._epoch = epoch

    @property
    def description(self) -> Mapping[str, Any]:
        return {
            "kind": "mcp",
            "pid": self._hello.pid,
            "version": self._hello.version,
            "directory": str(self._hello.directory),
        }

    async def serve(self, helm: HelmsmanService) -> None:
        server = build_server(helm)
        forms = _Forms(self._connection, self._hello.forms, self._epoch)
        lines = _Lines(self._connection)
        # The process may already be gone, and another may get its number.
        process = running_process(self._hello.pid) or Process(self._hello.pid, "")
        reader = _Reader(
            self._connection,
            lines,
            forms,
            lambda seq, request_id: NumberedCall(
                CallId(self._hello.pipe, seq, process),
                self._calls,
                take=lambda: lines.take(request_id),
                rest=lambda: lines.rest(request_id),
            ),
            has_channel=server.has_channel,
        )
        writer = _Writer(self._connection, lines, forms, reader)
        options = server.create_initialization_options()
        try:
            async with background_tasks() as tasks:
                tasks.start_soon(reader.read)
                tasks.start_soon(forms.withdraw_unclaimed)
                await server.run(reader, writer, options)
        except* anyio.BrokenResourceError:
            # An exception group, because the SDK runs the session in a task group.
            log.debug("a pipe disconnected in the middle of a message")
        # The last answers may still be on their way.
        with anyio.move_on_after(_LAST_WORDS_SECONDS):
            await self._connection.written()


class _Lines:
    """Open lines of the pipe, and the frames sent about each."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._requests: dict[str | int, tuple[int, str, bool]] = {}
        """Requests by the client's id: the line's number, the method, and whether the client knows the answer."""
        self._cancelling: dict[str | int, int] = {}
        self._subscribed: dict[str, int] = {}
        """Kept subscriptions by what they are to."""

    def request(self, request: JSONRPCRequest, seq: int, *, known: bool) -> None:
        self._requests[request.id] = seq, request.method, known
        uri = (request.params or {}).get("uri")
        # A repeated line is kept already.
        if request.method == _HELD and not known:
            self._connection.put(b"k%d" % seq)
        elif request.method == "resources/subscribe":
            self._subscribed[str(uri)] = seq
        elif request.method == "resources/unsubscribe" and (dropped := self._subscribed.pop(str(uri), None)):
            self._connection.put(b"d%d" % dropped)

    def is_open(self, request_id: str | int) -> bool:
        return request_id in self._requests

    def take(self, request_id: str | int) -> None:
        """Record that a tool works on a request."""
        if (known := self._requests.get(request_id)) is not None:
            shown = jsonrpc_id(request_id)
            self._connection.put(b"t%d %b" % (known[0], shown))

    def rest(self, request_id: str | int) -> None:
        """Mark a request as waiting, so that it is not suspected when a hub dies."""
        if (known := self._requests.get(request_id)) is not None:
            self._connection.put(b"k%d" % known[0])

    def cancel(self, request_id: Any, seq: int) -> None:
        """Cancel a request for the client. The cancellation is repeated to later hubs until the request has ended."""
        if request_id in self._requests:
            self._cancelling[request_id] = seq
        else:
            self._connection.put(b"a%d" % seq)

    def answered(self, request_id: str | int, line: bytes, *, good: bool) -> bytes | None:
        """Return the frame of a reply; None if the client already has it, or never asked."""
        # The client has the answer of a repeated line from an earlier hub.
        seq, method, known = self._settle(request_id)
        if known or not seq:
            return None
        # An error is not kept: the next hub shall not hear a refused request again.
        return b"%b%d %b" % (b"k" if good and method in _KEPT else b"r", seq, line)

    def unanswered(self, request_id: str | int) -> None:
        seq, _, _ = self._settle(request_id)
        if seq:
            self._connection.put(b"a%d" % seq)

    def _settle(self, request_id: str | int) -> tuple[int, str, bool]:
        if (cancelled := self._cancelling.pop(request_id, None)) is not None:
            self._connection.put(b"a%d" % cancelled)
        return self._requests.pop(request_id, (0, "", False))


def jsonrpc_id(value: str | int) -> bytes:
    import json

    return json.dumps(value).encode()


class _Forms:
    """Requests from the hub to the client. Their ids are unique across hubs, and the next hub finds them again."""

    def __init__(self, connection: Connection, shown: list[str], epoch: int) -> None:
        self._connection = connection
        self._epoch = epoch
        self._shown = set(shown)
        """Forms of an earlier hub that the client still shows and that no session here has claimed."""
        self._ids: dict[str | int, str] = {}
        """Ids of the client by those of the SDK."""
        self._early: dict[str, JSONRPCResponse | JSONRPCError] = {}
        """Answers to forms of an earlier hub, kept until a session here asks for them."""

    def ask(self, request: JSONRPCRequest) -> tuple[JSONRPCRequest, bool]:
        """Return a request with the client's id, and whether the client already shows it."""
        name = current_form.get()
        wanted = f"form-{name}" if name else f"{self._epoch}.{request.id}"
        # The question is asked a second time by this hub, so its form needs another id.
        if wanted in self._ids.values():
            wanted = f"{wanted}-{self._epoch}.{request.id}"
        self._ids[request.id] = wanted
        shown = wanted in self._shown
        self._shown.discard(wanted)
        return request.model_copy(update={"id": wanted}), shown

    def answered(self, answer: JSONRPCResponse | JSONRPCError) -> JSONRPCResponse | JSONRPCError | None:
        """Return a reply with the SDK's id; None if it is unknown, or stored until its question is asked here."""
        wanted = str(answer.id)
        self._connection.put(b"z" + wanted.encode())
        for ours, theirs in self._ids.items():
            if theirs == wanted:
                del self._ids[ours]
                return answer.model_copy(update={"id": ours})
        # The client answered before this hub has asked: the session that asks is still being restored.
        if wanted in self._shown:
            self._early[wanted] = answer
        return None

    def early(self, request: JSONRPCRequest) -> JSONRPCResponse | JSONRPCError | None:
        """Return the client's answer to a request, if it arrived before the request was made here."""
        answer = self._early.pop(str(request.id), None)
        if answer is None:
            return None
        ours = next(ours for ours, theirs in self._ids.items() if theirs == request.id)
        del self._ids[ours]
        return answer.model_copy(update={"id": ours})

    def withdraw(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return a cancellation with the id that the client knows."""
        theirs = self._ids.pop(params.get("requestId", ""), None)
        if theirs is None:
            return params
        self._connection.put(b"z" + theirs.encode())
        return {**params, "requestId": theirs}

    async def withdraw_unclaimed(self) -> None:
        """Withdraw forms of an earlier hub that no session has claimed in time."""
        await anyio.sleep(_CLAIM_SECONDS)
        for shown in self._shown:
            cancelled = JSONRPCNotification(
                jsonrpc="2.0", method="notifications/cancelled", params={"requestId": shown, "reason": "closed"}
            )
            self._connection.put(b"n " + _dumped(cancelled))
            self._connection.put(b"z" + shown.encode())
        self._shown.clear()
        self._early.clear()


def _dumped(message: Any) -> bytes:
    line: bytes = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
    return line


_Received = tuple[contextvars.Context, SessionMessage | Exception]


def _is_initialized(message: SessionMessage) -> bool:
    return isinstance(message.message, JSONRPCNotification) and message.message.method == "notifications/initialized"


class _Writer(SdkStream):
    """Outgoing messages of the session, on their way to the pipe."""

    def __init__(self, connection: Connection, lines: _Lines, forms: _Forms, reader: _Reader) -> None:
        self._connection = connection
        self._lines = lines
        self._forms = forms
        self._reader = reader

    async def send(self, message: SessionMessage) -> None:
        content = message.message
        match content:
            case JSONRPCResponse() | JSONRPCError() if content.id is not None:
                good = isinstance(content, JSONRPCResponse)
                frame = self._lines.answered(content.id, _dumped(content), good=good)
                if frame is not None:
                    await self._connection.send(frame)
            case JSONRPCRequest():
                request, shown = self._forms.ask(content)
                if not shown:
                    await self._connection.send(b"q%b %b" % (str(request.id).encode(), _dumped(request)))
                elif (answer := self._forms.early(request)) is not None:
                    # The client shows the form and has already answered it.
                    await self._reader.replay(SessionMessage(answer))
            case JSONRPCNotification(method="notifications/cancelled", params=dict() as params):
                withdrawn = content.model_copy(update={"params": self._forms.withdraw(params)})
                await self._connection.send(b"n " + _dumped(withdrawn))
            case _:
                await self._connection.send(b"n " + _dumped(content))


class _Reader(SdkStream):
    """Incoming lines of the pipe as messages of the session."""

    def __init__(
        self,
        connection: Connection,
        lines: _Lines,
        forms: _Forms,
        numbered: Callable[[int, str | int], NumberedCall],
        *,
        has_channel: bool,
    ) -> None:
        self._has_channel = has_channel
        self._connection = connection
        self._lines = lines
        self._forms = forms
        self._numbered = numbered
        # Unbuffered: a line is read only when the SDK has taken the one before.
        self._received, self._messages = anyio.create_memory_object_stream[_Received](0)
        self.last_context: contextvars.Context | None = None
        """Context in which the SDK runs the handler of the last message. It identifies the call."""

    async def read(self) -> None:
        """Read lines from the pipe until it disconnects."""
        with self._received:
            while (frame := await self._connection.line()) is not None:
                # Each message has a context of its own, which identifies the call for code below the SDK.
                context = contextvars.copy_context()
                message = self._read(frame, context)
                if message is not None:
                    await self._received.send((context, message))
                # An earlier hub initialized the client, so its sessions and forms are looked up.
                if frame.startswith(b"K") and isinstance(message, SessionMessage) and _is_initialized(message):
                    context = contextvars.copy_context()
                    context.run(current_call.set, self._numbered(0, ATTACH))
                    # After `initialized`, because the SDK refuses requests before it.
                    await self._received.send(
                        (context, SessionMessage(JSONRPCRequest(jsonrpc="2.0", id=ATTACH, method=ATTACH)))
                    )

    async def replay(self, message: SessionMessage) -> None:
        """Deliver an answer that the client gave earlier."""
        await self._received.send((contextvars.copy_context(), message))

    async def aclose(self) -> None:
        self._messages.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def receive(self) -> SessionMessage | Exception:
        self.last_context, message = await self._messages.receive()
        return message

    def _read(self, frame: bytes, context: contextvars.Context) -> SessionMessage | Exception | None:
        number, _, line = frame.partition(b" ")
        kind, seq = number[:1], int(number[1:])
        answer = b""
        if kind == b"K":
            # The answer is behind the last tab: it is JSON that a hub wrote, without tabs.
            line, _, answer = line.rpartition(b"\t")
        try:
            message = parse_message(line, has_channel=self._has_channel)
        except NoMessage as wrong:
            self._answer(seq, wrong.answer)
            return None
        match message:
            case JSONRPCRequest() if not answer and self._lines.is_open(message.id):
                self._answer(seq, duplicate_error(message.id))
                return None
            case JSONRPCRequest():
                if answer:  # the client has the answer; a separate id avoids a clash with the client's new requests
                    message = message.model_copy(update={"id": f"again-{seq}"})
                context.run(current_call.set, self._numbered(seq, message.id))
                return self._request(message, seq, answer)
            case JSONRPCNotification(method="notifications/cancelled"):
                self._lines.cancel((message.params or {}).get("requestId"), seq)
            case JSONRPCNotification(method="notifications/initialized"):
                if kind != b"K":
                    # Kept: every later hub must hear that the client is initialized.
                    self._connection.put(b"k%d" % seq)
            case JSONRPCNotification():
                self._connection.put(b"a%d" % seq)
            case JSONRPCResponse() | JSONRPCError():
                self._connection.put(b"a%d" % seq)
                # An answer to a form of an earlier hub is stored until the question is asked here.
                known = self._forms.answered(message)
                return None if known is None else SessionMessage(known)
        return SessionMessage(message)

    def _answer(self, seq: int, error: JSONRPCError | None) -> None:
        """Answer a line that the SDK does not see."""
        self._connection.put(b"a%d" % seq if error is None else b"r%d %b" % (seq, _dumped(error)))

    def _request(self, request: JSONRPCRequest, seq: int, answer: bytes) -> SessionMessage:
        if answer and request.method == "initialize":
            # What was agreed with the client counts, also if this hub would choose otherwise.
            agreed = jsonrpc_message_adapter.validate_json(answer.decode(), by_name=False)
            if isinstance(agreed, JSONRPCResponse):  # use the version that the client received, not the one it proposed
                version = agreed.result.get("protocolVersion")
                request = request.model_copy(update={"params": {**(request.params or {}), "protocolVersion": version}})
        self._lines.request(request, seq, known=bool(answer))

        async def unanswered() -> None:
            self._lines.unanswered(request.id)

        return SessionMessage(request, ServerMessageMetadata(on_request_unanswered=unanswered))
