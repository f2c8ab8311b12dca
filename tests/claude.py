"""The real Claude Code for tests: where it is, and how it runs without an account on a scripted model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from helmsman.testing import ScriptedModel
from helmsman.testing.agents import agent_environment

_CACHES: Final = Path(__file__).parents[1] / ".cache"


def find_claude_binary() -> Path | None:
    """Return the one that `scripts/fetch_clients.py` has fetched, or that of the agents that speak ACP."""
    clients = Path(os.environ.get("HELMSMAN_CLIENTS_CACHE") or _CACHES / "clients")
    agents = Path(os.environ.get("HELMSMAN_AGENTS_CACHE") or _CACHES / "agents")
    places = ((clients, "claude-code-*-*"), (agents, "claude-agent-sdk-*-*"))
    found = (one for cache, name in places for one in sorted(cache.glob(f"node_modules/@anthropic-ai/{name}/claude")))
    return next(found, None)


def claude_binary() -> Path:
    """Return the Claude Code to test with, or skip the test."""
    found = find_claude_binary()
    if found is None:
        pytest.skip("Claude Code is not there: run scripts/fetch_clients.py")
    return found


def claude_environment(model: ScriptedModel, home: Path) -> dict[str, str]:
    """Return the settings for a scripted model and a separate home, in this user's HOME."""
    given = agent_environment("claude", model.address, home)
    named = {name: value for name, value in given.items() if name.startswith(("ANTHROPIC_", "CLAUDE_"))}
    return named | {"CLAUDE_CONFIG_DIR": str(home)}
