"""Engines that Helmsman joins but never starts: a remote Codex, and Codex's own daemon.

Remote: with `HELMSMAN_CODEX_REMOTE` all sessions run in that Codex. It outlives Helmsman, so its sessions are found again
like those of a detached engine. Its paths are its own. Session files and sandbox proofs are available only if the same
paths exist here.

Daemon: Codex 0.166 can run terminal sessions in a daemon, which keeps each session locked. A message for such a session must
go through the daemon: Helmsman is one more client, the user sees the turn, both are asked, and the first answer counts. The
policy of a turn stays in force for the user's next turns, so no turn may be wider than the session is now. Helmsman never
starts or stops the daemon, or begins sessions in it.
"""

from __future__ import annotations

import hashlib
import os
import socket
import stat
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from helmsman.agents.codex.access import is_wider_approval, is_wider_sandbox
from helmsman.agents.codex.binary import TITLE, CodexBinary
from helmsman.agents.codex.connection import AppServer
from helmsman.agents.codex.engine import AppServerEngine, open_app_server
from helmsman.agents.codex.features import Feature, Version
from helmsman.agents.codex.websocket import open_remote, open_unix
from helmsman.base.concurrency import background_tasks
from helmsman.base.jsonrpc import Peer
from helmsman.errors import EngineLost, InvalidSetting, PolicyWidened, SessionLocked, Unsupported

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from helmsman.agents.codex.access import Access
    from helmsman.agents.codex.connection import Thread
    from helmsman.agents.protocol import Begun, Goal, Opened
    from helmsman.model.options import SessionOptions, TurnInput
    from helmsman.settings import Settings

# --- remote ----------------------------------------------------------------------------------------------------------


_KNOCK_SECONDS: Final = 1.0


def remote_id(settings: Settings) -> str | None:
    """What the remote engine of these settings is called in what is written down; None where there is none."""
    url = settings.codex_remote
    return None if url is None else f"remote-{hashlib.sha256(url.encode()).hexdigest()[:8]}"


def remote_answers(settings: Settings) -> bool:
    """Whether anybody is at the address that is set. Blocks for a moment at most."""
    parts = urlsplit(settings.codex_remote or "")
    try:
        with socket.create_connection(
            (parts.hostname or "", parts.port or (443 if parts.scheme == "wss" else 80)), timeout=_KNOCK_SECONDS
        ):
            return True
    except (OSError, ValueError):
        return False


async def find_remote(settings: Settings) -> CodexBinary:
    """Which Codex answers at the address that is set.

    Raises:
        InvalidSetting: Other settings do not go together with it.
        EngineLost: Nobody answers there, or the token is refused.
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
    unknown = CodexBinary.connected(Path("codex"), Version(0, 0, 0), remote="open" if token is None else "with token")
    async with background_tasks() as tasks, open_remote(settings.codex_remote, token=token) as transport:
        peer = Peer(transport, other=TITLE, on_notification=lambda *_: None, on_request=lambda _: False)
        tasks.start_soon(peer.run)
        version = await AppServer(peer, unknown).initialize()
    if not Feature.REMOTE.is_in(version):
        raise Unsupported(
            f"The Codex at {settings.codex_remote} is {version}, which cannot {Feature.REMOTE.text}; "
            f"{Feature.REMOTE.versions} can. Update it there, or unset HELMSMAN_CODEX_REMOTE.",
            feature="remote",
            version=str(version),
        )
    return CodexBinary.connected(Path("codex"), version, remote=unknown.remote)


@asynccontextmanager
async def open_remote_engine(settings: Settings) -> AsyncIterator[AppServerEngine]:
    """The remote engine for the length of the block; then we only let go of it. Raises what `find_remote` does."""
    binary, url = await find_remote(settings), settings.codex_remote
    assert url is not None
    async with open_app_server(
        binary,
        codex_home=settings.codex_home,
        connect=lambda _tasks: open_remote(url, token=settings.codex_remote_token),
        engine_id=remote_id(settings),
    ) as engine:
        yield engine


# --- daemon ----------------------------------------------------------------------------------------------------------


_DIRECTORY: Final = "app-server-control"
_SOCKET: Final = "app-server-control.sock"
_ASKS_PEOPLE: Final = (None, "user")
"""Who answers what a session asks, as Codex calls it: anything else is a model that may say yes."""


def daemon_id(codex_home: Path) -> str:
    """What the daemon of a CODEX_HOME is called in what is written down."""
    return f"daemon-{hashlib.sha256(os.fsencode(codex_home)).hexdigest()[:8]}"


def daemon_socket(codex_home: Path) -> Path | None:
    """Where the daemon listens; None where none does, or where another user could have put the socket there."""
    link = codex_home / _DIRECTORY / _SOCKET
    try:
        socket = link.resolve(strict=True)
        if not stat.S_ISSOCK(socket.stat().st_mode):
            return None
        return socket if all(map(_is_private, (link.parent, socket.parent))) else None
    except (OSError, RuntimeError):  # a loop of links, too
        return None


def _is_private(directory: Path) -> bool:
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


@asynccontextmanager
async def open_daemon(settings: Settings) -> AsyncIterator[DaemonEngine]:
    """The daemon of these settings' Codex for the length of the block; then we only let go of it.

    Raises:
        EngineLost: There is none, or none that can be trusted.
        Unsupported: It is one that does not keep its commands from its socket.
    """
    socket = daemon_socket(settings.codex_home)
    if socket is None:
        raise EngineLost("Codex's own daemon is not running. Send the session a message to go on.")
    unknown = CodexBinary.connected(Path("codex"), Version(0, 0, 0))
    async with background_tasks() as tasks, open_unix(socket) as transport:
        peer = Peer(transport, other=TITLE, on_notification=lambda *_: None, on_request=lambda _: False)
        tasks.start_soon(peer.run)
        version = await AppServer(peer, unknown).initialize()
    binary = CodexBinary.connected(Path("codex"), version)
    if not binary.can(Feature.GUARDED_SOCKET):
        raise Unsupported(
            f"The daemon of Codex {version} cannot {Feature.GUARDED_SOCKET.text}, so it is not used. Update Codex.",
            version=str(version),
        )
    async with open_app_server(
        binary,
        codex_home=settings.codex_home,
        connect=lambda _tasks: open_unix(socket),
        engine_id=daemon_id(settings.codex_home),
        allowed_roots=settings.session_roots,
        kind=DaemonEngine,
    ) as engine:
        assert isinstance(engine, DaemonEngine)
        engine.listens_at = socket, settings.codex_home
        yield engine


class DaemonEngine(AppServerEngine):
    """The daemon, as far as sessions that are open in it go on there."""

    @cached_property
    def _ours(self) -> dict[str, str | None]:
        """The newest turn that was begun by us, of each session."""
        return {}

    @property
    def is_of_a_person(self) -> bool:
        return True

    async def open(self, options: SessionOptions) -> Opened:
        raise EngineLost("Codex's own daemon is a person's. Start the session with an engine of your own.")

    async def resume(self, session_id: str, options: SessionOptions) -> Opened:
        """Join a session that is open there.

        Raises:
            SessionLocked: It is not open there, or not for what is asked.
            PolicyWidened: It may do less than what is asked for.
        """
        if session_id not in await self.api.loaded_threads():
            raise SessionLocked(f"Session {session_id} is not open in Codex's own daemon. Try again.")
        try:
            return await super().resume(session_id, options)
        except BaseException:
            if self.lost is None:  # or it would go on telling us
                await self.api.unsubscribe(session_id)
            raise

    async def run_turn(self, session_id: str, options: SessionOptions, turn: TurnInput) -> Begun:
        if turn.plan or turn.review is not None or options.tools:
            raise _only_messages(session_id)
        begun = await super().run_turn(session_id, options, turn)
        self._ours[session_id] = begun.turn_id
        return begun

    async def steer(self, session_id: str, text: str) -> None:
        turn_id = self._state(session_id).turn_id
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
