"""Environment and working directory of the client that asks, which may differ from those of this process.

A hub serves many clients from one process. The context of each is set for its connection (`CallerContext.entered`) and
applies to all work for it, on any task or thread; without a client it is the process's own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Final

from helmsman.base.clients import McpClient
from helmsman.base.structs import Value
from helmsman.errors import InvalidInput

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


UMASK: Final = "HELMSMAN_UMASK"
"""Variable in which a client sends the umask for its files to the hub. Octal."""
FLEET_URL: Final = "HELMSMAN_FLEET_URL"
STORE: Final = "HELMSMAN_STORE"
"""Address of a fleet's database, often with a password. It is for Helmsman alone."""


class CallerContext(Value, frozen=True):
    """Context of a client. `repr` shows no values: they hold secrets."""

    environment: Mapping[str, str]
    directory: Path
    client: McpClient | None = None
    """MCP client that asks on behalf of its model; None for people and for the user's own programs."""

    def __repr__(self) -> str:
        return f"<CallerContext in {self.directory}, {len(self.environment)} variables>"

    def on_behalf_of(self, client: McpClient | None) -> CallerContext:
        """Return the same place with another caller."""
        return self if client == self.client else CallerContext(self.environment, self.directory, client)

    def entered(self) -> AbstractContextManager[None]:
        """Do the work in the block, and all tasks that it starts, for this client."""
        return _Entered(self)


class _Entered:
    """Entered for every event there is: one that is made of a generator takes three times as long."""

    __slots__ = ("_before", "_where")

    def __init__(self, where: CallerContext) -> None:
        self._where = where

    def __enter__(self) -> None:
        self._before = _CURRENT.set(self._where)

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._before)


_CURRENT: ContextVar[CallerContext | None] = ContextVar("caller_context", default=None)


def current() -> CallerContext:
    """Return the context of the client that the current work is for.

    Raises:
        InvalidInput: The directory that this process is in was removed.
    """
    known = _CURRENT.get()
    if known is not None:
        return known
    try:
        # A live view of the process's own environment, not a copy.
        return CallerContext(os.environ, Path.cwd())
    except FileNotFoundError:
        raise InvalidInput("The current directory no longer exists. Change to another one.") from None


def environment() -> Mapping[str, str]:
    """Return the environment of the client that asks."""
    known = _CURRENT.get()
    return os.environ if known is None else known.environment


def asking_client() -> McpClient | None:
    """Return the MCP client that asks on behalf of its model; None for people and for the user's own programs."""
    known = _CURRENT.get()
    return None if known is None else known.client


def umask_in(env: Mapping[str, str]) -> int:
    """Return the umask for a process started for the client with this environment; -1, as in `Popen`, for our own."""
    try:
        # Whatever a client sends, only permission bits may change.
        return int(env[UMASK], 8) & 0o777
    except (KeyError, ValueError):
        return -1


def for_others(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a program that is started for a client: an agent, git, a command of a repository."""
    return {name: value for name, value in env.items() if name not in (FLEET_URL, STORE)}


def expand_home(path: str | os.PathLike[str]) -> Path:
    """Return a path with `~` replaced by the client's home. One of a user who does not exist stays as it is."""
    home, path = environment().get("HOME"), os.fspath(path)
    # Only the client's own home. `~name` is looked up below, in the account database.
    if home and (path == "~" or path.startswith("~/")):
        path = home + path[1:]
    return Path(os.path.expanduser(path))  # noqa: PTH111 - does not raise for a user that does not exist


def from_here(path: str | os.PathLike[str]) -> Path:
    """Resolve a path for the client: `~` is the client's home, and a relative path begins at the client's directory."""
    known, expanded = _CURRENT.get(), expand_home(path)
    return expanded if known is None else known.directory / expanded
