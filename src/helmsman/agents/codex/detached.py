"""Start and find Codex engines that outlive the hub.

`open_detached` yields an engine like `open_app_server`, but leaving the block only detaches from it: turns keep running and
questions stay open. The next process that asks for the same Codex (binary, CODEX_HOME, relevant environment) attaches to the
same engine through its supervisor (`helmsman.agents.supervisor`). An engine has one owner; other processes get engines of
their own. After an upgrade of Codex, an old engine gets no new work and ends when idle; `open_recorded` still reaches it.

A Codex that keeps its commands from its socket listens on one, so that `helmsman session attach` can join it from a
terminal. An older one speaks on its standard streams.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
import msgspec

from helmsman.agents.agent_process import ReplayWindow, SupervisedTransport
from helmsman.agents.codex.binary import CODEX, TITLE, CodexBinary
from helmsman.agents.codex.connection import INITIALIZED, handshake
from helmsman.agents.codex.engine import open_app_server
from helmsman.agents.codex.features import Feature, Version
from helmsman.agents.codex.processes import (
    START_ATTEMPTS,
    START_RACE_PAUSE,
    codex_environment,
    command_path,
    is_start_race,
    path_without_tools,
    start_failed,
)
from helmsman.agents.codex.watching import AppServerOutput
from helmsman.agents.supervisor.client import GREETING_ID, NotOurs, Owner, Taken, attach, start_supervised
from helmsman.agents.supervisor.directory import is_attached, private_directory
from helmsman.agents.supervisor.records import ENGINES, directories, forget_abandoned, read_record
from helmsman.base.caller_context import UMASK
from helmsman.base.files import file_lock
from helmsman.base.structs import Value
from helmsman.errors import EngineError, EngineLost, EngineStartFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from anyio.abc import TaskGroup

    from helmsman.agents.codex.engine import AppServerEngine
    from helmsman.agents.supervisor.records import ProcessRecord

# --- which Codex, in which environment -------------------------------------------------------------------------------


class BinaryIdentity(Value, frozen=True, kw_only=True):
    """A Codex program. Another size or modification time at the same path is another Codex."""

    path: str
    size: int
    changed_ns: int
    version: str

    @classmethod
    def of(cls, binary: CodexBinary) -> BinaryIdentity:
        status = binary.path.stat()
        return cls(
            path=str(binary.path), size=status.st_size, changed_ns=status.st_mtime_ns, version=str(binary.version)
        )


def digest_of(env: Mapping[str, str], command_path: str = "") -> str:
    """Return a fingerprint of the variables that change what Codex and its commands do.

    These say where programs and files are, how the network and the account are reached, and what Codex and the commands of
    a project read: addresses, secrets, the kind of environment. Other variables (terminals, editors, desktops) differ from
    window to window. `command_path` is the PATH of Codex's commands.
    """
    chosen = {name: value for name, value in env.items() if _changes_codex(name)}
    return hashlib.sha256(
        json.dumps([chosen, command_path], sort_keys=True).encode("utf-8", "surrogateescape")
    ).hexdigest()


_NAMES: Final = frozenset(
    {
        *(UMASK, "HOME", "PATH", "SHELL", "TMPDIR", "USER", "RUST_LOG", "KUBECONFIG"),
        *("LD_LIBRARY_PATH", "PYTHONPATH", "NODE_PATH", "GOPATH"),
    }
)
_NO_NAMES: Final = frozenset({"CODEX_CLI_PATH", "CODEX_HOME", "CODEX_THREAD_ID", "STARSHIP_SESSION_KEY"})
"""Our own, compared elsewhere, or different for every window or every session of a Codex that starts Helmsman."""
_NO_PREFIXES: Final = ("HELMSMAN_", "VSCODE_", "XDG_", "CLAUDE_CODE_")
_PREFIXES: Final = ("CODEX_", "CLAUDE_CONFIG_", "ANTHROPIC_", "OPENAI_", "AZURE_", "AWS_", "SSL_CERT_", "OTEL_")
_SUFFIXES: Final = (
    *("_KEY", "_TOKEN", "_SECRET", "_PASSWORD", "_CREDENTIALS"),
    *("_URL", "_URI", "_DSN", "_HOST", "_PROXY", "_ENV"),
)


def _changes_codex(name: str) -> bool:
    name = name.upper()
    is_known = name.startswith(_PREFIXES) or (name.endswith(_SUFFIXES) and not name.startswith(_NO_PREFIXES))
    return name in _NAMES or (is_known and name not in _NO_NAMES)


# --- opening ---------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)

IDLE: Final = 15 * 60.0
"""How long an engine without work waits for a client."""

LOCK_TIMEOUT: Final = 120.0
"""How long we wait for another process that is starting or replacing an engine."""

NO_OWNER: Final = Owner()
_POLL: Final = 0.02
_WATCHER: Final = "helmsman.agents.codex.watching:CodexWatcher"


def can_detach(binary: CodexBinary) -> bool:
    """Whether engines of this Codex can outlive us."""
    return os.name == "posix" and bool(sys.executable) and binary.can(Feature.APP_SERVER)


def listens(binary: CodexBinary) -> bool:
    """Return whether detached engines of this Codex listen on a socket, so that terminals can join them."""
    return binary.can(Feature.UNIX_SOCKET) and binary.can(Feature.GUARDED_SOCKET)


def why_bound(binary: CodexBinary) -> str | None:
    """What it means that they cannot, in a sentence for the status; None when they can."""
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
    binary: CodexBinary,
    *,
    codex_home: Path,
    state_dir: Path,
    env: Mapping[str, str] | None = None,
    idle: float = IDLE,
    options: Callable[[], Awaitable[Sequence[str]]] | None = None,
    allowed_roots: Sequence[Path] = (),
    owner: Owner = NO_OWNER,
) -> AsyncIterator[AppServerEngine]:
    """Yield the engine of this Codex and home: one that runs, or else a new one.

    `options` returns more options for `codex app-server`; it is called when a new engine is started.

    Raises:
        Unsupported: This Codex cannot (ask `can_detach` before).
        EngineStartFailed: Codex did not come up. No process is left behind.
    """
    binary.require(Feature.APP_SERVER)
    wanted = await anyio.to_thread.run_sync(_wanted, binary, codex_home, state_dir, env, idle, owner)
    async with AsyncExitStack() as stack:
        async with _one_at_a_time(wanted.engines):
            engine = await _attach_to_one(stack, wanted, allowed_roots)
            if engine is None:
                engine = await _start(stack, wanted, await options() if options is not None else (), allowed_roots)
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

    @asynccontextmanager
    async def connect(_tasks: TaskGroup) -> AsyncIterator[SupervisedTransport]:
        async with attach(record, epoch=epoch, title=TITLE) as process:
            window = ReplayWindow(process.offset)
            yield SupervisedTransport(process, window, AppServerOutput(window), TITLE)

    engine = open_app_server(
        CodexBinary.connected(Path(record.about["path"]), Version.parse(record.about["version"])),
        codex_home=Path(record.place),
        connect=connect,
        engine_id=record.id,
        allowed_roots=allowed_roots,
    )
    async with engine as opened:
        opened.search_path = str(record.about["search_path"])
        opened.listens_at = None if record.listens_at is None else (record.listens_at, Path(record.place))
        yield opened


# --- finding ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """The engine that is asked for."""

    state_dir: Path
    binary: CodexBinary
    identity: BinaryIdentity
    codex_home: str
    env: Mapping[str, str]
    env_digest: str
    idle: float
    owner: Owner

    @property
    def engines(self) -> Path:
        return self.state_dir / ENGINES

    def fits(self, record: ProcessRecord) -> bool:
        return (
            record.place == self.codex_home
            and _identity_of(record) == self.identity
            and record.about.get("env_digest") == self.env_digest
            and (record.listens_at is not None) is listens(self.binary)
            and not record.is_draining
        )


def _identity_of(record: ProcessRecord) -> BinaryIdentity | None:
    try:
        return msgspec.convert(record.about.get("binary"), BinaryIdentity)
    except msgspec.ValidationError:
        return None


def _wanted(
    binary: CodexBinary, codex_home: Path, state_dir: Path, env: Mapping[str, str] | None, idle: float, owner: Owner
) -> _Wanted:
    try:
        private_directory(state_dir / ENGINES)
        identity = BinaryIdentity.of(binary)
    except OSError as error:
        raise EngineStartFailed(
            f"There is no place for an engine: {error}. Set HELMSMAN_STATE_DIR to a directory of your own, or "
            "HELMSMAN_DETACH=0 to do without."
        ) from error
    environment = codex_environment(binary, codex_home, env)
    return _Wanted(
        state_dir=state_dir.resolve(),
        binary=binary,
        identity=identity,
        codex_home=str(codex_home.resolve()),
        env=environment,
        env_digest=_prefix(owner) + digest_of(environment, command_path(binary, env)),
        idle=idle,
        owner=owner,
    )


def _prefix(owner: Owner) -> str:
    """An engine with a lease is only for the holder of the lease, and ends with it."""
    return "" if owner.lease is None else f"lease:{owner.lease.id}:"


async def fits_engine(
    record: ProcessRecord,
    binary: CodexBinary,
    *,
    codex_home: Path,
    state_dir: Path,
    env: Mapping[str, str] | None,
    idle: float,
    owner: Owner = NO_OWNER,
) -> bool:
    """Whether `open_detached` would give this engine to whoever asks for it so."""
    wanted = await anyio.to_thread.run_sync(_wanted, binary, codex_home, state_dir, env, idle, owner)
    return wanted.fits(record)


async def _attach_to_one(
    stack: AsyncExitStack, wanted: _Wanted, allowed_roots: Sequence[Path]
) -> AppServerEngine | None:
    for record in reversed(await anyio.to_thread.run_sync(_tidy_up, wanted)):
        try:
            return await stack.enter_async_context(open_recorded(record, allowed_roots, epoch=wanted.owner.epoch))
        except (Taken, NotOurs):
            continue  # another process owns it
        except EngineError as error:
            log.warning("engine %s does not work and is replaced: %s", record.id, error)
            await anyio.to_thread.run_sync(record.stop)
    return None


def _tidy_up(wanted: _Wanted) -> list[ProcessRecord]:
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
        elif record.place == wanted.codex_home and _identity_of(record) != wanted.identity and not record.is_draining:
            record.drain()
    return fitting


@asynccontextmanager
async def _one_at_a_time(engines: Path) -> AsyncIterator[None]:
    """Among all processes, one looks for an engine or starts one: two at once would start two."""
    deadline = anyio.current_time() + LOCK_TIMEOUT
    async with AsyncExitStack() as stack:
        while True:
            try:
                stack.enter_context(file_lock(engines / "start.lock", timeout=0))
                break
            except TimeoutError:
                if anyio.current_time() > deadline:
                    raise EngineStartFailed(
                        f"Another process has been starting an engine for {LOCK_TIMEOUT:g} s. Look at `helmsman engines`."
                    ) from None
            await anyio.sleep(_POLL)
        yield


# --- starting --------------------------------------------------------------------------------------------------------


async def _start(
    stack: AsyncExitStack, wanted: _Wanted, options: Sequence[str], allowed_roots: Sequence[Path]
) -> AppServerEngine:
    for attempt in range(1, START_ATTEMPTS + 1):
        try:
            record = await _start_supervised(wanted, options)
            return await stack.enter_async_context(open_recorded(record, allowed_roots, epoch=wanted.owner.epoch))
        except EngineLost as error:
            if attempt == START_ATTEMPTS or not is_start_race(error):
                raise start_failed(error) from error
        await anyio.sleep(START_RACE_PAUSE * attempt)
    raise AssertionError("unreachable")


def _greeting() -> list[str]:
    """Return the first lines to a Codex: it accepts one handshake, whichever clients it will have."""
    return [
        json.dumps({"id": GREETING_ID, "method": "initialize", "params": handshake()}),
        json.dumps({"method": INITIALIZED}),
    ]


async def _start_supervised(wanted: _Wanted, options: Sequence[str]) -> ProcessRecord:
    """Start Codex with a supervisor.

    Raises:
        EngineLost: It did not come up. Details: `exit_code`, `stderr`.
    """
    listening = listens(wanted.binary)
    return await start_supervised(
        [str(wanted.binary.path), "app-server", *(("--listen", "unix://{socket}") if listening else ()), *options],
        env=wanted.env,
        directory=None,
        state_dir=wanted.state_dir,
        idle=wanted.idle,
        owner=wanted.owner,
        watcher=_WATCHER,
        greeting=_greeting(),
        listens=listening,
        for_starter=False,
        about={
            "agent": CODEX,
            "place": wanted.codex_home,
            "version": wanted.identity.version,
            "path": wanted.identity.path,
            "binary": msgspec.to_builtins(wanted.identity),
            "env_digest": wanted.env_digest,
            "search_path": path_without_tools(wanted.binary, wanted.env["PATH"]),
        },
    )
