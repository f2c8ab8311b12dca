"""Parts of the hub for a program, and functions of the program for the hub."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from helmsman.model.client_tools import result_of
from helmsman.operations.nature import VERBS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from helmsman.approvals.deadline import TimeLeft
    from helmsman.model.client_tools import ToolFunction, ToolResult
    from helmsman.sessions.session import Session


log = logging.getLogger(__name__)


class _Asks(Protocol):
    async def call(self, verb: str, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any: ...


def run_own(function: Callable[..., object], *arguments: Any) -> None:
    """Call a function of the program. Its failure is logged, and must not end the connection."""
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


def part_in_hub(hub: _Asks, path: str) -> SimpleNamespace:
    """Return a part of the service, such as `tasks`. Every method of it runs in the hub."""
    names = {verb.removeprefix(f"{path}.").partition(".")[0] for verb in VERBS if verb.startswith(f"{path}.")}
    methods = {name: _method(hub, verb) for name in names if (verb := f"{path}.{name}") in VERBS}
    return SimpleNamespace(**{name: methods.get(name) or part_in_hub(hub, f"{path}.{name}") for name in names})


def _method(hub: _Asks, verb: str) -> Callable[..., Awaitable[Any]]:
    async def method(*arguments: Any, **named: Any) -> Any:
        return await hub.call(verb, arguments, named)

    return method
