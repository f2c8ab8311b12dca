"""Tests of plan on a real Codex: nothing changes before approval; then each step is done and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, add, patch, run, say
from tests.capabilities.outcomes.played_jobs import (
    BROKEN,
    CHECK,
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

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git, pytest.mark.usefixtures("shared_engine")]

LOOK = "test -f notes.md"


def planned(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"summary": "Add, then write.", "steps": steps, "risks": ["none"], "checks": [], "openQuestions": ["Why?"]}


FIRST = {"title": "Fix the sum", "details": "", "files": [{"file": "calc.py"}], "check": None}
SECOND = {"title": "Write it down", "details": "", "files": [{"file": "notes.md", "new": True}], "check": LOOK}


@pytest.mark.long
async def test_a_plan_holds_is_approved_and_carried_out_step_by_step(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {"calc.py": BROKEN, "test_calc.py": TESTS})
    nowhere = {**FIRST, "files": [{"file": "sums.py"}]}
    model.on("sums right", run("touch made.txt"), told(planned(nowhere)))
    model.on("There is no file sums.py", told(planned(FIRST)))
    model.on("write it down, too", told(planned(FIRST, SECOND)))
    weaker = edit("test_calc.py", "        self.assertEqual(add(2, 3), 5)", "        self.assertEqual(add(2, 3), -1)")
    model.on("Do step 1 of the plan now", weaker, say("done"))
    back = edit("test_calc.py", "        self.assertEqual(add(2, 3), -1)", "        self.assertEqual(add(2, 3), 5)")
    model.on("The check was edited, and the plan does not say so: test_calc.py was changed", back, FIX, say("done"))
    model.on("Do step 2 of the plan now", say("done"))
    breaks = edit("calc.py", "    return 2 * a", "    return 3 * a")
    model.on("Step 2:", patch(add("notes.md", "It adds.\n")), breaks, say("now it is"))
    model.on(f"Step 2: `{CHECK}` failed", edit("calc.py", "    return 3 * a", "    return 2 * a"), say("and that"))
    plans = iter(["revise: write it down, too", "approve", "approve"])

    class Approves(Answers):
        async def __call__(self, session: object, question: Any) -> str | None:
            answer = await super().__call__(session, question)
            if question.type == "user_input":
                assert not (root / "notes.md").exists()
                return next(plans)
            return answer

    answers = Approves()
    task, report = await done(helm, wanted("plan", root, "get the sums right"), answers)
    assert (task.status, report["approved"], report["applied"]) == ("completed", True, "applied"), report
    assert [(one["status"], one["check"], one["attempts"]) for one in report["steps"]] == [
        ("done", CHECK, 2),
        ("done", LOOK, 3),
    ], "after the last step the check that was given has to pass, too"
    assert answers.commands == [CHECK, LOOK], "both asked for before the first step"
    assert (report["attempts"], report["openQuestions"]) == (3, ["Why?"])
    assert (root / "calc.py").read_text(encoding="utf-8") == FIXED
    assert (root / "notes.md").exists()
    assert not (root / "made.txt").exists()
    steps = {(await helm.tasks.get(one["taskId"])).of_job for one in report["steps"]}
    assert steps == {task.id}


async def test_a_plan_alone_changes_nothing_and_one_that_does_not_hold_has_failed(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {"calc.py": BROKEN})
    ways = iter([planned(FIRST, SECOND), planned(FIRST)])
    model.on("sums right", lambda _request: told(next(ways)))
    job = wanted("plan", root, "get the sums right", apply="never", candidates=2)
    task, report = await done(helm, job, Answers())
    assert sorted((len(one["evidence"]), one["winner"]) for one in report["candidates"]) == [(3, True), (4, False)]
    assert report["compared"].endswith("has 1 step(s). It has the fewest.")
    assert (task.status, report["approved"], report["steps"][0]["status"]) == ("completed", None, "planned"), report
    assert "1. **Fix the sum**" in (task.result or "")
    model.on("sums right", say("I would just do it."))
    model.on("The plan cannot be read", say("Trust me."))
    task, report = await done(helm, wanted("plan", root, "get the sums right"), Answers())
    assert (task.status, report["attempts"], report["steps"]) == ("failed", 4, []), report
