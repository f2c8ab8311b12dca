"""One process of an agent, which holds one session: started, initialized, and ended with all its descendants.

Each session has a separate process. An agent's permissions are partly in its environment, some agents keep approvals for all
sessions of a process, one that waits for an answer blocks the other sessions, and some show their own directory instead of
the session's. A process costs memory, so one that is idle for long is ended: a session loads again from the agent's own
files.

The process is a child of the hub, or of a supervisor. Under a supervisor it survives the hub, and its notes hold the state
that its next owner needs.
"""

from __future__ import annotations

import hashlib
import json
import math
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.to_thread

from helmsman._version import __version__
from helmsman.agents.acp.confined import put_inside
from helmsman.agents.acp.profile import is_enforced
from helmsman.agents.acp.updates import joined
from helmsman.agents.agent_processes import AgentProcesses
from helmsman.agents.child_process import open_child
from helmsman.agents.error_line import error_line
from helmsman.agents.event_router import OutputPosition
from helmsman.agents.found_programs import check_command
from helmsman.agents.replay_window import ReplayWindow
from helmsman.agents.sandbox import refuse_planted
from helmsman.agents.supervised_transport import SupervisedTransport
from helmsman.agents.supervisor.client import attach
from helmsman.agents.supervisor.starting import GREETING_ID, start_supervised
from helmsman.agents.supervisor.watcher import read_line
from helmsman.agents.transports import StdioTransport
from helmsman.base.git_of_agents import careful_environment
from helmsman.base.json_values import mapping
from helmsman.base.jsonrpc import Peer
from helmsman.base.processes import running_process
from helmsman.base.structs import replace
from helmsman.errors import EngineLost, EngineStartFailed, HelmsmanError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from anyio.abc import TaskGroup

    from helmsman.agents.acp.confined import PrivateHome
    from helmsman.agents.acp.profile import Profile
    from helmsman.agents.sandbox import Sandbox
    from helmsman.agents.supervisor.client import Owner, SupervisedProcess
    from helmsman.agents.supervisor.output_log import OutputLine
    from helmsman.agents.supervisor.records import ProcessRecord
    from helmsman.base.jsonrpc import IncomingRequest, RequestId, Transport, Waiter
    from helmsman.model.options import SessionOptions

PROTOCOL_VERSION: Final = 1
REQUEST_SECONDS: Final = 60.0
_PROMPT: Final = "session/prompt"
_TURN: Final = "turn"
"""The key of the turn in the replay window: a process has one session."""
_UPDATE: Final = b'"session/update"'
_LOOKED_AT: Final = 200
"""Number of bytes to inspect: a line's first bytes have its kind.

One with a list of commands was seen to have half a megabyte.
"""
_WATCHER: Final = "helmsman.agents.acp.watching:AcpWatcher"

# No `fs` and no `terminal`: with them some agents write files through the client, and nothing is gained on one machine.
_CLIENT: Final = {
    "protocolVersion": PROTOCOL_VERSION,
    "clientCapabilities": {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False},
    "clientInfo": {"name": "helmsman", "title": "Helmsman", "version": __version__},
}


# --- how it is started -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMeans:
    """Configuration for starting an agent. An engine that was found again has none, until a client supplies it.

    `places` is a directory for Helmsman's files, and `sandbox` finds the sandbox to start the agent in.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    places: Path
    sandbox: Callable[[], Awaitable[Sandbox]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLaunch:
    """Command, environment and sandbox of a session's process.

    `digest` identifies the session options that are fixed in the process, for comparing. `home` lives as long as the
    process.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    directory: Path
    confinement: str | None
    digest: str
    home: PrivateHome | None = None


def confinement_of(options: SessionOptions) -> str | None:
    """Return a fingerprint of the sandbox for such a session, for comparing; None without a sandbox."""
    if not is_enforced(options):
        return None
    return json.dumps([options.writes or "workspace", [str(root) for root in options.writable_roots]])


def plan_launch(profile: Profile, means: AgentMeans, options: SessionOptions, directory: Path) -> AgentLaunch:
    """Decide which command runs for a session, and in which environment. No other code decides that. Blocks, briefly."""
    env, confinement = profile.environment(means.env, options, means.places), confinement_of(options)
    told = json.dumps([list(means.argv), env, str(directory), confinement], sort_keys=True)
    digest = hashlib.sha256(told.encode("utf-8", "surrogateescape")).hexdigest()
    return AgentLaunch(argv=means.argv, env=env, directory=directory, confinement=confinement, digest=digest)


async def ready_launch(
    profile: Profile, means: AgentMeans, options: SessionOptions, planned: AgentLaunch
) -> AgentLaunch:
    """A launch that was planned, in a sandbox if there is to be one.

    Raises:
        Unsupported: There is no sandbox that holds.
        EngineStartFailed: The agent could not be made ready for it.
        InvalidInput: Outside, it would write where a command in the sandbox may have led it.
        ProgramRefused: A session may have replaced it.
    """
    await anyio.to_thread.run_sync(check_command, means.argv, means.env)
    if planned.confinement is None:
        own = profile.home(means.env)
        shared = () if own is None else tuple(own.path / name for name in own.shared)
        await anyio.to_thread.run_sync(refuse_planted, profile.title, shared)
        argv, env, home = planned.argv, planned.env, None
    else:
        inside = partial(put_inside, places=means.places, sandbox=await means.sandbox())
        argv, env, home = await anyio.to_thread.run_sync(inside, profile, options, means.argv, means.env)
    if not options.trust_repository:
        env = await anyio.to_thread.run_sync(careful_environment, env, planned.directory)
    return replace(planned, argv=argv, env=env, home=home)


# --- a running one ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Hearing:
    """Handlers for the messages of an agent."""

    on_notification: Callable[[str, Mapping[str, Any]], None]
    on_request: Callable[[IncomingRequest], bool]
    on_close: Callable[[HelmsmanError], None]


@dataclass(frozen=True, slots=True)
class _Kept:
    child: SupervisedProcess
    record: ProcessRecord
    window: ReplayWindow


class _Questions:
    """Finds the requests in the output of an agent. See `helmsman.agents.supervised_transport.OutputWatcher`."""

    def __init__(self, window: ReplayWindow) -> None:
        self._window = window

    def read(self, said: OutputLine) -> None:
        if _UPDATE in said.line[:_LOOKED_AT]:
            return
        message = read_line(said.line)
        request_id = message.get("id")
        if "method" in message and isinstance(request_id, int | str):
            self._window.ask(request_id, said.offset, _TURN)


class AgentProcess:
    """A running agent. Made by `open_agent` and `open_kept_agent` only."""

    def __init__(
        self,
        peer: Peer,
        about: Mapping[str, Any],
        processes: AgentProcesses,
        kept: _Kept | None = None,
        position: OutputPosition | None = None,
    ) -> None:
        self.peer = peer
        self.about = about
        """The agent's answer to `initialize`."""
        self.processes = processes
        self._kept = kept
        self.position = position or OutputPosition()

    @property
    def version(self) -> str | None:
        version = mapping(self.about.get("agentInfo")).get("version")
        return version if isinstance(version, str) else None

    @property
    def input_position(self) -> str | None:
        """The number of input lines the process has received, from all owners; None without a supervisor."""
        return None if self._kept is None else self._kept.child.input_position

    @property
    def session_capabilities(self) -> Mapping[str, Any]:
        """The session capabilities of the agent beyond those that all agents have."""
        return mapping(mapping(self.about.get("agentCapabilities")).get("sessionCapabilities"))

    async def request(self, method: str, params: Mapping[str, Any], on_answer: Callable[[Any], None]) -> Any:
        return await self.peer.request(method, params, timeout=REQUEST_SECONDS, on_answer=on_answer)

    # --- prompts -----------------------------------------------------------------------------------------------------

    def new_prompt(self) -> tuple[RequestId, int]:
        """Return the id of the next prompt, and the number of inputs that the process received before it."""
        prompt_id = self.peer.new_id()
        if self._kept is None:
            return prompt_id, 0
        self._note_turn(self._kept.window)
        return prompt_id, self._kept.child.inputs

    async def prompt(
        self,
        prompt_id: RequestId,
        session_id: str,
        content: Sequence[Mapping[str, Any]],
        on_sent: Callable[[], None],
        on_answer: Callable[[Any], None],
    ) -> Mapping[str, Any]:
        """Send a prompt. It is answered when the turn has ended, whenever that is."""
        params = {"sessionId": session_id, "prompt": list(content)}
        return mapping(
            await self.peer.request(
                _PROMPT, params, timeout=math.inf, request_id=prompt_id, on_sent=on_sent, on_answer=on_answer
            )
        )

    def expect(self, prompt_id: RequestId, told_before: int) -> Waiter | None:
        """Be ready for the answer to a prompt of an earlier owner; None if that owner died before it was sent."""
        assert self._kept is not None
        if self._kept.child.inputs <= told_before:
            return None
        self._note_turn(self._kept.window)
        return self.peer.expect(prompt_id, _PROMPT)

    async def answer(self, waiter: Waiter) -> Mapping[str, Any]:
        """The answer to a prompt of an earlier owner."""
        return mapping(await self.peer.answer(waiter, timeout=math.inf))

    def _note_turn(self, window: ReplayWindow) -> None:
        if not window.has_turn(_TURN):
            window.begin_turn(_TURN)

    # --- what the next owner has to know -----------------------------------------------------------------------------

    def note(self, **notes: Any) -> None:
        """Note something for the next owner, where there can be one."""
        if self._kept is not None:
            self._kept.record.note(**notes)

    def turn_ended(self) -> None:
        """Record that the turn needs no replay for a later owner."""
        if self._kept is not None:
            self._kept.record.note(turn=None)
            self._kept.window.end_turn(_TURN)

    @property
    def is_taken_over(self) -> bool:
        """Return whether the process has another owner now. Valid after it is closed."""
        return self._kept is not None and self._kept.child.newer_epoch is not None

    async def end(self) -> bool:
        """Have its supervisor end it; False of one that ends when its block does."""
        if self._kept is None:
            return False
        with suppress(EngineLost):
            await self._kept.child.end()
        return True

    async def kill(self) -> None:
        """End it with all it has started, and leave it no time to do anything before."""
        await anyio.to_thread.run_sync(self.processes.kill_all)


@asynccontextmanager
async def open_agent(
    profile: Profile, launch: AgentLaunch, hearing: Hearing, tasks: TaskGroup
) -> AsyncIterator[AgentProcess]:
    """An agent for the length of the block, greeted. Nothing that it has started is left afterwards.

    Raises:
        EngineStartFailed: It does not come up, or speaks another version of the protocol.
    """
    async with (
        _home_for(launch),
        open_child(tasks, launch.argv, env=launch.env, cwd=launch.directory) as child,
    ):
        if launch.home is not None:
            await anyio.to_thread.run_sync(launch.home.used_by, running_process(child.pid))
        transport = StdioTransport(child, profile.title)
        tasks.start_soon(transport.close_output_after_exit)
        peer = _peer(profile, transport, hearing)
        tasks.start_soon(peer.run)
        try:
            about = mapping(await peer.request("initialize", _CLIENT, timeout=profile.start_seconds))
        except HelmsmanError as error:
            raise _not_up(profile, launch, error, child.exit_code, child.stderr_tail) from error
        _check_version(profile, about)
        yield AgentProcess(peer, about, AgentProcesses(child))


async def start_kept_agent(
    profile: Profile, launch: AgentLaunch, *, state_dir: Path, idle: float, owner: Owner, about: Mapping[str, Any]
) -> ProcessRecord:
    """Have a supervisor start an agent, and greet it.

    Raises:
        EngineStartFailed: It does not come up.
    """
    greeting = {"jsonrpc": "2.0", "id": GREETING_ID, "method": "initialize", "params": _CLIENT}
    try:
        record = await start_supervised(
            launch.argv,
            env=launch.env,
            directory=launch.directory,
            state_dir=state_dir,
            idle=idle,
            owner=owner,
            watcher=_WATCHER,
            greeting=[json.dumps(greeting)],
            about={
                **about,
                "agent": profile.name,
                "place": str(launch.directory),
                "launch": launch.digest,
                "confinement": launch.confinement,
            },
            ready_seconds=profile.start_seconds,
        )
    except EngineLost as error:
        if launch.home is not None:
            await anyio.to_thread.run_sync(launch.home.remove)
        stderr = str(error.details.get("stderr") or "")
        raise _not_up(profile, launch, error, error.details.get("exit_code"), stderr) from error
    if launch.home is not None:
        await anyio.to_thread.run_sync(launch.home.used_by, record.child)
    return record


@asynccontextmanager
async def _home_for(launch: AgentLaunch) -> AsyncIterator[None]:
    """Remove the files made for a child process after it has ended."""
    try:
        yield
    finally:
        if launch.home is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(launch.home.remove)


@asynccontextmanager
async def open_kept_agent(
    profile: Profile, record: ProcessRecord, hearing: Hearing, *, epoch: int
) -> AsyncIterator[AgentProcess]:
    """Own an agent in a supervisor for the length of the block. Messages arrive once the caller runs its `peer`.

    Raises:
        EngineLost: It has ended, or has another owner.
        EngineStartFailed: It refuses us, or speaks another version of the protocol.
    """
    async with attach(record, epoch=epoch, title=profile.title) as child:
        window = ReplayWindow(child.offset)
        try:
            transport = SupervisedTransport(child, window, _Questions(window), profile.title)
            about = mapping(transport.resumed.answer)
            _check_version(profile, about)
        except HelmsmanError as error:
            await child.end()
            raise EngineStartFailed(error.message) from error
        peer = _peer(profile, transport, hearing)
        kept = _Kept(child, record, window)
        yield AgentProcess(peer, about, AgentProcesses(record=record), kept, transport.position)


def _peer(profile: Profile, transport: Transport, hearing: Hearing) -> Peer:
    return Peer(
        transport,
        on_notification=hearing.on_notification,
        on_request=hearing.on_request,
        on_close=hearing.on_close,
        on_message=transport.on_message if isinstance(transport, SupervisedTransport) else lambda _: None,
        join=lambda messages: joined(profile, messages),
        other=profile.title,
        with_version=True,
    )


def _check_version(profile: Profile, about: Mapping[str, Any]) -> None:
    if about.get("protocolVersion") != PROTOCOL_VERSION:
        raise EngineStartFailed(
            f"{profile.title} speaks version {about.get('protocolVersion')!r:.20} of the Agent Client Protocol, and "
            f"Helmsman version {PROTOCOL_VERSION}. Install a version of it that speaks that."
        )


def _not_up(
    profile: Profile, launch: AgentLaunch, error: HelmsmanError, exit_code: object, stderr: str
) -> EngineStartFailed:
    said = f" It said: {error_line(stderr):.300}" if stderr.strip() else ""
    what_next = "Start it by hand to see why."
    if launch.confinement is not None:
        what_next += f" It is in a sandbox: name what else it must write as `writable` under [agents.{profile.name}]."
    return EngineStartFailed(
        f"{profile.title} did not come up: {error.message.partition('. ')[0]}.{said} {what_next}",
        exit_code=exit_code,
        stderr=stderr or None,
    )
