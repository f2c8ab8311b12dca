"""Interface of the hub for programs: the verbs of `Helmsman` and its parts, called by their names.

JSON-RPC, one message per line. The first line is the program's hello: its settings, environment and directory. `call` names
a verb and carries its arguments as values (`helmsman.base.values`), and the program's current directory in hex; `cancel`
cancels one. `tools` names the functions that the program runs for a session; the hub calls them with `tool`. A session in an
answer comes with a copy, and from then on its events follow, each with the cursor up to which the log has them for good. The
hub never waits for a program that does not read: once it reads again, it gets the events after its cursor, from the log if
need be. `follow` names that cursor after a reconnect.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio

from helmsman._version import __version__
from helmsman.base.caller_context import CallerContext
from helmsman.base.clients import McpClient
from helmsman.base.concurrency import OnceEach
from helmsman.base.jsonrpc import IncomingRequest, Peer
from helmsman.base.processes import Process, running_process
from helmsman.base.structs import unpack_if_valid
from helmsman.base.values import decoded, encoded
from helmsman.errors import HelmsmanError, RegistryUnavailable
from helmsman.hub.hello import BridgeHello, in_hex, text_in
from helmsman.hub.process import OTHER_STORE, NotServed
from helmsman.hub.transport import ConnectionTransport
from helmsman.hub.verbs import EVENTS, PAGE, PAGE_CHANGES, PARTS, SESSION, VERBS
from helmsman.model.client_tools import ToolResult
from helmsman.model.events import ItemDelta, ItemEnded, ItemStarted, ItemUpdated
from helmsman.operations.nature import nature_of
from helmsman.sessions.copies import EventOnWire, copy_of, facts_of, to_wire
from helmsman.sessions.session import Session
from helmsman.settings import load_settings
from helmsman.store.log import StoredEvents
from helmsman.tasks.calls import ELSEWHERE, CallId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from anyio.abc import TaskGroup

    from helmsman.hub.connection import Connection
    from helmsman.hub.process import Hub
    from helmsman.model.events import Event, ToolCalled
    from helmsman.settings import Settings
    from helmsman.steering.core import Steering
    from helmsman.steering.shared import Shared
    from helmsman.tasks.calls import CallLog

log = logging.getLogger(__name__)

_MOST_CHARS: Final = 8 * 1024 * 1024
"""Approximate number of characters of a log in one answer. The program asks again for the rest."""
_MOST_CALLS: Final = 1000
"""Maximum number of concurrent calls of one program, so that all others are served too."""


class Pages(Protocol):
    """Dashboard of one `Helmsman`, for the dashboard of another machine."""

    async def answer(self, method: str, path: str, query: str, body: str) -> tuple[int, Any]:
        """Answer a request with its status and its JSON content."""
        ...

    async def changes(self, last_event_id: str | None) -> Mapping[str, Any]:
        """Return the changes since an event. Waits for a while if there are none."""
        ...


class OpenView(Protocol):
    """Creates the `Helmsman` of one client."""

    def __call__(
        self,
        settings: Settings,
        *,
        env: Mapping[str, str],
        shared: Shared,
        in_place_of: str | None = None,
    ) -> Steering: ...


@dataclass(slots=True)
class _Followed:
    """Position of a program in the events of a session. Without a `cursor` it has received no event yet."""

    facts: str = ""
    cursor: int | None = None
    is_behind: bool = True


class ProgramDoors:
    """Serves the programs that connect to a hub."""

    def __init__(
        self, shared: Shared, open_view: OpenView, calls: CallLog, make_pages: Callable[[Any], Awaitable[Pages]]
    ) -> None:
        self._shared = shared
        self._open_view = open_view
        self._calls = calls
        self._make_pages = make_pages

    async def serve(self, hub: Hub, connection: Connection, fields: list[str], refused: str | None) -> None:
        """Serve a program, until it leaves."""
        if refused is None and not fields:
            refused = "it said nothing of itself"
        if refused is not None:
            connection.put(json.dumps({"refused": refused}).encode())
            await connection.written()
            return
        hello = decoded(json.loads(fields[0]))
        if is_elsewhere := len(fields) > 1:
            bridge = BridgeHello(fields[1:], hello["environment"])
            hello = {**hello, "pid": bridge.pid, "directory": bridge.directory, "environment": bridge.environment}
        with CallerContext(hello["environment"], Path(hello["directory"])).entered():
            settings = hello["settings"]
            if is_elsewhere:
                settings = _own_settings(hub)
            elif settings.store != hub.store:
                settings = {"refused": OTHER_STORE}
            if isinstance(settings, dict):
                connection.put(json.dumps(settings).encode())
                await connection.written()
                return
            hub.idle = settings.hub_idle
            async with self._open_view(settings, env=hello["environment"], shared=self._shared) as helm:
                pages = partial(self._make_pages, helm) if is_elsewhere else None
                program = _Program(hello, connection, helm, self._calls, self._shared.tasks, pages)
                hub.clients[connection] = program
                welcome = {"version": __version__, "pid": os.getpid(), "epoch": hub.epoch, "clock": time.monotonic()}
                connection.put(json.dumps(welcome).encode())
                await program.serve()


def _own_settings(hub: Hub) -> Settings | dict[str, str]:
    """Return the settings of this machine, for a program on another one, or the refusal to send if it is not served."""
    try:
        settings = load_settings()
        hub.admit(settings)
    except HelmsmanError as error:
        return {"refused": error.message}
    except NotServed as error:
        return {"refused": error.why} if error.go_to is None else {"goTo": in_hex(str(error.go_to)).decode()}
    return settings


class _Program:
    """Connected program."""

    def __init__(
        self,
        hello: Mapping[str, Any],
        connection: Connection,
        helm: Steering,
        calls: CallLog,
        tasks: TaskGroup,
        make_pages: Callable[[], Awaitable[Pages]] | None,
    ) -> None:
        """`make_pages` is for a program on another machine, which has its own dashboard."""
        self._hello = hello
        self._connection = connection
        self._helm = helm
        self._log = calls
        self._tasks = tasks
        own = running_process(hello["pid"]) or Process(hello["pid"], "")
        self._process = own if make_pages is None else ELSEWHERE
        self._make_pages = make_pages
        self._pages: OnceEach[Pages] = OnceEach()
        self._peer = Peer(
            ConnectionTransport(connection),
            other="Helmsman's client",
            on_notification=self._on_notification,
            on_request=self._take,
        )
        self._running: dict[int, anyio.CancelScope] = {}
        self._reading: dict[int, anyio.CancelScope] = {}
        self._followed: dict[str, _Followed] = {}
        self._watched: set[str] = set()
        self._watching = ExitStack()
        """Marks the followed sessions as watched, for as long as the program is connected."""
        self._is_catching_up = False
        self._offered: list[tuple[Session, str]] = []
        self._under_way = 0

    @property
    def description(self) -> Mapping[str, Any]:
        return {
            "kind": self._hello["kind"],
            "pid": self._hello["pid"],
            "version": self._hello["version"],
            "directory": self._hello["directory"],
        }

    async def serve(self) -> None:
        """Serve the program until it leaves. Its changing calls then run to their end; its reading calls are cancelled."""
        stop = self._helm.listen(self._on_event)
        try:
            await self._peer.run()
        finally:
            stop()
            self._watching.close()
            for scope in self._reading.values():
                scope.cancel()
            self._withdraw_tools()

    # --- calls -------------------------------------------------------------------------------------------------------

    def _on_notification(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "cancel" and (scope := self._running.get(params.get("number", 0))) is not None:
            scope.cancel()
        elif method == "shown" and (session := self._helm.sessions.get(params["session"])) is not None:
            deadline = session.deadlines.get(params["question"])
            if deadline is not None:
                deadline.lease(str(params["viewer"]), float(params["seconds"]))
        elif method == "follow":
            self._followed[str(params["session"])] = _Followed(cursor=int(params["cursor"]))
        elif method == "tools" and (session := self._helm.sessions.get(str(params["session"]))) is not None:
            for name in params["names"]:
                self._offered.append((session, name))
                session.offer({name: self._run_tool})

    def _withdraw_tools(self) -> None:
        for session, name in self._offered:
            if session.tools.get(name) == self._run_tool:
                session.withdraw(name)

    async def _run_tool(self, call: ToolCalled) -> ToolResult | None:
        """Run a function that the program offers. The program may reconnect, to this hub or to the next."""
        about = {"session": call.session_id, "call": call.call_id, "tool": call.tool, "arguments": call.arguments}
        try:
            answer = await self._peer.request("tool", about, timeout=math.inf)
        except HelmsmanError:
            self._withdraw_tools()
            return None
        return ToolResult(text=str(answer["text"]), success=answer["success"] is True)

    def _take(self, request: IncomingRequest) -> bool:
        if request.method != "call":
            return False
        if self._under_way < _MOST_CALLS:
            self._under_way += 1
            self._tasks.start_soon(self._answer, request)
        else:
            refused = HelmsmanError(
                f"{_MOST_CALLS} calls of this program are under way, which is the limit for one program. Wait until "
                "some have ended, then try again."
            )
            self._peer.respond(request.id, {"error": encoded(refused)})
        return True

    async def _answer(self, request: IncomingRequest) -> None:
        """Run a call, and answer it. Errors in one call must not affect other clients."""
        try:
            result = await self._result(request.params)
            for session_id in result.get("sessions", ()):
                if (session := self._helm.sessions.get(session_id)) is not None:
                    await self._send_copy(session)
            self._peer.respond(request.id, result)
        except Exception as error:
            log.exception("a call could not be answered")
            self._peer.respond(request.id, {"error": encoded(HelmsmanError(f"Helmsman itself failed: {error!a}."))})
        finally:
            self._under_way -= 1

    async def _result(self, params: Mapping[str, Any]) -> dict[str, Any]:
        number, verb = int(params["number"]), str(params["verb"])
        if number in self._running:
            raise ValueError(f"call {number} is under way")
        result: dict[str, Any] = {}
        with anyio.CancelScope() as scope:
            self._running[number] = anyio.CancelScope() if nature_of(verb).completes else scope
            if nature_of(verb).reads:
                self._reading[number] = scope
            try:
                result = await self._call(number, params)
            except (HelmsmanError, TypeError, ValueError) as error:
                if not isinstance(error, HelmsmanError):
                    log.info("a call of %s failed", verb, exc_info=True)
                result = {"error": encoded(error)}
            except Exception as error:
                log.exception("a call of %s failed", verb)
                result = {"error": encoded(HelmsmanError(f"Helmsman itself failed: {error!r}. Report it."))}
            finally:
                del self._running[number]
                self._reading.pop(number, None)
        return result

    async def _call(self, number: int, params: Mapping[str, Any]) -> dict[str, Any]:
        verb = str(params["verb"])
        if verb in (PAGE, PAGE_CHANGES) and self._make_pages is not None:
            return await self._answer_page(number, verb, params)
        if verb == EVENTS:
            session_id, cursor = decoded(params["arguments"])
            return {"value": await self._events_after(str(session_id), int(cursor))}
        if (verb not in VERBS and verb.partition(".")[0] not in PARTS) or "._" in verb:
            raise TypeError(f"Helmsman cannot be asked for {verb}")
        if nature_of(verb).repeat == "freely":
            return self._shown(await self._do(verb, params))

        async def do() -> dict[str, Any]:
            return self._shown(await self._do(verb, params))

        result = await self._once(number, params, do, repeatable=nature_of(verb).repeat == "finds out")
        for session_id in result.get("sessions", ()):
            if session_id not in self._helm.sessions:  # of one that an earlier hub answered
                await self._helm.session(session_id)
        return result

    async def _once(
        self,
        number: int,
        params: Mapping[str, Any],
        do: Callable[[], Awaitable[dict[str, Any]]],
        *,
        repeatable: bool,
    ) -> dict[str, Any]:
        """Run a call that changes something. If the program or the next hub of its machine repeats it, it is done once."""
        client, place = str(self._hello["door"]), number
        if self._process is ELSEWHERE and "once" in params:
            client, place = str(params["once"][0]), int(params["once"][1])
        return await self._log.once(
            CallId(client, place, self._process),
            str(params["verb"]),
            do,
            repeatable=repeatable,
            stored=json.dumps,
            restored=json.loads,
            failed=lambda error: {"error": encoded(error)},
        )

    async def _answer_page(self, number: int, verb: str, params: Mapping[str, Any]) -> dict[str, Any]:
        assert self._make_pages is not None
        pages = await self._pages.get("", self._make_pages)
        arguments = decoded(params["arguments"])
        if verb == PAGE_CHANGES:
            return {"value": await pages.changes(*arguments)}

        async def answer() -> dict[str, Any]:
            return {"value": encoded(await pages.answer(*arguments))}

        if arguments[0] == "GET":
            return await answer()
        return await self._once(number, params, answer, repeatable=False)

    async def _do(self, verb: str, params: Mapping[str, Any]) -> Any:
        target: Any = self._helm
        for name in verb.split("."):
            target = getattr(target, name)
        arguments, named = (decoded(params[key], self._meant) for key in ("arguments", "named"))
        directory = text_in(params["directory"]) if "directory" in params else self._hello["directory"]
        client = unpack_if_valid(params.get("client"), McpClient)
        with CallerContext(self._hello["environment"], Path(directory), client).entered():
            return await target(*arguments, **named)

    def _shown(self, value: Any) -> dict[str, Any]:
        sessions: list[str] = []

        def stand_in(part: Any) -> Any:
            if not isinstance(part, Session):
                raise TypeError(f"{type(part).__name__} cannot be told to another process")
            sessions.append(part.id)
            self._watch(part)  # its turn may have ended before the program gets a copy
            return {"$": SESSION, "id": part.id}

        return {"value": encoded(value, stand_in), "sessions": sessions}

    def _meant(self, stand_in: Mapping[str, Any]) -> Any:
        """Resolve a stand-in of the program."""
        match stand_in["$"]:
            case "function":
                number = stand_in["number"]
                return lambda *args: self._say("called", {"number": number, "arguments": encoded(args)})
            case "session":
                return self._helm.sessions[stand_in["id"]]
            case kind:
                raise ValueError(f"there is no {kind}")

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def _send_copy(self, session: Session) -> None:
        """Send a session, with the events that the program does not have."""
        self._watch(session)
        known = self._followed.setdefault(session.id, _Followed())
        cursor = known.cursor
        if cursor is not None and cursor > session.feed.cursor:
            cursor = known.cursor = None  # the store was replaced by an empty one
        events = session.feed.since(cursor or 0).events
        if cursor is not None and session.feed.since(cursor).missed:
            stored = await self._stored(session.id, cursor)
            if known.cursor != cursor:
                return  # another copy was sent in between
            page = session.feed.since(stored.cursor)
            events = page.events if page.missed else (*stored.events, *page.events)
        copy = copy_of(session, events)
        known.cursor, known.facts, known.is_behind = copy.cursor, json.dumps(encoded(copy.facts)), False
        self._watch_clocks(session)
        committed = copy.cursor - self._helm.task_writer.uncommitted(session.id)
        self._say("copy", {"session": session.id, "copy": encoded(copy), "committed": committed})

    async def _events_after(self, session_id: str, cursor: int) -> tuple[int, list[EventOnWire]]:
        """Return a limited number of events of a session after a cursor, and the number of the last one."""
        session = await self._helm.session(session_id)
        stored = await self._stored(session.id, cursor)
        sent: list[EventOnWire] = []
        size = 0
        for event in stored.events:
            sent.append(to_wire(event))
            size += len(sent[-1][1])
            if size > _MOST_CHARS:
                break
        return stored.cursor - len(stored.events) + len(sent), sent

    async def _stored(self, session_id: str, cursor: int) -> StoredEvents:
        """Return the events of a log after a cursor; none where the store cannot be read."""
        writer = self._helm.task_writer
        await writer.write()
        try:
            return await writer.registry(lambda registry: registry.events(session_id, since=cursor))
        except RegistryUnavailable as error:
            log.warning("a program misses events of session %s: %s", session_id, error)
            return StoredEvents()

    def _watch(self, session: Session) -> None:
        if session.id not in self._watched and self._peer.closed is None:
            self._watched.add(session.id)
            self._watching.enter_context(session.watched())

    def _watch_clocks(self, session: Session) -> None:
        """Tell the program when the time that a question has left is another than it seemed."""
        for deadline in session.deadlines.values():
            deadline.watchers[self] = partial(self._send_facts, session)

    def _send_facts(self, session: Session) -> None:
        known, facts = self._followed[session.id], encoded(facts_of(session))
        if not known.is_behind and not self._connection.is_full:
            known.facts = json.dumps(facts)
            self._say("facts", {"session": session.id, "facts": facts})

    def _on_event(self, session: Session, event: Event) -> None:
        known = self._followed.get(session.id)
        if known is None or known.is_behind:
            return
        if self._connection.is_full:
            known.is_behind = True
            if not self._is_catching_up:
                self._is_catching_up = True
                self._tasks.start_soon(self._catch_up)
            return
        known.cursor = session.feed.cursor
        committed = known.cursor - max(1, self._helm.task_writer.uncommitted(session.id))
        message: dict[str, Any] = {"session": session.id, "event": to_wire(event), "committed": committed}
        if not isinstance(event, ItemDelta | ItemStarted | ItemUpdated | ItemEnded):
            facts = encoded(facts_of(session))
            if (text := json.dumps(facts)) != known.facts:
                known.facts = text
                message["facts"] = facts
                self._watch_clocks(session)
        self._say("event", message)

    def _say(self, method: str, params: Mapping[str, Any]) -> None:
        if self._peer.closed is None:
            self._peer.notify(method, params)

    async def _catch_up(self) -> None:
        """Send the missed events, when the program reads again."""
        while self._connection.is_full:
            await self._connection.progress()
        self._is_catching_up = False
        for session_id, known in list(self._followed.items()):
            session = self._helm.sessions.get(session_id)
            if known.is_behind and session is not None:
                await self._send_copy(session)
