"""`helmsman job debug`, `refactor` and `test` on a real Codex: on a terminal, for programs, and left alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from helmsman.testing import ScriptedModel, always, hang, say
from helmsman.testing.repository import git
from tests.capabilities.outcomes.conftest import write
from tests.capabilities.outcomes.played_jobs import BROKEN, CAUSE, CHECK, FIX, FIXED, TESTS, told
from tests.capabilities.test_reviews import answer
from tests.cli.conftest import Cli

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.needs_git,
    pytest.mark.skipif(sys.platform == "win32", reason="There are no pseudo-terminals."),
]

ALLOW = f'[[rules]]\neffect = "allow"\ncommand = {json.dumps(CHECK.split())}\n'
BUG = ("job", "debug", "test_add fails", "--check", CHECK)


@pytest.fixture
def buggy(detached_cli: Cli) -> Cli:
    cli = detached_cli
    write(cli.directory, {".gitignore": "__pycache__/\n", "calc.py": BROKEN, "test_calc.py": TESTS})
    git(cli.directory, "add", "--all")
    git(cli.directory, "commit", "--quiet", "--message=All")
    return cli


@pytest.mark.long
async def test_a_bug_is_followed_asked_about_and_applied_at_a_terminal(buggy: Cli, model: ScriptedModel) -> None:
    model.on("test_add fails", FIX, told(CAUSE))
    async with buggy.on_terminal(*BUG, columns=120) as program:
        await program.shows("debug by codex (it is the default agent")
        await program.shows("The repository's check")
        await program.shows("deny (you can say why)")
        program.press("y")
        await program.shows("Apply this verified change")
        await program.shows("+    return a + b")
        await program.shows("deny (you can say why)")
        program.press("y")
        await program.shows("debug: verified")
        await program.shows("✓ Verified")
        assert await program.exit_code() == 0
    assert (buggy.directory / "calc.py").read_text(encoding="utf-8") == FIXED
    (listed,) = (await buggy.run("list", "--json")).json
    assert {one["summary"] for one in listed["sessions"]} == {"debug: test_add fails"}, "not Helmsman's own prompt"
    going_on = await buggy.run("run", "--continue", "And now?")
    assert (going_on.exit_code, "There is no session in" in going_on.stderr) == (2, True), (
        "its candidate stays as verified"
    )


@pytest.mark.long
async def test_an_unverified_outcome_has_its_own_exit_code_and_full_json(buggy: Cli, model: ScriptedModel) -> None:
    model.otherwise(always(say("I fixed it.")))
    rules = Path(buggy.env["HOME"]) / ".config" / "helmsman" / "helmsman.toml"
    write(rules.parent, {rules.name: ALLOW})
    done = await buggy.run(*BUG, "--json", "--apply", "never")
    assert done.exit_code == 6, done
    begun, *_, result = done.json
    assert (begun["type"], begun["kind"], begun["agent"]) == ("begun", "debug", "codex")
    assert (result["status"], result["verified"], result["report"]["applied"]) == ("failed", False, "nothing")
    assert result["report"]["before"]["passed"] is False, "it was run, as a rule allows it"


@pytest.mark.rare
async def test_a_job_is_left_alone_listed_and_stopped(buggy: Cli, model: ScriptedModel) -> None:
    model.otherwise(always(hang()))
    started = await buggy.run("job", "test", "calc", "--check", CHECK, "--detach", "--json")
    (begun,) = started.json
    listed = await buggy.run("tasks", "--json")
    assert [(one["taskId"], one["job"]) for one in listed.json[0]["tasks"] if "job" in one] == [
        (begun["taskId"], "test")
    ]
    assert (await buggy.run("tasks", "cancel", begun["taskId"])).exit_code == 0


async def test_without_a_terminal_nothing_of_the_repository_runs_unasked(buggy: Cli) -> None:
    done = await buggy.run(*BUG)
    assert done.exit_code != 0
    assert "✗" in done.stderr


@pytest.mark.rare
async def test_a_review_is_verified_and_its_findings_make_the_exit_code(buggy: Cli, model: ScriptedModel) -> None:
    (buggy.directory / "calc.py").write_text(BROKEN.replace("2 * a", "3 * a"), encoding="utf-8")
    place = {"absolute_file_path": str(buggy.directory / "calc.py"), "line_range": {"start": 6, "end": 6}}
    found = {"title": "It triples", "body": "", "confidence_score": 0.9, "priority": 2, "code_location": place}
    model.on("Review the current code changes", say(answer(buggy.directory, found)))
    done = await buggy.run("job", "review", "--fail-on", "P2")
    assert (done.exit_code, "**P2 It triples** calc.py:6" in done.stdout) == (1, True), done
