"""Start, find and join app-servers that outlive the hub.

Detached: `open_detached` yields an engine like `open_app_server`, but leaving the block only detaches from it: turns keep
running and questions stay open. The next process that asks for the same Codex (binary, CODEX_HOME, relevant environment)
attaches to the same engine through its supervisor (`helmsman.agents.supervisor`). An engine has one owner; other processes
get separate engines. After an upgrade of Codex, an old engine gets no new work and ends when idle; `open_recorded` still
reaches it. A Codex that keeps its commands from its socket listens on one, so that `helmsman session attach` can join it
from a terminal. An older one speaks on its standard streams.

Remote: with `HELMSMAN_CODEX_REMOTE` all sessions run in that Codex. Its paths are its own. Session files and sandbox proofs
are available only if the same paths exist here.

Daemon: Codex can run terminal sessions in a daemon, which keeps each session locked. A message for such a session must go
through the daemon: Helmsman is one more client, the user sees the turn, both are asked, and the first answer counts. The
policy of a turn stays in force for the user's next turns, so no turn may be wider than the session is now. Helmsman never
starts or stops the daemon, or begins sessions in it.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import stat
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import msgspec

from helmsman.agents.agent_process import Greeting, open_supervised_agent
from helmsman.agents.codex.access import is_wider_approval, is_wider_sandbox
from helmsman.agents.codex.binary import CODEX, TITLE, CodexBinary, ProgramFile
from helmsman.agents.codex.connection import (
    HANDSHAKE_TIMEOUT,
    INITIALIZED,
    AppServer,
    handshake,
    open_remote,
    open_unix,
)
from helmsman.agents.codex.engine import AppServerEngine, connect_app_server
from helmsman.agents.codex.features import Feature, Version
from helmsman.agents.codex.processes import (
    DOCTOR_ADVICE,
    codex_environment,
    command_path,
    path_without_tools,
    start_codex,
)
from helmsman.agents.codex.watching import AppServerOutput
from helmsman.agents.environment import digest_of
from helmsman.agents.supervisor.client import GREETING_ID, NotOurs, Owner, Taken, start_supervised
from helmsman.agents.supervisor.directory import is_attached, private_directory
from helmsman.agents.supervisor.records import ENGINES, directories, forget_abandoned, read_record
from helmsman.base.concurrency import background_tasks
from helmsman.base.files import release_lock, take_lock
from helmsman.base.json_values import mapping
from helmsman.base.jsonrpc import Peer, Transport
from helmsman.errors import (
    EngineError,
    EngineLost,
    EngineProtocolError,
    EngineStartFailed,
    InvalidSetting,
    PolicyWidened,
    SessionLocked,
    Unsupported,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from helmsman.agents.codex.access import Access
    from helmsman.agents.codex.connection import Thread
    from helmsman.agents.protocol import Begun, Goal, Opened
    from helmsman.agents.supervisor.records import ProcessRecord
    from helmsman.model.options import SessionOptions, TurnInput
    from helmsman.settings import Settings

log = logging.getLogger(__name__)

# --- detached engines ------------------------------------------------------------------------------------------------


IDLE: Final = 15 * 60.0
"""Seconds that an engine without work waits for a client."""

LOCK_TIMEOUT: Final = 120.0
"""Timeout for another process that is starting or replacing an engine."""

NO_OWNER: Final = Owner()
_POLL: Final = 0.02


def _read_handshake(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if "result" not in message:
        raise EngineProtocolError(f"{TITLE} refused the handshake. Run `helmsman doctor` to find out why.")
    return mapping(message["result"])


_GREETING: Final = Greeting(
    title=TITLE,
    request={"id": GREETING_ID, "method": "initialize", "params": handshake()},
    read_answer=_read_handshake,
    watcher="helmsman.agents.codex.watching:CodexWatcher",
    seconds=HANDSHAKE_TIMEOUT,
    advice=DOCTOR_ADVICE,
    # An app-server has many threads, so its window follows several turns.
    follow=lambda window: AppServerOutput(window).read,
)


def can_detach(binary: CodexBinary) -> bool:
    """Return whether engines of this Codex can outlive the hub."""
    return os.name == "posix" and bool(sys.executable) and binary.can(Feature.APP_SERVER)


def listens(binary: CodexBinary) -> bool:
    """Return whether detached engines of this Codex listen on a socket, so that terminals can join them."""
    return binary.can(Feature.GUARDED_SOCKET)


def why_bound(binary: CodexBinary) -> str | None:
    """Return the consequence if they cannot, in a sentence for the status; None if they can."""
    if can_detach(binary):
        return None
    cause = (
        f"Codex {binary.version} cannot {Feature.APP_SERVER.text}"
        if os.name == "posix"
        else "On this system engines cannot outlive their process"
    )
    return f"{cause}: running turns and open questions end with this Helmsman process; sessions continue from disk."


@asynccontextmanager
async def open_detached(
    wanted: EngineRequest,
    *,
    options: Callable[[], Awaitable[Sequence[str]]] | None = None,
    allowed_roots: Sequence[Path] = (),
) -> AsyncIterator[AppServerEngine]:
    """Yield the requested engine: one that runs, or else a new one.

    `options` returns more options for `codex app-server`; it is called when a new engine is started.

    Raises:
        Unsupported: This Codex cannot (ask `can_detach` before).
        EngineStartFailed: Codex did not come up. No process is left behind.
    """
    wanted.binary.require(Feature.APP_SERVER)
    async with AsyncExitStack() as stack:
        # The lock covers looking and starting, not using.
        async with _one_at_a_time(wanted.state_dir / ENGINES):
            engine = await _attach_to_one(stack, wanted, allowed_roots)
            if engine is None:
                more = await options() if options is not None else ()
                engine = await start_codex(partial(_start, stack, wanted, more, allowed_roots))
        yield engine


@asynccontextmanager
async def open_recorded(
    record: ProcessRecord, allowed_roots: Sequence[Path], *, epoch: int
) -> AsyncIterator[AppServerEngine]:
    """Attach to one engine for the length of the block, also to one that gets no new work. See `attach` for epochs.

    Raises:
        EngineLost: It has ended, or is about to, or has another owner.
        EngineStartFailed: It runs but does not answer.
    """
    engine = connect_app_server(
        CodexBinary(
            path=Path(record.about["path"]),
            version=Version.parse(record.about["version"]),
            hiding_bubblewraps=tuple(map(Path, record.about["hiding"])),
        ),
        lambda _tasks: open_supervised_agent(_GREETING, record, epoch=epoch),
        codex_home=Path(record.place),
        engine_id=record.id,
        allowed_roots=allowed_roots,
    )
    async with engine as opened:
        opened.search_path = str(record.about["search_path"])
        opened.listens_at = None if record.listens_at is None else (record.listens_at, Path(record.place))
        yield opened


# --- finding ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRequest:
    """Requirements for an engine. An engine with a lease is only for the holder of the lease, and ends with it.

    `about` is what the record of such an engine says: all of it is fixed when the process starts.
    """

    state_dir: Path
    binary: CodexBinary
    env: Mapping[str, str]
    about: Mapping[str, Any]
    idle: float
    owner: Owner

    @classmethod
    async def of(
        cls,
        binary: CodexBinary,
        codex_home: Path,
        state_dir: Path,
        env: Mapping[str, str] | None,
        *,
        idle: float = IDLE,
        owner: Owner = NO_OWNER,
    ) -> EngineRequest:
        """Return the request for an engine of this Codex, home and environment.

        Raises:
            EngineStartFailed: The state directory has no place for an engine.
        """

        def read() -> EngineRequest:
            private_directory(state_dir / ENGINES)
            environment = codex_environment(binary, codex_home, env)
            lease = "" if owner.lease is None else f"lease:{owner.lease.id}:"
            program = ProgramFile.of(binary.path)
            about = {
                "agent": CODEX,
                "place": str(codex_home.resolve()),
                "version": str(binary.version),
                "path": program.path,
                # Another size or time of change at its path is another program.
                "binary": msgspec.to_builtins(program),
                # An engine with a lease ends with it, so other clients must not share it.
                "env_digest": lease + digest_of(environment, command_path(binary, env)),
                "search_path": path_without_tools(binary, environment["PATH"]),
                "hiding": [str(place) for place in binary.hiding_bubblewraps],
            }
            return cls(
                state_dir=state_dir.resolve(), binary=binary, env=environment, about=about, idle=idle, owner=owner
            )

        try:
            return await anyio.to_thread.run_sync(read)
        except OSError as error:
            raise EngineStartFailed(
                f"There is no place for an engine: {error}. Set HELMSMAN_STATE_DIR to a directory of your own, or "
                "HELMSMAN_DETACH=0 to do without."
            ) from error

    def fits(self, record: ProcessRecord) -> bool:
        """Return whether `open_detached` may give this engine to the client."""
        is_listening = record.listens_at is not None
        is_like = self.agrees(record, "place", "version", "binary", "env_digest")
        return is_like and is_listening is listens(self.binary) and not record.is_draining

    def agrees(self, record: ProcessRecord, *names: str) -> bool:
        """Return whether the record says the same in these fields."""
        return all(record.about.get(name) == self.about[name] for name in names)


async def _attach_to_one(
    stack: AsyncExitStack, wanted: EngineRequest, allowed_roots: Sequence[Path]
) -> AppServerEngine | None:
    for record in reversed(await anyio.to_thread.run_sync(_tidy_up, wanted)):
        try:
            return await stack.enter_async_context(open_recorded(record, allowed_roots, epoch=wanted.owner.epoch))
        except (Taken, NotOurs):
            continue  # another process owns it
        except EngineError as error:
            log.warning("engine %s does not work and is replaced: %s", record.id, error)
            # It holds the lock of its threads, which its successor needs.
            await anyio.to_thread.run_sync(record.stop)
    return None


def _tidy_up(wanted: EngineRequest) -> list[ProcessRecord]:
    """Return the engines that fit. Clear up after those that ended, and drain those of another Codex."""
    fitting: list[ProcessRecord] = []
    for directory in directories(wanted.state_dir):
        record = read_record(directory)
        if record is None:
            forget_abandoned(directory)
        elif record.agent != CODEX:
            continue
        elif not record.is_supervised:
            if not (record.is_draining and is_attached(directory)):  # else a client still reads its output
                record.stop()
        elif wanted.fits(record):
            fitting.append(record)
        # Drained, not stopped: it may have running turns.
        elif (
            wanted.agrees(record, "place") and not wanted.agrees(record, "version", "binary") and not record.is_draining
        ):
            record.drain()
    return fitting


@asynccontextmanager
async def _one_at_a_time(engines: Path) -> AsyncIterator[None]:
    """Let only one process look for an engine or start one: two at the same time would start two."""
    deadline = anyio.current_time() + LOCK_TIMEOUT
    # Polled, since a file lock of another process cannot be awaited.
    while (held := take_lock(engines / "start.lock")) is None:
        if anyio.current_time() > deadline:
            raise EngineStartFailed(
                f"Another process has been starting an engine for {LOCK_TIMEOUT:g} s. Look at `helmsman hub engines`."
            )
        await anyio.sleep(_POLL)
    try:
        yield
    finally:
        release_lock(held)


# --- starting --------------------------------------------------------------------------------------------------------


async def _start(
    stack: AsyncExitStack, wanted: EngineRequest, options: Sequence[str], allowed_roots: Sequence[Path]
) -> AppServerEngine:
    """Start Codex with a supervisor, and attach to it.

    Raises:
        EngineLost: It did not come up. Details: `exit_code`, `stderr`.
    """
    listening = listens(wanted.binary)
    record = await start_supervised(
        # `{socket}` is replaced by `start_supervised`, which chooses the path.
        [str(wanted.binary.path), "app-server", *(("--listen", "unix://{socket}") if listening else ()), *options],
        env=wanted.env,
        directory=None,
        state_dir=wanted.state_dir,
        idle=wanted.idle,
        owner=wanted.owner,
        watcher=_GREETING.watcher,
        # Codex takes one handshake for all its clients, so the supervisor sends it.
        greeting=[json.dumps(_GREETING.request), json.dumps({"method": INITIALIZED})],
        listens=listening,
        # The engine outlives its starter.
        for_starter=False,
        about=wanted.about,
    )
    return await stack.enter_async_context(open_recorded(record, allowed_roots, epoch=wanted.owner.epoch))


# --- a remote Codex --------------------------------------------------------------------------------------------------


_KNOCK_SECONDS: Final = 1.0


def remote_id(settings: Settings) -> str | None:
    """Return the id of the remote engine of these settings for records; None without one."""
    url = settings.codex_remote
    return None if url is None else f"remote-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def remote_answers(settings: Settings) -> bool:
    """Return whether a server listens at the configured address. Blocks briefly."""
    parts = urlsplit(settings.codex_remote or "")
    try:
        with socket.create_connection(
            (parts.hostname or "", parts.port or (443 if parts.scheme == "wss" else 80)),
            timeout=_KNOCK_SECONDS,
        ):
            return True
    except (OSError, ValueError):
        return False


async def find_remote(settings: Settings) -> CodexBinary:
    """Return the Codex that answers at the configured address.

    Raises:
        InvalidSetting: It conflicts with other settings.
        EngineLost: No server answers, or the token is refused.
        Unsupported: It is too old.
    """
    assert settings.codex_remote is not None
    if settings.allowed_roots:
        raise InvalidSetting(
            "Allowed roots are directories of this machine, and cannot be held to in a remote engine. Unset "
            "HELMSMAN_ALLOWED_ROOTS or HELMSMAN_CODEX_REMOTE."
        )
    if settings.engine == "exec":
        raise InvalidSetting("The engine exec starts Codex here. Unset HELMSMAN_ENGINE or HELMSMAN_CODEX_REMOTE.")
    token = settings.codex_remote_token
    version = await _version_behind(open_remote(settings.codex_remote, token=token))
    if not Feature.REMOTE.is_in(version):
        raise Unsupported(
            f"The Codex at {settings.codex_remote} is {version}, which cannot {Feature.REMOTE.text}; "
            f"{Feature.REMOTE.versions} can. Update it there, or unset HELMSMAN_CODEX_REMOTE.",
            feature="remote",
            version=str(version),
        )
    return CodexBinary(path=Path("codex"), version=version, remote="open" if token is None else "with token")


async def _version_behind(connecting: AbstractAsyncContextManager[Transport]) -> Version:
    """Return the version of a server that others started."""
    # Returned if the handshake names no version.
    unknown = CodexBinary(path=Path("codex"), version=Version(0, 0, 0))
    async with background_tasks() as tasks, connecting as transport:
        peer = Peer(transport, other=TITLE, on_notification=lambda *_: None, on_request=lambda _: False)
        tasks.start_soon(peer.run)
        return await AppServer(peer, unknown).initialize()


@asynccontextmanager
async def open_remote_engine(settings: Settings) -> AsyncIterator[AppServerEngine]:
    """Connect to the remote engine during the block; it keeps running. Raises what `find_remote` does."""
    binary, url = await find_remote(settings), settings.codex_remote
    assert url is not None
    async with connect_app_server(
        binary,
        lambda _tasks: open_remote(url, token=settings.codex_remote_token),
        codex_home=settings.codex_home,
        engine_id=remote_id(settings),
    ) as engine:
        yield engine


# --- Codex's own daemon ----------------------------------------------------------------------------------------------


_DIRECTORY: Final = "app-server-control"
_SOCKET: Final = "app-server-control.sock"
_ASKS_PEOPLE: Final = (None, "user")
"""Values that make a user answer a session's questions; any other means a model."""


def daemon_id(codex_home: Path) -> str:
    """Return the id of the daemon of a CODEX_HOME for records."""
    return f"daemon-{hashlib.sha256(os.fsencode(codex_home)).hexdigest()[:8]}"


def daemon_socket(codex_home: Path) -> Path | None:
    """Return the socket of the daemon; None if none listens, or if another user could have created it."""
    link = codex_home / _DIRECTORY / _SOCKET
    try:
        path = link.resolve(strict=True)
        if not stat.S_ISSOCK(path.stat().st_mode):
            return None
        # Another user could replace a socket in a directory that is not private.
        return path if all(map(_is_private, (link.parent, path.parent))) else None
    except (OSError, RuntimeError):  # a loop of links, too
        return None


def _is_private(directory: Path) -> bool:
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


@asynccontextmanager
async def open_daemon(settings: Settings) -> AsyncIterator[DaemonEngine]:
    """Connect to the daemon of these settings' Codex during the block; it keeps running.

    Raises:
        EngineLost: The record is missing or not trustworthy.
        Unsupported: It exposes its socket to its commands.
    """
    path = daemon_socket(settings.codex_home)
    if path is None:
        raise EngineLost("Codex's own daemon is not running. Send the session a message to continue.")
    # The daemon may be of another version than the program on PATH.
    binary = CodexBinary(path=Path("codex"), version=await _version_behind(open_unix(path)))
    if not binary.can(Feature.GUARDED_SOCKET):
        raise Unsupported(
            f"The daemon of Codex {binary.version} cannot {Feature.GUARDED_SOCKET.text}, so it is not used. Update Codex.",
            version=str(binary.version),
        )
    async with connect_app_server(
        binary,
        lambda _tasks: open_unix(path),
        codex_home=settings.codex_home,
        engine_id=daemon_id(settings.codex_home),
        allowed_roots=settings.session_roots,
        kind=DaemonEngine,
    ) as engine:
        assert isinstance(engine, DaemonEngine)
        engine.listens_at = path, settings.codex_home
        yield engine


class DaemonEngine(AppServerEngine):
    """Codex's daemon, for sessions that are open in it."""

    @cached_property
    def _ours(self) -> dict[str, str | None]:
        """Newest turn of each session that this process began."""
        return {}

    @property
    def is_of_a_person(self) -> bool:
        return True

    async def open(self, options: SessionOptions) -> Opened:
        raise EngineLost("Codex's own daemon is a person's. Start the session with an engine of your own.")

    async def resume(self, session_id: str, options: SessionOptions) -> Opened:
        """Join a session that is open in the daemon.

        Raises:
            SessionLocked: It is not open there, or not with the requested options.
            PolicyWidened: It may do less than requested.
        """
        # Resuming it elsewhere fails while the daemon has its lock.
        if session_id not in await self.api.loaded_threads():
            raise SessionLocked(f"Session {session_id} is not open in Codex's own daemon. Try again.")
        try:
            return await super().resume(session_id, options)
        except BaseException:
            if self.lost is None:  # otherwise it would keep sending events
                await self.api.call("thread/unsubscribe", threadId=session_id)
            raise

    async def run_turn(self, session_id: str, options: SessionOptions, turn: TurnInput) -> Begun:
        # Plans, reviews and tools would remain in force for the user's own turns.
        if turn.plan or turn.review is not None or options.tools:
            raise _only_messages(session_id)
        begun = await super().run_turn(session_id, options, turn)
        self._ours[session_id] = begun.turn_id
        return begun

    async def steer(self, session_id: str, text: str) -> None:
        turn_id = self._thread(session_id).turn_id
        if turn_id is not None and turn_id != self._ours.get(session_id):
            raise SessionLocked(
                f"The turn in session {session_id} is the person's who has it open in Codex, and runs under what they have "
                "allowed. Wait for its end, or put the message into it there."
            )
        await super().steer(session_id, text)

    async def roll_back(self, session_id: str, turns: int) -> None:
        raise _only_messages(session_id)

    async def compact(self, session_id: str) -> None:
        raise _only_messages(session_id)

    async def set_goal(self, session_id: str, objective: str | None) -> Goal | None:
        raise _only_messages(session_id)

    def _opened(self, thread: Thread, options: SessionOptions, access: Access, *, was_loaded: bool = False) -> Opened:
        policy = thread.policy
        # An unknown policy might be wider than the request.
        if policy is None or policy.reviewer not in _ASKS_PEOPLE:
            raise PolicyWidened(
                f"Session {thread.id} is open in Codex's own program, where a model answers what it asks, so nothing was "
                "run. Change that there with /permissions, or fork the session.",
            )
        if access.turn_sandbox is not None and is_wider_sandbox(access.turn_sandbox, policy.sandbox):
            raise _wider(thread, access.sandbox or "a sandbox of its own", thread.sandbox)
        if is_wider_approval(access.approval_policy, thread.approval_policy):
            raise _wider(thread, str(access.approval_policy), thread.approval_policy)
        return super()._opened(thread, options, access, was_loaded=was_loaded)


def _only_messages(session_id: str) -> SessionLocked:
    return SessionLocked(
        f"Session {session_id} is open in Codex's own program, where it takes messages and nothing else. Close it there "
        "(`codex app-server daemon stop` ends what runs in the background), or fork it."
    )


def _wider(thread: Thread, asked: str, applied: str | None) -> PolicyWidened:
    return PolicyWidened(
        f"Session {thread.id} is open in Codex's own program under {applied}, and {asked} would hold there from now on, for "
        f"the person too. Nothing was run. Ask for {applied}, change it there with /permissions, or fork the session.",
        asked=asked,
        applied=applied,
    )
