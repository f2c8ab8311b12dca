"""Routes for programs: the verbs of `Helmsman` and its parts, called by their names, and the sessions that they follow.

They are on the hub's Unix socket alone. `POST /v1/programs/ID` registers a program with its settings, environment and
directory, for as long as it reads the events of the response. `PUT …/calls/N` names a verb and carries its arguments
(`helmsman.hub.wire`), and the program's current directory; the event `result` brings its result, and `DELETE` cancels it.
The event `called` calls a function among the arguments. `PUT …/tools/SESSION` names the functions that the program runs for
a session; the hub calls them by the event `tool`, and gets the result at `…/tool-results/N`. A session in a result comes
with a copy, and from then on its events follow, each with the cursor up to which the log has them for good. The hub never
waits for a program that does not read: once it reads again, it gets the events after its cursor, from the log if need be. A
program names its cursors when it registers. `PUT …/watched/SESSION` says whether it waits for the end of a turn: then no
notification is sent of it.

A program on another machine is registered with the name of its bridge (`helmsman.hub.bridge`), which has registered before
with an environment and a directory of this machine.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import secrets
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread
from starlette.responses import Response
from starlette.routing import Mount, Route, Router

from helmsman._version import __version__
from helmsman.base.caller_context import CallerContext
from helmsman.base.clients import McpClient
from helmsman.base.concurrency import OnceEach, background_tasks
from helmsman.base.json_values import json_object
from helmsman.base.processes import Process, running_process
from helmsman.base.structs import pack, unpack, unpack_if_valid
from helmsman.errors import HelmsmanError, RegistryUnavailable
from helmsman.httpd.operation_routes import problem
from helmsman.httpd.unix_connection import connection_of
from helmsman.hub.control import BRIDGES_PATH, PROGRAMS_PATH
from helmsman.hub.conversation import DASHBOARD_PATH, EVENTS, RESULT, WELCOME
from helmsman.hub.process import OTHER_STORE, NotServed
from helmsman.hub.verbs import VERBS
from helmsman.hub.wire import function_types, pack_error, pack_value, parameters_of, type_of, unpack_value
from helmsman.model.client_tools import ToolResult
from helmsman.model.events import ItemDelta, ItemEnded, ItemStarted, ItemUpdated
from helmsman.service import HelmsmanService
from helmsman.sessions.copies import EventOnWire, copy_of, facts_of, to_wire
from helmsman.settings import Settings, load_settings
from helmsman.store.log import StoredEvents
from helmsman.tasks.calls import ELSEWHERE, CallId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

    from helmsman.hub.process import Hub
    from helmsman.model.events import Event, ToolCalled
    from helmsman.sessions.session import Session
    from helmsman.steering.shared import Shared
    from helmsman.tasks.calls import CallLog
    from helmsman.web.api import Dashboard

log = logging.getLogger(__name__)

_MOST_CHARS: Final = 8 * 1024 * 1024
"""Approximate number of characters of a log in one answer. The program asks again for the rest."""
_BACKLOG_BYTES: Final = 1024 * 1024
"""Number of bytes that wait for a program. One for which more wait is behind."""
_MOST_CALLS: Final = 1000
"""Maximum number of concurrent calls of one program, so that all others are served too."""


@dataclass(slots=True)
class _Followed:
    """Position of a program in the events of a session. Without a `cursor` it has received no event yet."""

    facts: str = ""
    cursor: int | None = None
    is_behind: bool = True


class ProgramRoutes:
    """Serves the programs that connect to a hub."""

    def __init__(self, hub: Hub, shared: Shared, calls: CallLog) -> None:
        self._hub = hub
        self._shared = shared
        self._calls = calls
        self._programs: dict[str, _Program] = {}
        self._bridges: dict[str, Mapping[str, Any]] = {}
        one = f"{PROGRAMS_PATH}/{{program}}"
        self.app: ASGIApp = Router(
            [
                Route(BRIDGES_PATH, _Registration(self._serve_bridge), methods=["POST"]),
                Route(one, _Registration(self._serve_program), methods=["POST"]),
                Route(f"{one}/calls/{{number:int}}", self._for_program(_Program.begin), methods=["PUT"]),
                Route(f"{one}/calls/{{number:int}}", self._for_program(_Program.cancel), methods=["DELETE"]),
                Route(f"{one}/tools/{{session}}", self._for_program(_Program.offer_tools), methods=["PUT"]),
                Route(f"{one}/tool-results/{{number:int}}", self._for_program(_Program.take_result), methods=["PUT"]),
                Route(f"{one}/shown", self._for_program(_Program.lease), methods=["POST"]),
                Route(f"{one}/watched/{{session}}", self._for_program(_Program.watch), methods=["PUT"]),
                Mount(f"{one}{DASHBOARD_PATH}", self._serve_dashboard),
            ]
        )

    async def _serve_dashboard(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of the dashboard of another machine, with the environment of its program."""
        program = self._programs.get(scope["path_params"]["program"])
        if program is None:
            await problem(404, "not_found", "No program with this id is registered.")(scope, receive, send)
            return
        with program.entered():
            await (await program.dashboard())(scope, receive, send)

    def _for_program(
        self, take: Callable[[_Program, Mapping[str, Any]], None]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a request. Its outcome, if any, is an event."""

        async def endpoint(request: Request) -> Response:
            content = json_object(await request.body() or b"{}")
            if content is None:
                return problem(400, "invalid_input", "The body is not a JSON object.")
            program = self._programs.get(request.path_params["program"])
            if program is None:
                return problem(404, "not_found", "No program with this id is registered.")
            try:
                take(program, {**content, **request.path_params})
            except (KeyError, TypeError, ValueError) as error:
                return problem(400, "invalid_input", f"The request is not understood: {error!a}.")
            return Response(status_code=202)

        return endpoint

    async def _serve_bridge(self, stream: _Stream, _params: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        name = secrets.token_hex(16)
        self._bridges[name] = content
        try:
            stream.say("bridge", name)
            await stream.write()
        finally:
            del self._bridges[name]

    async def _serve_program(self, stream: _Stream, params: Mapping[str, Any], content: Mapping[str, Any]) -> None:
        is_elsewhere = "bridge" in content
        hello = {**content, "id": params["program"]}
        if is_elsewhere:
            bridge = self._bridges.get(content["bridge"])
            if bridge is None:
                raise NotServed("its bridge is gone")
            hello |= {name: bridge[name] for name in ("pid", "directory", "environment")}
        with CallerContext(hello["environment"], Path(hello["directory"])).entered():
            settings = self._own_settings() if is_elsewhere else unpack(hello["settings"], Settings)
            if settings.store != self._hub.store:
                raise NotServed(OTHER_STORE)
            self._hub.idle = settings.hub_idle
            async with HelmsmanService(settings, env=hello["environment"], shared=self._shared) as helm:
                program = _Program(hello, stream, helm, self._calls, self._shared, is_elsewhere=is_elsewhere)
                self._hub.clients[stream.connection] = program
                self._programs[program.id] = program
                stream.say(
                    WELCOME,
                    {"version": __version__, "pid": os.getpid(), "epoch": self._hub.epoch, "clock": time.monotonic()},
                )
                try:
                    await program.serve()
                finally:
                    self._hub.clients.pop(stream.connection, None)
                    # The program may have registered again on another connection.
                    if self._programs.get(program.id) is program:
                        del self._programs[program.id]

    def _own_settings(self) -> Settings:
        """Return the settings of this machine, for a program on another one."""
        settings = load_settings()
        self._hub.admit(settings)
        return settings


class _Registration:
    """Route of a registration, which lasts for as long as the client reads the response."""

    def __init__(self, serve: Callable[[_Stream, Mapping[str, Any], Mapping[str, Any]], Awaitable[None]]) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = _Stream(scope, receive, send)
        refusal = await self._refusal(stream, scope)
        if refusal is not None and not stream.is_begun:
            await refusal(scope, receive, send)

    async def _refusal(self, stream: _Stream, scope: Scope) -> Response | None:
        try:
            content = dict(json.loads(await stream.body()))
            await self._serve(stream, scope["path_params"], content)
        except NotServed as error:
            there = {} if error.go_to is None else {"stateDirectory": str(error.go_to)}
            return problem(409, "not_served", error.why, **there)
        except HelmsmanError as error:
            return problem(409, error.code, error.message)
        except (KeyError, TypeError, ValueError) as error:
            log.info("a program could not be registered", exc_info=True)
            return problem(400, "invalid_input", f"The request is not understood: {error!a}.")
        return None


class _Stream:
    """Events for one client, which wait until it reads them."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.connection = connection_of(scope)
        self._receive = receive
        self._send = send
        self._waiting: list[bytes] = []
        self._size = 0
        self._news = anyio.Event()
        self.is_begun = False
        self.is_over = False
        self.on_read: Callable[[], Awaitable[None]] | None = None
        """Called when the client has read everything."""

    async def body(self) -> bytes:
        """Return the body of the request."""
        body = bytearray()
        while True:
            message = await self._receive()
            body += message.get("body", b"")
            if not message.get("more_body", False):
                return bytes(body)

    @property
    def is_full(self) -> bool:
        return self._size > _BACKLOG_BYTES

    def say(self, name: str, content: object) -> None:
        """Queue an event, however much is queued already."""
        data = content if isinstance(content, str) else json.dumps(content)
        self._waiting.append(f"event: {name}\ndata: {data}\n\n".encode())
        self._size += len(self._waiting[-1])
        self._news.set()

    async def write(self) -> None:
        """Send the events as they come, until the client leaves."""
        self.is_begun = True
        headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-store")]
        try:
            async with background_tasks() as tasks:
                tasks.start_soon(self._write_all, headers)
                while (await self._receive())["type"] != "http.disconnect":
                    pass
        finally:
            self.is_over = True

    async def _write_all(self, headers: list[tuple[bytes, bytes]]) -> None:
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        while True:
            while not self._waiting:
                self._news = anyio.Event()
                await self._news.wait()
            data, self._waiting = b"".join(self._waiting), []
            size, self._size = self._size, 0
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
            if self.on_read is not None and size:
                await self.on_read()


class _Program:
    """Connected program."""

    def __init__(
        self,
        hello: Mapping[str, Any],
        stream: _Stream,
        helm: HelmsmanService,
        calls: CallLog,
        shared: Shared,
        *,
        is_elsewhere: bool,
    ) -> None:
        self.id = str(hello["id"])
        self._hello = hello
        self._stream = stream
        self._helm = helm
        self._log = calls
        self._tasks = shared.tasks
        own = running_process(hello["pid"]) or Process(hello["pid"], "")
        self._process = ELSEWHERE if is_elsewhere else own
        self._running: dict[int, anyio.CancelScope] = {}
        self._reading: dict[int, anyio.CancelScope] = {}
        self._followed = {
            str(session_id): _Followed(cursor=int(cursor)) for session_id, cursor in hello.get("follow", {}).items()
        }
        self._watched: dict[str, ExitStack] = {}
        """Sessions whose end of a turn the program waits for, each marked as watched."""
        self._offered: list[tuple[Session, str]] = []
        self._tool_calls: dict[int, _ToolCall] = {}
        self._dashboard: OnceEach[ASGIApp] = OnceEach()
        stream.on_read = self._catch_up

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
            await self._stream.write()
        finally:
            stop()
            for session_id in list(self._watched):
                self._watched.pop(session_id).close()
            for scope in self._reading.values():
                scope.cancel()
            self._withdraw_tools()
            for call in list(self._tool_calls.values()):
                call.done.set()

    # --- calls -------------------------------------------------------------------------------------------------------

    def begin(self, call: Mapping[str, Any]) -> None:
        """Begin a call. Its result is an event. A request that is repeated on another connection begins nothing."""
        number, verb = int(call["number"]), str(call["verb"])
        nature, _ = VERBS.get(verb, VERBS[EVENTS])
        if number in self._running:
            return
        if len(self._running) >= _MOST_CALLS:
            refused = HelmsmanError(
                f"{_MOST_CALLS} calls of this program are under way, which is the limit for one program. Wait until "
                "some have ended, then try again."
            )
            self._say(RESULT, {"number": number, "error": pack_error(refused)})
            return
        scope = anyio.CancelScope()
        # A call that must complete gets a scope that cancels nothing.
        self._running[number] = anyio.CancelScope() if nature.completes else scope
        if nature.reads:
            self._reading[number] = scope
        self._tasks.start_soon(self._answer, number, call, scope)

    def cancel(self, call: Mapping[str, Any]) -> None:
        """Cancel a call."""
        if (scope := self._running.get(call["number"])) is not None:
            scope.cancel()

    def lease(self, shown: Mapping[str, Any]) -> None:
        """Let a question wait for a viewer."""
        session = self._helm.sessions.get(shown["session"])
        deadline = None if session is None else session.deadlines.get(shown["question"])
        if deadline is not None:
            deadline.lease(str(shown["viewer"]), float(shown["seconds"]))

    def watch(self, watched: Mapping[str, Any]) -> None:
        """Mark a session as watched by the program, or no longer."""
        session = self._helm.sessions.get(str(watched["session"]))
        if watched["isWatched"] and session is not None:
            self._watch(session)
        elif (known := self._watched.pop(str(watched["session"]), None)) is not None:
            known.close()

    def _watch(self, session: Session) -> None:
        if session.id not in self._watched and not self._stream.is_over:
            known = self._watched[session.id] = ExitStack()
            known.enter_context(session.watched())

    def offer_tools(self, offered: Mapping[str, Any]) -> None:
        """Call functions of the program for a session."""
        session = self._helm.sessions.get(str(offered["session"]))
        if session is not None:
            for name in offered["names"]:
                self._offered.append((session, str(name)))
                session.offer({str(name): self._run_tool})

    def _withdraw_tools(self) -> None:
        for session, name in self._offered:
            if session.tools.get(name) == self._run_tool:
                session.withdraw(name)

    async def _run_tool(self, call: ToolCalled) -> ToolResult | None:
        """Run a function that the program offers. The program may reconnect, to this hub or to the next."""
        number = next(_tool_numbers)
        tool_call = self._tool_calls[number] = _ToolCall()
        about = {"session": call.session_id, "call": call.call_id, "tool": call.tool, "arguments": call.arguments}
        try:
            if not self._stream.is_over:
                self._say("tool", {"number": number, **about})
                await tool_call.done.wait()
        finally:
            del self._tool_calls[number]
        if tool_call.result is None:
            self._withdraw_tools()
        return tool_call.result

    def take_result(self, content: Mapping[str, Any]) -> None:
        """Take the result of a function."""
        if (call := self._tool_calls.get(content["number"])) is not None:
            call.result = unpack_if_valid(content, ToolResult)
            call.done.set()

    async def _answer(self, number: int, call: Mapping[str, Any], scope: anyio.CancelScope) -> None:
        """Carry out a call, and report its result. Errors in one call must not affect other clients."""
        try:
            result = await self._result(number, call, scope)
            for session_id in result.get("sessions", ()):
                if (session := self._helm.sessions.get(session_id)) is not None:
                    await self._send_copy(session)
            self._say(RESULT, {**result, "number": number})
        except Exception as error:
            log.exception("a call could not be answered")
            failed = pack_error(HelmsmanError(f"Helmsman itself failed: {error!a}."))
            self._say(RESULT, {"number": number, "error": failed})
        finally:
            del self._running[number]
            self._reading.pop(number, None)

    async def _result(self, number: int, call: Mapping[str, Any], scope: anyio.CancelScope) -> dict[str, Any]:
        verb = str(call["verb"])
        result: dict[str, Any] = {}
        with scope:
            try:
                result = await self._call(number, call)
            except (HelmsmanError, TypeError, ValueError) as error:
                if not isinstance(error, HelmsmanError):
                    log.info("a call of %s failed", verb, exc_info=True)
                result = {"error": pack_error(error)}
            except Exception as error:
                log.exception("a call of %s failed", verb)
                result = {"error": pack_error(HelmsmanError(f"Helmsman itself failed: {error!r}. Report it."))}
        return result

    async def _call(self, number: int, params: Mapping[str, Any]) -> dict[str, Any]:
        verb = str(params["verb"])
        if verb == EVENTS:
            session_id, cursor = params["arguments"]
            return {"value": await self._events_after(str(session_id), int(cursor))}
        if verb not in VERBS:
            raise TypeError(f"Helmsman cannot be asked for {verb}")
        nature, _ = VERBS[verb]
        if nature.repeat == "freely":
            return self._shown(verb, await self._do(verb, params))

        async def do() -> dict[str, Any]:
            return self._shown(verb, await self._do(verb, params))

        result = await self._once(number, params, do, repeatable=nature.repeat == "finds out")
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
        client, place = self.id, number
        if self._process is ELSEWHERE and "once" in params:
            client, place = str(params["once"][0]), int(params["once"][1])
        return await self._log.once(
            CallId(client, place, self._process),
            str(params["verb"]),
            do,
            repeatable=repeatable,
            stored=json.dumps,
            restored=json.loads,
            failed=lambda error: {"error": pack_error(error)},
        )

    async def _do(self, verb: str, params: Mapping[str, Any]) -> Any:
        target: Any = self._helm
        for name in verb.split("."):
            target = getattr(target, name)
        names = parameters_of(verb)
        arguments = [
            self._argument(verb, names[place] if place < len(names) else "", part)
            for place, part in enumerate(params["arguments"])
        ]
        named = {name: self._argument(verb, name, part) for name, part in params["named"].items()}
        directory = params.get("directory")
        client = None if params.get("client") is None else unpack(params["client"], McpClient)
        with self.entered(directory, client):
            return await target(*arguments, **named)

    def entered(self, directory: str | None = None, client: McpClient | None = None) -> AbstractContextManager[object]:
        """Enter the environment and a directory of the program."""
        place = self._hello["directory"] if directory is None else directory
        return CallerContext(self._hello["environment"], Path(place), client).entered()

    async def dashboard(self) -> ASGIApp:
        """Return the routes of the dashboard, without those for logins and for other machines."""

        def load() -> type[Dashboard]:
            from helmsman.web.api import Dashboard  # takes long to import, and few programs need it

            return Dashboard

        async def make() -> ASGIApp:
            return (await anyio.to_thread.run_sync(load))(self._helm).app()

        return await self._dashboard.get("", make)

    def _shown(self, verb: str, value: Any) -> dict[str, Any]:
        sessions: list[str] = []

        def send(session: Session) -> None:
            sessions.append(session.id)
            if VERBS[verb][0].begins_turn:
                self._watch(session)  # its turn may end before the program says whether it waits for that

        return {"value": pack_value(value, session=send), "sessions": sessions}

    def _argument(self, verb: str, name: str, content: Any) -> Any:
        kind = type_of(verb, name)
        if kind is None or content is None:
            return content
        if function_types(kind) is not None:
            return lambda *args: self._say("called", {"number": content, "arguments": pack_value(args)})
        try:
            return unpack_value(content, kind)
        except ValueError:
            return content  # the verb refuses it, in the words of its parameter

    # --- sessions ----------------------------------------------------------------------------------------------------

    async def _send_copy(self, session: Session) -> None:
        """Send a session, with the events that the program does not have."""
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
        known.cursor, known.facts, known.is_behind = copy.cursor, json.dumps(pack(copy.facts)), False
        self._watch_clocks(session)
        committed = copy.cursor - self._helm.task_writer.uncommitted(session.id)
        self._say("copy", {"session": session.id, "copy": pack(copy), "committed": committed})

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

    def _watch_clocks(self, session: Session) -> None:
        """Send the program the new deadline whenever that of a question changes."""
        for deadline in session.deadlines.values():
            deadline.watchers[self] = partial(self._send_facts, session)

    def _send_facts(self, session: Session) -> None:
        known, facts = self._followed[session.id], pack(facts_of(session))
        if not known.is_behind and not self._stream.is_full:
            known.facts = json.dumps(facts)
            self._say("facts", {"session": session.id, "facts": facts})

    def _on_event(self, session: Session, event: Event) -> None:
        known = self._followed.get(session.id)
        if known is None or known.is_behind:
            return
        # The copy that it gets when it reads again has this event.
        if self._stream.is_full:
            known.is_behind = True
            return
        known.cursor = session.feed.cursor
        # This event cannot be committed yet.
        committed = known.cursor - max(1, self._helm.task_writer.uncommitted(session.id))
        message: dict[str, Any] = {"session": session.id, "event": to_wire(event), "committed": committed}
        # Items are by far the most events, and change no fact.
        if not isinstance(event, ItemDelta | ItemStarted | ItemUpdated | ItemEnded):
            facts = pack(facts_of(session))
            if (text := json.dumps(facts)) != known.facts:
                known.facts = text
                message["facts"] = facts
                self._watch_clocks(session)
        self._say("event", message)

    def _say(self, name: str, content: Mapping[str, Any]) -> None:
        if not self._stream.is_over:
            self._stream.say(name, content)

    async def _catch_up(self) -> None:
        """Send the missed events, now that the program reads again."""
        for session_id, known in list(self._followed.items()):
            session = self._helm.sessions.get(session_id)
            # Without facts, the program has yet to ask for the session on this connection.
            if known.facts and known.is_behind and session is not None:
                await self._send_copy(session)


@dataclass(slots=True)
class _ToolCall:
    """Call of a function of the program, until it returns."""

    done: anyio.Event = field(default_factory=anyio.Event)
    result: ToolResult | None = None


_tool_numbers = itertools.count(1)
