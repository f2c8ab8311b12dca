"""Codex itself as the MCP client of Helmsman: an outer Codex that drives an inner one, each with a home of its own."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from helmsman import Helmsman
from helmsman.settings import load_settings
from helmsman.testing import CodexHome, call_tool, codex_version, say
from tests.clients.server_process import SECONDS
from tests.clients.story import TOOLS, check

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.questions import Question
    from helmsman.sessions.session import Session
    from helmsman.testing import HomeTemplates, ModelRequest, ScriptedModel
    from helmsman.testing.script import Part
    from tests.clients.server_process import Serving

pytestmark = pytest.mark.anyio


@pytest.fixture
def outer_home(
    serving: Serving,
    codex_binary: Path,
    codex_home_templates: HomeTemplates,
    model: ScriptedModel,
    tmp_path: Path,
) -> CodexHome:
    """The home of a Codex that has Helmsman among its MCP servers."""
    home = codex_home_templates.new_home(codex_binary, tmp_path / "outer")
    home.use_model(model.base_url, codex_version(codex_binary))
    command, *arguments = serving.command()
    server = {"command": command, "args": arguments, "env": dict(serving.env), "required": True}
    home.configure(mcp_servers={"helmsman": server})
    return home


class Delegation:
    """What the outer model does: one call of a tool of Helmsman after another, each from what the last one gave."""

    def __init__(self, serving: Serving, *, asks_person: bool) -> None:
        self.told: dict[str, Any] = {}
        self._directory = str(serving.directory)
        self._asks_person = asks_person

    def script(self) -> list[Any]:
        rights = {"sandbox": "workspace-write", "approvalPolicy": "on-request"}
        start = self._call("codex_start", prompt="make it", workingDirectory=self._directory, **rights)
        agent_answers = [self._wait_after("started"), self._respond]
        return [
            start,
            *([] if self._asks_person else agent_answers),
            self._wait_after("started" if self._asks_person else "responded"),
            self._say_after("made", "go on"),
            self._wait_after("said"),
            self._say_after("continued", "hang"),
            lambda _request: self._call("codex_interrupt", sessionId=self._session_id),
            self._list,
            self._end,
        ]

    @property
    def _session_id(self) -> str:
        session_id: str = self.told["started"]["sessionId"]
        return session_id

    def _call(self, tool: str, **arguments: Any) -> Part:
        return call_tool("helmsman", tool, arguments)

    def _hear(self, chapter: str, request: ModelRequest) -> None:
        output = request.tool_output
        self.told[chapter] = json.loads(output[output.index("{") :])

    def _wait_after(self, chapter: str) -> Any:
        def step(request: ModelRequest) -> Part:
            self._hear(chapter, request)
            return self._call("codex_wait", sessionId=self._session_id)

        return step

    def _say_after(self, chapter: str, message: str) -> Any:
        def step(request: ModelRequest) -> Part:
            self._hear(chapter, request)
            return self._call("codex_say", sessionId=self._session_id, message=message)

        return step

    def _respond(self, request: ModelRequest) -> Part:
        self._hear("asked", request)
        question_id = self.told["asked"]["pendingQuestion"]["id"]
        return self._call("codex_respond", sessionId=self._session_id, id=question_id, answers=["approve"])

    def _list(self, request: ModelRequest) -> Part:
        self._hear("interrupted", request)
        return self._call("codex_list")

    def _end(self, request: ModelRequest) -> Part:
        self._hear("listed", request)
        self.told["tools"] = TOOLS
        return say("All is told")


async def test_an_agent_drives_another_and_answers_its_question(
    serving: Serving, model: ScriptedModel, outer_home: CodexHome, codex_binary: Path, tmp_path: Path
) -> None:
    allowed = {tool: {"approval_mode": "approve"} for tool in TOOLS}
    outer_home.configure(mcp_servers={"helmsman": {"tools": allowed}})
    delegation = Delegation(serving, asks_person=False)
    model.on("delegate", *delegation.script())
    answer = tmp_path / "answer.txt"
    with anyio.fail_after(SECONDS):
        done = await anyio.run_process(
            [codex_binary, "exec", "--skip-git-repo-check", "--output-last-message", answer, "delegate"],
            env=outer_home.env,
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    assert done.returncode == 0, done.stderr.decode()
    assert answer.read_text(encoding="utf-8") == "All is told"
    check(delegation.told, serving.directory)


async def test_the_person_of_the_outer_codex_is_asked_what_the_inner_one_asks(
    serving: Serving, model: ScriptedModel, outer_home: CodexHome, codex_binary: Path, tmp_path: Path
) -> None:
    delegation = Delegation(serving, asks_person=True)
    model.on("delegate", *delegation.script())
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
    check(delegation.told | {"forms": forms}, serving.directory, asked_in_form=True)
