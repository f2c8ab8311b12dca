"""One process of an agent, which holds one session: started, greeted, spoken to, and ended with all it has started.

A session has a process of its own. What an agent may do is partly in its environment, some keep what was allowed for all
sessions of a process, one that is stuck with a question answers no other, and some show their own directory in place of the
session's. It costs memory, and what is idle for long is ended: a session loads again from the agent's own files.
"""

from __future__ import annotations

import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman._version import __version__
from helmsman.agents.child_process import MARK, open_child
from helmsman.agents.transports import StdioTransport
from helmsman.base.json_values import mapping
from helmsman.base.jsonrpc import Peer
from helmsman.base.processes import descendants, kill, with_variable
from helmsman.errors import EngineStartFailed, HelmsmanError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from helmsman.agents.acp.profile import Profile
    from helmsman.agents.child_process import Child
    from helmsman.base.jsonrpc import IncomingRequest
    from helmsman.base.processes import Process

PROTOCOL_VERSION: Final = 1
REQUEST_SECONDS: Final = 60.0
_LEFT_SECONDS: Final = 5.0
_LEFT_POLL: Final = 0.02

# No `fs` and no `terminal`: with them some agents write files through the client, and nothing is gained on one machine.
_CLIENT: Final = {
    "protocolVersion": PROTOCOL_VERSION,
    "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
    "clientInfo": {"name": "helmsman", "title": "Helmsman", "version": __version__},
}


class AgentProcess:
    """A running agent. Made by `open_agent` only."""

    def __init__(self, child: Child, mark: str, peer: Peer, about: Mapping[str, Any]) -> None:
        self._child = child
        self._mark = mark
        self.peer = peer
        self.about = about
        """What it said of itself when it was greeted."""
        self._own: frozenset[Process] = frozenset()

    @property
    def version(self) -> str | None:
        version = mapping(self.about.get("agentInfo")).get("version")
        return version if isinstance(version, str) else None

    @property
    def session_capabilities(self) -> Mapping[str, Any]:
        """What it can do with sessions beyond what all can."""
        return mapping(mapping(self.about.get("agentCapabilities")).get("sessionCapabilities"))

    async def request(self, method: str, params: Mapping[str, Any], *, seconds: float = REQUEST_SECONDS) -> Any:
        return await self.peer.request(method, params, timeout=seconds)

    async def prompt(self, session_id: str, content: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        """Send a prompt. It is answered when the turn has ended, whenever that is."""
        params = {"sessionId": session_id, "prompt": list(content)}
        return mapping(await self.peer.request("session/prompt", params, timeout=math.inf))

    async def remember_own(self) -> None:
        """What runs now belongs to the agent itself, and is no command of a turn."""
        self._own = await anyio.to_thread.run_sync(self._started)

    async def end_commands(self, noted: frozenset[Process]) -> None:
        """End what a turn has started and not ended, also what has left its parents. Returns when it is gone."""
        with anyio.move_on_after(_LEFT_SECONDS):
            while left := await anyio.to_thread.run_sync(self._end, noted):
                noted = left
                await anyio.sleep(_LEFT_POLL)

    async def commands(self) -> frozenset[Process]:
        """What the turn has started and is still there."""
        return await anyio.to_thread.run_sync(self._started) - self._own

    def _end(self, noted: frozenset[Process]) -> frozenset[Process]:
        return kill((noted | self._started()) - self._own)

    def _started(self) -> frozenset[Process]:
        below = descendants(self._child.pid)
        marked = {process for process in with_variable(MARK, self._mark) if process.pid != self._child.pid}
        return below | marked


@asynccontextmanager
async def open_agent(
    profile: Profile,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    directory: Path,
    on_notification: Callable[[str, Mapping[str, Any]], None],
    on_request: Callable[[IncomingRequest], bool],
    on_close: Callable[[HelmsmanError], None],
    tasks: TaskGroup,
) -> AsyncIterator[AgentProcess]:
    """An agent for the length of the block, greeted. Nothing that it has started is left afterwards.

    Raises:
        EngineStartFailed: It does not come up, or speaks another version of the protocol.
    """
    async with open_child(tasks, argv, env=env, cwd=directory) as child:
        transport = StdioTransport(child, profile.title)
        tasks.start_soon(transport.close_output_after_exit)
        peer = Peer(
            transport,
            on_notification=on_notification,
            on_request=on_request,
            on_close=on_close,
            other=profile.title,
            with_version=True,
        )
        tasks.start_soon(peer.run)
        try:
            about = mapping(await peer.request("initialize", _CLIENT, timeout=profile.start_seconds))
        except HelmsmanError as error:
            raise _not_up(profile, error, child) from error
        if about.get("protocolVersion") != PROTOCOL_VERSION:
            raise EngineStartFailed(
                f"{profile.title} speaks version {about.get('protocolVersion')!r:.20} of the Agent Client Protocol, and "
                f"Helmsman version {PROTOCOL_VERSION}. Install a version of it that speaks that."
            )
        yield AgentProcess(child, child.mark, peer, about)


def _not_up(profile: Profile, error: HelmsmanError, child: Child) -> EngineStartFailed:
    lines = child.stderr_tail.splitlines()
    said = f" It said: {lines[-1]:.300}" if lines else ""
    return EngineStartFailed(
        f"{profile.title} did not come up: {error.message.partition('. ')[0]}.{said} Start it by hand to see why.",
        exit_code=child.exit_code,
        stderr=child.stderr_tail or None,
    )
