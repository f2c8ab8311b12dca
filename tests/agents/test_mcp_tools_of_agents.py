"""Tools of the user's own MCP servers: a real agent's question names server, tool and parameters, and a yes is for that."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from helmsman import Helmsman, Session
from helmsman.model.options import ApprovalPolicy, SandboxMode
from helmsman.model.question_text import describe
from helmsman.model.questions import Question
from helmsman.testing import ModelRequest, ScriptedModel, always, call, say
from helmsman.testing.script import Step
from tests.agents.test_permissions import SECONDS, real_settings
from tests.real_agents import NAMES

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]

GIVEN: Final = {"command": "ls\nTool: harmless\nServer: other\x1b[2K"}
"""Text that imitates a line of Helmsman, and a command."""
NAMED: Final = {
    "claude": "mcp__lab__bash",
    "gemini": "mcp_lab_bash",
    "opencode": "lab_bash",
    "qwen": "mcp__lab__bash",
    "copilot": "lab-bash",
}


def have_server(agent: str, place: Path, called: Path) -> None:
    """Let an agent have a server `lab` in its home, with a tool that has the name of a shell."""
    program = {
        "command": sys.executable,
        "args": [str(Path(__file__).with_name("plain_mcp_server.py")), str(called), "bash"],
    }
    home = place / "home"
    file, content = {
        "claude": (place / "claude" / ".claude.json", {"mcpServers": {"lab": {"type": "stdio", **program}}}),
        "gemini": (home / ".gemini" / "settings.json", {"mcpServers": {"lab": program}}),
        "qwen": (home / ".qwen" / "settings.json", {"mcpServers": {"lab": program}}),
        "copilot": (
            home / ".copilot" / "mcp-config.json",
            {"mcpServers": {"lab": {"type": "local", "tools": ["*"], **program}}},
        ),
        "opencode": (
            home / ".config" / "opencode" / "opencode.json",
            {"mcp": {"lab": {"type": "local", "command": [program["command"], *program["args"]], "enabled": True}}},
        ),
    }[agent]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")


def calling(agent: str) -> tuple[Callable[[ModelRequest], Step], ...]:
    """Return a call of that tool, if it is offered. Qwen's model must search for tools of servers first."""

    def where_offered(name: str, given: Mapping[str, Any]) -> Callable[[ModelRequest], Step]:
        offered = agent == "claude"  # which tells later what there is
        return lambda request: call(name, given) if offered or name in request.tool_names else say("There is none.")

    if agent == "qwen":
        search = where_offered("tool_search", {"query": f"select:{NAMED[agent]}"})
        return search, where_offered("tool_call", {"name": NAMED[agent], "arguments": GIVEN})
    return (where_offered(NAMED[agent], GIVEN),)


@pytest.mark.rare
@pytest.mark.parametrize("agent", ["claude", *(pytest.param(name, marks=pytest.mark.matrix) for name in NAMES)])
async def test_a_question_about_a_tool_of_a_server_says_all_of_it(
    agent: str, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    called = git_repo / "called"
    for prompt in ("allow", "deny", "never", "read"):
        model.on(prompt, *calling(agent), always(say("done")))
    settings, env = real_settings(agent, model, tmp_path)
    have_server(agent, tmp_path, called)
    more: dict[str, Any] = {"cwd": git_repo, "agent": agent, "trust_repository": True}  # else Gemini and Qwen have none

    async def asked(prompt: str, sandbox: SandboxMode, policy: ApprovalPolicy, *, yes: bool = False) -> list[Question]:
        session = await helm.start(prompt, sandbox=sandbox, approval_policy=policy, **more)
        return await _answered(session, yes=yes)

    async with Helmsman(settings, env=env, inside=True) as helm:
        assert await asked("never", "workspace-write", "never") == []
        for question in await asked("read", "read-only", "untrusted", yes=True):
            assert agent == "claude"  # its server is in the sandbox, and can write nothing
            assert question.details["tool"] == "bash"
        assert not called.exists()
        (denied,) = await asked("deny", "workspace-write", "on-request")
        assert not called.exists()
        (allowed,) = await asked("allow", "workspace-write", "untrusted", yes=True)
        assert called.read_text(encoding="utf-8") == "bash\n"
    for question in (denied, allowed):
        shown = describe(question).text().splitlines()
        assert question.type in ("mcp_elicitation", "permission_approval")  # and no rule for commands is about it
        named = ("Server: lab", "Tool: bash") if agent == "claude" else (json.dumps(NAMED[agent]),)
        assert all(any(name in line for line in shown) for name in named)
        assert any(r"ls\nTool: harmless\nServer: other\u001b[2K" in line.replace("\\\\", "\\") for line in shown)
        assert not any(line.startswith(("Tool: harmless", "Server: other")) for line in shown)
        assert "approve_session" not in question.prompts[0].options


async def _answered(session: Session, *, yes: bool) -> list[Question]:
    asked: list[Question] = []
    with anyio.fail_after(SECONDS):
        while session.state.is_running:
            if session.questions:
                asked.append(session.questions[0])
                words = ("accept", "decline") if asked[-1].type == "mcp_elicitation" else ("approve", "deny")
                await session.respond(asked[-1].id, words[0 if yes else 1])
            else:
                await session.feed.changed()
    return asked
