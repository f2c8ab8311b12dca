"""An outcome in a real browser: asked for, answered, and shown with its evidence."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from helmsman.capabilities.outcomes.differential import Comparison
from helmsman.service import HelmsmanService
from helmsman.tasks.model import TaskDraft
from helmsman.tasks.outcome import TaskOutcome
from helmsman.testing import Gate, ScriptedModel, say
from tests.browser.chromium import Page
from tests.browser.test_schedules import fill
from tests.capabilities.outcomes.played_jobs import (
    BROKEN,
    CAUSE,
    CHECK,
    FIX,
    FIXED,
    TESTS,
    Answers,
    done,
    repository,
    told,
    wanted,
)
from tests.capabilities.outcomes.test_loops import looped
from tests.capabilities.outcomes.test_planning import FIRST, SECOND, planned
from tests.capabilities.outcomes.test_reviewing import finding
from tests.capabilities.test_reviews import answer

pytestmark = [pytest.mark.anyio, pytest.mark.browser, pytest.mark.rare, pytest.mark.needs_git]


async def test_an_outcome_is_asked_for_answered_and_shown_with_before_after_and_the_change(
    page: Page, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {"calc.py": BROKEN, "test_calc.py": TESTS})
    model.on("test_add fails", FIX, told(CAUSE))
    await page.click(".places a[href='#/tasks']")
    await page.click("[data-outcome]")
    await fill(page, "request", "test_add fails")
    await page.until("document.querySelector('dialog [name=workingDirectory]').value")  # one is suggested
    await fill(page, "workingDirectory", str(root))
    await fill(page, "check", CHECK)
    await page.click("dialog button[type=submit]")
    await page.until_text("main h1", "debug: test_add fails")
    job = await page.get("location.hash")
    for question in ("to run a command", "Apply this verified change"):
        await page.click(".brand")
        await page.until_text(".question", question)
        await page.click(".question [data-answer='approve']")
    await page.get(f"location.hash = '{job}'")
    await page.until_text(".verdict.good", "Verified")
    await page.until_text("[data-side='before']", "fails")
    await page.until_text("[data-side='after']", "passes")
    await page.until_text(".job .diff", "+    return a + b")
    await page.until_text(".job .evidence", "✓")
    assert (root / "calc.py").read_text(encoding="utf-8") == FIXED
    await page.click(".job a[href$='/changes']")  # the change of a candidate is reviewed as any other is
    await page.until_text(".changes .lines", "+    return a + b")


async def test_a_loop_shows_its_steps_while_it_runs_and_afterwards(
    page: Page, helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {"calc.py": BROKEN, "test_calc.py": TESTS})
    gate = Gate()
    model.on("Do step 1 of the plan now", FIX, say("done"))
    model.on("Do step 2 of the plan now", say(gate, "done"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(done, helm, looped(root, {"name": "implement"}, {"name": "review"}, apply="never"), Answers())
        await gate.reached()
        await page.click(".places a[href='#/tasks']")
        await page.until_text(".tasks", "codex is at step 2 of 2: review")
        await page.click(".tasks a[href^='#/j/']")
        await page.until_text("[data-step='done']", "implement")
        await page.until_text("[data-step='running']", "review")
        await page.until_text("[data-step='running'] code", CHECK)
        gate.release()
    await page.until_text(".verdict.good", "each step passed its check")
    await page.until("document.querySelectorAll('[data-step=done]').length === 2")


async def test_a_refactoring_shows_a_line_for_each_function_that_it_reaches(
    page: Page, helm: HelmsmanService, tmp_path: Path
) -> None:
    one = {
        "function": "shop.words",
        "call": "shop.words(text='<b>.')",
        "before": "returns ['.']",
        "after": "returns ['']",
    }
    compared = Comparison(
        functions={"shop.words": 101, "shop.clamp": 97}, counterexamples=[one], not_compared={"shop.f": "it is slow"}
    )
    draft = TaskDraft(
        instruction="refactor: simpler", agent="codex", status="working", directory=str(tmp_path), job="refactor"
    )
    task, _ = await helm.task_writer.enter_job(draft)
    doubts: dict[str, object] = {
        "notes": ["shop.py:3 may treat tests in a special way"],
        "checkChanges": [{"file": "a", "what": "a was changed"}],
    }
    doubts["interfaces"] = {"added": {}, "removed": {}, "changed": {"shop.f": {}}, "unknown": []}
    report = {"verified": False, "says": "Not verified", "candidates": [], "comparison": compared.to_json(), **doubts}
    await helm.task_writer.end_job(task.id, {"status": "failed"}, TaskOutcome(report=report))
    await page.get(f"location.hash = '#/j/{task.id}'")
    await page.until_text(
        "[data-comparison] .bad", "shop.words(text='<b>.') returns ['.'] before the change, and returns ['']"
    )
    await page.until_text("[data-comparison] .good", "shop.clamp: the same for 97 calls.")
    await page.until_text("[data-comparison] .quiet", "shop.f: not compared, as it is slow.")
    await page.until_text(".job", "For you to look at: the check cannot tell")
    await page.until_text(".job", "a was changed")
    await page.until_text("[data-interfaces]", "changed: shop.f")


async def test_findings_steps_and_candidates_are_shown(
    page: Page, helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {"calc.py": FIXED, "test_calc.py": TESTS})
    (root / "calc.py").write_text(BROKEN, encoding="utf-8")
    found = [finding(root, "[P2] It subtracts", 2, 2), finding(root, "[P1] <b>Invented</b>", 1, 1, "other.py")]
    model.on("Review the current code changes", say(answer(root, *found)))
    task, _ = await done(helm, wanted("review", root, "Look.", check=None), Answers())
    await page.get(f"location.hash = '#/j/{task.id}'")
    await page.until_text(".verdict.good", "1 finding(s), 0 refuted, 1 rejected.")
    await page.until_text("[data-findings='findings']", "P2 It subtracts calc.py:2")
    await page.until_text("[data-findings='rejected']", "P1 <b>Invented</b> other.py:1")
    await page.until_text("[data-findings='rejected']", "other.py is not part of the diff.")

    ways = iter([planned(FIRST, SECOND), planned(FIRST)])
    model.on("sums right", lambda _request: told(next(ways)))
    task, _ = await done(helm, wanted("plan", root, "get the sums right", apply="never", candidates=2), Answers())
    await page.get(f"location.hash = '#/j/{task.id}'")
    await page.until_text(".job ol", "Fix the sum (planned)")
    await page.until_text(".job", "Why?")
    await page.until_text(".job table", "(winner)")
    await page.until_text(".job", "It has the fewest.")
