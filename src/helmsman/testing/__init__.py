"""Public test kit: run a real Codex without an account, on a model that follows a script.

- `ScriptedModel` and the words of its scripts (`say`, `run`, `patch`, …): what Codex's model answers.
- `ScriptedCloud`: the backend of `codex cloud`. `FakeAppServer`: an app-server that misbehaves as told.
- `FakeAcpAgent`: an agent of the Agent Client Protocol that does.
- `agent_environment`: the same model for Claude Code, Gemini, OpenCode and others (`SCRIPTED_AGENTS`).
- `CodexHome`: its own Codex configuration for each test; `codex_versions`: the binaries to test with.
- `helmsman.testing.plugin`: pytest fixtures around all of it; load it with `pytest_plugins`.
"""

from __future__ import annotations

from helmsman.testing.agents import SCRIPTED_AGENTS, agent_environment
from helmsman.testing.binaries import codex_version, codex_versions, installed_codex
from helmsman.testing.cloud import ScriptedCloud
from helmsman.testing.fake_acp_agent import FakeAcpAgent
from helmsman.testing.fake_app_server import FakeAppServer
from helmsman.testing.home import CodexHome, HomeTemplates, mcp_server
from helmsman.testing.model import ScriptedModel
from helmsman.testing.model_request import ModelRequest
from helmsman.testing.repository import git, make_repository
from helmsman.testing.script import (
    Gate,
    add,
    always,
    ask_user,
    call,
    call_tool,
    cut,
    delete,
    fail,
    hang,
    incomplete,
    move,
    patch,
    plan,
    question,
    rate_limit,
    request_permissions,
    response_failed,
    run,
    say,
    search,
    spawn_agent,
    think,
    update,
    usage,
    wait_agents,
)

__all__ = [
    "SCRIPTED_AGENTS",
    "CodexHome",
    "FakeAcpAgent",
    "FakeAppServer",
    "Gate",
    "HomeTemplates",
    "ModelRequest",
    "ScriptedCloud",
    "ScriptedModel",
    "add",
    "agent_environment",
    "always",
    "ask_user",
    "call",
    "call_tool",
    "codex_version",
    "codex_versions",
    "cut",
    "delete",
    "fail",
    "git",
    "hang",
    "incomplete",
    "installed_codex",
    "make_repository",
    "mcp_server",
    "move",
    "patch",
    "plan",
    "question",
    "rate_limit",
    "request_permissions",
    "response_failed",
    "run",
    "say",
    "search",
    "spawn_agent",
    "think",
    "update",
    "usage",
    "wait_agents",
]
