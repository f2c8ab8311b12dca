"""Commands that the hub runs for thin clients (`helmsman.cli.thin`), each on its own thread.

Input and output go through the connection; the environment, directory and terminal are those of the client. A command
can never end the hub, and it is cancelled when its client disconnects. A command that changes state is recorded before
the change, with its outcome afterwards, so that a retry on another hub executes it once.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar, cast

import anyio
import anyio.from_thread
import anyio.to_thread

from helmsman._version import __version__
from helmsman.base.caller_context import CallerContext
from helmsman.base.concurrency import background_tasks
from helmsman.base.processes import Process, running_process
from helmsman.cli.app import app, outcome
from helmsman.cli.completing import complete
from helmsman.cli.consoles import COMMAND_LOG, in_form, log_level, logs_wanted
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import Host, NeedsOwnProcess, Repeatability, host, hosted
from helmsman.cli.thin import CALLED, COMPLETION
from helmsman.client import InsideHelmsman
from helmsman.errors import HelmsmanError, RegistryUnavailable
from helmsman.hub.hello import BridgeHello, environment_in, in_hex, text_in
from helmsman.hub.hosts import is_name
from helmsman.hub.process import NotServed
from helmsman.service import HelmsmanService
from helmsman.settings import Settings, load_settings
from helmsman.tasks.call_key import call_key
from helmsman.tasks.calls import ELSEWHERE, AnsweredBefore, CallId, CallLog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from typing_extensions import Buffer

    from helmsman.agents.protocol import SessionIndex
    from helmsman.client import Helmsman
    from helmsman.hub.connection import Connection
    from helmsman.hub.process import Hub
    from helmsman.sessions.session import QuestionHandler
    from helmsman.steering.shared import Shared

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_MOST_AT_ONCE: Final = 1000  # each waiting command holds a thread
_HELD_BYTES: Final = 64 * 1024  # output buffered until the command ends, so that it can be retried or run elsewhere
_ONLY_CALL: Final = 1
_NO_TERMINAL_COLUMNS: Final = 80


class _Hello:
    def __init__(self, fields: list[str]) -> None:
        self.version, self.id, pid, directory, arguments, environment, terminals, columns, lines, *there = fields
        self.arguments = [text_in(argument) for argument in arguments.split(",")]  # an argument may be empty
        self.is_elsewhere = bool(there)
        """True if the client is on another machine: its connection may break and be reopened."""
        self.called = ""  # name of this machine on the client's machine
        self.environment = environment_in(environment)
        if there:
            called = self.environment.get(CALLED, "")
            self.called = called if is_name(called) else ""
            bridge = BridgeHello(there, self.environment)
            self.pid, self.directory, self.environment = bridge.pid, Path(bridge.directory), bridge.environment
        else:
            self.pid, self.directory = int(pid), Path(text_in(directory))
        self.on_terminal = [one == "1" for one in terminals]
        self.size = (int(columns), int(lines)) if int(columns) and int(lines) else None

    @property
    def completing(self) -> str | None:
        """Shell that requests completions."""
        shell, _, what = self.environment.get(COMPLETION, "").rpartition("_")
        return shell if what == "complete" else None

    @property
    def columns(self) -> int:
        """Width of help texts."""
        named = self.environment.get("COLUMNS", "")
        if named.isdecimal() and int(named):
            return int(named)
        return self.size[0] if self.size is not None and self.on_terminal[1] else _NO_TERMINAL_COLUMNS

    @property
    def description(self) -> Mapping[str, Any]:
        return {"kind": "command", "pid": self.pid, "version": self.version, "directory": str(self.directory)}

    @property
    def call(self) -> CallId:
        process = ELSEWHERE if self.is_elsewhere else running_process(self.pid) or Process(self.pid, "")
        return CallId(self.id, _ONLY_CALL, process)


class _ClientGone(Exception):
    """Raised when the client has disconnected."""


class _ToldToEnd(Exception):
    """Raised when a command tries to end the process."""


class CommandDoors:
    """Runs commands for the clients of a hub."""

    def __init__(self, shared: Shared, calls: CallLog) -> None:
        self._shared = shared
        self._calls = calls
        self._threads = anyio.CapacityLimiter(_MOST_AT_ONCE)
        _route_streams()

    async def serve(self, hub: Hub, connection: Connection, fields: list[str], refused: str | None) -> None:
        """Run a command until it ends or its client disconnects."""
        hello = _Hello(fields)
        with CallerContext(hello.environment, hello.directory).entered():
            log_level = _log_level(hub, hello, refused)
            if isinstance(log_level, bytes):
                connection.put(log_level)
                await connection.written()
                return
            hub.doors[connection] = hello
            connection.put(f"w\t{__version__}\t{hub.epoch}\t{os.getpid()}".encode())
            command = HubHost(hello, connection, self._shared, self._calls, log_level)
            async with background_tasks() as tasks:
                tasks.start_soon(command.listen)
                await command.serve(self._threads)
            if not hello.is_elsewhere:  # a remote client may have missed the answer, and then asks again
                await command.forget()


def _log_level(hub: Hub, hello: _Hello, refused: str | None) -> int | bytes:
    """Return the log level for the client, or the message that refuses it."""
    if refused is not None:
        return b"r\t" + in_hex(refused)
    try:
        settings = load_settings()
    except HelmsmanError:
        return logging.ERROR  # the command reports invalid settings, if it needs them
    wanted = logs_wanted(settings)
    zones = {environment.get("TZ") for environment in (hello.environment, os.environ)}
    if not hello.is_elsewhere and (len(zones) > 1 or (wanted and settings.log_level == "debug")):
        return b"s"  # a process has one time zone and one log level
    try:
        hub.admit(settings)
    except NotServed as error:
        if error.go_to is not None:
            return b"g\t" + in_hex(str(error.go_to))
        return b"r\t" + in_hex(error.why) if hello.is_elsewhere else b"s"
    return log_level(settings)


class HubHost(Host):
    """Hub, as the host of one command."""

    outlives_commands = True

    def __init__(self, hello: _Hello, connection: Connection, shared: Shared, calls: CallLog, log_level: int) -> None:
        super().__init__()
        self.size = hello.size
        self.name = hello.called
        self.log_level = log_level
        self.stdin = _as_text(_Input(self._read_stdin, on_terminal=hello.on_terminal[0]))
        self.stdout = _as_text(_Output(partial(self._say, "o"), on_terminal=hello.on_terminal[1]))
        self.stderr = _as_text(_Output(self.write_stderr, on_terminal=hello.on_terminal[2]))
        self.is_open = True
        self._hello = hello
        self._connection = connection
        self._shared = shared
        self._calls = calls
        self._is_wanted = True
        self._scope = anyio.CancelScope()  # cancels the command's work on the event loop
        self._thread = 0
        self._one_at_a_time = threading.Lock()
        self._said: list[tuple[str, bytearray]] = []
        self._changes = False
        self._read, self._came = anyio.create_memory_object_stream[bytes](1)

    @property
    def sees_others(self) -> bool:
        return not self._hello.is_elsewhere

    # --- interface for commands --------------------------------------------------------------------------------------

    def run(self, body: Callable[[], Awaitable[ResultT]]) -> ResultT:
        async def contained() -> ResultT:
            if not self._is_wanted:
                raise _ClientGone
            with anyio.CancelScope() as self._scope:
                try:
                    return await body()
                except (SystemExit, KeyboardInterrupt) as error:
                    raise _ToldToEnd from error  # raised in the event loop, it would end the hub
            raise _ClientGone

        return anyio.from_thread.run(contained)

    def helmsman(self, settings: Settings, on_question: QuestionHandler | None) -> Helmsman:
        env, shared = self._hello.environment, self._shared
        return InsideHelmsman(HelmsmanService(settings, env=env, on_question=on_question, shared=shared))

    def indexes(self, settings: Settings) -> Mapping[str, SessionIndex]:
        return self._shared.agent_records.indexes_for(settings, self._hello.environment)

    def page(self, text: str) -> None:
        self._say("p", text.encode("utf-8", "backslashreplace"))

    def page_as_git(self, text: str) -> None:
        self._say("g", text.encode("utf-8", "backslashreplace"))

    def require_own_process(self) -> None:
        raise NeedsOwnProcess

    def begin_change(self, change: Repeatability) -> None:
        self._changes = True
        call_key.set(self.run(lambda: self._calls.begin(self._hello.call, "This", repeatable=change == "repeatable")))

    # --- the command -------------------------------------------------------------------------------------------------

    async def serve(self, threads: anyio.CapacityLimiter) -> None:
        """Run the command and send its exit code to the client."""
        try:
            with hosted(self):
                code = await anyio.to_thread.run_sync(self._on_thread, limiter=threads)
        finally:
            self.is_open = False
        if not self._is_wanted:
            return
        if code is None:
            await self.forget()
            self._connection.put(b"s")
        else:
            if self._changes:
                await self._write_down(code)
            with suppress(anyio.BrokenResourceError):
                await self._send()
                self._connection.put(b"x%d" % code)
        await self._connection.written()

    async def listen(self) -> None:
        """Read the client's stdin. Cancel the command when the client disconnects.

        A remote client may only have lost its connection, so a change that has begun is completed.
        """
        while (line := await self._connection.line()) is not None:
            await self._read.send(bytes.fromhex(line.decode()))
        if not (self._hello.is_elsewhere and self._changes):
            self._is_wanted = False
            self._scope.cancel()

    async def forget(self) -> None:
        """Delete the record of a change: the client will not retry."""
        if self._changes:
            self._changes = False
            try:
                await self._calls.answer(self._hello.call, None)
            except RegistryUnavailable as error:
                log.warning("%s", error)

    def _on_thread(self) -> int | None:
        """Run the command; return its exit code, or None if it needs its own process."""
        self._thread = threading.get_ident()
        try:
            if self._hello.completing is not None:
                return complete(app, self._hello.completing)
            return outcome(self._hello.arguments, columns=self._hello.columns)
        except NeedsOwnProcess:
            return None
        except AnsweredBefore as known:
            answer = json.loads(known.answer)
            self._said = [(kind, bytearray.fromhex(data)) for kind, data in answer["said"]]
            return int(answer["code"])
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else ExitCode.FAILED
        except (_ClientGone, anyio.BrokenResourceError):
            return ExitCode.INTERRUPTED
        except BaseException:  # a command must not end the hub
            if self._hello.completing is None:
                self.write_stderr(traceback.format_exc().encode("utf-8", "backslashreplace"))
            log.warning("%s failed", " ".join(self._hello.arguments[:1]), exc_info=True)
            return ExitCode.FAILED

    async def _write_down(self, code: int) -> None:
        answer = {"code": code, "said": [(kind, data.hex()) for kind, data in self._said]}
        try:
            await self._calls.answer(self._hello.call, json.dumps(answer))
        except RegistryUnavailable as error:
            log.warning("%s", error)

    # --- its streams -------------------------------------------------------------------------------------------------

    def write_stderr(self, data: bytes) -> None:
        self._say("e", data)

    def _say(self, kind: str, data: bytes) -> None:
        with self._one_at_a_time:
            if self._said and self._said[-1][0] == kind:
                self._said[-1][1].extend(data)
            else:
                self._said.append((kind, bytearray(data)))
            held = sum(len(said) for _, said in self._said)
        if held > _HELD_BYTES and not self._changes and threading.get_ident() == self._thread:
            self.run(self._send)

    async def _send(self) -> None:
        with self._one_at_a_time:
            said, self._said = self._said, []
        for kind, data in said:
            most = len(data) if kind in "pg" else _HELD_BYTES  # a pager shows a single text
            for at in range(0, len(data), most):
                part = bytes(data[at : at + most])
                await self._connection.send(b"%b%d\n%b" % (kind.encode(), len(part), part))

    def _read_stdin(self) -> bytes:
        async def read() -> bytes:
            self._connection.put(b"i")
            return await self._came.receive()

        return self.run(read)


class _Output(io.RawIOBase):
    def __init__(self, say: Callable[[bytes], None], *, on_terminal: bool) -> None:
        self._say = say
        self._on_terminal = on_terminal

    def isatty(self) -> bool:
        return self._on_terminal

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        said = bytes(data)
        self._say(said)
        return len(said)


class _Input(io.RawIOBase):
    """Standard input, which can only be read whole."""

    def __init__(self, read: Callable[[], bytes], *, on_terminal: bool) -> None:
        self._read = read
        self._on_terminal = on_terminal

    def isatty(self) -> bool:
        return self._on_terminal

    def readable(self) -> bool:
        return True

    def read(self, _size: int = -1, /) -> bytes:
        return self._read()


def _as_text(stream: io.RawIOBase) -> TextIO:
    return io.TextIOWrapper(stream, "utf-8", "backslashreplace", write_through=True)  # type: ignore[type-var]


class _Routed:
    """Standard stream that is redirected separately for each command."""

    encoding = "utf-8"

    def __init__(self, name: str) -> None:
        self._name = name
        self._own: Any = getattr(sys, name)

    def __getattr__(self, attribute: str) -> Any:
        by = host()
        stream = getattr(by, self._name) if isinstance(by, HubHost) and by.is_open else self._own
        return getattr(stream, attribute)


class _CommandLogs(logging.Handler):
    """Copies log records to the client of the running command, from the client's level up."""

    def emit(self, record: logging.LogRecord) -> None:
        by = host()
        if isinstance(by, HubHost) and by.is_open and record.levelno >= by.log_level:
            by.write_stderr(f"{self.format(record)}\n".encode("utf-8", "backslashreplace"))


def _route_streams() -> None:
    sys.stdin = cast("TextIO", _Routed("stdin"))
    sys.stdout = cast("TextIO", _Routed("stdout"))
    sys.stderr = cast("TextIO", _Routed("stderr"))
    logging.getLogger().addHandler(in_form(_CommandLogs(), COMMAND_LOG))
