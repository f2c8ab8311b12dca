"""The TypeScript clients get access to a hub by OAuth: granted once, and refreshed without another question."""

from __future__ import annotations

import pytest

from tests.clients.node import NodeClients
from tests.httpd.test_oauth import BACK, ME, Place, place

__all__ = ["place"]

pytestmark = [pytest.mark.anyio, pytest.mark.long]


@pytest.mark.parametrize("version", [1, 2])
async def test_a_typescript_client_is_granted_access_and_refreshes_it(
    node_clients: NodeClients, place: Place, version: int
) -> None:
    cookie = "; ".join(f"{one.name}={one.value}" for one in place.browser.cookies.jar)
    plan = {"version": version, "url": place.resource, "client": ME, "back": BACK, "cookie": cookie}
    told = await node_clients.tell("typescript_oauth.mjs", **plan)
    assert told["tools"] == told["again"] > 5
    assert (told["asked"], told["isRefreshed"]) == (1, True)
    assert (told["shown"]["clientHost"], told["shown"]["resource"]) == ("client.example", place.resource)
    (grant,) = (await place.browser.get("/api/grants")).json()["grants"]
    assert grant["clientId"] == ME
