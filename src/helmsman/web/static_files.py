"""Files of the page, with headers that forbid any other content."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio.to_thread
from starlette.responses import Response

from helmsman.web.json_http import NotFound, respond_with_error

if TYPE_CHECKING:
    from starlette.requests import Request

_ROOT: Final = Path(__file__).parent / "static"
_INDEX: Final = "index.html"
# No dots at the beginning and no `..`: names cannot leave the directory.
_NAME: Final = re.compile(r"[a-z0-9_-][a-z0-9_.-]*(/[a-z0-9_-][a-z0-9_.-]*)*", re.ASCII)
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
    ".webmanifest": "application/manifest+json",
    ".txt": "text/plain; charset=utf-8",
}
"""Listed here, since the system's own table of types may differ."""

_POLICY: Final = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "manifest-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
_HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # `no-cache` asks each time, so that a new version shows without a reload by force.
    "Cache-Control": "no-cache",
}


def page_paths() -> frozenset[str]:
    """Return the public paths of the page's files."""
    names = (file.relative_to(_ROOT).as_posix() for file in _ROOT.rglob("*") if file.suffix in _TYPES)
    return frozenset({"/", *(f"/{name}" for name in names if _NAME.fullmatch(name))})


async def static_file(request: Request) -> Response:
    """Return a file of the page; `/` is its index."""
    return await page_file(request.path_params.get("path") or _INDEX, request.headers.get("if-none-match", ""))


async def page_file(name: str, seen: str = "") -> Response:
    """Return a file by its name. `seen` lists the versions that the browser has."""
    found = await anyio.to_thread.run_sync(_read, name)
    if found is None:
        return respond_with_error(NotFound("There is nothing at this address. The dashboard is at /."))
    content, media_type = found
    # By content, so that a hub of the same version gives the same tag.
    tag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
    headers = {**_HEADERS, "ETag": tag}
    # A proxy may have weakened the tag.
    known = {one.strip().removeprefix("W/") for one in seen.split(",")}
    if tag in known:
        return Response(status_code=304, headers=headers)
    return Response(content, headers={**headers, "Content-Type": media_type})


def _read(name: str) -> tuple[bytes, str] | None:
    path = _ROOT / name
    media_type = _TYPES.get(path.suffix)
    if media_type is None or _NAME.fullmatch(name) is None:
        return None
    try:
        return path.read_bytes(), media_type
    except OSError:
        return None
