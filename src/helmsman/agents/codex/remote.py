"""A Codex that others have started, here or on another machine: with `HELMSMAN_CODEX_REMOTE` it is used instead of our own.

It goes on without us, so what runs in it is found again like what runs in an engine of our own that outlives its client. Its
directories are its own: sessions work in paths as it has them, and what needs its files (which sessions there were before,
whether a command was proved to stay in its sandbox) is known only where they are here too, under the same paths.
"""

from __future__ import annotations

import hashlib
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from helmsman.agents.codex.binary import TITLE, CodexBinary
from helmsman.agents.codex.engine.app_server_engine import AppServerEngine, open_app_server
from helmsman.agents.codex.features import Feature, Version
from helmsman.agents.codex.wire.app_server import AppServer
from helmsman.agents.codex.wire.websocket import open_remote
from helmsman.base.concurrency import background_tasks
from helmsman.base.jsonrpc import Peer
from helmsman.errors import InvalidSetting, Unsupported

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from helmsman.settings import Settings

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
