"""The real agents that `scripts/fetch_agents.py` has fetched, each with a home of its own, on the scripted model."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NoReturn

import pytest

from helmsman.testing import ScriptedModel
from helmsman.testing.agents import agent_environment

REPOSITORY = Path(__file__).parents[1]
CACHE = Path(os.environ.get("HELMSMAN_AGENTS_CACHE") or REPOSITORY / ".cache" / "agents").absolute()
NAMES = ("gemini", "opencode", "qwen", "copilot")
MORE = ("kilo", "kimi", "nanocoder")
"""Agents with a smaller profile."""


@dataclass(frozen=True)
class RealAgent:
    """How an agent is started, and with what."""

    name: str
    command: tuple[str, ...]
    env: dict[str, str]
    home: Path


@cache
def _modules() -> Path | None:
    return CACHE / "node_modules" if (CACHE / "installed.json").exists() and not _is_hidden() else None


def _is_hidden() -> bool:
    """Return whether sandboxes hide the agents: each has its own temporary directory."""
    return CACHE.resolve().is_relative_to("/tmp")


def _skip() -> NoReturn:
    if _is_hidden():
        pytest.skip(f"Sandboxes hide {CACHE}: set HELMSMAN_AGENTS_CACHE to a directory that is not below /tmp")
    pytest.skip("The agents are not here: python scripts/fetch_agents.py")


def adapter(name: str) -> tuple[str, ...]:
    """An adapter to the protocol for an agent that Helmsman steers in another way."""
    modules = _modules()
    if modules is None:
        _skip()
    return _node(modules), str(modules / "@agentclientprotocol" / name / "dist" / "index.js")


def _native() -> str:
    processor = "arm64" if platform.machine().lower() in {"arm64", "aarch64"} else "x64"
    return f"{platform.system().lower()}-{processor}"


def _node(modules: Path) -> str:
    return str(modules / f"node-{_native()}" / "bin" / "node")


def find_agent_command(name: str) -> tuple[str, ...] | None:
    """How an agent is started; None where it has not been fetched."""
    modules = _modules()
    if modules is None:
        return None
    node, native = _node(modules), _native()
    return {
        "gemini": (node, str(modules / "@google/gemini-cli/bundle/gemini.js"), "--acp"),
        "opencode": (str(modules / f"opencode-{native}" / "bin" / "opencode"), "acp"),
        "qwen": (node, str(modules / "@qwen-code/qwen-code/cli.js"), "--acp"),
        "copilot": (str(modules / f"@github/copilot-{native}" / "copilot"), "--acp"),
        "kilo": (str(modules / f"@kilocode/cli-{native}" / "bin" / "kilo"), "acp"),
        "kimi": (node, str(modules / "@moonshot-ai/kimi-code/dist/main.mjs"), "acp"),
        "nanocoder": (node, str(modules / "@nanocollective/nanocoder/dist/cli.js"), "--acp"),
    }[name]


def real_agent(name: str, home: Path, model: ScriptedModel) -> RealAgent:
    """An agent that knows no account and no other model; the test is skipped where it has not been fetched."""
    command = find_agent_command(name)
    if command is None:
        _skip()
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **agent_environment(name, model.address, home)}
    return RealAgent(name, command, env, home)
