"""Tests that a real agent's question shows what a yes grants, even if its model tries to hide it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from helmsman import Helmsman, Session
from helmsman.model.question_text import describe
from helmsman.model.questions import Question
from helmsman.testing import ModelRequest, ScriptedModel, add, always, call, patch, run, say
from helmsman.testing.script import Step
from tests.agents.test_permissions import SECONDS, real_settings
from tests.permission_table import AGENTS

pytestmark = [pytest.mark.anyio, pytest.mark.matrix, pytest.mark.rare, pytest.mark.timeout(600)]

LONG: Final = f"echo start {'a ' * 6000}; touch end.txt"
HIDDEN: Final = "echo 'a\u202eb\u200b' # \ntouch hidden.txt"
SUB_TASK: Final = {"description": "a task", "prompt": "sub task"}
SUB_AGENTS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "claude": ("Agent", {**SUB_TASK, "subagent_type": "general-purpose", "run_in_background": True}),
    "gemini": ("invoke_agent", {"agent_name": "generalist", "prompt": "sub task"}),
    "opencode": ("task", {**SUB_TASK, "subagent_type": "general"}),
    "qwen": ("agent", {**SUB_TASK, "subagent_type": "general-purpose"}),
    "copilot": ("task", {**SUB_TASK, "name": "sub", "agent_type": "general-purpose", "mode": "sync"}),
}
ASKS_FOR_SUB_AGENT: Final = ("claude", "copilot")
"""Gemini and Qwen refuse what their sub-agents would have to ask, and OpenCode is given none."""


@pytest.mark.parametrize("agent", AGENTS)
async def test_all_of_it_is_shown_and_nothing_is_done_that_was_not_asked(
    agent: str, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    (git_repo / "link").symlink_to(tmp_path)
    tool, given = SUB_AGENTS[agent]
    handing_over = iter((True,))

    def hand_over(request: ModelRequest) -> Step:
        is_there = tool in request.tool_names or agent == "qwen"
        return call(tool, given) if is_there and next(handing_over, False) else say("done")

    model.on("sub task", run("touch sub.txt"), say("sub done"))
    model.on("long", run(LONG), say("done"))
    model.on("hidden", run(HIDDEN), say("done"))
    model.on("through", patch(add(str(git_repo / "link" / "out.txt"), "x\n")), say("done"))
    model.on("hand over", always(hand_over))
    settings, env = real_settings(agent, model, tmp_path)
    async with Helmsman(settings, env=env, inside=True) as helm:
        asked: dict[str, list[Question]] = {}
        for prompt in ("long", "hidden", "through", "hand over"):
            session = await helm.start(prompt, cwd=git_repo, agent=agent, sandbox="workspace-write", unenforced=True)
            asked[prompt] = await _approved(session)
    (long,) = asked["long"]
    assert long.details["command"] == LONG
    assert "; touch end.txt" in describe(long).text()
    for question in asked["hidden"]:  # Claude Code refuses it itself
        assert question.details["command"] == HIDDEN
        assert "\\u202eb\\u200b" in describe(question).text()
    assert (git_repo / "hidden.txt").exists() is bool(asked["hidden"])
    for question in asked["through"]:  # Gemini refuses it itself
        assert f"{tmp_path.resolve()}/out.txt" in question.details["leadsTo"].values()
    assert (tmp_path / "out.txt").exists() is bool(asked["through"])
    commands = [question.details.get("command") for question in asked["hand over"]]
    assert ("touch sub.txt" in commands) is (agent in ASKS_FOR_SUB_AGENT)
    assert (git_repo / "sub.txt").exists() is (agent in ASKS_FOR_SUB_AGENT)


async def _approved(session: Session) -> list[Question]:
    """Approve all questions until the turn ends, and return them."""
    asked: list[Question] = []
    with anyio.fail_after(SECONDS):
        while session.state.is_running:
            if session.questions:
                asked.append(session.questions[0])
                await session.respond(asked[-1].id, "approve")
            else:
                await session.feed.changed()
    return asked
