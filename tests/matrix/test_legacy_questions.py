"""The legacy forms of the two approvals, which only the oldest Codex sends, to conversations of the old kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.agents.codex.binary import find_codex
from helmsman.agents.codex.engine import open_app_server
from helmsman.errors import EngineRefused
from helmsman.model.events import Event, QuestionAsked
from helmsman.model.questions import Choice
from helmsman.testing import CodexHome, ScriptedModel, add, patch, run, say
from helmsman.testing.script import Step

pytestmark = [pytest.mark.matrix, pytest.mark.anyio]


@pytest.mark.parametrize(
    ("step", "kind", "made"),
    [
        (run("touch made.txt", escalate="please"), "command_approval", "made.txt"),
        (patch(add("new.txt", "hi\n")), "patch_approval", "new.txt"),
    ],
    ids=["execCommandApproval", "applyPatchApproval"],
)
async def test_a_legacy_approval_is_asked_and_answered(
    codex_binary: Path,
    codex_version: tuple[int, int, int],
    codex_home: CodexHome,
    model: ScriptedModel,
    git_repo: Path,
    step: Step,
    kind: str,
    made: str,
) -> None:
    model.on("go", step, say("done"))
    binary = await find_codex(explicit=codex_binary, env=codex_home.env, state_dir=None)
    async with open_app_server(binary, codex_home=codex_home.path, env=codex_home.env) as engine:
        call: Any = engine._peer.request
        settings = {"cwd": str(git_repo), "sandbox": "read-only", "approvalPolicy": "on-request"}
        if codex_version >= (0, 115, 0):  # it has threads only, and asks in the other form
            with pytest.raises(EngineRefused, match="unknown variant `newConversation`"):
                await call("newConversation", settings)
            return
        conversation = (await call("newConversation", settings))["conversationId"]
        asked: list[QuestionAsked] = []
        heard = anyio.Event()

        def listen(event: Event) -> None:
            if isinstance(event, QuestionAsked):
                asked.append(event)
                heard.set()

        engine.attach(conversation, listen)
        await call("addConversationListener", {"conversationId": conversation})
        items = [{"type": "text", "data": {"text": "go"}}]
        await call("sendUserMessage", {"conversationId": conversation, "items": items})
        with anyio.fail_after(30):
            await heard.wait()
        question = asked[0].question
        assert question.type == kind
        await engine.answer(question, (Choice("approve"),))
        with anyio.fail_after(30):
            while not (git_repo / made).exists():
                await anyio.sleep(0.02)
