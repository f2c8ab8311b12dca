"""Determine the command with which a client starts the running Helmsman.

A client is often a desktop program without the shell's PATH, and starts Helmsman long after this process has ended. So
the entry contains the full path of the console script, unless it is in a temporary cache (`uvx`, `pipx run`); then it
names the runner. A file that is shared with others gets no path of this machine.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final

import anyio

from helmsman.base.programs import available, find_program
from helmsman.base.redaction import redact
from helmsman.clients.entries import DISTRIBUTION, HELMSMAN_NAMES, program_name, words_of
from helmsman.errors import HandshakeFailed, ProgramRefused

if TYPE_CHECKING:
    from collections.abc import Callable

# --- Test an entry: start its command as the client would, and list its tools -----------------------------------------

# Only entries of the user's file are started. A project's file comes with a repository: its command, variables
# (`PYTHONPATH`) and directory would decide what runs here.

HANDSHAKE_SECONDS: Final = 60.0
"""`uvx` may have to download the package first."""
_LAST_WORDS: Final = 2000


@dataclass(frozen=True, slots=True)
class Answer:
    """Name, version and tools of a server."""

    server: str
    version: str
    tools: tuple[str, ...]


async def shake_hands(content: Mapping[str, Any], directory: Path, *, timeout: float = HANDSHAKE_SECONDS) -> Answer:
    """Start the entry's command and list its tools, in a small environment (HOME, PATH and the like) as clients use.

    Raises:
        HandshakeFailed: The command cannot be started, exits, or does not answer in time; the message has its last
            output.
    """
    from mcp.client.stdio import StdioServerParameters, stdio_client

    from mcp import Client

    named, *arguments = words_of(content)
    try:
        # A name with a slash is a path; others are looked up where sessions cannot write.
        command = named if os.path.dirname(named) else find_program(named) or named  # noqa: PTH120
    except ProgramRefused as error:
        raise HandshakeFailed(error.message) from error
    env = content.get("env")
    cwd = content.get("cwd")
    parameters = StdioServerParameters(
        command=command,
        args=arguments,
        env={name: str(value) for name, value in env.items()} if isinstance(env, Mapping) else None,
        # As clients do: the project is the working directory.
        cwd=cwd if isinstance(cwd, str) else directory,
    )
    shown = redact(" ".join([named, *arguments]))
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        try:
            with anyio.fail_after(timeout):
                # Servers of every age understand the handshake era.
                async with Client(stdio_client(parameters, errlog=said), mode="legacy") as client:
                    tools = await client.list_tools()
                    about = client.server_info
                    name, version = ("", "") if about is None else (about.name, about.version)
                    return Answer(name, version, tuple(tool.name for tool in tools.tools))
        except TimeoutError as error:
            raise HandshakeFailed(
                f"`{shown}` did not answer within {timeout:g} s.{_last_words(said)} Run it in a terminal to see why."
            ) from error
        except FileNotFoundError as error:
            raise HandshakeFailed(
                f"`{named}` was not found. Install Helmsman where the client can find it, and install again."
            ) from error
        except Exception as error:  # any failure of a foreign program means that it does not work
            raise HandshakeFailed(
                f"`{shown}` does not answer as an MCP server.{_last_words(said)} Run it in a terminal to see why."
            ) from error


def _last_words(said: Any) -> str:
    """Return the last line of its stderr."""
    said.seek(0, os.SEEK_END)
    # Only the end, because a server may log a lot.
    said.seek(max(0, said.tell() - _LAST_WORDS))
    lines = [line.strip() for line in said.read().splitlines() if line.strip()]
    return f" It said: {redact(lines[-1]).rstrip('.')}." if lines else ""


_UV_BUCKETS: Final = ("archive-v", "environments-v", "builds-v")
"""Directories in uv's cache for environments of `uvx`."""


@dataclass(frozen=True, slots=True)
class Running:
    """Running process: its program, its Python, and the script directory."""

    program: str
    python: str
    prefix: str
    scripts: str

    @classmethod
    def now(cls) -> Running:
        return cls(sys.argv[0], sys.executable, sys.prefix, sysconfig.get_path("scripts"))


def launch_words(running: Running, *, shared: bool, which: Callable[[str], str | None] = available) -> tuple[str, ...]:
    """Return the words that start Helmsman, without arguments. `shared` is for files shared with other users."""
    if shared:
        return ("helmsman",) if which("helmsman") else ("uvx", DISTRIBUTION)
    # An environment in a cache disappears when the cache is cleaned.
    cache = _runner_of_cache(PurePath(running.prefix))
    if cache == "uvx" or (cache is not None and which("uvx")):
        return (which("uvx") or "uvx", DISTRIBUTION)
    if cache is not None:
        return (which("pipx") or "pipx", "run", DISTRIBUTION)
    scripts = Path(running.scripts)
    # The script that is running first, then the one of this environment.
    for candidate in (Path(running.program), *(scripts / name for name in ("helmsman", "helmsman.exe"))):
        # Do not resolve links: `uv tool` and `pipx` keep one in ~/.local/bin that survives upgrades.
        if program_name(str(candidate)) in HELMSMAN_NAMES and candidate.is_file():
            return (str(candidate.absolute()),)
    # -P excludes the current directory: clients start it in a project, which may contain a module of any name.
    return (running.python, "-P", "-m", "helmsman")


def _runner_of_cache(prefix: PurePath) -> str | None:
    """Return the runner that created the environment, if it is temporary."""
    parts = prefix.parts
    if any(part.startswith(_UV_BUCKETS) for part in parts):
        return "uvx"
    pairs = set(pairwise(parts))
    return "pipx" if pairs & {(".cache", "pipx"), ("pipx", ".cache"), ("Caches", "pipx")} else None
