"""The server's card, its catalog, and its figures for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from prometheus_client.parser import text_string_to_metric_families

from helmsman.capabilities.usage_report import UsageGroup, UsageReport
from helmsman.httpd.public import prometheus_text
from helmsman.model.events import Usage
from helmsman.testing import say
from tests.web.conftest import anybody, app, logins, server, token

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.service import HelmsmanService
    from helmsman.testing import ScriptedModel

__all__ = ["anybody", "app", "logins", "server", "token"]

pytestmark = pytest.mark.anyio


async def test_the_card_leads_a_client_to_the_server_it_describes(server: str, token: str) -> None:
    async with httpx2.AsyncClient() as stranger:
        catalog = (await stranger.get(f"{server}/.well-known/ai-catalog.json")).json()
        (entry,) = catalog["entries"]
        answer = await stranger.get(entry["url"])
        refused = await stranger.get(entry["url"], headers={"Origin": "https://evil.example"})
    card = answer.json()
    assert answer.headers["content-type"] == entry["type"] == "application/mcp-server-card+json"
    assert refused.status_code == 403
    assert len(card["description"]) <= 100
    (remote,) = card["remotes"]
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http,
        Client(streamable_http_client(remote["url"], http_client=http)) as client,
    ):
        assert client.server_info is not None
        assert client.server_info.version == card["version"]
        assert client.protocol_version in remote["supportedProtocolVersions"]


async def test_prometheus_reads_what_runs_and_what_was_spent(
    helm: HelmsmanService, anybody: httpx2.AsyncClient, token: str, model: ScriptedModel, folder: Path
) -> None:
    model.on("rest", say("resting"))
    session = await helm.start("rest", cwd=folder)
    with anyio.fail_after(60):
        await session.wait()
    assert (await anybody.get("/metrics")).status_code == 401
    answer = await anybody.get("/metrics", headers={"Authorization": f"Bearer {token}"})
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert found["helmsman_turns_running",] == 0
    assert found["helmsman_turns_max",] == helm.settings.max_sessions
    assert found["helmsman_turns_total", "codex"] == 1
    assert found["helmsman_tokens_total", "codex", "input"] > 0


async def test_a_large_counter_keeps_its_last_digit(helm: HelmsmanService) -> None:
    usage = Usage(input_tokens=123_456_789, output_tokens=1)
    spent = UsageGroup(key="codex", sessions=1, turns=1, usage=usage, cost_usd=0.1 + 0.2, unpriced_tokens=0)
    report = UsageReport(group_by="agent", since=None, groups=(spent,), total=spent, unpriced_models=())
    told = await prometheus_text(helm, report)
    assert 'helmsman_tokens_total{agent="codex",type="input"} 123456789\n' in told
    assert 'helmsman_cost_usd_total{agent="codex"} 0.3\n' in told
