"""The page on which the user grants a program access, in a real browser."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from tests.httpd.test_oauth import Place, place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.browser.chromium import Chromium

__all__ = ["place"]

pytestmark = [pytest.mark.anyio, pytest.mark.browser]


class Program(BaseHTTPRequestHandler):
    """The program that asked, and waits for its code."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"thanks")

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def back() -> Iterator[str]:
    """The address at which a program waits."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Program) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/callback"
        server.shutdown()


async def test_the_page_asks_for_a_login_shows_who_asks_and_brings_the_code_back(
    chromium: Chromium, place: Place, back: str
) -> None:
    async with chromium.page() as page:
        await page.goto(f"{place.address}/authorize?{urlencode(place.request(redirect_uri=back))}")
        await page.until("document.querySelector('form input') !== null")
        assert await page.count("button.primary") == 1, "nothing can be allowed before the login"
        await page.get(f"document.querySelector('form input').value = {place.logins.new_code().value!r}")
        await page.get("document.querySelector('form').requestSubmit()")
        await page.until_text("h1", "Allow a program to use Helmsman?")
        for shown in ("A client", "client.example", back, place.resource, "Any program there can pretend"):
            await page.until_text("main", shown)
        assert await page.get("[...document.querySelectorAll('.buttons button')].every((one) => one.disabled)")
        await page.click(".buttons .primary")
        came = urlsplit(await page.until(f"location.href.startsWith({back!r}) && location.href"))
    told = {key: values[0] for key, values in parse_qs(came.query).items()}
    assert (told["state"], told["iss"]) == ("xyz", place.address)
    assert (await place.token(**place.exchange(told["code"], redirect_uri=back))).status_code == 200
