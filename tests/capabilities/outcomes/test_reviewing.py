"""review on a real Codex: findings held to the diff, told once, and put to a second look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, run, say
from helmsman.testing.repository import git
from tests.capabilities.outcomes.played_jobs import BROKEN, FIXED, Answers, done, repository, told, wanted
from tests.capabilities.test_reviews import answer

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git, pytest.mark.usefixtures("shared_engine")]


def finding(root: Path, title: str, line: int, priority: int, file: str = "calc.py") -> dict[str, Any]:
    place = {"absolute_file_path": str(root / file), "line_range": {"start": line, "end": line}}
    return {"title": title, "body": "", "confidence_score": 0.8, "priority": priority, "code_location": place}


async def test_findings_are_held_to_the_diff_and_the_urgent_ones_to_a_second_look(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {"calc.py": FIXED, "other.py": "A = 1\n"})
    (root / "calc.py").write_text(BROKEN, encoding="utf-8")
    found = [
        finding(root, "[P0] It subtracts", 2, 0),
        finding(root, "[P1] Unused function", 2, 1),
        finding(root, "[P2] No type hints", 1, 2),
        finding(root, "[P1] A is wrong", 1, 1, "other.py"),
    ]
    model.on("Review the current code changes", run("touch made.txt"), say(answer(root, *found)))
    refuted = [
        {"finding": 1, "refuted": False, "why": "a - b is no sum", "confidence": 0.9},
        {"finding": 2, "refuted": True, "why": "the tests do", "confidence": 0.7},
    ]
    model.on("Try to refute", say("I agree with all of it."))
    model.on("Your report cannot be read", told({"verdicts": refuted}))
    task, report = await done(helm, wanted("review", root, "Look at the sums.", check=None), Answers())
    assert (task.status, report["verified"]) == ("completed", True), report
    assert [(one["priority"], one["startLine"]) for one in report["findings"]] == [(0, 2), (2, 1)]
    assert report["findings"][0]["secondLook"]["why"] == "a - b is no sum"
    assert [one["title"] for one in report["refuted"]] == ["Unused function"]
    assert [one["evidence"]["what"] for one in report["rejected"]] == ["other.py is not part of the diff."]
    assert not (root / "made.txt").exists()
    assert "**Findings**" in (task.result or "")


async def test_where_there_is_nothing_to_review_no_turn_is_spent_and_a_diff_can_be_given(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {"calc.py": FIXED})
    task, report = await done(helm, wanted("review", root, "Look.", check=None), Answers())
    assert (task.status, report["nothingToReview"], model.requests) == ("completed", True, [])
    (root / "calc.py").write_text(BROKEN, encoding="utf-8")
    diff = git(root, "diff")
    git(root, "checkout", "--quiet", "calc.py")
    other = {"title": "It subtracts", "body": "", "priority": 2, "file": "calc.py", "startLine": 2, "endLine": 2}
    model.on("Review this change", told({"findings": [other], "verdict": "wrong"}))
    task, report = await done(helm, wanted("review", root, "Look.", check=None, more={"diff": diff}), Answers())
    assert (task.status, len(report["findings"]), report["reviewers"][0]["verdict"]) == ("completed", 1, "wrong"), (
        report
    )


async def test_a_review_of_which_every_finding_is_rejected_is_not_verified_and_says_so(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {"calc.py": FIXED, "other.py": "A = 1\n"})
    (root / "calc.py").write_text(BROKEN, encoding="utf-8")
    model.on("Review the current code changes", say(answer(root, finding(root, "[P2] A is wrong", 1, 2, "other.py"))))
    task, report = await done(helm, wanted("review", root, "Look at the sums.", check=None), Answers())
    assert (task.status, report["verified"], report["findings"]) == ("failed", False, []), report
    assert "Every finding was rejected" in report["says"]
    assert "A is wrong (other.py is not part of the diff.)" in report["says"]
