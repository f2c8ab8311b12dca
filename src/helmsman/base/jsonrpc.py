"""JSON-RPC peer for any transport, with the `jsonrpc` field or, as in `codex app-server`, without.

One reader owns the incoming side and only routes: a response goes to its waiter, a notification or a request of the
other side to a callback that must not block (a callback that raises is logged, and the reader continues). One writer
owns the outgoing side, so sending never blocks the sender and never holds a lock. When the transport ends, every waiter
gets the reason; a request without a handler is answered with an error, so nothing hangs and nothing is accepted by
accident.
"""

from __future__ import annotations

import json
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio

from helmsman.base.structs import Value
from helmsman.errors import EngineLost, EngineProtocolError, EngineRefused, EngineTimeout, HelmsmanError, InvalidInput

log = logging.getLogger(__name__)

REQUEST_TIMEOUT: Final = 60.0
METHOD_NOT_FOUND: Final = -32601
_SHOWN_ERROR_CHARS: Final = 600  # an unknown method is answered with the list of all methods, about 5 kB

_MANY: Final = 32
"""Number of pending messages from which the reader is behind.

It then parses them together and joins equivalent ones.
"""

_PLACE: Final = "helmsman place"
"""Key of a message's place in its batch, while the batch is joined."""

RequestId = int | str
Message = dict[str, Any]


class Resumed(Value, frozen=True):
    """Conversation that an earlier owner had over the same pipe.

    `epoch` and the number of earlier `requests` distinguish our requests from theirs. `answer` is the answer to the
    handshake, which must not be repeated.
    """

    epoch: int
    requests: int
    answer: Mapping[str, Any]


class Transport(ABC):
    """Carries whole messages. The code that opened it closes it."""

    resumed: Resumed | None = None
    """Earlier conversation; None if the conversation begins here."""

    @abstractmethod
    def messages(self) -> AsyncIterator[Sequence[bytes | str]]:
        """Incoming messages until the other side is gone, as they come together. May raise `EngineProtocolError`."""

    def on_message(self, index: int | None) -> None:  # noqa: B027 - most keep no position
        """Note the place in its batch of the message that is about to be handled; None after all of them."""

    def was_answered(self, request_id: RequestId) -> bool:
        """Return whether an earlier owner has answered the request in the current message, or it was withdrawn."""
        return False

    @abstractmethod
    async def send(self, message: str) -> None:
        """Send one message; raises `EngineLost` when the other side is gone."""

    @abstractmethod
    async def loss(self) -> EngineLost:
        """Why the other side is gone. Called when `messages` has ended; bounded."""


@dataclass(slots=True)
class Waiter:
    """Answer to a request, when it comes."""

    id: RequestId
    method: str
    done: anyio.Event = field(default_factory=anyio.Event)
    result: Any = None
    error: HelmsmanError | None = None
    on_answer: Callable[[Any], None] = lambda result: None


class _Outgoing(Value, frozen=True):
    text: str
    on_sent: Callable[[], None]


class IncomingRequest(Value, frozen=True):
    """Request of the other side, waiting for `Peer.respond` or `Peer.refuse`, unless an earlier owner has answered it."""

    id: RequestId
    method: str
    params: Mapping[str, Any]
    was_answered: bool = False


class Peer:
    """Our end of the conversation. Run `run` in a task; it returns when the transport has ended."""

    def __init__(
        self,
        transport: Transport,
        *,
        other: str,
        on_notification: Callable[[str, Mapping[str, Any]], None],
        on_request: Callable[[IncomingRequest], bool],
        on_close: Callable[[HelmsmanError], None] = lambda reason: None,
        join: Callable[[list[Message]], list[Message]] = lambda messages: messages,
        with_version: bool = False,
    ) -> None:
        """Set up a peer over a transport.

        `join` may merge messages of one batch into fewer; their meaning must stay the same.

        `other` is the name of the other side in errors. `with_version` puts `"jsonrpc": "2.0"` into every sent message.
        """
        self._join = join
        self._other = other
        self._envelope: Message = {"jsonrpc": "2.0"} if with_version else {}
        self._transport = transport
        self._on_notification = on_notification
        self._on_request = on_request
        self._on_close = on_close
        self._waiters: dict[RequestId, Waiter] = {}
        self._unanswered: set[RequestId] = set()
        self._resumed = transport.resumed
        # Continue after the requests of earlier owners, so that no id comes twice.
        self._next_id = 0 if self._resumed is None else self._resumed.requests
        # Unbounded, so that sending never blocks the reader.
        self._outbox, self._outgoing = anyio.create_memory_object_stream[_Outgoing](math.inf)
        self._closed: HelmsmanError | None = None
        self._running = anyio.CancelScope()

    @property
    def resumed(self) -> Resumed | None:
        """Earlier conversation over the same pipe."""
        return self._resumed

    @property
    def closed(self) -> HelmsmanError | None:
        """Reason why the conversation is over, or None while it is open."""
        return self._closed

    # --- sending -----------------------------------------------------------------------------------------------------

    def new_id(self) -> RequestId:
        """Return the id of the next request, for callers that record it before they send."""
        self._next_id += 1
        if self._resumed is None:
            return self._next_id
        return f"{self._resumed.epoch}.{self._next_id}"  # answers to earlier owners may still come

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        timeout: float = REQUEST_TIMEOUT,
        request_id: RequestId | None = None,
        on_sent: Callable[[], None] = lambda: None,
        on_answer: Callable[[Any], None] = lambda result: None,
    ) -> Any:
        """Send a request and wait for its answer. `on_sent` is called when the transport has it.

        `on_answer` is called with the result before any later message is handled. The waiting caller gets the result only
        later, when more may have been read.

        Raises:
            EngineRefused: The other side answered with an error.
            EngineTimeout: No answer in time. A late one is dropped.
            EngineLost: The other side is gone, or goes while we wait.
        """
        # Before sending: the answer may arrive while the caller is still suspended.
        waiter = self.expect(self.new_id() if request_id is None else request_id, method)
        waiter.on_answer = on_answer
        try:
            self._send({"id": waiter.id, "method": method, "params": params or {}}, on_sent=on_sent)
        except HelmsmanError:
            del self._waiters[waiter.id]
            raise
        return await self.answer(waiter, timeout=timeout)

    def expect(self, request_id: RequestId, method: str) -> Waiter:
        """Be ready for the answer to a request, which an earlier owner may have sent; `answer` waits for it."""
        waiter = self._waiters[request_id] = Waiter(request_id, method)
        return waiter

    async def answer(self, waiter: Waiter, *, timeout: float = REQUEST_TIMEOUT) -> Any:
        """Wait for an answer; see `request`."""
        try:
            with anyio.move_on_after(timeout):
                # A late answer finds no waiter, and is dropped.
                await waiter.done.wait()
        finally:
            # Also when cancelled, or waiters would pile up.
            self._waiters.pop(waiter.id, None)
        if waiter.error is not None:
            raise waiter.error.again()
        if not waiter.done.is_set():
            raise EngineTimeout(
                f"{self._other} did not answer {waiter.method} within {timeout:g} s. Try again; restart the engine if it "
                "happens again.",
                method=waiter.method,
            )
        return waiter.result

    def notify(self, method: str, params: Mapping[str, Any] | None = None) -> None:
        """Send a notification."""
        self._send({"method": method} if params is None else {"method": method, "params": params})

    def respond(self, request_id: RequestId, result: Mapping[str, Any]) -> bool:
        """Answer a request. False when it was answered before, or the conversation is over: nothing is sent then."""
        return self._answer(request_id, {"id": request_id, "result": result})

    def refuse(self, request_id: RequestId, message: str) -> bool:
        """Answer a request with an error; see `respond`."""
        return self._answer(request_id, {"id": request_id, "error": {"code": METHOD_NOT_FOUND, "message": message}})

    def _answer(self, request_id: RequestId, message: Mapping[str, Any]) -> bool:
        if request_id not in self._unanswered or self._closed is not None:
            return False
        self._send(message)
        self._unanswered.discard(request_id)
        return True

    def _send(
        self,
        message: Mapping[str, Any],
        *,
        on_sent: Callable[[], None] = lambda: None,
    ) -> None:
        if self._closed is not None:
            raise self._closed.again()
        try:
            text = json.dumps({**self._envelope, **message}, ensure_ascii=False, separators=(",", ":"))
            # Half of a surrogate pair passes `json.dumps`, but cannot be encoded.
            text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            # Raised here, where the caller gets the error, and not in the writer, where it would end the conversation.
            raise InvalidInput(
                f"That cannot be sent to {self._other}: {error}. Use plain JSON values and valid text."
            ) from None
        self._outbox.send_nowait(_Outgoing(text, on_sent))

    # --- the two loops -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Read and write until the transport ends or the task is cancelled."""
        reason: HelmsmanError = EngineLost(
            f"The connection to {self._other} was closed. Start the session again to continue."
        )
        try:
            with self._running:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(self._write)
                    try:
                        async for messages in self._transport.messages():
                            self._receive_all(messages)
                        # Asked after the output has ended, when the exit code is known.
                        reason = await self._transport.loss()
                    except EngineProtocolError as error:
                        reason = error
                    # Only the writer is left, and the other side is gone.
                    tasks.cancel_scope.cancel()
        finally:
            self._close(reason)

    def give_up(self, reason: HelmsmanError) -> None:
        """End the conversation from our side: the other side is connected, but no longer responds."""
        self._close(reason)
        self._running.cancel()

    async def _write(self) -> None:
        try:
            async for message in self._outgoing:
                await self._transport.send(message.text)
                message.on_sent()
        except EngineLost as error:
            log.debug("cannot write: %s", error)  # the reader sees the end too, and knows the reason better
        except anyio.ClosedResourceError:
            pass  # cancelled while there was nothing to write

    def _close(self, reason: HelmsmanError) -> None:
        if self._closed is not None:
            # The first reason counts; losing the transport often follows a protocol error.
            return
        self._closed = reason
        self._outbox.close()
        self._outgoing.close()
        self._unanswered.clear()
        # Taken out first: a waiter that wakes may send another request.
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            waiter.error = reason
            waiter.done.set()
        self._on_close(reason)

    # --- receiving ---------------------------------------------------------------------------------------------------

    def _receive_all(self, raw: Sequence[bytes | str]) -> None:
        # A reader that is behind parses and joins in bulk, or it would never catch up.
        together = _parsed_together(raw) if len(raw) >= _MANY else None
        if together is None:
            for index, one in enumerate(raw):
                self._transport.on_message(index)
                self._receive(one)
        else:
            for index, message in enumerate(together):
                message[_PLACE] = index
            for message in self._join(together):
                self._transport.on_message(message.pop(_PLACE))
                self._dispatch(message)
        self._transport.on_message(None)

    def _receive(self, raw: bytes | str) -> None:
        try:
            # Bytes that are not UTF-8 are no JSON, and are skipped as well.
            message = json.loads(raw if isinstance(raw, str) else raw.decode())
        except (ValueError, RecursionError):
            log.warning("skipped a message from %s that is not JSON: %.200r", self._other, raw)
            return
        if not isinstance(message, dict):
            log.warning("skipped a message from %s that is not an object: %.200r", self._other, raw)
            return
        self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        method = message.get("method")
        request_id = message.get("id")
        if isinstance(method, str):
            params = message.get("params")
            params = params if isinstance(params, dict) else {}
            # Codex numbers its requests from 0, so compare with None.
            if request_id is None:
                self._guarded(method, self._on_notification, method, params)
            elif isinstance(request_id, int | str):
                self._receive_request(
                    IncomingRequest(request_id, method, params, self._transport.was_answered(request_id))
                )
            return
        if isinstance(request_id, int | str):
            self._receive_response(request_id, message)

    def _receive_request(self, request: IncomingRequest) -> None:
        if not request.was_answered:
            self._unanswered.add(request.id)
        # A handler that fails has not answered, so the request is refused below.
        if not self._guarded(request.method, self._on_request, request):
            self.refuse(request.id, f"Helmsman does not answer {request.method}")

    def _receive_response(self, request_id: RequestId, message: dict[str, Any]) -> None:
        waiter = self._waiters.pop(request_id, None)
        if waiter is None:
            return  # a late answer to a request that timed out, or a stray one
        error = message.get("error")
        if error is not None:
            waiter.error = _refusal(self._other, waiter.method, error)
        else:
            waiter.result = message.get("result")
            # Before the waiter wakes, and before any later message is handled.
            self._guarded(waiter.method, waiter.on_answer, waiter.result)
        waiter.done.set()

    def _guarded(self, method: str, callback: Callable[..., Any], *args: Any) -> Any:
        try:
            return callback(*args)
        except Exception:
            log.exception("handling %s failed", method)
            return None


def _parsed_together(raw: Sequence[bytes | str]) -> list[Message] | None:
    """Parse many messages in one call; return None if one of them is not an object, so that each needs its own check."""
    from pydantic_core import from_json  # the MCP SDK brings it; with much to read it is twice as fast as `json`

    try:
        messages = from_json(b"[%s]" % b",".join(one.encode() if isinstance(one, str) else one for one in raw))
    except (ValueError, RecursionError):
        return None
    # An element with two JSON values would shift all that follow.
    if len(messages) != len(raw) or not all(isinstance(message, dict) for message in messages):
        return None
    return list(messages)


def _refusal(other: str, method: str, error: Any) -> EngineRefused:
    fields = error if isinstance(error, dict) else {}
    text = str(fields.get("message", error))
    if len(text) > _SHOWN_ERROR_CHARS:
        text = text[:_SHOWN_ERROR_CHARS] + "…"
    return EngineRefused(
        f"{other} refused {method}: {text.rstrip('.')}. Change what was asked for; `helmsman doctor` shows what this "
        f"{other} can do.",
        method=method,
        rpc_code=fields.get("code"),
        rpc_message=text,
        rpc_data=fields.get("data"),
    )
