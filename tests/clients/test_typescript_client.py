"""The whole story through the TypeScript clients: over pipes and over HTTP, in both eras, with and without forms."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.node import NodeClients
from tests.clients.server_process import Serving
from tests.clients.story import check

pytestmark = [pytest.mark.anyio, pytest.mark.long]

ERAS = [("legacy", "2025-11-25"), ("2026-07-28", "2026-07-28")]


async def over_pipes(clients: NodeClients, serving: Serving, script: str, **plan: Any) -> dict[str, Any]:
    command, *arguments = serving.command()
    server = {"command": command, "args": arguments, "env": dict(serving.env), "cwd": str(serving.directory)}
    return await clients.tell(script, server=server, directory=str(serving.directory), **plan)


async def over_http(clients: NodeClients, serving: Serving, script: str, **plan: Any) -> dict[str, Any]:
    async with serving.over_http() as server:
        where = {"url": server.url, "headers": server.headers, "directory": str(serving.directory)}
        return await clients.tell(script, **where, **plan)


WAYS = [pytest.param(over_pipes, marks=pytest.mark.rare), over_http]  # `test_killed_hubs` has all of them on pipes


@pytest.mark.parametrize("way", WAYS)
async def test_the_whole_story_with_version_1(node_clients: NodeClients, serving: Serving, way: Any) -> None:
    told = await way(node_clients, serving, "typescript_1.mjs")
    check(told, serving.directory)
    assert told["server"]["name"] == "helmsman"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("era", "protocol"), ERAS)
async def test_the_whole_story_with_version_2(
    node_clients: NodeClients, serving: Serving, way: Any, era: str, protocol: str
) -> None:
    told = await way(node_clients, serving, "typescript_2.mjs", era=era)
    check(told, serving.directory)
    assert told["protocol"] == protocol


@pytest.mark.parametrize("way", WAYS)
async def test_a_person_answers_in_a_form_of_version_1(node_clients: NodeClients, serving: Serving, way: Any) -> None:
    check(await way(node_clients, serving, "typescript_1.mjs", elicits=True), serving.directory, asked_in_form=True)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("era", "protocol"), ERAS)
async def test_a_person_answers_in_a_form_of_version_2(
    node_clients: NodeClients, serving: Serving, way: Any, era: str, protocol: str
) -> None:
    told = await way(node_clients, serving, "typescript_2.mjs", era=era, elicits=True)
    check(told, serving.directory, asked_in_form=True)
    assert told["protocol"] == protocol
