"""Outcomes by a real Codex and a real Claude Code: side by side, and one in place of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from helmsman import Helmsman, load_settings
from helmsman.testing import fail, run
from helmsman.testing.messages_api import MessagesRequest
from tests.capabilities.outcomes.played_jobs import (
    BROKEN,
    CAUSE,
    FIXED,
    TESTS,
    Answers,
    done,
    edit,
    repository,
    told,
    wanted,
)
from tests.claude import claude_binary, claude_environment

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.testing import CodexHome, ScriptedModel
    from helmsman.testing.model_request import ModelRequest

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git, pytest.mark.long]


def is_claude(request: ModelRequest) -> bool:
    return isinstance(request, MessagesRequest) and "test_add fails" in request.last_user_text


async def test_two_agents_side_by_side_have_one_winner_and_one_takes_the_place_of_another(
    codex_home: CodexHome, codex_binary: Path, model: ScriptedModel, tmp_path: Path
) -> None:
    env = codex_home.env | claude_environment(model, tmp_path / "claude")
    given = {"codex_path": str(codex_binary), "claude_path": str(claude_binary()), "detach": False}
    root = repository(tmp_path / "repo", {"calc.py": BROKEN, "test_calc.py": TESTS})
    longer = edit("calc.py", "    return a - b", "    total = a\n    total += b\n    return total")
    model.on("test_add fails", longer, told(CAUSE))
    model.on(is_claude, run("sed -i 's/a - b/a + b/' calc.py"), told(CAUSE))
    async with Helmsman(load_settings(given, env, tmp_path), env=env, inside=True) as helm:
        answers = Answers()
        task, report = await done(helm, wanted("debug", root, agents=("codex", "claude")), answers)
        assert (task.status, report["agent"], report["applied"]) == ("completed", "claude", "applied"), report
        assert [(one["agent"], one["verified"], one["winner"]) for one in report["candidates"]] == [
            ("codex", True, False),
            ("claude", True, True),
        ]
        assert report["discarded"] == [report["candidates"][0]["sessionId"]]
        assert (root / "calc.py").read_text(encoding="utf-8") == FIXED

        other = repository(tmp_path / "other", {"calc.py": BROKEN, "test_calc.py": TESTS})
        model.on("test_add fails", fail(429, error_type="usage_limit_reached", resets_at=4_000_000_000))
        model.on(is_claude, run("sed -i 's/a - b/a + b/' calc.py"), told(CAUSE))
        task, report = await done(helm, wanted("debug", other, apply="never"), Answers())
        assert (task.status, report["agent"], report["applied"]) == ("completed", "claude", "not_asked"), report
        assert "codex could not begin" in report["why"]
