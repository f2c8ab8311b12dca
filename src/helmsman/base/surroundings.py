"""Where a door stands: the environment and the working directory of whoever asks, which need not be this process's own.

A hub serves many doors from one process. What each brings along is set for its connection (`Whereabouts.entered`) and holds
for all that is done for it, on whatever task or thread; without a door it is the process's own.
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
"""How a door tells the hub, among its variables, which modes its files are to have. Octal."""
FLEET_URL: Final = "HELMSMAN_FLEET_URL"
STORE: Final = "HELMSMAN_STORE"
"""The address of a fleet's database, often with a password. It is for Helmsman alone."""


class Whereabouts(Value, frozen=True):
    """What a door brought along. `repr` shows no values: they hold secrets."""

    environment: Mapping[str, str]
    directory: Path
    client: McpClient | None = None
    """The MCP client whose model asks; None for people and for the user's own programs."""

    def __repr__(self) -> str:
        return f"<Whereabouts in {self.directory}, {len(self.environment)} variables>"

    def on_behalf_of(self, client: McpClient | None) -> Whereabouts:
        """Return the same place with another caller."""
        return self if client == self.client else Whereabouts(self.environment, self.directory, client)

    def entered(self) -> AbstractContextManager[None]:
        """What is done in the block, and what is begun in it, is done for this door."""
        return _Entered(self)


class _Entered:
    """Entered for every event there is: one that is made of a generator takes three times as long."""

    __slots__ = ("_before", "_where")

    def __init__(self, where: Whereabouts) -> None:
        self._where = where

    def __enter__(self) -> None:
        self._before = _CURRENT.set(self._where)

    def __exit__(self, *_: object) -> None:
        _CURRENT.reset(self._before)


_CURRENT: ContextVar[Whereabouts | None] = ContextVar("surroundings", default=None)


def current() -> Whereabouts:
    """Those of the door for which something is being done.

    Raises:
        InvalidInput: The directory that this process is in was removed.
    """
    known = _CURRENT.get()
    if known is not None:
        return known
    try:
        return Whereabouts(os.environ, Path.cwd())
    except FileNotFoundError:
        raise InvalidInput("The directory you are in does not exist any more. Go to another one.") from None


def environment() -> Mapping[str, str]:
    """The environment of whoever asks."""
    known = _CURRENT.get()
    return os.environ if known is None else known.environment


def asking_client() -> McpClient | None:
    """Return the MCP client whose model asks; None for people and for the user's own programs."""
    known = _CURRENT.get()
    return None if known is None else known.client


def umask_in(env: Mapping[str, str]) -> int:
    """The umask for a process that is started for whoever has this environment; -1, as `Popen` says it, for our own."""
    try:
        return int(env[UMASK], 8) & 0o777
    except (KeyError, ValueError):
        return -1


def for_others(env: Mapping[str, str]) -> dict[str, str]:
    """The variables for a program that is started for whoever has these: an agent, git, a command of a repository."""
    return {name: value for name, value in env.items() if name not in (FLEET_URL, STORE)}


def expand_home(path: str | os.PathLike[str]) -> Path:
    """A path in which `~` is the home of whoever asks. One of a user who does not exist stays as it is."""
    home, path = environment().get("HOME"), os.fspath(path)
    if home and (path == "~" or path.startswith("~/")):
        path = home + path[1:]
    return Path(os.path.expanduser(path))  # noqa: PTH111 - does not raise for a user that does not exist


def from_here(path: str | os.PathLike[str]) -> Path:
    """A path as whoever asks means it: `~` is their home, and a relative one begins at their directory."""
    known, expanded = _CURRENT.get(), expand_home(path)
    return expanded if known is None else known.directory / expanded
