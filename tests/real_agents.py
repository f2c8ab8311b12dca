"""The real agents that `scripts/fetch_agents.py` has fetched, each with a home of its own, on the scripted model."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from helmsman.testing import ScriptedModel

REPOSITORY = Path(__file__).parents[1]
CACHE = Path(os.environ.get("HELMSMAN_AGENTS_CACHE") or REPOSITORY / ".cache" / "agents").absolute()
NAMES = ("gemini", "opencode", "qwen", "copilot")


@dataclass(frozen=True)
class RealAgent:
    """How an agent is started, and with what."""

    name: str
    command: tuple[str, ...]
    env: dict[str, str]
    home: Path


@cache
def _modules() -> Path | None:
    return CACHE / "node_modules" if (CACHE / "installed.json").exists() else None


def adapter(name: str) -> tuple[str, ...]:
    """An adapter to the protocol for an agent that Helmsman steers in another way."""
    modules = _modules()
    if modules is None:
        pytest.skip("The agents are not here: python scripts/fetch_agents.py")
    return _node(modules), str(modules / "@agentclientprotocol" / name / "dist" / "index.js")


def _native() -> str:
    processor = "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "x64"
    return f"{platform.system().lower()}-{processor}"


def _node(modules: Path) -> str:
    return str(modules / f"node-{_native()}" / "bin" / "node")


def real_agent(name: str, home: Path, model: ScriptedModel) -> RealAgent:
    """An agent that knows no account and no other model; the test is skipped where it has not been fetched."""
    modules = _modules()
    if modules is None:
        pytest.skip("The agents are not here: python scripts/fetch_agents.py")
    node, native = _node(modules), _native()
    command = {
        "gemini": (node, str(modules / "@google/gemini-cli/bundle/gemini.js"), "--acp"),
        "opencode": (str(modules / f"opencode-{native}" / "bin" / "opencode"), "acp"),
        "qwen": (node, str(modules / "@qwen-code/qwen-code/cli.js"), "--acp"),
        "copilot": (str(modules / f"@github/copilot-{native}" / "copilot"), "--acp"),
    }[name]
    home.mkdir(parents=True, exist_ok=True)
    env = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(home),
        **{f"XDG_{kind}_HOME": str(home / f".{kind.lower()}") for kind in ("DATA", "CONFIG", "CACHE", "STATE")},
        **_MODELS[name](model),
    }
    return RealAgent(name, command, env, home)


def _gemini(model: ScriptedModel) -> dict[str, str]:
    return {"GEMINI_API_KEY": "dummy", "GOOGLE_GEMINI_BASE_URL": model.address}


def _opencode(model: ScriptedModel) -> dict[str, str]:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": model.base_url, "apiKey": "dummy"},
        "models": {
            "scripted": {
                "limit": {"context": 100000, "output": 8000},
                "cost": {"input": 1, "output": 10, "cache_read": 0.1},
            }
        },
    }
    named = {"provider": {"fake": provider}, "model": "fake/scripted", "small_model": "fake/scripted"}
    off = ("AUTOUPDATE", "MODELS_FETCH", "DEFAULT_PLUGINS", "LSP_DOWNLOAD")
    return {"OPENCODE_CONFIG_CONTENT": json.dumps(named), **{f"OPENCODE_DISABLE_{one}": "1" for one in off}}


def _qwen(model: ScriptedModel) -> dict[str, str]:
    return {"OPENAI_API_KEY": "dummy", "OPENAI_BASE_URL": model.base_url, "OPENAI_MODEL": "scripted"}


def _copilot(model: ScriptedModel) -> dict[str, str]:
    return {
        "COPILOT_PROVIDER_BASE_URL": model.base_url,
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_API_KEY": "dummy",
        "COPILOT_MODEL": "scripted",
        "COPILOT_OFFLINE": "true",
    }


_MODELS = {"gemini": _gemini, "opencode": _opencode, "qwen": _qwen, "copilot": _copilot}
