"""The official MCP conformance suite against `helmsman serve --transport http`, for both eras of the protocol."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from helmsman.testing import CodexHome
from tests.clients.node import NodeClients
from tests.clients.proxy import with_token
from tests.clients.server_process import Serving

pytestmark = [pytest.mark.anyio, pytest.mark.long]

EXCLUDED = Path(__file__).with_name("conformance-excluded.yaml")


ALWAYS = {"tools-list", "resources-list", "server-sse-multiple-streams", "dns-rebinding-protection"}
LEGACY = {"server-initialize", "server-session-lifecycle", "ping", "resources-subscribe", "resources-unsubscribe"}
MODERN = {
    "http-header-validation",
    "input-required-result-unsupported-methods",
    "input-required-result-validate-input",
    "sep-2164-resource-not-found",
}


TASKS = ("tasks-capability-negotiation", "tasks-dispatch-and-envelope")
"""Scenarios of the extension that have checks without fixture tools; they belong to no suite and are called by name."""


@pytest.fixture
def serving(codex_home: CodexHome, codex_binary: Path, folder: Path, detached_engines: Path) -> Serving:
    """With a hub, where there can be one: what stands before the SDK's endpoint there is held to the suite, too."""
    state = {"HELMSMAN_DETACH": "1", "HELMSMAN_STATE_DIR": str(detached_engines)}
    return Serving.on(codex_home, codex_binary, folder, **state)


async def run_suite(clients: NodeClients, serving: Serving, *options: str) -> str:
    """Run it, check that only expected tests failed, and return its output."""
    suite = clients.modules / "conformance" / "dist" / "index.js"
    async with serving.over_http() as server, with_token(server) as url:
        done = await clients.run(suite, "server", "--url", url, "--expected-failures", str(EXCLUDED), *options)
    assert done.exit_code == 0, done.stdout[-5000:] + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("version", "own"), [pytest.param("2025-11-25", LEGACY, marks=pytest.mark.rare), ("2026-07-28", MODERN)]
)
async def test_every_scenario_that_needs_no_fixture_passes(
    node_clients: NodeClients, serving: Serving, version: str, own: set[str]
) -> None:
    printed = await run_suite(node_clients, serving, "--suite", "all", "--spec-version", version)
    passed = re.findall(r"^✓ ([\w-]+): [1-9]\d* passed, 0 failed", printed, re.MULTILINE)
    assert set(passed) >= ALWAYS | own


@pytest.mark.parametrize("scenario", TASKS)
async def test_every_check_of_the_tasks_extension_that_needs_no_fixture_passes(
    node_clients: NodeClients, serving: Serving, scenario: str
) -> None:
    printed = await run_suite(node_clients, serving, "--scenario", scenario)
    assert "SUCCESS" in printed


def test_every_excluded_scenario_has_its_reason() -> None:
    entries = [line for line in EXCLUDED.read_text(encoding="utf-8").splitlines() if line.startswith("  - ")]
    assert entries
    assert [entry for entry in entries if not re.search(r" # \S", entry)] == []
