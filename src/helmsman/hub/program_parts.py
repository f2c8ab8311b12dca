"""Proxies between a program and its hub: parts of the hub for the program, and functions of the program for the hub."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from helmsman.model.client_tools import result_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from helmsman.approvals.deadline import TimeLeft
    from helmsman.model.client_tools import ToolFunction, ToolResult
    from helmsman.sessions.session import Session


log = logging.getLogger(__name__)


class _Asks(Protocol):
    async def call(self, verb: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any: ...


def run_own(function: Callable[..., object], *arguments: Any) -> None:
    """Call a function of the program's: that it fails says nothing of the hub."""
    try:
        function(*arguments)
    except Exception:
        log.exception("a function of this program has failed")


class CopiedSession:
    """Session of the hub, as this program follows it."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.committed = 0
        """Cursor up to which the log has its events, as the hub last reported."""
        self.asking: dict[str, anyio.CancelScope] = {}
        self.time_left: Mapping[str, TimeLeft] = {}
        """Time left for its open questions, as the hub last reported."""
        self.tools: dict[str, ToolFunction] = {}


class ProgramToolCall:
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


class PartInHub:
    """Proxy for a part of the Helmsman in a hub. Every call on it runs in the hub."""

    def __init__(self, hub: _Asks, path: str) -> None:
        self._hub = hub
        self._path = path

    def __getattr__(self, name: str) -> PartInHub:
        return PartInHub(self._hub, f"{self._path}.{name}")

    async def __call__(self, *arguments: Any, **named: Any) -> Any:
        return await self._hub.call(self._path, arguments, named)
