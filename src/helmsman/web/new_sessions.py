"""Routes of the form for a new session: models, directories, images, effective configuration; and its start."""

from __future__ import annotations

import base64
import binascii
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio.to_thread

from helmsman.base.caller_context import from_here
from helmsman.base.files import is_inside
from helmsman.base.json_values import present
from helmsman.errors import InvalidInput
from helmsman.settings import ensure_state_dir
from helmsman.shapes.contract import FleetStartInput, Input
from helmsman.shapes.rendering import fields_as_dict
from helmsman.shapes.safe_values import safe
from helmsman.shapes.session_status import started
from helmsman.steering.opening import PICTURES
from helmsman.web.json_http import TooLarge, body, text
from helmsman.worktrees.records import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from starlette.requests import Request

    from helmsman.service import HelmsmanService

IMAGE_BYTES: Final = 8 * 1024 * 1024
_KEPT_SECONDS: Final = 7 * 24 * 3600.0
"""Lifetime of images, which queued messages still need. The agent keeps those that it was shown."""
_DIRECTORIES: Final = 50
_LOOKED_AT: Final = 10_000
_KINDS: Final = {b"\x89PNG\r\n\x1a\n": "png", b"\xff\xd8\xff": "jpg", b"GIF87a": "gif", b"GIF89a": "gif"}


class NewSessionInput(FleetStartInput):
    agent: str | None = None
    unenforced: bool = False


class ImageInput(Input):
    data: str


class NewSessions:
    """Answers them."""

    def __init__(self, helm: HelmsmanService) -> None:
        self._helm = helm

    async def start(self, request: Request) -> dict[str, Any]:
        given = await body(request, NewSessionInput)
        await anyio.to_thread.run_sync(self._refuse_taken, given.working_directory or ".")
        return started(await self._helm.start(given.prompt, **given.options())).as_dict()

    def _refuse_taken(self, directory: str) -> None:
        """Refuse the worktree of another session: its changes would be applied or discarded together with that
        session's.
        """
        place = from_here(directory).absolute()
        for tree in read_records(self._helm.settings.state_dir):
            if tree.session_id is not None and is_inside(place, [tree.path.resolve()]):
                raise InvalidInput(
                    f"{place} is the worktree of session {tree.session_id}. Send that session a message, or begin in "
                    f"{tree.repository}.",
                    parameter="workingDirectory",
                )

    async def models(self, request: Request) -> dict[str, Any]:
        models = await self._helm.extras.account.models(text(request, "agent"))
        return {"models": safe([fields_as_dict(model) for model in models])}

    async def in_force(self, request: Request) -> dict[str, Any]:
        directory = text(request, "directory")
        if directory is None:
            raise InvalidInput("directory is missing. Say where the session is to work.", parameter="directory")
        agent = text(request, "agent")
        return dict(safe(present(fields_as_dict(await self._helm.extras.configuration.in_force(directory, agent)))))

    async def directories(self, request: Request) -> dict[str, Any]:
        return {"directories": await anyio.to_thread.run_sync(self._directories, text(request, "begins") or "")}

    def _directories(self, begins: str) -> list[str]:
        """Return the completions of a path. Nothing outside the allowed roots is listed."""
        roots = self._helm.settings.allowed_roots
        path = from_here(begins) if begins.startswith("~") else Path(begins)
        if not path.is_absolute() or "\0" in begins:
            return [str(root) for root in roots][:_DIRECTORIES]
        parent, name = (path, "") if begins.endswith(os.sep) else (path.parent, path.name)
        if roots and not is_inside(parent, roots):
            return [str(root) for root in roots if str(root).startswith(str(path))][:_DIRECTORIES]
        return sorted(_below(parent, name))[:_DIRECTORIES]

    async def image(self, request: Request) -> dict[str, Any]:
        given = await body(request, ImageInput)
        return {"path": await anyio.to_thread.run_sync(self._keep, given.data)}

    def _keep(self, data: str) -> str:
        try:
            content = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidInput("data is no base64. Send the bytes of an image.", parameter="data") from None
        if len(content) > IMAGE_BYTES:
            raise TooLarge(f"The image is larger than {IMAGE_BYTES // 1024**2} MiB. Send a smaller one.")
        kind = next((kind for mark, kind in _KINDS.items() if content.startswith(mark)), None)
        if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
            kind = "webp"
        if kind is None:
            raise InvalidInput("This is no PNG, JPEG, GIF or WebP. Send an image of these types.", parameter="data")
        folder = ensure_state_dir(self._helm.settings.state_dir) / PICTURES
        folder.mkdir(mode=0o700, exist_ok=True)
        for old in folder.iterdir():
            if time.time() - old.stat().st_mtime > _KEPT_SECONDS:
                old.unlink(missing_ok=True)
        path = folder / f"{secrets.token_hex(16)}.{kind}"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
        return str(path)


def _below(parent: Path, name: str) -> Iterator[str]:
    """Yield the directories whose names have this prefix, hidden ones only if it begins with a dot."""
    try:
        with os.scandir(parent) as entries:
            for _, entry in zip(range(_LOOKED_AT), entries, strict=False):
                is_hidden = entry.name.startswith(".") and not name.startswith(".")
                if entry.name.startswith(name) and not is_hidden and entry.is_dir() and entry.name.isprintable():
                    yield entry.path
    except OSError:
        return
