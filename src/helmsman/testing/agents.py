"""How agents other than Codex run on a scripted model: without an account, in their own home.

env = agent_environment("gemini", model.address, tmp_path / "home")
async with Helmsman(settings, env=os.environ | env) as helm: ...
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

_MODEL: Final = "scripted"


def agent_environment(agent: str, address: str, home: Path) -> dict[str, str]:
    """Return variables that limit an agent to the model at `address` and to `home`, without an account."""
    home.mkdir(parents=True, exist_ok=True)
    # Agents keep files in all of these places. Without them, they would find the user's logins and sessions.
    places = {f"XDG_{kind}_HOME": str(home / f".{kind.lower()}") for kind in ("DATA", "CONFIG", "CACHE", "STATE")}
    return {"HOME": str(home), **places, **_VARIABLES[agent](address, home)}


def _claude(address: str, home: Path) -> dict[str, str]:
    return {
        "ANTHROPIC_BASE_URL": address,
        "ANTHROPIC_API_KEY": "dummy",
        "CLAUDE_CONFIG_DIR": str(home / ".claude"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        # Failures that a script asks for must not be repeated for minutes.
        "CLAUDE_CODE_MAX_RETRIES": "1",
    }


# USD per million tokens; OpenCode reports the resulting cost
_PRICES: Final = {"input": 1, "output": 10, "cache_read": 0.1}


def _gemini(address: str, _home: Path) -> dict[str, str]:
    return {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": address}


def _opencode(address: str, _home: Path, prefix: str = "OPENCODE") -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": f"{address}/v1", "apiKey": "dummy"},
        "models": {_MODEL: {"limit": {"context": 100000, "output": 8000}, "cost": _PRICES}},
    }
    # One model for all: OpenCode asks a small one for titles.
    named = {"provider": {"fake": provider}, "model": f"fake/{_MODEL}", "small_model": f"fake/{_MODEL}"}
    # Each of these would ask the network when OpenCode starts.
    off = ("AUTOUPDATE", "MODELS_FETCH", "DEFAULT_PLUGINS", "LSP_DOWNLOAD", "SHARE", "SESSION_INGEST")
    return {f"{prefix}_CONFIG_CONTENT": json.dumps(named), **{f"{prefix}_DISABLE_{one}": "1" for one in off}}


def _kilo(address: str, home: Path) -> dict[str, str]:
    return _opencode(address, home, "KILO") | {"KILO_TELEMETRY_LEVEL": "off"}


def _kimi(address: str, _home: Path) -> dict[str, str]:
    named = {"NAME": _MODEL, "API_KEY": "dummy", "BASE_URL": f"{address}/v1", "PROVIDER_TYPE": "openai"}
    return {f"KIMI_MODEL_{name}": value for name, value in named.items()}


def _nanocoder(address: str, home: Path) -> dict[str, str]:
    provider = {"name": "fake", "baseUrl": f"{address}/v1", "apiKey": "dummy", "models": [_MODEL]}
    folder = home / ".config" / "nanocoder"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agents.config.json").write_text(json.dumps({"nanocoder": {"providers": [provider]}}), encoding="utf-8")
    return {}


def _qwen(address: str, _home: Path) -> dict[str, str]:
    return {"OPENAI_API_KEY": "dummy", "OPENAI_BASE_URL": f"{address}/v1", "OPENAI_MODEL": _MODEL}


def _copilot(address: str, _home: Path) -> dict[str, str]:
    # Without these variables it wants a login.
    return {
        "COPILOT_PROVIDER_BASE_URL": f"{address}/v1",
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_API_KEY": "dummy",
        "COPILOT_MODEL": _MODEL,
        "COPILOT_OFFLINE": "true",
    }


_VARIABLES: Final[Mapping[str, Callable[[str, Path], dict[str, str]]]] = {
    "claude": _claude,
    "gemini": _gemini,
    "opencode": _opencode,
    "qwen": _qwen,
    "copilot": _copilot,
    "kilo": _kilo,
    "kimi": _kimi,
    "nanocoder": _nanocoder,
}

SCRIPTED_AGENTS: Final = tuple(_VARIABLES)
"""Agents, beside Codex, that run on a scripted model."""
