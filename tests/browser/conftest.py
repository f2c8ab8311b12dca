"""Fixtures for the dashboard in a real browser, on a real Codex with a scripted model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from helmsman.web.login import Logins
from tests.browser.chromium import Chromium, Page, find_chromium, running_chromium
from tests.web.conftest import asks, logins, server, token

__all__ = ["asks", "logins", "server", "token"]


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """Browser for all tests; each has its own window and cookies."""
    program = find_chromium()
    if program is None:
        pytest.skip(
            "There is no Chromium, so the dashboard is not tested in a browser: install Debian's `chromium` (or Chrome), "
            "or name one with HELMSMAN_TEST_CHROMIUM."
        )
    with running_chromium(program, tmp_path_factory.mktemp("chromium")) as chromium:
        yield chromium


@pytest.fixture
async def page(chromium: Chromium, server: str, logins: Logins) -> AsyncIterator[Page]:
    """Window that has followed the login link. A script that fails in it fails the test."""
    async with chromium.page() as page:
        await page.goto(server + logins.new_code().path)
        await page.until("document.querySelector('#live')?.dataset.state === 'live'")
        yield page
        assert page.problems == []
