"""Tests of debug, refactor and test on a real Codex: verified results, and false claims."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helmsman.errors import InvalidInput
from helmsman.service import HelmsmanService
from helmsman.testing import ScriptedModel, add, patch, run, say
from helmsman.testing.repository import git
from tests.capabilities.outcomes.conftest import write
from tests.capabilities.outcomes.played_jobs import (
    BROKEN,
    CAUSE,
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

BUGGY = {"calc.py": BROKEN, "test_calc.py": TESTS}


async def test_a_bug_is_reproduced_fixed_verified_asked_about_and_applied(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", BUGGY)
    model.on("test_add fails", FIX, told(CAUSE))
    answers = Answers()
    task, report = await done(helm, wanted("debug", root), answers)
    assert (task.status, report["verified"], report["applied"]) == ("completed", True, "applied"), report
    assert (root / "calc.py").read_text(encoding="utf-8") == FIXED
    assert answers.commands == [CHECK], "asked once, for the base and for the change"
    assert (report["before"]["passed"], report["after"]["passed"], report["reproduced"]) == (False, True, "test")
    assert report["rootCause"]["places"] == CAUSE["places"]
    assert [one["ok"] for one in report["evidence"]] == [True] * len(report["evidence"])
    apply = answers.asked[-1]
    assert "Apply this verified change" in apply.prompts[0].text
    assert "+    return a + b" in apply.details["diff"]
    assert "## debug: verified" in (task.result or "")


@pytest.mark.long
async def test_each_lie_goes_back_with_the_evidence_until_it_is_true(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {**BUGGY, "Makefile": f"test:\n\t{CHECK}\n"})
    elsewhere = {"rootCause": "It subtracts.", "places": [{"file": "calc.py", "startLine": 70, "endLine": 71}]}
    weaker = edit("test_calc.py", "        self.assertEqual(add(2, 3), 5)", "        self.assertEqual(add(2, 3), -1)")
    model.on("test_add fails", told(CAUSE))
    model.on("Nothing was changed.", weaker, edit("Makefile", f"\t{CHECK}", "\ttrue"), told(CAUSE))
    back = edit("test_calc.py", "        self.assertEqual(add(2, 3), -1)", "        self.assertEqual(add(2, 3), 5)")
    model.on(
        lambda request: "Still failing" in request.last_user_text and "Makefile was changed" in request.last_user_text,
        [back, edit("Makefile", "\ttrue", f"\t{CHECK}")],
        [FIX, edit("calc.py", "    return 2 * a", "    return 3 * a")],
        told(CAUSE),
    )
    model.on(
        "These did not fail before the change: test_calc.Calc.test_double",
        edit("calc.py", "    return 3 * a", "    return 2 * a"),
        told(elsewhere),
    )
    answers = Answers()
    task, report = await done(helm, wanted("debug", root, check=None), answers)
    assert (task.status, report["attempts"], report["applied"]) == ("completed", 4, "applied"), report
    wrong = "The agent cited a wrong place for the cause: calc.py has 6 lines, so not the lines 70 to 71."
    assert wrong in [one["what"] for one in report["evidence"]]
    assert report["rootCause"] == {"summary": "It subtracts.", "places": []}
    assert answers.commands == ["make test"], "found in the Makefile, and asked once"
    assert report["check"] == {"command": "make test", "why": "Makefile has a target test.", "folder": ""}
    assert (root / "calc.py").read_text(encoding="utf-8") == FIXED


@pytest.mark.long
async def test_a_fix_that_passes_is_verified_though_its_cause_is_not_reported(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", BUGGY)
    model.on("test_add fails", FIX, say("I fixed it."))
    task, report = await done(helm, wanted("debug", root, apply="verified"), Answers())
    assert (task.status, report["verified"], report["attempts"], report["applied"]) == ("completed", True, 1, "applied")
    assert report["rootCause"] is None
    assert any("The cause is not known" in one["what"] for one in report["evidence"])
    assert "the check's own files, as they were before, pass on exactly this change" in report["says"]


CHECKS = {"calc.py": BROKEN, "check.py": "from calc import add\nassert add(2, 3) == 5, 'the sum is wrong'\n"}
OWN_CHECK = f"{sys.executable} check.py"


@pytest.mark.long
async def test_a_change_to_the_check_is_not_verified_and_a_person_decides(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", CHECKS)
    line = "assert add(2, 3) == {}, 'the sum is wrong'"
    model.on("the sum is wrong", edit("check.py", line.format(5), line.format(-1)), told(CAUSE))
    model.on("a person decides", say("The check is wrong, not the code."))
    answers = Answers()
    job = wanted("debug", root, "AssertionError: the sum is wrong", check=OWN_CHECK, apply="verified")
    task, report = await done(helm, job, answers)
    assert (task.status, report["verified"], report["attempts"]) == ("failed", False, 2), report
    assert (task.error or {})["code"] == "not_verified"
    assert [one["file"] for one in report["checkChanges"]] == ["check.py"]
    (asked,) = [one for one in answers.asked if one.type == "user_input"]
    assert "It is NOT verified: the check passes only with changes to its own files." in asked.prompts[0].text
    assert "check.py was changed (the command names it)" in asked.prompts[0].text
    assert "+assert add(2, 3) == -1" in asked.details["diff"]
    assert report["applied"] == "applied", "the person said yes"
    assert "A person decided to apply it." in report["says"]
    assert "== -1" in (root / "check.py").read_text(encoding="utf-8")


@pytest.mark.long
async def test_a_verified_change_that_also_changes_the_check_is_never_applied_unasked(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {**BUGGY, "Makefile": f"test:\n\t{CHECK}\n"})
    model.on("test_add fails", FIX, edit("Makefile", "test:", "# quick\ntest:"), told(CAUSE))
    answers = Answers(apply="deny")
    task, report = await done(helm, wanted("debug", root, check="make test", apply="verified"), answers)
    assert (task.status, report["verified"], report["applied"]) == ("completed", True, "refused"), report
    assert "Changes to the check, which it passed without:" in answers.asked[-1].prompts[0].text
    assert "Makefile was changed" in answers.asked[-1].prompts[0].text
    assert (root / "calc.py").read_text(encoding="utf-8") == BROKEN


@pytest.mark.parametrize("command", ["no-such-program-here --all", "sh -c no-such-program-here"])
async def test_a_check_that_is_not_installed_costs_one_sentence_and_no_turn(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path, command: str
) -> None:
    root = repository(tmp_path / "repo", BUGGY)
    task, report = await done(helm, wanted("test", root, "test the sum", check=command), Answers())
    assert task.status == "failed"
    assert "no-such-program-here" in (task.error or {})["message"]
    assert "Install it, or name another check." in (task.error or {})["message"]
    assert not model.requests
    assert not report.get("tokens")


@pytest.mark.rare
async def test_a_failing_test_of_node_is_known_by_its_name(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    tests = (
        "const {add} = require('./calc.js');\nconst test = require('node:test');\nconst assert = require('node:assert');\n"
        "test('adds two numbers', () => assert.strictEqual(add(2, 3), 5));\n"
    )
    root = repository(tmp_path / "repo", {"calc.js": "exports.add = (a, b) => a - b;\n", "calc.test.js": tests})
    model.on(
        "adds two numbers",
        edit("calc.js", "exports.add = (a, b) => a - b;", "exports.add = (a, b) => a + b;"),
        say("."),
    )
    job = wanted(
        "debug", root, "adds two numbers", check="node --test", apply="never", more={"test": "adds two numbers"}
    )
    task, report = await done(helm, job, Answers())
    assert (task.status, report["reproduced"], report["tests"]) == ("completed", "test", ["adds two numbers"]), report


@pytest.mark.long
@pytest.mark.parametrize(
    ("request_", "files", "seen"),
    [
        ("test_add fails", {**BUGGY, "calc.py": FIXED}, "The check did not fail in 2 runs"),
        ("test_add fails", {**BUGGY, "test_calc.py": "import numpy_is_not_here\n"}, "a dependency is missing"),
        ("ZeroDivisionError in double", BUGGY, "but not as described"),
    ],
)
async def test_a_bug_that_is_not_reproduced_costs_no_turn(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path, request_: str, files: dict[str, str], seen: str
) -> None:
    root = repository(tmp_path / "repo", files)
    before = await helm.extras.changes.worktrees()
    task, report = await done(helm, wanted("debug", root, request_), Answers())
    assert (task.status, report["verified"], report["tokens"]) == ("failed", False, 0)
    assert seen in report["says"]
    assert not model.requests
    assert await helm.extras.changes.worktrees() == before


async def test_a_trap_runs_nothing_unasked_and_a_no_is_the_end(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    trap = tmp_path / "trap"
    root = repository(tmp_path / "repo", {**BUGGY, "Makefile": f"X := $(shell touch {trap})\ntest:\n\ttouch {trap}\n"})
    answers = Answers(run="deny: not this one")
    task, report = await done(helm, wanted("debug", root, check=None, candidates=2), answers)
    assert task.status == "failed"
    assert answers.commands == ["make test"], "a no holds for all of the job"
    assert "it was refused: not this one" in report["says"]
    assert not trap.exists()
    assert not model.requests


@pytest.mark.rare
async def test_a_refactoring_keeps_to_its_scope_and_its_interface_is_reported(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {"calc.py": FIXED, "other.py": "A = 1\n", "test_calc.py": TESTS})
    model.on("simpler", edit("other.py", "A = 1", "A = 2"), say("done"))
    model.on(
        "other.py is outside of the scope",
        edit("other.py", "A = 2", "A = 1"),
        edit("calc.py", "    return 2 * a", "    return add(a, a)"),
        say("double uses add"),
    )
    job = wanted("refactor", root, "make it simpler", more={"scope": ["calc.py"]}, apply="verified")
    task, report = await done(helm, job, Answers())
    assert (task.status, report["attempts"], report["applied"]) == ("completed", 2, "applied"), report
    assert (report["before"]["passed"], report["after"]["passed"]) == (True, True)
    assert (report["scope"], report["interfaces"]["same"]) == (["calc.py"], True)
    assert "return add(a, a)" in (root / "calc.py").read_text(encoding="utf-8")
    with pytest.raises(InvalidInput, match="nothing at sums/"):
        await helm.extras.outcomes.start(wanted("refactor", root, "make it simpler", more={"scope": ["sums/"]}))
    red = repository(tmp_path / "red", BUGGY)
    write(red, {"calc.py": FIXED})
    task, report = await done(helm, wanted("refactor", red, "make it simpler"), Answers())
    assert "No turn was started. Before the change:" in report["says"]
    assert "uncommitted changes were left out" in report["says"]
    assert "AssertionError: -1 != 5" in (task.result or "").splitlines()


@pytest.mark.rare
@pytest.mark.timeout(400)
async def test_new_tests_pass_each_time_and_can_fail(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", {"calc.py": BROKEN})
    write(root, {"calc.py": FIXED, "test_calc.py": TESTS})
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=Fixed")
    head = "import unittest\n\nfrom calc import add\n\n\nclass Add(unittest.TestCase):\n    def test_sum(self):\n"
    flaky = "        import random\n        self.assertGreater(random.random(), 0.5)\n" * 9
    under = {"underTest": [{"file": "calc.py", "startLine": 2, "endLine": 2}]}
    wrong = edit("calc.py", "    return 2 * a", "    return 3 * a")
    unseen = edit("test_calc.py", "    def test_double(self):", "    def test_double(self):\n        return")
    model.on("test the sum", [wrong, unseen], patch(add("test_sum.py", f"{head}        add(1, 2)\n")), told(under))
    model.on(
        "With the tests as they were before",
        run("git show HEAD:calc.py > calc.py; git show HEAD:test_calc.py > test_calc.py"),
        told(under),
    )
    model.on(
        "No new test was seen to fail",
        run(f"cat > test_sum.py <<'END'\n{head}{flaky}END"),
        told(under),
    )
    model.on(
        "test_sum.Add.test_sum",
        run(f"cat > test_sum.py <<'END'\n{head}        self.assertEqual(add(1, 2), 3)\nEND"),
        told(under),
    )
    with pytest.raises(InvalidInput, match="no base 'nowhere'"):
        await helm.extras.outcomes.start(wanted("test", root, "test the sum", more={"base": "nowhere"}))
    job = wanted("test", root, "test the sum", apply="never", more={"base": "HEAD~1"})
    task, report = await done(helm, job, Answers(), seconds=300)  # four attempts, each proof three times on both sides
    assert (task.status, report["attempts"], report["applied"]) == ("completed", 4, "not_asked"), report
    assert report["tests"] == ["test_sum.py"]
    broken = git(root, "rev-parse", "HEAD~1")[:12]
    assert f"Against the code of {broken} a new test fails, 3 times of 3: test_sum.Add.test_sum." in [
        one["what"] for one in report["evidence"]
    ]
    assert not (root / "test_sum.py").exists()


@pytest.mark.rare
async def test_below_the_root_the_check_is_that_of_the_directory_and_ending_before_its_tests_is_no_fix(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    trap = {"Makefile": f"test:\n\ttouch {tmp_path}/trapped\n"}
    own = {f"app/{name}": text for name, text in {**BUGGY, "Makefile": f"test:\n\t{CHECK}\n"}.items()}
    root = repository(tmp_path / "repo", trap | own)
    leaves = edit("calc.py", "def add(a, b):", "import os\nos._exit(0)\n\n\ndef add(a, b):")
    cause = {"rootCause": "It subtracts.", "places": [{"file": "app/calc.py", "startLine": 2, "endLine": 2}]}
    model.on("test_add fails", leaves, told(cause))
    back = edit("calc.py", "import os\nos._exit(0)\n\n\ndef add(a, b):", "def add(a, b):")
    model.on("the check ended without counting any", back, FIX, told(cause))
    answers = Answers()
    task, report = await done(helm, wanted("debug", root / "app", check=None), answers)
    assert (task.status, report["attempts"], report["applied"]) == ("completed", 2, "applied"), report
    assert (report["check"]["folder"], answers.asked[0].details["directory"]) == ("app", str(root / "app"))
    assert (root / "app" / "calc.py").read_text(encoding="utf-8") == FIXED
    assert not (tmp_path / "trapped").exists()


@pytest.mark.long
async def test_of_several_candidates_the_smallest_that_verifies_wins_and_the_rest_goes(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", BUGGY)
    longer = edit("calc.py", "    return a - b", "    total = a\n    total += b\n    return total")
    ways = iter([longer, FIX, longer])
    model.on("test_add fails", lambda _request: next(ways), told(CAUSE))
    answers = Answers()
    task, report = await done(helm, wanted("debug", root, candidates=3), answers)
    assert (task.status, report["applied"]) == ("completed", "applied"), report
    assert [one["verified"] for one in report["candidates"]] == [True, True, True]
    (winner,) = [one for one in report["candidates"] if one["winner"]]
    assert (winner["diff"]["added"], winner["sessionId"]) == (1, report["sessionId"])
    assert {*report["discarded"]} == {one["sessionId"] for one in report["candidates"] if not one["winner"]}
    assert answers.commands == [CHECK]
    assert "| 1" in answers.asked[-1].prompts[0].text
    assert (root / "calc.py").read_text(encoding="utf-8") == FIXED


@pytest.mark.rare
async def test_the_tests_of_each_candidate_run_on_the_other_and_the_one_that_passes_more_wins(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    root = repository(tmp_path / "repo", BUGGY)
    test = "import unittest\nfrom calc import add\n\n\nclass More(unittest.TestCase):\n    def test_{0}(self):\n"
    test += "        self.assertEqual(add({1}), {2})\n"
    cheap = [edit("calc.py", "    return a - b", "    return 5"), patch(add("test_a.py", test.format("a", "2, 3", 5)))]
    right = [
        edit("calc.py", "    return a - b", "    total = a\n    total += b\n    return total"),
        patch(add("test_b.py", test.format("b", "1, 1", 2))),
    ]
    ways = iter([cheap, right])
    model.on("test_add fails", lambda _request: next(ways), told(CAUSE))
    job = wanted("debug", root, agents=("codex",), candidates=2, apply="never")
    task, report = await done(helm, job, Answers())
    assert task.status == "completed", report
    winner = next(one["number"] for one in report["candidates"] if one["winner"])
    other = 3 - winner
    assert {(one["testsOf"], one["on"], one["passed"]) for one in report["matrix"]} == {
        (winner, other, False),
        (other, winner, True),
    }
    assert "total" in str((await helm.tasks.results(task)).diff), "though the other is smaller"
    assert "passes 1 of 1 sets of tests that others wrote" in report["compared"]
    assert f"| {winner} |" in (task.result or "")
