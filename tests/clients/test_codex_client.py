"""Tests of Codex as the MCP client of Helmsman: an outer Codex drives an inner one, in separate homes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman import Helmsman
from helmsman.httpd.mcp_sessions import CUT
from helmsman.model.questions import Question
from helmsman.sessions.session import Session
from helmsman.settings import load_settings
from helmsman.testing import (
    CodexHome,
    HomeTemplates,
    ModelRequest,
    ScriptedModel,
    always,
    call_tool,
    codex_version,
    say,
)
from helmsman.testing.script import Part
from tests.clients.server_process import SECONDS, Serving
from tests.clients.story import TOOLS, check

pytestmark = pytest.mark.anyio


@pytest.fixture
def outer_home(
    codex_binary: Path, codex_home_templates: HomeTemplates, model: ScriptedModel, tmp_path: Path
) -> CodexHome:
    home = codex_home_templates.new_home(codex_binary, tmp_path / "outer")
    home.use_model(model.base_url, codex_version(codex_binary))
    return home


def connect(home: CodexHome, **server: Any) -> None:
    """Put Helmsman among the MCP servers of a Codex."""
    home.configure(mcp_servers={"helmsman": {"required": True, **server}})


def on_pipe(serving: Serving) -> dict[str, Any]:
    command, *arguments = serving.command()
    return {"command": command, "args": arguments, "env": dict(serving.env)}


Told = dict[str, Any]


def delegation(told: Told, directory: Path, *, asks_person: bool) -> Generator[Part, Told, None]:
    """What the outer model does: one call of a tool of Helmsman after another, each from what the last one gave."""
    told["tools"] = TOOLS
    rights = {"sandbox": "workspace-write", "approvalPolicy": "on-request"}
    told["started"] = yield helmsman("codex_start", prompt="make it", workingDirectory=str(directory), **rights)
    session_id = told["started"]["sessionId"]
    if not asks_person:
        told["asked"] = yield from settled(session_id)
        question_id = told["asked"]["pendingQuestion"]["id"]
        told["responded"] = yield helmsman("codex_respond", sessionId=session_id, id=question_id, answers=["approve"])
    told["made"] = yield from settled(session_id, asks_person=asks_person)
    told["said"] = yield helmsman("codex_say", sessionId=session_id, message="go on")
    told["continued"] = yield from settled(session_id)
    yield helmsman("codex_say", sessionId=session_id, message="hang")
    told["interrupted"] = yield helmsman("codex_interrupt", sessionId=session_id)
    told["listed"] = yield helmsman("codex_list")
    yield say("All is told")


def settled(session_id: str, *, asks_person: bool = False) -> Generator[Part, Told, Told]:
    while True:
        status = yield helmsman("codex_wait", sessionId=session_id)
        if status["status"] != "active" and not (asks_person and "pendingQuestion" in status):
            return status


def helmsman(tool: str, **arguments: Any) -> Part:
    return call_tool("helmsman", tool, arguments)


def played(story: Generator[Part, Told, None], cuts: list[str] | None = None) -> Callable[[ModelRequest], Part]:
    """The story as a step of a script: what the tool gave goes in, what the model does next comes out.

    `cuts` collects what was said of waits during which the hub ended. They count as waits without news.
    """

    def step(request: ModelRequest) -> Part:
        output = request.tool_output
        if output and cuts is not None and CUT in output:
            cuts.append(output)
            return story.send({"status": "active"})
        return story.send(json.loads(output[output.index("{") :])) if output else next(story)

    return step


async def delegated(home: CodexHome, binary: Path, folder: Path, **env: str) -> str:
    """Return the final answer of `codex exec`. Its configuration allows the tools, since there is no user."""
    home.configure(mcp_servers={"helmsman": {"tools": {tool: {"approval_mode": "approve"} for tool in TOOLS}}})
    answer = folder / "answer.txt"
    with anyio.fail_after(SECONDS):
        done = await anyio.run_process(
            [binary, "exec", "--skip-git-repo-check", "--output-last-message", answer, "delegate"],
            env=home.env | env,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    return answer.read_text(encoding="utf-8")


async def test_an_agent_drives_another_over_a_pipe_and_answers_its_question(
    serving: Serving, model: ScriptedModel, outer_home: CodexHome, codex_binary: Path, tmp_path: Path
) -> None:
    told: Told = {}
    model.on("delegate", always(played(delegation(told, serving.directory, asks_person=False))))
    connect(outer_home, **on_pipe(serving))
    assert await delegated(outer_home, codex_binary, tmp_path) == "All is told"
    check(told, serving.directory)


async def test_an_agent_drives_another_over_http_and_answers_its_question(
    serving: Serving, model: ScriptedModel, outer_home: CodexHome, codex_binary: Path, tmp_path: Path
) -> None:
    told: Told = {}
    model.on("delegate", always(played(delegation(told, serving.directory, asks_person=False))))
    async with serving.over_http() as server:
        connect(outer_home, url=server.url, bearer_token_env_var="HELMSMAN_TOKEN")
        answer = await delegated(outer_home, codex_binary, tmp_path, HELMSMAN_TOKEN=server.token)
    assert answer == "All is told"
    check(told, serving.directory)


async def test_the_person_of_the_outer_codex_is_asked_what_the_inner_one_asks(
    serving: Serving, model: ScriptedModel, outer_home: CodexHome, codex_binary: Path, tmp_path: Path
) -> None:
    told: Told = {}
    model.on("delegate", always(played(delegation(told, serving.directory, asks_person=True))))
    connect(outer_home, **on_pipe(serving))
    forms: list[dict[str, Any]] = []

    async def person(_session: Session, question: Question) -> list[str]:
        if len(question.prompts) == 1:  # may this tool be called?
            return ["accept"]
        forms.append({"message": question.prompts[0].text})
        return ["accept", "approve", ""]

    settings = load_settings({"codex_path": str(codex_binary)}, outer_home.env, tmp_path)
    async with Helmsman(settings, env=outer_home.env, on_question=person) as outer:
        session = await outer.start("delegate", cwd=tmp_path, approval_policy="on-request")
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.result == "All is told", session.error
    check(told | {"forms": forms}, serving.directory, asked_in_form=True)
