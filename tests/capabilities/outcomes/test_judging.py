"""Tests of judges: what of their answers counts, and what becomes of a change that one objects to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helmsman import load_settings
from helmsman.capabilities.outcomes.judging import read_judgement
from helmsman.capabilities.outcomes.reports import QUESTIONS
from helmsman.service import HelmsmanService
from helmsman.testing import CodexHome, ScriptedModel, run, say, usage
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
    fenced,
    repository,
    told,
    wanted,
)
from tests.claude import claude_binary, claude_environment

BUGGY = {"calc.py": BROKEN, "test_calc.py": TESTS}
DIFF = """\
diff --git a/calc.py b/calc.py
--- a/calc.py
+++ b/calc.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return 5
"""
HARD_CODED = {"question": "hardCoded", "file": "calc.py", "quote": "return 5", "why": "It is 5 for all numbers."}
CHEAT = edit("calc.py", "    return a - b", "    return 5")
MENDED = edit("calc.py", "    return 5", "    return a + b")
JUDGE = "You are the judge"


def judgement(*findings: dict[str, str], says: Sequence[str] | None = None) -> dict[str, Any]:
    objects = {one["question"] for one in findings} if says is None else {*says}
    return {"answers": {name: name in objects for name in QUESTIONS}, "findings": list(findings)}


@pytest.mark.parametrize(
    ("answer", "state", "rejected"),
    [
        (judgement(), "clean", 0),
        (judgement(HARD_CODED), "objects", 0),
        (judgement(HARD_CODED | {"quote": "+    return 5"}), "objects", 0),
        (judgement(HARD_CODED | {"quote": "return 6"}), "failed", 1),
        (judgement(HARD_CODED | {"quote": "return"}), "failed", 1),
        (judgement(HARD_CODED | {"file": "other.py"}), "failed", 1),
        (judgement(HARD_CODED, HARD_CODED | {"quote": "return 6"}), "objects", 1),
        (judgement(says=["notMet"]), "failed", 0),
        ({"answers": {"hardCoded": False}}, "failed", 0),
        ({"verdict": "clean"}, "failed", 0),
    ],
)
def test_only_objections_that_quote_a_whole_line_of_the_diff_count(answer: object, state: str, rejected: int) -> None:
    read = read_judgement(fenced(answer), DIFF)
    assert (read["state"], len(read["rejected"])) == (state, rejected)
    assert read["verified"] is (state != "failed")


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.needs_git
@pytest.mark.usefixtures("shared_engine")
async def test_an_objection_goes_back_to_the_author_once_and_the_mended_change_is_applied(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", BUGGY)
    model.on("test_add fails", CHEAT, told(CAUSE))
    model.on(JUDGE, lambda request: told(judgement(*[HARD_CODED] if "+    return 5" in request.last_user_text else [])))
    model.on("The judge objects", MENDED, told(CAUSE))
    answers = Answers()
    task, report = await done(helm, wanted("debug", root, apply="verified", judge="auto"), answers)
    assert (task.status, report["applied"], report["judgement"]["state"]) == ("completed", "applied", "clean"), report
    assert report["judgement"]["sentBack"] is True
    assert (root / "calc.py").read_text(encoding="utf-8") == FIXED
    assert [one.type for one in answers.asked] == ["command_approval"], "nothing else needed a person"
    assert (
        "objects to nothing. The author corrected the change once, because of an objection: It is 5" in report["says"]
    )
    judged = next(request for request in model.requests if JUDGE in request.last_user_text)
    assert "It subtracts." not in judged.last_user_text, "the judge does not see what the author says"


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.needs_git
@pytest.mark.usefixtures("shared_engine")
async def test_a_change_that_the_judge_still_objects_to_is_not_verified_and_a_person_decides(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", BUGGY)
    model.on("test_add fails", CHEAT, told(CAUSE))
    model.on(JUDGE, told(judgement(HARD_CODED)))
    model.on("The judge objects", say("I insist."))
    answers = Answers(apply="deny")
    task, report = await done(helm, wanted("debug", root, apply="verified", judge="auto"), answers)
    assert (task.status, report["verified"], report["applied"]) == ("failed", False, "refused"), report
    asked = answers.asked[-1].prompts[0].text
    assert "It is NOT verified: the judge objects to it." in asked
    assert "It is 5 for all numbers." in asked
    assert report["says"].startswith("Not verified: the check passes, but codex")
    assert sum(JUDGE in request.last_user_text for request in model.requests) == 1, "the same diff is judged once"


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.needs_git
@pytest.mark.usefixtures("shared_engine")
async def test_without_a_usable_judgement_nothing_is_applied_unasked(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", BUGGY)
    model.on("test_add fails", FIX, told(CAUSE))
    model.on(JUDGE, say("Looks good to me."))
    model.on("Your judgement cannot be used", say("Really."))
    answers = Answers(apply="deny")
    task, report = await done(helm, wanted("debug", root, apply="verified", judge="auto"), answers)
    assert (task.status, report["applied"], report["judgement"]["state"]) == ("completed", "refused", "failed"), report
    assert "gave no judgement that can be used" in answers.asked[-1].prompts[0].text


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.needs_git
@pytest.mark.usefixtures("shared_engine")
async def test_a_judge_that_costs_more_than_is_left_of_the_budget_is_left_out_and_a_person_decides(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", BUGGY)
    model.on("test_add fails", [FIX, usage(100_000)], [told(CAUSE), usage(100_000)])  # 1 USD
    answers = Answers(apply="deny")
    task, report = await done(helm, wanted("debug", root, apply="verified", judge="auto", budget_usd=1.5), answers)
    assert (task.status, report["applied"], report["judgement"]["state"]) == ("completed", "refused", "off"), report
    left_out = "Not judged: it may cost 1.0000 USD, and 0.5000 USD of the budget are left."
    assert left_out in report["says"]
    assert left_out in (task.result or "")
    assert left_out in answers.asked[-1].prompts[0].text
    assert not any(JUDGE in request.last_user_text for request in model.requests)


@pytest.mark.rare
@pytest.mark.anyio
@pytest.mark.needs_git
@pytest.mark.usefixtures("shared_engine")
async def test_a_single_agent_judges_itself_only_if_no_person_decides_and_the_report_says_so(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", BUGGY)
    model.on("test_add fails", FIX, told(CAUSE))
    task, report = await done(helm, wanted("debug", root, apply="never", judge="auto"), Answers())
    assert (task.status, report["judgement"]["state"]) == ("completed", "off"), report
    assert "Not judged: no other agent than codex is available" in (task.result or "")


@pytest.mark.anyio
@pytest.mark.needs_git
@pytest.mark.rare
async def test_codex_and_claude_judge_each_other(
    codex_home: CodexHome, codex_binary: Path, model: ScriptedModel, tmp_path: Path
) -> None:
    env = codex_home.env | claude_environment(model, tmp_path / "claude")
    given = {"codex_path": str(codex_binary), "claude_path": str(claude_binary()), "detach": False}

    def is_claude(words: str) -> Any:
        def matches(request: ModelRequest) -> bool:
            return isinstance(request, MessagesRequest) and words in request.last_user_text

        return matches

    model.on("test_add fails", CHEAT, told(CAUSE))
    model.on("The judge objects", MENDED, told(CAUSE))
    model.on(is_claude("test_add fails"), run("sed -i 's/a - b/5/' calc.py"), told(CAUSE))
    model.on(is_claude("The judge objects"), run("sed -i 's/return 5/return a + b/' calc.py"), told(CAUSE))
    model.on(JUDGE, lambda request: told(judgement(*[HARD_CODED] if "+    return 5" in request.last_user_text else [])))
    async with HelmsmanService(load_settings(given, env, tmp_path), env=env) as helm:
        for author, judge in (("codex", "claude"), ("claude", "codex")):
            root = repository(tmp_path / f"by-{author}", BUGGY)
            task, report = await done(
                helm, wanted("debug", root, agents=(author,), apply="verified", judge="auto"), Answers()
            )
            judged = report["judgement"]
            assert (task.status, report["applied"], report["applyError"]) == ("completed", "applied", None), report[
                "says"
            ]
            assert (report["agent"], judged["agent"], judged["state"]) == (author, judge, "clean"), report
            assert judged["why"] == f"another agent than {author}"
            assert (root / "calc.py").read_text(encoding="utf-8") == FIXED
