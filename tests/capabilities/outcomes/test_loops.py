"""Tests of loops on a real Codex: each step goes back until its check holds, its judge is content, or its attempts end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from helmsman.capabilities.outcomes.request import Wanted
from helmsman.errors import InvalidInput
from helmsman.testing import add, patch, run, say
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
)
from tests.capabilities.outcomes.test_judging import HARD_CODED, JUDGE, judgement

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.service import HelmsmanService
    from helmsman.testing import ScriptedModel

BUGGY = {"calc.py": BROKEN, "test_calc.py": TESTS}
SPACE = "test -f notes.md"
MENDS = "import calc\n\ncalc.add = lambda a, b: a + b\n"


def looped(directory: Path, *steps: dict[str, Any], **given: Any) -> Wanted:
    more = {"steps": [{"prompt": f"Do {one['name']}.", **one} for one in steps]}
    return Wanted(kind="loop", request="Get it right", directory=str(directory), more=more, check=CHECK, **given)


def test_the_example_implements_tests_reviews_and_fixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "example").write_text("[[steps]]\nname = 'a repository came with it'\nprompt = 'b'", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    loop = Wanted.from_loop("example", str(tmp_path), "Add --json", apply="never")
    assert (loop.kind, loop.request, loop.apply) == ("loop", "Add --json", "never")
    assert [(one.name, one.judge, one.attempts) for one in loop.steps] == [
        ("implement", None, 4),
        ("test", None, 4),
        ("review and fix", "auto", 4),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "required field `steps`"),
        ("steps = []", "length >= 1"),
        ("[[steps]]\nname = 'a'", "`prompt`"),
        ("[[steps]]\nname = 'a'\nprompt = 'b'\ntries = 3", "`tries`"),
        ("[[steps]]\nname = 'a'\nprompt = 'b'", "request is empty"),
        ("goal = [", "does not describe a loop"),
        ("goal = 'a'\napply = 'verified'\n[[steps]]\nname = 'a'\nprompt = 'b'", "which a file cannot grant"),
    ],
)
def test_a_file_that_describes_no_loop_is_refused_with_the_reason(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "loop.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput, match=why):
        Wanted.from_loop(file, str(tmp_path))
    with pytest.raises(InvalidInput, match="cannot be read"):
        Wanted.from_loop(tmp_path / "none.toml", str(tmp_path))


@pytest.mark.long
@pytest.mark.anyio
@pytest.mark.needs_git
@pytest.mark.usefixtures("shared_engine")
async def test_steps_go_back_until_their_checks_hold_and_the_judge_is_content(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", BUGGY)
    model.on("Do step 1 of the plan now", edit("calc.py", "    return a - b", "    return a * b"), say("done"))
    model.on("Step 1:", patch(add("test_a.py", MENDS)), say("A test mends it."))
    more = [run("rm test_a.py"), edit("calc.py", "    return a * b", "    return 5")]
    model.on("with the files of the check as they were before", more, say("done"))
    model.on("Do step 2 of the plan now", patch(add("notes.md", "It adds.\n")), say("done"))
    model.on("Do step 3 of the plan now", say("I see nothing wrong."))
    objected = {"question": "hardCoded", "file": "calc.py", "quote": "return 5", "why": HARD_CODED["why"]}
    model.on(JUDGE, lambda request: told(judgement(*[objected] if "+    return 5" in request.last_user_text else [])))
    model.on("The judge objects", edit("calc.py", "    return 5", "    return a + b"), say("done"))
    steps = (
        {"name": "implement"},
        {"name": "document", "check": SPACE, "files": ["notes.md"]},
        {"name": "review", "judge": "auto"},
    )
    answers = Answers()
    task, report = await done(helm, looped(root, *steps, apply="verified"), answers)
    assert (task.status, report["applied"]) == ("completed", "applied"), report
    assert [(one["title"], one["status"], one["attempts"]) for one in report["steps"]] == [
        ("implement", "done", 3),
        ("document", "done", 1),
        ("review", "done", 2),
    ]
    assert (root / "calc.py").read_text(encoding="utf-8") == FIXED
    assert answers.commands == [CHECK, SPACE], "both asked for before the first step"
    assert "1. **implement** [done, 3 attempts]" in (task.result or "")


@pytest.mark.rare
@pytest.mark.anyio
@pytest.mark.needs_git
@pytest.mark.usefixtures("shared_engine")
async def test_a_step_that_does_not_hold_ends_the_loop_after_its_attempts(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", BUGGY)
    model.on("Do step 1 of the plan now", say("done"))
    model.on("Step 1:", say("It is done."))
    task, report = await done(helm, looped(root, {"name": "implement", "attempts": 2}, {"name": "test"}), Answers())
    assert (task.status, report["verified"], report["applied"]) == ("failed", False, "nothing"), report
    assert [(one["status"], one["attempts"]) for one in report["steps"]] == [("failed", 2), ("not_run", 0)]
    assert report["says"].startswith("0 of 2 steps are done. Step 1:")
    model.on("Do step 1 of the plan now", FIX, say("done"))
    task, report = await done(helm, looped(root, {"name": "implement"}, apply="never"), Answers())
    assert (task.status, report["says"]) == ("completed", "The loop is complete, and each step passed its check."), (
        report
    )
