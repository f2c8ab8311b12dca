"""Tests that without a terminal every kind of question is refused immediately."""

from __future__ import annotations

from typing import cast

import pytest

from helmsman.cli import displays
from helmsman.model.questions import Prompt, Question
from helmsman.sessions.session import Session
from helmsman.step import _refuse

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("options", [("approve", "deny", "abort"), ("accept", "decline", "cancel")])
async def test_a_tool_is_refused_as_soon_as_a_command(options: tuple[str, ...]) -> None:
    prompts = (Prompt(text="May I?", options=options),)
    question = Question(asker="Codex", id="q", type="mcp_elicitation", session_id="s", turn_id="t", prompts=prompts)
    nobody = cast("Session", None)
    assert await displays.refuse(nobody, question) == await _refuse(nobody, question) == [options[1]]
