"""The dashboard's server on a real Codex: the real application, called without a network in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from starlette.types import ASGIApp

from helmsman.base.concurrency import background_tasks
from helmsman.httpd.application import build_app
from helmsman.httpd.listening import MCP_PATH, HttpOptions, http_token
from helmsman.httpd.server import serve_http
from helmsman.notices.devices import DeviceBook
from helmsman.service import HelmsmanService
from helmsman.settings import Settings
from helmsman.web.login import PAGE_HEADER, Logins
from tests.web.browser import SECONDS, Browser


@pytest.fixture
def token(settings: Settings) -> str:
    return http_token(settings.state_dir)


@pytest.fixture
def logins(settings: Settings) -> Logins:
    return Logins(secure=False, devices=DeviceBook(settings.state_dir))


@pytest.fixture
def app(helm: HelmsmanService, token: str, logins: Logins) -> ASGIApp:
    return build_app(helm, token=token, options=HttpOptions(), logins=logins)


@pytest.fixture
async def anybody(app: ASGIApp) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody without token or cookie."""
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1:8645", timeout=SECONDS
    ) as client:
        yield client


@pytest.fixture
async def browser(anybody: httpx2.AsyncClient, logins: Logins) -> Browser:
    """A browser that has logged in."""
    anybody.headers[PAGE_HEADER] = "1"
    welcome = await anybody.post("/api/login", json={"code": logins.new_code().value})
    assert welcome.status_code == 200
    return Browser(anybody)


@pytest.fixture
def asks(folder: Path) -> dict[str, Any]:
    """The fields of a start for work that may have to ask."""
    return {"workingDirectory": str(folder), "sandbox": "workspace-write", "approvalPolicy": "on-request"}


@pytest.fixture
async def server(helm: HelmsmanService, logins: Logins) -> AsyncIterator[str]:
    """The server as it really listens, for what has to stream; its address."""
    addresses: list[str] = []
    async with background_tasks() as tasks:
        listening = anyio.Event()

        def announce(address: str, _token_file: Path) -> None:
            addresses.append(address.removesuffix(MCP_PATH))
            listening.set()

        tasks.start_soon(serve_http, helm, HttpOptions(), announce, logins)
        with anyio.fail_after(SECONDS):
            await listening.wait()
        yield addresses[0]
