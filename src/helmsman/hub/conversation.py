"""Connection of one program with one hub: calls, and the stream of what the hub says.

`POST /v1/programs/ID` registers the program, for as long as it reads the stream of events in the answer. `PUT …/calls/N`
begins a call, and the event `result` ends it, behind everything that happened before. `DELETE …/calls/N` cancels it. So
a program sees what happens in the order in which it happens, however many calls are under way.
"""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.errors import EngineLost, EngineProtocolError, EngineTimeout, HelmsmanError
from helmsman.hub.control import END, PROGRAMS_PATH
from helmsman.hub.http_client import HttpClient, NoStream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from helmsman.hub.http_client import ByteStream, HubEvents

_ACCEPTED: Final = 202
_NOT_FOUND: Final = 404
_CANCEL_SECONDS: Final = 1.0
_END_SECONDS: Final = 1.0
"""Time in which the stream of a hub that is gone ends, and says how it ended."""
_GONE: Final = "The hub has ended. Try again: a new hub starts automatically."
WELCOME: Final = "welcome"
RESULT: Final = "result"
DASHBOARD_PATH: Final = "/dashboard"
"""Path of the dashboard of a program, below the program's own."""
EVENTS: Final = "events"
"""Name of the call that returns a session's events after a cursor."""


class NotWelcome(Exception):
    """Raised if the hub refuses the program."""

    def __init__(self, code: str, why: str, state_directory: str | None) -> None:
        super().__init__(why)
        self.code = code
        self.why = why
        self.state_directory = state_directory
        """Directory of the hub that would serve the program."""


@dataclass(slots=True)
class _Waiter:
    done: anyio.Event = field(default_factory=anyio.Event)
    result: Mapping[str, Any] = field(default_factory=dict)


class HubConversation:
    """Connection with one hub. Open it, then `run` it in a task."""

    def __init__(self, connect: Callable[[], Awaitable[ByteStream]], program: str, most: float = math.inf) -> None:
        """`most` limits the bytes of one event, for a hub on another machine."""
        self.http = HttpClient(connect, most)
        self.path = f"{PROGRAMS_PATH}/{program}"
        self._events: HubEvents | None = None
        self._waiters: dict[int, _Waiter] = {}
        self._running = anyio.CancelScope()
        self._over = anyio.Event()
        self.closed: HelmsmanError | None = None
        """Reason why the conversation is over, or None while it is open."""
        self.last_word = b""
        """Whether the hub said that it ends (`helmsman.hub.launch.NEXT`)."""

    async def open(self, hello: Mapping[str, Any]) -> dict[str, Any] | None:
        """Register. Return the hub's welcome, or None if it ended first.

        Raises:
            NotWelcome: It refuses the program.
            EngineProtocolError: The answer is invalid.
        """
        try:
            self._events = await self.http.events("POST", self.path, hello)
            event = await self._events.next()
        except OSError:
            return None
        except NoStream as refused:
            content = _object(refused.body)
            go_to = content.get("stateDirectory")
            raise NotWelcome(
                str(content.get("code", "")),
                str(content.get("detail", "it does not say why")),
                go_to if isinstance(go_to, str) else None,
            ) from None
        if event is None or event[0] == END:
            return None
        if event[0] != WELCOME:
            raise EngineProtocolError("it does not say who it is")
        return _object(event[1])

    async def run(self, handle: Callable[[str, Mapping[str, Any]], None]) -> None:
        """Handle events until the hub is gone, or this is cancelled."""
        reason: HelmsmanError = EngineLost(_GONE)
        assert self._events is not None
        try:
            with self._running:
                while (event := await self._events.next()) is not None:
                    name, data, _ = event
                    if name == END:
                        self.last_word = data.encode()
                        break
                    self._handle(name, _object(data), handle)
        # The hub is gone, as at the end of its stream.
        except OSError:
            pass
        except EngineProtocolError as error:
            reason = error
        finally:
            self._close(reason)

    def _handle(self, name: str, content: dict[str, Any], handle: Callable[[str, Mapping[str, Any]], None]) -> None:
        number = content.get("number")
        if name != RESULT:
            handle(name, content)
        elif isinstance(number, int) and (waiter := self._waiters.pop(number, None)) is not None:
            waiter.result = content
            waiter.done.set()

    def give_up(self, reason: HelmsmanError) -> None:
        """End the conversation, because the hub has sent something invalid."""
        self._close(reason)
        self._running.cancel()

    def _close(self, reason: HelmsmanError) -> None:
        if self.closed is None:
            self.closed = reason
        self._over.set()
        self.close()
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters.values():
            # The callers find the reason in `closed`.
            waiter.done.set()

    def close(self) -> None:
        """Close its connections."""
        if self._events is not None:
            self._events.close()
        self.http.close()

    async def call(self, number: int, call: Mapping[str, Any], timeout: float) -> Mapping[str, Any]:
        """Begin a call and wait for its result.

        Raises:
            EngineLost: The hub is gone.
            EngineTimeout: There is no result in time.
            EngineProtocolError: The answer is invalid.
        """
        # Before the request, since its result may overtake the answer to it.
        waiter = self._waiters[number] = _Waiter()
        try:
            with anyio.move_on_after(timeout) as waiting:
                await self.tell("PUT", f"calls/{number}", call)
                await waiter.done.wait()
        finally:
            self._waiters.pop(number, None)
        # The result may have come just before the hub was gone.
        if self.closed is not None and not waiter.result:
            raise self.closed.again()
        if waiting.cancelled_caught and not waiter.result:
            await self.cancel(number)
            raise EngineTimeout("The hub does not answer.", method="call")
        return waiter.result

    async def cancel(self, number: int) -> None:
        """Cancel a call, also when the caller is being cancelled."""
        with anyio.move_on_after(_CANCEL_SECONDS, shield=True), suppress(HelmsmanError):
            await self.tell("DELETE", f"calls/{number}")

    async def tell(self, method: str, path: str, content: object = None) -> None:
        """Send a request. Its outcome, if any, comes as an event.

        Raises:
            EngineLost: The hub is gone.
            EngineProtocolError: The answer is invalid.
        """
        if self.closed is not None:
            raise self.closed.again()
        try:
            status, body = await self.http.request(method, f"{self.path}/{path}", content)
        except OSError:
            status, body = _NOT_FOUND, b""
        if status == _NOT_FOUND:  # the hub is gone, and the next one does not know us yet
            with anyio.move_on_after(_END_SECONDS):
                await self._over.wait()
            self.give_up(EngineLost(_GONE))
            raise EngineLost(_GONE)
        if status != _ACCEPTED:
            raise EngineProtocolError(f"it answers {status}: {body[:200]!a}")


def _object(data: str | bytes) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise EngineProtocolError("it sends invalid JSON") from error
    if not isinstance(content, dict):
        raise EngineProtocolError("it sends JSON that is not an object")
    return content
