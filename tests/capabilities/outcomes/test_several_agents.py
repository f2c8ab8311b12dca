"""Outcomes by a real Codex and a real Claude Code: side by side, and one in place of the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman import load_settings
from helmsman.capabilities.budgets import BudgetState
from helmsman.capabilities.outcomes.agent_selection import choose
from helmsman.service import HelmsmanService
from helmsman.testing import CodexHome, ScriptedModel, fail, hang, run, say
from helmsman.testing.model_apis import MessagesRequest
from helmsman.testing.model_request import ModelRequest
from tests.capabilities.outcomes.played_jobs import (
    BROKEN,
    CAUSE,
    FIX,
    FIXED,
    TESTS,
    Answers,
    done,
    edit,
    repository,
    told,
    wanted,
)
from tests.capabilities.test_reviews import answer
from tests.claude import claude_binary, claude_environment

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git, pytest.mark.rare]


LONGER = edit("calc.py", "    return a - b", "    total = a\n    total += b\n    return total")


def is_claude(request: ModelRequest) -> bool:
    return isinstance(request, MessagesRequest) and "test_add fails" in request.last_user_text


async def test_two_agents_side_by_side_have_one_winner_and_one_takes_the_place_of_another(
    codex_home: CodexHome, codex_binary: Path, model: ScriptedModel, tmp_path: Path
) -> None:
    env = codex_home.env | claude_environment(model, tmp_path / "claude")
    given = {"codex_path": str(codex_binary), "claude_path": str(claude_binary()), "detach": False}
    root = repository(tmp_path / "repo", {"calc.py": BROKEN, "test_calc.py": TESTS})
    model.on("test_add fails", LONGER, told(CAUSE))
    model.on(is_claude, run("sed -i 's/a - b/a + b/' calc.py"), told(CAUSE))
    async with HelmsmanService(load_settings(given, env, tmp_path), env=env) as helm:
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


async def test_the_smallest_of_two_solutions_wins_and_two_reviewers_tell_the_same_once(
    codex_home: CodexHome, codex_binary: Path, model: ScriptedModel, tmp_path: Path
) -> None:
    env = codex_home.env | claude_environment(model, tmp_path / "claude")
    given = {"codex_path": str(codex_binary), "claude_path": str(claude_binary()), "detach": False}
    root = repository(tmp_path / "repo", {"calc.py": BROKEN, "test_calc.py": TESTS})
    ways = iter([FIX, LONGER])
    model.on("test_add fails", lambda _request: next(ways), told(CAUSE))
    async with HelmsmanService(load_settings(given, env, tmp_path), env=env) as helm:
        task, report = await done(helm, wanted("debug", root, agents=("codex",), candidates=2), Answers())
        assert (task.status, report["diff"]["added"]) == ("completed", 1), report
        assert report["compared"].endswith("the smallest.")

        place = {"absolute_file_path": str(root / "calc.py"), "line_range": {"start": 2, "end": 2}}
        found = {"title": "[P1] The total is wrong", "body": "Look.", "confidence_score": 0.8, "priority": 1}
        model.on("Review the current code changes", say(answer(root, {**found, "code_location": place})))
        same = {
            "title": "The total is wrong",
            "body": "",
            "priority": 2,
            "file": "calc.py",
            "startLine": 2,
            "endLine": 3,
        }
        model.on("You are the reviewer", told({"findings": [same], "verdict": "no"}))
        holds = {"finding": 1, "refuted": False, "why": "It is.", "confidence": 1}
        model.on("Try to refute", told({"verdicts": [holds]}))
        job = wanted("review", root, "Look.", check=None, agents=("codex", "claude"))
        task, report = await done(helm, job, Answers())
        assert (task.status, len(report["findings"])) == ("completed", 1), report
        assert (report["findings"][0]["by"], report["findings"][0]["priority"]) == (["codex", "claude"], 1)
        assert report["findings"][0]["secondLook"]["refuted"] is False


async def test_where_as_many_turns_run_as_there_may_be_the_reason_says_so_for_every_agent(
    codex_home: CodexHome, codex_binary: Path, model: ScriptedModel, tmp_path: Path
) -> None:
    env = codex_home.env | claude_environment(model, tmp_path / "claude")
    given = {"codex_path": str(codex_binary), "claude_path": str(claude_binary()), "detach": False, "max_sessions": 1}
    root = repository(tmp_path / "repo", {"calc.py": BROKEN})
    model.on("wait", hang())
    async with HelmsmanService(load_settings(given, env, tmp_path), env=env) as helm:
        session = await helm.start("wait", cwd=root)
        chosen = await choose(helm, wanted("debug", root))
        assert [one.agent for one in chosen] == ["codex", "claude"], (
            "turns of all agents count, so another gains nothing"
        )
        full = "it begins when a turn has ended: 1 turn runs, and MAX_SESSIONS is 1"
        assert all(full in one.why for one in chosen), chosen
        used = BudgetState(key="day_usd", used=5.0, budget=2.0)
        (only,) = await choose(helm, wanted("debug", root, agents=("codex",)), [used])
        assert only.why.endswith("a question comes first, because budgets are used up: day_usd (5 of 2)")
        await session.interrupt()
