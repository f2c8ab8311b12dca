"""Tests of `helmsman hub`: its output, and the effect of stopping on clients."""

from __future__ import annotations

import subprocess
from typing import Any

import anyio
import pytest

from helmsman.hub.control import ask_hub
from helmsman.testing.hubs import hub_pid
from tests import warm
from tests.hub.conftest import Place
from tests.hub.test_start import ping

pytestmark = pytest.mark.anyio

SECONDS = 60


async def told(place: Place, *arguments: str) -> str:
    done: Any = await anyio.run_process(
        warm.command("hub", *arguments), env=place.env, cwd=place.directory, stderr=subprocess.STDOUT, check=False
    )
    text: str = done.stdout.decode()
    return text


async def test_it_shows_the_hub_and_who_is_connected(bare_place: Place) -> None:
    assert "No hub is running" in await told(bare_place)
    assert hub_pid(bare_place.state_dir) is None, "looking starts none"
    async with bare_place.started() as server:
        await ping(server)
        shown = await told(bare_place)
        assert f"Hub {bare_place.hub}, version" in shown
        assert "Clients: 1" in shown
        assert f"  mcp  {bare_place.directory}" in shown
        assert f"hub {bare_place.hub}" in await told(bare_place, "log")


async def test_a_client_of_a_stopped_hub_starts_the_next_when_it_asks_for_something(bare_place: Place) -> None:
    async with bare_place.started() as server:
        await ping(server)
        first = bare_place.hub
        assert f"Stopped hub {first}" in await told(bare_place, "stop")
        with anyio.fail_after(SECONDS):
            while hub_pid(bare_place.state_dir) is not None:
                await anyio.sleep(0.01)
        assert ask_hub(bare_place.state_dir, "status") is None
        assert (await ping(server))["result"] == {}
        assert bare_place.hub != first


async def test_after_a_restart_the_clients_are_with_the_next_hub(bare_place: Place) -> None:
    async with bare_place.started() as server:
        await ping(server)
        first = bare_place.hub
        await told(bare_place, "restart")
        with anyio.fail_after(SECONDS):
            while not ((status := ask_hub(bare_place.state_dir, "status")) and status["clients"]):
                await anyio.sleep(0.01)
        assert status["pid"] != first
        assert (await ping(server))["result"] == {}
