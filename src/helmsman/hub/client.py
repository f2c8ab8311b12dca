"""Connection of a program to the hub: calls, copies of the sessions it asked for, and their questions for its own handlers.

The connection outlives the hub. When a hub is gone, the client finds or starts the next one, repeats unanswered calls under
the same number (each is done once), and updates every copy. Handlers of questions run here, in the program, on the copies;
the hub treats their answers like all others. The functions that a program offers to agents run here, too.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import secrets
import time
from contextlib import AsyncExitStack, asynccontextmanager, closing
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import anyio.to_thread

from helmsman._version import __version__
from helmsman.approvals.deadline import Deadline, TimeLeft
from helmsman.base.caller_context import asking_client, current
from helmsman.base.concurrency import background_tasks
from helmsman.base.sanitize import one_line
from helmsman.base.structs import pack, replace, unpack
from helmsman.errors import (
    EngineLost,
    EngineProtocolError,
    EngineTimeout,
    HelmsmanError,
    HostUnreachable,
    InvalidInput,
    NotOpen,
    OutcomeUnknown,
)
from helmsman.hub.channels import Channels
from helmsman.hub.conversation import DASHBOARD_PATH, EVENTS, HubConversation, NotWelcome
from helmsman.hub.hosts import HostFailed, SshConnector
from helmsman.hub.http_client import NoStream, SocketStream
from helmsman.hub.launch import (
    LATER,
    NEXT,
    HubConnector,
    HubFailed,
    NoHub,
    client_environment,
    connect,
    is_newer,
    start_successor,
)
from helmsman.hub.suspects import GAVE_UP, Suspect
from helmsman.hub.verbs import READING, VERBS
from helmsman.hub.wire import RESULT, callbacks_of, pack_value, type_of, unpack_error, unpack_value
from helmsman.model.client_tools import definitions_of, functions_of, result_of
from helmsman.sessions.copies import SessionCopy, SessionFacts, apply_facts, catch_up, from_wire
from helmsman.sessions.feed import Feed, Page
from helmsman.sessions.handlers import ask_handler
from helmsman.sessions.session import Session
from helmsman.sessions.state import SessionState
from helmsman.tasks.call_key import call_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from helmsman.hub.hosts import OtherHost
    from helmsman.hub.http_client import HubEvents
    from helmsman.model.answered_by import AnsweredBy
    from helmsman.model.client_tools import ClientTool, ToolDefinition, ToolFunction, ToolResult
    from helmsman.model.events import Event
    from helmsman.model.questions import Question
    from helmsman.sessions.session import QuestionHandler, Verbs
    from helmsman.settings import Settings

log = logging.getLogger(__name__)

_WELCOME_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 60.0
"""Timeout in seconds for another machine to accept our hello, and to answer a call that only reads."""
_MOST_BYTES: Final = 64 * 1024 * 1024
"""Maximum number of bytes that another machine may send in one line."""
_TOLD_CHARS: Final = 500
_WATCHED_SECONDS: Final = 1.0
"""Seconds for which a session stays watched after the program has ceased to wait for its turn: it may wait again."""
_LOOKS: Final = READING - {"tasks.wait", "tasks.local.follow"}
"""Calls that only read: their answer comes soon, or never."""


def _run_own(function: Callable[..., object], *arguments: Any) -> None:
    """Call a function of the program. Its failure is logged, and must not end the connection."""
    try:
        function(*arguments)
    except Exception:
        log.exception("a function of this program has failed")


class _CopiedSession:
    """Session of the hub, as this program follows it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.committed = 0
        """Cursor up to which the log has its events, as the hub last reported."""
        self.asking: dict[str, anyio.CancelScope] = {}
        self.time_left: Mapping[str, TimeLeft] = {}
        """Time left for its open questions, as the hub last reported."""
        self.tools: dict[str, ToolFunction] = {}
        self.known_watched: bool | None = False
        """Whether the hub knows the program to wait for the end of its turn. None: it may, after a call that began one."""
        self.reporting = anyio.Lock()


class _ToolCall:
    """Call of a function of the program."""

    def __init__(self, function: ToolFunction, arguments: Mapping[str, Any]) -> None:
        self._function = function
        self._arguments = arguments
        self.result: ToolResult | None = None
        self.scope = anyio.CancelScope()
        self.done = anyio.Event()

    async def run(self) -> None:
        with self.scope:
            self.result = await result_of(self._function, self._arguments)
        self.done.set()


class HubClient:
    """Connection of one program. Open it with `connect`; close it by leaving the block."""

    def __init__(
        self,
        verbs: Verbs,
        settings: Settings,
        environment: Mapping[str, str],
        on_question: QuestionHandler | None,
        host: OtherHost | None = None,
    ) -> None:
        """Set up a client.

        With `host`, the hub is on another machine, and settings, environment and directory are that machine's.
        """
        self._verbs = verbs
        self._settings = settings
        self._on_question = on_question
        here = current()
        self._id = secrets.token_hex(8)
        self._hello = {
            "kind": "program",
            "version": __version__,
            "pid": os.getpid(),
            "directory": str(here.directory) if host is None else "",
            "environment": client_environment(environment) if host is None else {},
            **({"settings": pack(settings)} if host is None else {}),
        }
        self._connector: HubConnector | SshConnector = HubConnector(str(settings.state_dir))
        if host is not None:
            self._connector = SshConnector(host, environment, is_for_client_of_hub=environment is not os.environ)
        self._parts = {path: self._part(path) for path in ("tasks", "extras")}
        self._ahead = 0.0
        """Seconds by which our clock is ahead of the other machine's."""
        self._exit = AsyncExitStack()
        self._tasks: TaskGroup | None = None
        self._numbers = itertools.count(1)
        self._functions: dict[int, tuple[Callable[..., object], Sequence[Any]]] = {}
        """Functions of the program for the hub, by the number of their call, each with the types of its arguments."""
        self._calls = 0
        self._handlers_to_come = 0
        """Number of calls that have a handler for a session without a known id yet. Until then no other handler is asked."""
        self._copies: dict[str, _CopiedSession] = {}
        self._tool_calls: dict[str, _ToolCall] = {}
        self._peer: HubConversation | None = None
        self._answering: HubConversation
        """Same peer, set before this program has named the sessions that it follows."""
        self._epoch = 0
        self._asked: set[int] = set()
        """Numbers of the calls that the hub works on."""
        self._deaths: dict[int, float] = {}
        """Times at which hubs ended without a goodbye, by epoch."""
        self._lost: HelmsmanError | None = None
        self._news = anyio.Event()
        self._outdated: int | None = None
        self._listeners: list[Callable[[Session, Event], None]] = []

    # --- the connection ----------------------------------------------------------------------------------------------

    async def connect(self) -> bool:
        """Find or start the hub. Return False if this program cannot have one."""
        self._tasks = await self._exit.enter_async_context(background_tasks())
        try:
            peer = await self._connected()
        except BaseException:
            await self._leave()
            await self._exit.aclose()
            raise
        if peer is None:
            await self._exit.aclose()
            return False
        self._tasks.start_soon(self._converse, peer)
        return True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if isinstance(self._connector, SshConnector):
            # First, or closing would wait for a thread that keeps reconnecting.
            self._connector.give_up()
        await self._exit.aclose()
        self._tasks = None
        await self._leave()
        self._lost = NotOpen("This Helmsman was closed. Make a new one: Helmsman().")
        self._wake()
        for copied in self._copies.values():
            copied.session.feed.close()

    async def _leave(self) -> None:
        if isinstance(self._connector, SshConnector):
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(self._connector.close)

    async def _connected(self) -> HubConversation | None:
        """Return an open conversation; None if the service must run inside this process."""
        while True:
            try:
                # A cancelled program must not wait for the thread, which may be connecting for long.
                found = await anyio.to_thread.run_sync(self._connector.connection, abandon_on_cancel=True)
            except NoHub as error:
                log.info("the service runs in this process: %s", error)
                return None
            except HostFailed as error:
                raise HostUnreachable(str(error)) from error
            except HubFailed as error:
                raise HelmsmanError(f"{error} Look at it with `helmsman hub log`.") from error
            peer = await self._conversation(await SocketStream.of(found))
            try:
                said = await self._welcome(peer)
            except NotWelcome as refusal:
                peer.close()
                if not isinstance(self._connector, SshConnector):
                    log.info("the service runs in this process: the hub refused it, %s", refusal.why)
                    return None
                if refusal.state_directory is None:
                    why = one_line(refusal.why)[:_TOLD_CHARS]
                    raise HostUnreachable(f"{self._host} does nothing for us: {why}.") from None
                # The settings there name another state directory.
                state = refusal.state_directory
                self._connector = await anyio.to_thread.run_sync(self._connector.to_state, state)
                continue
            except BaseException:
                peer.close()
                raise
            if said is None:  # it ended just now
                peer.close()
                continue
            self._connector.welcomed()
            self._epoch = said["epoch"]
            if isinstance(self._connector, SshConnector):
                # The monotonic clocks of two machines have nothing in common.
                self._ahead = time.monotonic() - said["clock"]
            elif is_newer(__version__, said["version"]) and said["pid"] != self._outdated:
                # Once for each older hub, since its successor may fail to start.
                self._outdated = said["pid"]
                await anyio.to_thread.run_sync(start_successor, self._connector.state)
            return peer

    async def _conversation(self, stream: SocketStream) -> HubConversation:
        """Return a conversation over a connection, and over others like it."""
        program = self._id
        if isinstance(self._connector, SshConnector):
            channels = Channels(stream)
            conversation = HubConversation(channels.connect, program, _MOST_BYTES)
            assert self._tasks is not None
            self._tasks.start_soon(_run_channels, channels, conversation)
            return conversation
        first, state = [stream], self._connector.state

        async def another() -> SocketStream:
            # The connection by which the hub was found serves the first request.
            if first:
                return first.pop()
            connected = await anyio.to_thread.run_sync(connect, state)
            if connected is None:
                raise ConnectionRefusedError
            return await SocketStream.of(connected)

        return HubConversation(another, program)

    async def _welcome(self, peer: HubConversation) -> dict[str, Any] | None:
        """Return the hub's answer to our hello, or None if the hub ended first."""
        # Events that were not committed are gone with their hub.
        follow = {
            session_id: min(copied.committed, copied.session.feed.cursor) for session_id, copied in self._copies.items()
        }
        hello = {**self._hello, "follow": follow}
        if not isinstance(self._connector, SshConnector):
            return await peer.open(hello)
        with anyio.move_on_after(_WELCOME_SECONDS):
            try:
                said = await peer.open({**hello, "bridge": self._connector.bridge})
                return None if said is None else {"epoch": int(said["epoch"]), "clock": float(said["clock"])}
            except (ValueError, TypeError, KeyError, OverflowError, EngineProtocolError) as error:
                raise self._nonsense() from error
        raise HostUnreachable(f"The hub on {self._host} says nothing. Look at it there: helmsman hub log")

    def _nonsense(self) -> HostUnreachable:
        return HostUnreachable(
            f"{self._host} gives an invalid answer. Install the same version of Helmsman on both machines; check "
            "there with `helmsman doctor`."
        )

    @property
    def _host(self) -> str:
        return self._connector.host.name if isinstance(self._connector, SshConnector) else "This machine"

    @property
    def version_there(self) -> str:
        """The version of Helmsman on the other machine."""
        return self._connector.version if isinstance(self._connector, SshConnector) else __version__

    @property
    def is_connected(self) -> bool:
        """Return whether a hub can be called right now."""
        return self._peer is not None and self._peer.closed is None

    @property
    def is_lost(self) -> bool:
        """Return whether the client has given up reconnecting."""
        return self._lost is not None

    async def _converse(self, peer: HubConversation | None) -> None:
        """Speak with one hub after the other."""
        try:
            while peer is not None:
                self._answering = peer
                async with background_tasks() as tasks:
                    tasks.start_soon(self._resume, peer)
                    await peer.run(self._on_event)
                self._peer = None
                if peer.last_word not in (NEXT, LATER):
                    self._deaths[self._epoch] = time.monotonic()
                self._wake()
                if isinstance(peer.closed, EngineProtocolError):
                    log.warning("the connection to %s is given up: %s", self._host, peer.closed)
                    raise self._nonsense()
                if peer.last_word == LATER:
                    await self._until_needed()
                peer = await self._connected()
            self._lost = HelmsmanError("The hub has ended, and no other serves this process. Open Helmsman again.")
        except HelmsmanError as error:
            self._lost = error
        finally:
            self._wake()
            if self._lost is not None:
                for copied in self._copies.values():
                    copied.session.feed.close()

    async def _until_needed(self) -> None:
        """Wait until there is a call or a running turn. After a user stops the hub, the next one starts only then."""
        while not self._calls and not any(copied.session.state.is_running for copied in self._copies.values()):
            await self._news.wait()

    async def _resume(self, peer: HubConversation) -> None:
        """Ask a new hub for the sessions that this program follows; then let others ask it."""
        for session_id in list(self._copies):
            try:
                await self._ask(peer, next(self._numbers), "session", (session_id,), {})
            except _HubGone:
                return  # this hub is gone, too; the next one gets the request
            except HelmsmanError as error:
                log.warning("session %s is no longer followed: %s", session_id, error)
                self._copies.pop(session_id).session.feed.close()
            else:
                await self._offer_tools(peer, session_id)
                self._copies[session_id].known_watched = False
                self._report_watched(session_id)
        # Only now may others call: they rely on copies that are up to date.
        self._peer, self._asked = peer, set()
        self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = anyio.Event()

    # --- calls -------------------------------------------------------------------------------------------------------

    async def call(self, verb: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Call a verb of the hub. It is done once, even if hubs are replaced in between."""
        named = dict(named)
        handler: QuestionHandler | None = named.pop("on_question", None)
        tools: Sequence[ClientTool | ToolDefinition] = named.pop("tools", ())
        if tools:
            named["tools"] = definitions_of(tools)
        number, once = next(self._numbers), self._once(verb)
        self._calls += 1
        self._handlers_to_come += handler is not None
        self._wake()
        try:
            suspect, epoch, alone = Suspect(), self._epoch, True
            while True:
                peer = await self._reached()
                if self._epoch == epoch or epoch not in self._deaths:  # the line to another machine broke, or a goodbye
                    suspect.take_back()
                else:
                    suspect.note_death(alone=alone, at=self._deaths[epoch])
                epoch = self._epoch
                if suspect.is_guilty:
                    raise OutcomeUnknown(GAVE_UP)
                # A call that several hubs died with waits first: a hub that dies without it clears it.
                if suspect.hold_back() and await self._dies_within(peer, suspect.hold):
                    continue
                asked = self._asked
                asked.add(number)
                suspect.take()
                try:
                    value = await self._ask(peer, number, verb, arguments, named, once)
                except _HubGone:
                    # It was the only call that this hub worked on.
                    alone = asked == {number}
                    continue
                finally:
                    # The calls of a dead hub stay in its set, which tells whether one of them was alone.
                    if peer.closed is None:
                        asked.discard(number)
                if tools:
                    self._copies[value.id].tools |= functions_of(tools)
                    await self._offer_tools(peer, value.id)
                if handler is not None:
                    value.handle_questions(handler)
                return value
        finally:
            self._calls -= 1
            self._functions.pop(number, None)
            if handler is not None:
                self._handlers_to_come -= 1
                for copied in self._copies.values():
                    self._offer_questions(copied)

    async def _dies_within(self, peer: HubConversation, seconds: float) -> bool:
        """Return whether this hub dies without the call that is held back from it."""
        with anyio.move_on_after(seconds):
            while self._peer is peer and peer.closed is None:
                await self._news.wait()
        return self._peer is not peer or peer.closed is not None

    def part(self, path: str) -> SimpleNamespace:
        """Return a part that is built on the verbs."""
        return self._parts[path]

    def _part(self, path: str) -> SimpleNamespace:
        """Return a part of the service, such as `tasks`. Every method of it runs in the hub."""
        names = {verb.removeprefix(f"{path}.").partition(".")[0] for verb in VERBS if verb.startswith(f"{path}.")}
        inner = ((name, f"{path}.{name}") for name in names)
        return SimpleNamespace(
            **{name: self._method(verb) if verb in VERBS else self._part(verb) for name, verb in inner}
        )

    def _method(self, verb: str) -> Callable[..., Awaitable[Any]]:
        async def method(*arguments: Any, **named: Any) -> Any:
            return await self.call(verb, arguments, named)

        return method

    def _once(self, verb: str) -> tuple[str, int] | None:
        """Return the id of a call to another machine, which stays the same for every hub that repeats it."""
        called = call_key.get()
        return (
            None
            if called is None or verb in READING or isinstance(self._connector, HubConnector)
            else called.next_elsewhere()
        )

    async def _reached(self) -> HubConversation:
        while self._peer is None or self._peer.closed is not None:
            if self._lost is not None:
                raise self._lost.again()
            await self._news.wait()
        return self._peer

    async def _ask(
        self,
        peer: HubConversation,
        number: int,
        verb: str,
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        once: tuple[str, int] | None = None,
    ) -> Any:
        def number_of(function: Callable[..., object]) -> int:
            self._functions[number] = function, next(iter(callbacks_of(verb)), ())
            return number

        request: dict[str, Any] = {
            "verb": verb,
            "arguments": pack_value(list(arguments), number_of),
            "named": pack_value(dict(named), number_of),
        }
        # The program may have changed its directory since its last call.
        if isinstance(self._connector, HubConnector):
            request["directory"] = self._directory()
        if once is not None:
            request["once"] = list(once)
        if (client := asking_client()) is not None:
            request["client"] = pack(client)
        looks_elsewhere = isinstance(self._connector, SshConnector) and verb in _LOOKS
        try:
            result = await peer.call(number, request, _LOOK_SECONDS if looks_elsewhere else math.inf)
        except EngineLost as error:
            raise _HubGone from error
        except EngineTimeout as error:
            raise HostUnreachable(f"{self._host} does not answer. Look at its hub there: helmsman hub log") from error
        except EngineProtocolError as error:
            raise self._nonsense() from error
        except anyio.get_cancelled_exc_class():
            # The hub would otherwise finish a call that the program no longer waits for.
            if peer.closed is None:
                await peer.cancel(number)
            raise
        try:
            failed = unpack_error(result["error"]) if "error" in result else None
            value = None if failed else self._unpacked(result.get("value"), type_of(verb, RESULT))
            for session_id in result.get("sessions", ()) if VERBS[verb][0].begins_turn else ():
                self._copies[session_id].known_watched = None
                self._report_watched(session_id)
        # From another machine, anything may be invalid. From our own hub, it is a bug to be seen as such.
        except Exception as error:
            if isinstance(self._connector, HubConnector):
                raise
            raise self._nonsense() from error
        if failed is not None:
            raise failed
        return value

    def _unpacked(self, content: Any, kind: Any) -> Any:
        return unpack_value(content, kind, lambda session_id: self._copies[session_id].session)

    async def goes_on_alone(self) -> bool:
        return True

    # --- dashboard ---------------------------------------------------------------------------------------------------

    async def page(self, method: str, target: str, body: bytes) -> tuple[int, bytes]:
        """Let the dashboard of the program in the hub answer a request. Return the status and the content.

        Raises:
            HostUnreachable: The hub is gone.
            OutcomeUnknown: It ended before it answered a request that changes something.
        """
        peer = await self._reached()
        try:
            return await peer.http.request(
                method, f"{peer.path}{DASHBOARD_PATH}{target}", body, is_repeatable=method == "GET"
            )
        except OSError as error:
            if method == "GET":
                raise HostUnreachable(f"{self._host} does not answer.") from error
            raise OutcomeUnknown(
                f"{self._host} does not answer. It may have been done: look before you repeat it."
            ) from error
        except EngineProtocolError as error:
            raise self._nonsense() from error

    @asynccontextmanager
    async def page_changes(self, target: str, last_event_id: str | None) -> AsyncIterator[HubEvents]:
        """Open the stream of changes of the hub's dashboard.

        Raises:
            HostUnreachable: The hub is gone, or its answer is invalid.
        """
        peer = await self._reached()
        try:
            stream = await peer.http.events(
                "GET", f"{peer.path}{DASHBOARD_PATH}{target}", Last_Event_ID=last_event_id or ""
            )
            with closing(stream):
                yield stream
        except OSError as error:
            raise HostUnreachable(f"{self._host} does not answer.") from error
        except (EngineProtocolError, NoStream) as error:
            raise self._nonsense() from error

    def listen(self, listener: Callable[[Session, Event], None]) -> Callable[[], None]:
        """Call a listener for every event of a copied session. The returned function ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _report_watched(self, session_id: str) -> None:
        if self._tasks is not None and (copied := self._copies.get(session_id)) is not None:
            self._tasks.start_soon(self._report_watched_soon, self._answering, copied)

    async def _report_watched_soon(self, peer: HubConversation, copied: _CopiedSession) -> None:
        """Tell a hub whether this program waits for the end of a session's turn: others are then not notified of it."""
        async with copied.reporting:
            if copied.known_watched is not False and not copied.session.is_watched:
                await anyio.sleep(_WATCHED_SECONDS)
            is_watched = copied.session.is_watched
            if is_watched != copied.known_watched and peer is self._answering:
                copied.known_watched = is_watched
                await _tell(peer, "PUT", f"watched/{copied.session.id}", {"isWatched": is_watched})

    # --- functions that agents call ----------------------------------------------------------------------------------

    async def _offer_tools(self, peer: HubConversation, session_id: str) -> None:
        """Let a hub know that this program runs them."""
        if tools := self._copies[session_id].tools:
            await _tell(peer, "PUT", f"tools/{session_id}", {"names": list(tools)})

    def _run_tool(self, about: Mapping[str, Any]) -> None:
        """Run a function for an agent. A call that an earlier hub has asked for is the same call, and is done once."""
        assert self._tasks is not None
        copied = self._copies.get(about["session"])
        function = None if copied is None else copied.tools.get(about["tool"])
        key = f"{about['session']} {about['call']}"
        call = self._tool_calls.get(key)
        if call is None and function is not None:
            call = self._tool_calls[key] = _ToolCall(function, about["arguments"])
            self._tasks.start_soon(call.run)
        self._tasks.start_soon(self._send_result, self._answering, about["number"], call)

    async def _send_result(self, peer: HubConversation, number: int, call: _ToolCall | None) -> None:
        if call is not None:
            await call.done.wait()
        if call is None or call.result is not None:
            result = {} if call is None or call.result is None else pack(call.result)
            await _tell(peer, "PUT", f"tool-results/{number}", result)

    def _forget_tool_calls(self, copied: _CopiedSession) -> None:
        """Forget tool calls of a turn that has ended."""
        before = f"{copied.session.id} "
        for key in [key for key in self._tool_calls if key.startswith(before)]:
            self._tool_calls.pop(key).scope.cancel()

    def _directory(self) -> str:
        """Return the program's current directory, against which relative paths are resolved."""
        try:
            return str(current().directory)
        except InvalidInput:  # it was removed
            return str(self._hello["directory"])

    # --- sessions ----------------------------------------------------------------------------------------------------

    @property
    def sessions(self) -> Mapping[str, Session]:
        return {session_id: copied.session for session_id, copied in self._copies.items()}

    def _on_event(self, name: str, content: Mapping[str, Any]) -> None:
        try:
            self._apply_event(name, content)
        except Exception:
            is_own = isinstance(self._connector, HubConnector)
            level = logging.ERROR if is_own else logging.INFO
            log.log(level, "%s sent an invalid event: %s", self._host, name, exc_info=True)
            # Our own hub is asked for its sessions again, on another connection, unless the copy of one is invalid.
            error = EngineLost if is_own and name != "copy" else EngineProtocolError
            self._answering.give_up(error(f"{self._host} sent an invalid event."))

    def _apply_event(self, name: str, content: Mapping[str, Any]) -> None:
        match name:
            case "event" | "facts" if content["session"] not in self._copies:
                pass  # the caller did not wait for the answer
            case "event":
                copied = self._copies[content["session"]]
                copied.session.apply(from_wire(content["event"]))
                copied.committed = content["committed"]
                if "facts" in content:
                    self._apply_facts(copied, content["facts"])
                self._notice(copied)
            case "facts":
                copied = self._copies[content["session"]]
                self._apply_facts(copied, content["facts"])
                self._notice(copied)
            case "copy":
                if self._calls or content["session"] in self._copies:  # otherwise no caller waits for it
                    copied = self._apply_copy(content["session"], content["copy"])
                    copied.committed = content["committed"]
                    self._notice(copied)
            case "called":
                if (known := self._functions.get(content["number"])) is not None:
                    function, kinds = known
                    _run_own(function, *map(self._unpacked, content["arguments"], kinds))
            case "tool":
                self._run_tool(content)
            case _:
                log.debug("the hub said %s, which means nothing here", name)

    def _apply_facts(self, copied: _CopiedSession, content: object) -> None:
        facts = unpack(content, SessionFacts).shifted(self._ahead)
        apply_facts(copied.session, facts)
        self._apply_time_left(copied, facts)

    def _apply_time_left(self, copied: _CopiedSession, facts: SessionFacts) -> None:
        copied.time_left = facts.deadlines
        for question_id, deadline in copied.session.deadlines.items():
            deadline.change(copied.time_left.get(question_id, deadline.time_left))

    def _apply_copy(self, session_id: str, content: Any) -> _CopiedSession:
        copy = unpack(content, SessionCopy)
        copy = replace(copy, facts=copy.facts.shifted(self._ahead))
        copied = self._copies.get(session_id)
        if copied is None:
            feed = Feed(self._settings.event_buffer_size, partial(self._read_log, session_id))
            session = Session(SessionState(session_id), feed, self._verbs, ())
            copied = self._copies[session_id] = _CopiedSession(session)
            catch_up(session, copy)
            session.introduce([self._notify_listeners])
            session.attach_watched(partial(self._report_watched, session_id))
        else:
            catch_up(copied.session, copy)
        self._apply_time_left(copied, copy.facts)
        return copied

    async def _read_log(self, session_id: str, cursor: int) -> Page:
        """Return the events of a session after a cursor; none where the hub cannot be asked."""
        try:
            last, events = await self.call(EVENTS, (session_id, cursor), {})
            return Page(tuple(map(from_wire, events)), int(last), 0)
        except (HelmsmanError, ValueError, TypeError) as error:
            log.warning("events of session %s cannot be read: %s", session_id, error)
            return Page((), 0, 0)

    def _notify_listeners(self, session: Session, event: Event) -> None:
        for listener in tuple(self._listeners):
            _run_own(listener, session, event)

    def _notice(self, copied: _CopiedSession) -> None:
        """Offer open questions to handlers, and drop tool calls of an ended turn, after a change of a session."""
        self._offer_questions(copied)
        if self._tool_calls and not copied.session.state.is_running:
            self._forget_tool_calls(copied)

    def _offer_questions(self, copied: _CopiedSession) -> None:
        """Ask the program's handler the open questions, and cancel it for questions that another client has answered."""
        if self._handlers_to_come:
            return
        session, opened = copied.session, copied.session.state.questions
        for question_id in copied.asking.keys() - opened.keys():
            copied.asking.pop(question_id).cancel()
            session.set_deadline(question_id, None)
        for question in opened.values():
            # It is being asked already.
            if question.id in session.deadlines:
                continue
            usual = TimeLeft.new(self._settings.approval_timeout or math.inf, time.monotonic())
            left = copied.time_left.get(question.id, usual)
            session.set_deadline(question.id, Deadline(left, pass_on=partial(self._send_shown, question)))
            copied.asking[question.id] = anyio.CancelScope()
            if self._tasks is not None:
                self._tasks.start_soon(self._ask_handler, copied, question)

    def _send_shown(self, question: Question, viewer: str, seconds: float) -> None:
        if self._peer is not None and self._tasks is not None:
            shown = {"session": question.session_id, "question": question.id, "viewer": viewer, "seconds": seconds}
            self._tasks.start_soon(_tell, self._peer, "POST", "shown", shown)

    async def _ask_handler(self, copied: _CopiedSession, question: Question) -> None:
        session = copied.session
        handler = session.on_question or self._on_question
        scope = copied.asking.get(question.id)
        if handler is None or scope is None:
            return

        async def answer(words: Sequence[str], by: AnsweredBy) -> None:
            await self._verbs.respond(session.id, question.id, words, by=by)

        async def give_up() -> None:
            await self.call("give_up", (session.id, question.id), {})

        call_key.set(None)  # an answer is no part of the call that found the question
        with scope:
            await ask_handler(handler, session, question, answer, give_up)


async def _run_channels(channels: Channels, conversation: HubConversation) -> None:
    try:
        await channels.run()
    except EngineProtocolError as error:
        conversation.give_up(error)


async def _tell(peer: HubConversation, method: str, path: str, content: Mapping[str, Any]) -> None:
    """Send a request without waiting for its outcome. If the hub is gone, the next one learns it in another way."""
    try:
        await peer.tell(method, path, content)
    except HelmsmanError as error:
        log.debug("the hub does not hear of %s: %s", path, error)


class _HubGone(Exception):
    """Raised if the hub ended before it answered."""
