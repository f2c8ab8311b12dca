"""`helmsman review` on a real Codex."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helmsman.testing import ScriptedModel, fail, run, say
from tests.cli.conftest import Cli

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git]


def answer(repo: Path, *priorities: int) -> str:
    findings = [
        {
            "title": f"[P{priority}] The port is wrong",
            "body": "It must be 80.",
            "confidence_score": 0.9,
            "priority": priority,
            "code_location": {"absolute_file_path": str(repo / "README.md"), "line_range": {"start": 1, "end": 2}},
        }
        for priority in priorities
    ]
    whole: dict[str, Any] = {"findings": findings, "overall_explanation": "I have looked at it."}
    return json.dumps(whole | {"overall_correctness": "patch is incorrect", "overall_confidence_score": 0.5})


@pytest.fixture
def changed(git_repo: Path) -> Path:
    (git_repo / "README.md").write_text("# Changed\nTwice\n", encoding="utf-8")
    return git_repo


async def test_findings_are_shown_with_their_places(cli: Cli, model: ScriptedModel, changed: Path) -> None:
    model.otherwise(run("git diff"), say(answer(changed, 1)))
    done = await cli.run("review")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == [
        "P1  README.md:1-2  The port is wrong  (90% sure)",
        "    It must be 80.",
        "",
        "I have looked at it.",
        "Verdict: patch is incorrect  (50% sure)",
    ]
    assert "Review the uncommitted changes." in done.stderr


async def test_json_has_all_of_it(cli: Cli, model: ScriptedModel, changed: Path) -> None:
    model.otherwise(say(answer(changed, 1)))
    done = await cli.run("review", "--json")
    (shown,) = done.json
    assert (shown["status"], shown["verdict"]) == ("done", "patch is incorrect")
    assert shown["findings"] == [
        {
            "title": "The port is wrong",
            "body": "It must be 80.",
            "priority": 1,
            "confidence": 0.9,
            "file": str(changed / "README.md"),
            "startLine": 1,
            "endLine": 2,
        }
    ]


@pytest.mark.parametrize(("limit", "exit_code"), [("P1", 0), ("P2", 1), ("P3", 1)])
async def test_findings_fail_a_script_only_when_asked_to(
    cli: Cli, model: ScriptedModel, changed: Path, limit: str, exit_code: int
) -> None:
    model.otherwise(say(answer(changed, 2)))
    assert (await cli.run("review", "--fail-on", limit)).exit_code == exit_code


async def test_no_changes_are_said_and_no_error(cli: Cli, model: ScriptedModel) -> None:
    done = await cli.run("review", "--fail-on", "P3")
    assert (done.exit_code, "no uncommitted changes" in done.stdout) == (0, True)
    assert model.requests == []


async def test_a_commit_is_reviewed(cli: Cli, model: ScriptedModel, git_repo: Path) -> None:
    model.on("introduced by commit", say(answer(git_repo)))
    done = await cli.run("review", "--commit", "HEAD")
    assert done.stdout == "I have looked at it.\nNo findings.\n"


async def test_instructions_alone_are_the_whole_task(cli: Cli, model: ScriptedModel, git_repo: Path) -> None:
    model.on("Look at the tests", say(answer(git_repo)))
    assert (await cli.run("review", "--instructions", "Look at the tests")).exit_code == 0
    assert model.requests[0].last_user_text == "Look at the tests"


async def test_a_review_that_fails_is_an_error(cli: Cli, model: ScriptedModel, changed: Path) -> None:
    model.otherwise(fail(400, message="no such model"))
    done = await cli.run("review")
    assert done.exit_code == 1
    assert "Error" in done.stderr


async def test_two_targets_are_a_mistake(bare_cli: Cli) -> None:
    done = await bare_cli.run("review", "--base", "main", "--commit", "HEAD")
    assert done.exit_code == 2
    assert "one thing" in done.stderr
