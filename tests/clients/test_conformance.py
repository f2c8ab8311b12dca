"""The official MCP conformance suite against `helmsman serve --transport http`, for both eras of the protocol."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.clients.proxy import with_token

if TYPE_CHECKING:
    from tests.clients.node import NodeClients
    from tests.clients.server_process import Serving

pytestmark = pytest.mark.anyio

EXCLUDED = Path(__file__).with_name("conformance-excluded.yaml")


ALWAYS = {"tools-list", "resources-list", "server-sse-multiple-streams", "dns-rebinding-protection"}
LEGACY = {"server-initialize", "server-session-lifecycle", "ping", "resources-subscribe", "resources-unsubscribe"}
MODERN = {
    "http-header-validation",
    "input-required-result-unsupported-methods",
    "input-required-result-validate-input",
    "sep-2164-resource-not-found",
}


@pytest.mark.parametrize(("version", "own"), [("2025-11-25", LEGACY), ("2026-07-28", MODERN)])
async def test_every_scenario_that_needs_no_fixture_passes(
    node_clients: NodeClients, serving: Serving, version: str, own: set[str]
) -> None:
    suite = node_clients.modules / "conformance" / "dist" / "index.js"
    async with serving.over_http() as server, with_token(server) as url:
        options = ("--suite", "all", "--spec-version", version, "--expected-failures", str(EXCLUDED))
        done = await node_clients.run(suite, "server", "--url", url, *options)
    assert done.exit_code == 0, done.stdout[-5000:] + done.stderr
    passed = re.findall(r"^✓ ([\w-]+): [1-9]\d* passed, 0 failed", done.stdout, re.MULTILINE)
    assert set(passed) >= ALWAYS | own


def test_every_excluded_scenario_has_its_reason() -> None:
    entries = [line for line in EXCLUDED.read_text(encoding="utf-8").splitlines() if line.startswith("  - ")]
    assert entries
    assert [entry for entry in entries if not re.search(r" # \S", entry)] == []
