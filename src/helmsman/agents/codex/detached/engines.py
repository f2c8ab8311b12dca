"""Engines that outlive the process that wanted them: found again, shared, started when there is none.

`open_detached` gives an engine for the length of a block, as `open_app_server` does, but leaving the block only lets go of
it: its turns run on, an open question stays open, and the next process that asks for the same Codex (same binary, same
CODEX_HOME, same environment as far as Codex cares) gets the same engine. Who starts, records and ends it is its keeper
(`helmsman.agents.keeper`). An engine of another Codex than the installed one gets no new work and ends when what runs
in it has ended; until then `open_recorded` reaches it.

A Codex that keeps its commands from its socket listens, and any number of processes share it. An older one is on a pipe in
its keeper, which lets no sandboxed command in, and has one owner at a time: while one process has it, others get their own.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import anyio.to_thread
from msgspec import structs

from helmsman.agents.codex.binary import CodexBinary
from helmsman.agents.codex.detached.records import (
    ENGINES,
    BinaryIdentity,
    EngineRecord,
    digest_of,
    engine_directories,
    read_record,
)
from helmsman.agents.codex.engine.app_server_engine import open_app_server
from helmsman.agents.codex.features import Feature, Version
from helmsman.agents.codex.starting import (
    START_ATTEMPTS,
    START_RACE_PAUSE,
    codex_environment,
    command_path,
    is_start_race,
    path_without_tools,
    start_failed,
)
from helmsman.agents.codex.wire.app_server import INITIALIZED, handshake
from helmsman.agents.codex.wire.kept import open_kept
from helmsman.agents.codex.wire.websocket import open_unix
from helmsman.agents.keeper.owner import NotOurs, Owner
from helmsman.agents.keeper.places import (
    forget,
    is_attached,
    mark_draining,
    mark_needed,
    private_directory,
    socket_path,
    try_attach,
    try_own,
)
from helmsman.agents.keeper.process import WAKE
from helmsman.agents.keeper.starting import start_keeper, stop_kept
from helmsman.base.files import file_lock
from helmsman.base.process_ending import send_signal
from helmsman.errors import EngineError, EngineLost, EngineStartFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from helmsman.agents.codex.engine.app_server_engine import AppServerEngine

log = logging.getLogger(__name__)

IDLE: Final = 15 * 60.0
"""How long an engine waits for somebody to come back when nothing runs in it."""

LOCK_TIMEOUT: Final = 120.0
"""How long we wait for another process that is starting or replacing an engine."""

ATTACH_TIMEOUT: Final = 10.0
NOBODY: Final = Owner()
_ON_PIPE: Final = "pipe:"
"""Before the fingerprint, so that a Helmsman that knows only engines that listen does not take one on a pipe for its own."""
_POLL: Final = 0.02


def can_detach(binary: CodexBinary) -> bool:
    """Whether engines of this Codex can outlive us."""
    return os.name == "posix" and bool(sys.executable) and binary.can(Feature.APP_SERVER)


def is_shared(binary: CodexBinary) -> bool:
    """Whether several processes use one detached engine of this Codex; else it is on a pipe, with one owner."""
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
    owner: Owner = NOBODY,
) -> AsyncIterator[AppServerEngine]:
    """The engine of this Codex and home, for the length of the block: one that is there, else a new one.

    `options` is asked for more options for `codex app-server` when a new one is started. `owner` is told to its keeper, and
    has what `open_recorded` says of epochs.

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
    record: EngineRecord, allowed_roots: Sequence[Path], *, epoch: int
) -> AsyncIterator[AppServerEngine]:
    """One certain engine, for the length of the block, also one that takes no new work any more.

    Who has an `epoch` takes an engine on a pipe from anybody with an earlier one; with 0, only when nobody has it.

    Raises:
        EngineLost: It has ended, or is about to, or belongs to somebody else.
        EngineStartFailed: It listens but does not answer.
    """
    async with _attached(record, epoch):
        engine = open_app_server(
            CodexBinary.connected(Path(record.binary.path), Version.parse(record.binary.version)),
            codex_home=Path(record.codex_home),
            connect=lambda _tasks: (
                open_kept(record.socket, epoch=epoch) if record.on_pipe else open_unix(record.socket)
            ),
            engine_id=record.id,
            allowed_roots=allowed_roots,
        )
        async with engine as opened:
            opened.search_path = record.search_path
            opened.listens_at = None if record.on_pipe else (record.socket, Path(record.codex_home))
            yield opened


def stop_engine(record: EngineRecord) -> None:
    """End an engine and all that runs in it. Blocks for a bounded time; afterwards no process is left."""
    stop_kept(record.directory, record.socket, record.keeper, record.codex)


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

    def fits(self, record: EngineRecord) -> bool:
        return (
            record.codex_home == self.codex_home
            and record.binary == self.identity
            and record.env_digest == self.env_digest
            and record.on_pipe is not is_shared(self.binary)
            and not record.is_draining
        )


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
        env_digest=_prefix(binary, owner) + digest_of(environment, command_path(binary, env)),
        idle=idle,
        owner=owner,
    )


def _prefix(binary: CodexBinary, owner: Owner) -> str:
    """On a leash it is for no one but its holder, and ends with that one."""
    leash = "" if owner.leash is None else f"leash:{owner.leash.id}:"
    return leash + ("" if is_shared(binary) else _ON_PIPE)


async def fits_engine(
    record: EngineRecord,
    binary: CodexBinary,
    *,
    codex_home: Path,
    state_dir: Path,
    env: Mapping[str, str] | None,
    idle: float,
    owner: Owner = NOBODY,
) -> bool:
    """Whether `open_detached` would give this engine to whoever asks for it so."""
    wanted = await anyio.to_thread.run_sync(_wanted, binary, codex_home, state_dir, env, idle, owner)
    return wanted.fits(record)


def need_engine(directory: Path, *, needed: bool) -> None:
    """Say whether somebody has to be attached to an engine: if nobody is, its keeper starts the next hub."""
    if mark_needed(directory, needed=needed) and needed and (record := read_record(directory)) is not None:
        send_signal(record.keeper, WAKE)


async def _attach_to_one(
    stack: AsyncExitStack, wanted: _Wanted, allowed_roots: Sequence[Path]
) -> AppServerEngine | None:
    for record in reversed(await anyio.to_thread.run_sync(_tidy_up, wanted)):
        try:
            return await stack.enter_async_context(open_recorded(record, allowed_roots, epoch=wanted.owner.epoch))
        except (EngineTaken, NotOurs):
            continue  # another process works with it, and it can have but one
        except EngineError as error:
            log.warning("engine %s is of no use and is replaced: %s", record.id, error)
            await anyio.to_thread.run_sync(stop_engine, record)
    return None


def _tidy_up(wanted: _Wanted) -> list[EngineRecord]:
    """The engines that fit. What ended without clearing up is cleared up; those of another Codex are drained."""
    fitting: list[EngineRecord] = []
    for directory in engine_directories(wanted.state_dir):
        record = read_record(directory)
        if record is None:
            forget(directory)  # a start that came to nothing: whoever starts holds the lock we hold
        elif not record.is_kept:
            if not (record.is_draining and is_attached(directory)):  # else somebody follows what is left in it
                stop_engine(record)
        elif wanted.fits(record):
            fitting.append(record)
        elif record.codex_home == wanted.codex_home and record.binary != wanted.identity and not record.is_draining:
            drain_engine(record)
    return fitting


def drain_engine(record: EngineRecord) -> None:
    """Give an engine no new work; it ends when nobody is attached and what runs in it has ended."""
    mark_draining(record.directory)
    send_signal(record.keeper, WAKE)


class EngineTaken(EngineLost):
    """The engine is there, and another process has it."""


@asynccontextmanager
async def _attached(record: EngineRecord, epoch: int) -> AsyncIterator[None]:
    """Keep its keeper from ending it. A keeper that is only looking gives way within moments."""
    deadline = anyio.current_time() + ATTACH_TIMEOUT
    with try_own(record.directory, epoch) if record.on_pipe else nullcontext(True) as owned:
        if not owned and record.is_kept:
            raise EngineTaken(f"Engine {record.id} is in use by another Helmsman process. Wait until that has ended.")
        while True:
            with try_attach(record.directory) as attached:
                if attached:
                    yield
                    return
            if not record.is_kept or anyio.current_time() > deadline:
                raise EngineLost(f"Engine {record.id} has ended. Open another; sessions continue from disk.")
            await anyio.sleep(_POLL)


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
            record = await _start_keeper(wanted, options)
            return await stack.enter_async_context(open_recorded(record, allowed_roots, epoch=wanted.owner.epoch))
        except EngineLost as error:
            if attempt == START_ATTEMPTS or not is_start_race(error):
                raise start_failed(error) from error
        await anyio.sleep(START_RACE_PAUSE * attempt)
    raise AssertionError("unreachable")


_WATCHING: Final = "helmsman.agents.codex.detached.watching"
_GREETING_ID: Final = "handshake"


def _greeting() -> list[str]:
    """What a Codex on a pipe is told first, by its keeper: it takes one handshake, whoever its owners will be."""
    return [
        json.dumps({"id": _GREETING_ID, "method": "initialize", "params": handshake()}),
        json.dumps({"method": INITIALIZED}),
    ]


async def _start_keeper(wanted: _Wanted, options: Sequence[str]) -> EngineRecord:
    """Have a keeper start Codex, and wait until Codex listens.

    Raises:
        EngineLost: It did not come up. Details: `exit_code`, `stderr`.
    """
    directory = wanted.engines / secrets.token_hex(4)
    order = {
        "argv": [str(wanted.binary.path), "app-server", *options],
        "env": dict(wanted.env),
        "idle": wanted.idle,
        "watcher": f"{_WATCHING}:CodexOnPipe",
        "pipe": {"greeting": _greeting(), "answer": _GREETING_ID, "epoch": wanted.owner.epoch},
        "successor": wanted.owner.successor,
        "about": {
            "binary": structs.asdict(wanted.identity),
            "codex_home": wanted.codex_home,
            "env_digest": wanted.env_digest,
            "search_path": path_without_tools(wanted.binary, wanted.env["PATH"]),
        },
    }
    if is_shared(wanted.binary):
        listen = f"unix://{socket_path(directory)}"
        order |= {
            "argv": [str(wanted.binary.path), "app-server", "--listen", listen, *options],
            "watcher": f"{_WATCHING}:ListeningCodex",
            "pipe": None,
        }
    await start_keeper(directory, order, wanted.owner.leash)
    record = read_record(directory)
    if record is None:
        raise EngineLost("It ended at once. Run `helmsman doctor` to find out why.")
    return record
