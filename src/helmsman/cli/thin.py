"""Client of commands that only ask: the hub renders the output (`helmsman.cli.rendering`), and this process prints it.

One request on the hub's socket:

    POST /v1/text     {"arguments", "environment", "directory", "terminals", "columns", "lines"}
    200               {"version", "pid", "written": [[stream, text], …], "exitCode"}
                      {"ownProcess": true}: the command needs its own process
    409               {"stateDirectory"}: the settings name another state directory, so ask its hub

A request changes nothing, so it is repeated if its hub ends, and a command without a hub runs in its own process. The module
imports very little, because its start-up time is what users wait for.
"""

from __future__ import annotations

import os
import sys

from helmsman._version import __version__
from helmsman.cli.command_names import ASKING, OF_SESSION, command_name
from helmsman.hub.launch import (
    HubConnector,
    HubFailed,
    NoHub,
    connect,
    is_newer,
    start_successor,
    state_directory,
    wanted,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

TEXT_PATH = "/v1/text"
COMPLETION = "_HELMSMAN_COMPLETE"  # variable by which a shell requests completions

_HELP = frozenset(("-h", "--help"))
_TRIES = 3  # hubs that may end without an answer before the command runs in its own process
_BEGIN_SECONDS = 15.0
"""Silence after which a hub counts as stopped or stuck."""
_FAILED, _INTERRUPTED = 1, 130
_CONFLICT = 409
_UTF8 = ("utf-8", "utf8")


def with_host(arguments: list[str]) -> list[str]:
    """Return the arguments with `--host` added if a session id includes its machine: `build:3b2d5c8e`."""
    given = arguments[1] if arguments[:1] == ["--host"] and len(arguments) > 1 else ""
    # `--host build` and `build:id` may both be given, if they agree.
    own = arguments[2:] if given else arguments
    name = command_name(own)
    if name not in OF_SESSION:
        return arguments
    words = len(name.split())
    place = next((place for place, one in enumerate(own) if place >= words and not one.startswith("-")), 0)
    name, colon, session = own[place].partition(":")
    # A colon may belong to a message or a path.
    if not colon or not session or " " in session or given not in ("", name):
        return arguments
    from helmsman.hub.hosts import HostFailed, known_hosts

    try:
        is_known = name in known_hosts(os.environ)
    except HostFailed:
        is_known = False  # reported when a host is used
    return ["--host", name, *own[:place], session, *own[place + 1 :]] if is_known else arguments


def run(arguments: Sequence[str]) -> int | None:
    """Print what the hub renders for a command, and return its exit code.

    None: the command must run in this process. Nothing was done or shown.
    """
    completing = os.environ.get(COMPLETION, "").endswith("_complete")
    # Help needs no hub.
    asks = completing or (command_name(arguments) in ASKING and not _HELP.intersection(arguments))
    # The hub writes UTF-8.
    if not asks or not wanted(os.environ) or not _speaks_utf8():
        return None
    try:
        return _show(_answer(_request(arguments), is_patient=not completing))
    except (_OwnProcess, FileNotFoundError):  # or the current directory was removed
        return None
    except HubFailed as failed:
        _write(2, f"helmsman: without a hub: {failed}\n".encode())
        return None
    except KeyboardInterrupt:
        return _INTERRUPTED
    except BrokenPipeError:
        return _FAILED  # the reader closed the pipe (`helmsman list | head`)


class _OwnProcess(Exception):
    """Raised if the command must run in this process."""


def _request(arguments: Sequence[str]) -> dict[str, Any]:
    # The hub has no terminal, so it gets the size of this one.
    columns, lines = _terminal_size()
    return {
        "arguments": list(arguments),
        "environment": dict(os.environ),
        "directory": os.getcwd(),  # noqa: PTH109 - pathlib costs more than all of this
        "terminals": [os.isatty(number) for number in (0, 1, 2)],
        "columns": columns,
        "lines": lines,
    }


def _answer(request: dict[str, Any], *, is_patient: bool) -> dict[str, Any]:
    """Return the answer of a hub. A key press for completion must not start one.

    Raises:
        _OwnProcess: No hub answers, or the command needs this process.
        HubFailed: None comes up.
    """
    from helmsman.hub.control import OK, exchange  # JSON, which other commands do not need

    way = HubConnector(state_directory(os.environ))
    for _ in range(_TRIES):
        try:
            connection = way.connection() if is_patient else connect(way.state)
        except NoHub:
            raise _OwnProcess from None
        if connection is None:
            raise _OwnProcess
        try:
            # It has begun to answer, so it works; a long list may take its time.
            status, content = exchange(connection, "POST", TEXT_PATH, request, seconds=_BEGIN_SECONDS)
        except TimeoutError:
            raise _OwnProcess from None
        if status == _CONFLICT and "stateDirectory" in content:
            way = HubConnector(content["stateDirectory"])
        elif status == OK and "version" in content:
            # A newer client replaces an older hub in the background; this answer is still good.
            if is_patient and is_newer(__version__, content["version"]):
                start_successor(way.state)
            if "exitCode" not in content:
                raise _OwnProcess
            return content
        elif status:
            # Another status is an answer that this version does not know.
            raise _OwnProcess
    raise _OwnProcess


def _show(answer: dict[str, Any]) -> int:
    for stream, text in answer["written"]:
        if stream in ("pager", "git_pager") and _page(stream, text):
            continue
        # The bytes as they were written, also those that are not UTF-8.
        _write(2 if stream == "err" else 1, text.encode("utf-8", "surrogateescape"))
    return int(answer["exitCode"])


def _speaks_utf8() -> bool:
    return all(getattr(stream, "encoding", "").lower() in _UTF8 for stream in (sys.stdin, sys.stdout, sys.stderr))


def _terminal_size() -> tuple[int, int]:
    for number in (0, 1, 2):
        try:
            return os.get_terminal_size(number)
        except OSError:
            continue
    return 0, 0


def _write(number: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(number, rest) :]
        except BlockingIOError:  # another process made the stream non-blocking; wait until it is writable
            import select

            select.select([], [number], [])


def _page(stream: str, text: str) -> bool:
    """Show a text in the user's pager; return whether that worked."""
    from helmsman.cli.host import page

    return page(text, as_git=stream == "git_pager")
