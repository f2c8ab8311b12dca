"""The real Claude Code for tests: where it is, and how it runs without an account on a scripted model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from helmsman.testing import ScriptedModel

_CACHE: Final = Path(__file__).parents[1] / ".cache" / "clients"


def claude_binary() -> Path:
    """The one that `scripts/fetch_clients.py` has fetched."""
    cache = Path(os.environ.get("HELMSMAN_CLIENTS_CACHE") or _CACHE)
    found = next(iter(sorted(cache.glob("node_modules/@anthropic-ai/claude-code-*-*/claude"))), None)
    if found is None:
        pytest.skip("Claude Code is not there: run scripts/fetch_clients.py")
    return found


def claude_environment(model: ScriptedModel, home: Path) -> dict[str, str]:
    """What it takes for it to use this model, and a home of its own."""
    return {
        "ANTHROPIC_BASE_URL": model.address,
        "ANTHROPIC_API_KEY": "dummy",
        "CLAUDE_CONFIG_DIR": str(home),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "1",
    }
