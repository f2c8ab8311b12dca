"""Renders the output of commands that only ask, for thin clients (`helmsman.cli.thin`).

The hub has all modules in memory, so it answers in a tenth of the time that a separate process would need. A rendering
reads: as soon as a command is about to change something, or needs the user's terminal, the client runs it in its own
process. Output goes into the response; the environment, directory and terminal are those of the client.
"""

from __future__ import annotations

import io
import json
import logging
import os
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread
import click
from pydantic import Field
from starlette.responses import JSONResponse, Response, StreamingResponse

from helmsman._version import __version__
from helmsman.base.caller_context import CallerContext
from helmsman.cli.app import app, rendered
from helmsman.cli.command_names import ASKING, command_name
from helmsman.cli.completing import completions
from helmsman.cli.consoles import logs_wanted
from helmsman.cli.host import Host, NeedsOwnProcess, hosted
from helmsman.cli.thin import COMPLETION
from helmsman.client import InsideHelmsman
from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.httpd.operation_routes import problem, problem_of
from helmsman.hub.process import NotServed
from helmsman.service import HelmsmanService
from helmsman.settings import load_settings
from helmsman.shapes.contract import Input

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.requests import Request
    from typing_extensions import Buffer

    from helmsman.agents.protocol import SessionIndex
    from helmsman.client import Helmsman
    from helmsman.hub.process import Hub
    from helmsman.sessions.session import QuestionHandler
    from helmsman.settings import Settings
    from helmsman.steering.shared import Shared

log = logging.getLogger(__name__)

ResultT = TypeVar("ResultT")

_MOST_AT_ONCE: Final = 100  # each rendering holds a thread


class TextInput(Input):
    """A command as the user typed it, and the process that asks."""

    arguments: list[Any]  # pydantic takes no text that is not UTF-8
    environment: dict[Any, Any]
    directory: Any
    terminals: list[bool] = Field(min_length=3, max_length=3)
    columns: int = 0
    lines: int = 0

    def check(self) -> None:
        """Check what pydantic cannot.

        Raises:
            InvalidInput: Something is not a text.
        """
        for one in (*self.arguments, *self.environment, *self.environment.values(), self.directory):
            if not isinstance(one, str):
                raise InvalidInput(f"{one!r:.100} is not a text.", parameter="body")

    @property
    def completing(self) -> str | None:
        """Shell that requests completions."""
        shell, _, what = str(self.environment.get(COMPLETION, "")).rpartition("_")
        return shell if what == "complete" else None

    @property
    def size(self) -> tuple[int, int] | None:
        return (self.columns, self.lines) if self.columns and self.lines else None


class TextRenderer:
    """Endpoint for thin clients."""

    def __init__(self, hub: Hub, shared: Shared) -> None:
        self._hub = hub
        self._shared = shared
        self._threads = anyio.CapacityLimiter(_MOST_AT_ONCE)

    async def render(self, request: Request) -> Response:
        try:
            asked = TextInput.read(json.loads(await request.body()), whole="body")
            asked.check()
        except ValueError:
            return problem(400, "invalid_input", "The body is not a JSON object.")
        except HelmsmanError as error:
            return problem_of(error)
        with CallerContext(asked.environment, Path(asked.directory)).entered():
            try:
                if self._needs_own_process(asked):
                    return JSONResponse(_OWN_PROCESS)
            except NotServed as error:
                if error.go_to is None:
                    return JSONResponse(_OWN_PROCESS)
                # 409 leads the client to the hub of that directory.
                return Response(json.dumps({"stateDirectory": str(error.go_to)}), 409, media_type="application/json")
            # The headers are sent immediately: a client that gets none takes the hub for stuck.
            return StreamingResponse(self._text(asked), media_type="application/json")

    def _needs_own_process(self, asked: TextInput) -> bool:
        """Return whether the hub cannot render for this client.

        Raises:
            NotServed: The settings of the client want no hub, or another one.
        """
        if asked.completing is None and command_name(asked.arguments) not in ASKING:
            return True
        zones = {environment.get("TZ") for environment in (asked.environment, os.environ)}
        if len(zones) > 1:
            return True  # a process has one time zone
        try:
            settings = load_settings()
        except HelmsmanError:
            return False  # the command reports invalid settings, if it needs them
        self._hub.admit(settings)
        return logs_wanted(settings)  # a process has one log

    async def _text(self, asked: TextInput) -> AsyncIterator[str]:
        with CallerContext(asked.environment, Path(asked.directory)).entered():
            host = _RenderingHost(asked, self._shared)
            with hosted(host):
                # On a thread, since commands are synchronous; a limit, since each holds one.
                code = await anyio.to_thread.run_sync(_render, asked, limiter=self._threads)
        yield json.dumps(_OWN_PROCESS if code is None else {**_ABOUT, "written": host.written(), "exitCode": code})


_ABOUT: Final[dict[str, Any]] = {"version": __version__, "pid": os.getpid()}
_OWN_PROCESS: Final = {**_ABOUT, "ownProcess": True}


def _render(asked: TextInput) -> int | None:
    """Render a command into the streams of its host. Return its exit code, or None if it needs its own process."""
    try:
        if asked.completing is not None:
            return completions(app, asked.completing)
        return rendered(asked.arguments)
    except (NeedsOwnProcess, click.ClickException, click.Abort, OSError, SystemExit, KeyboardInterrupt):
        return None  # errors are shown there
    except Exception:  # also shown there, with its traceback
        log.warning("%s cannot be rendered", " ".join(map(str, asked.arguments[:1])), exc_info=True)
        return None


class _ToldToEnd(Exception):
    """Raised when a command tries to end the process."""


class _RenderingHost(Host):
    """Hub as the host of one rendering."""

    def __init__(self, asked: TextInput, shared: Shared) -> None:
        self.size = asked.size
        self._asked = asked
        self._shared = shared
        self._written: list[tuple[str, bytearray]] = []
        self._one_at_a_time = threading.Lock()
        self._stdout, self._stderr = (
            io.TextIOWrapper(
                _Stream(partial(self._write, name), is_terminal=is_terminal),  # type: ignore[type-var]
                "utf-8",
                "backslashreplace",
                write_through=True,
            )
            for name, is_terminal in zip(("out", "err"), asked.terminals[1:], strict=True)
        )

    @property
    def stdout(self) -> TextIO:
        return self._stdout

    @property
    def stderr(self) -> TextIO:
        return self._stderr

    def on_terminal(self, number: int) -> bool:
        return self._asked.terminals[number]

    def written(self) -> list[tuple[str, str]]:
        """Return what was written, by stream, in order."""
        return [(stream, data.decode("utf-8", "surrogateescape")) for stream, data in self._written]

    def _write(self, stream: str, data: bytes) -> None:
        with self._one_at_a_time:
            # Pieces of one stream are joined; the order between the streams stays.
            if self._written and self._written[-1][0] == stream:
                self._written[-1][1].extend(data)
            else:
                self._written.append((stream, bytearray(data)))

    def run(self, body: Callable[[], Awaitable[ResultT]]) -> ResultT:
        async def contained() -> ResultT:
            try:
                return await body()
            except (SystemExit, KeyboardInterrupt) as error:
                raise _ToldToEnd from error  # raised in the event loop, it would end the hub

        # Back on the hub's loop, where its sessions live.
        return anyio.from_thread.run(contained)

    def helmsman(self, settings: Settings, on_question: QuestionHandler | None) -> Helmsman:
        env, shared = self._asked.environment, self._shared
        return InsideHelmsman(HelmsmanService(settings, env=env, on_question=on_question, shared=shared))

    def indexes(self, settings: Settings) -> Mapping[str, SessionIndex]:
        return self._shared.agent_records.indexes_for(settings, self._asked.environment)

    def page(self, text: str, *, as_git: bool = False) -> None:
        # The pager runs at the client, which has the terminal.
        self._write("git_pager" if as_git else "pager", text.encode("utf-8", "backslashreplace"))

    def require_own_process(self) -> None:
        raise NeedsOwnProcess

    def begin_change(self) -> None:
        raise NeedsOwnProcess


class _Stream(io.RawIOBase):
    def __init__(self, write: Callable[[bytes], None], *, is_terminal: bool) -> None:
        self._write = write
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        written = bytes(data)
        self._write(written)
        return len(written)
