"""Reviews and plans on every supported Codex."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.agents.protocol import Finding
from helmsman.model.options import ReviewTarget
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, add, hang, patch, run, say
from helmsman.testing.repository import git
from tests.shared_engine import on_its_own_engine, on_shared_engine

pytestmark = [pytest.mark.matrix, pytest.mark.anyio, pytest.mark.needs_git, on_shared_engine]

SECONDS = 60
PLAN = "I have looked.\n<proposed_plan>\n# Plan\n1. Make a file.\n</proposed_plan>\n"


async def ended(session: Session | None) -> Session:
    assert session is not None
    assert await session.wait(until="end", timeout=SECONDS)
    return session


@pytest.mark.parametrize("choice", ["uncommitted", "base", "commit", "custom"])
async def test_review(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, verdict: object, choice: Any
) -> None:
    (git_repo / "README.md").write_text("# Changed\n", encoding="utf-8")
    file = str(git_repo / "README.md")
    found = {
        "title": "[P1] The port is wrong",
        "body": "It must be 80.",
        "confidence_score": 0.9,
        "priority": 1,
        "code_location": {"absolute_file_path": file, "line_range": {"start": 1, "end": 1}},
    }
    answer: dict[str, Any] = {"findings": [found], "overall_correctness": "patch is incorrect"}
    answer |= {"overall_explanation": "Because.", "overall_confidence_score": 0.5}
    model.otherwise(run("git diff; echo no > made.txt"), say(json.dumps(answer)))
    value = {"base": "main", "commit": git(git_repo, "rev-parse", "HEAD").strip(), "custom": "Look."}.get(choice, "")
    begun = await helm.extras.reviews.start(ReviewTarget(kind=choice, value=value), cwd=git_repo)
    session = await ended(begun.session)
    report = await helm.extras.reviews.report(session.id)
    assert report is not None
    assert report.findings == (
        Finding(
            title="The port is wrong",
            body="It must be 80.",
            priority=1,
            confidence=0.9,
            file=file,
            start_line=1,
            end_line=1,
        ),
    )
    assert (report.explanation, report.verdict, report.confidence) == ("Because.", "patch is incorrect", 0.5)
    assert not (git_repo / "made.txt").exists()


async def test_review_that_is_interrupted(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, verdict: object
) -> None:
    (git_repo / "README.md").write_text("# Changed\n", encoding="utf-8")
    model.otherwise(run("true"), hang())
    begun = await helm.extras.reviews.start(cwd=git_repo)
    assert begun.session is not None
    with anyio.fail_after(SECONDS):
        await model.wait_for_request(2)
        await begun.session.interrupt()
    assert begun.session.status == "interrupted"
    assert await helm.extras.reviews.report(begun.session.id) is None


async def test_review_in_the_session_that_is_to_fix_it(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, verdict: object
) -> None:
    answer = {"findings": [], "overall_correctness": "patch is correct", "overall_explanation": "Nothing wrong here."}
    model.on("work", run("echo new > new.txt"), say("Done"))
    model.on("Review the current code changes", say(json.dumps(answer | {"overall_confidence_score": 0.5})))
    model.on("what did it say", say("That."))
    session = await ended(await helm.start("work", cwd=git_repo, sandbox="workspace-write", approval_policy="never"))
    await ended((await helm.extras.reviews.start(session_id=session.id)).session)
    assert session.status == "done"
    await session.say("what did it say")
    assert (await ended(session)).result == "That."
    assert "Nothing wrong here." in json.dumps(model.requests[-1].body)


async def test_plan_first(helm: HelmsmanService, model: ScriptedModel, git_repo: Path, verdict: object) -> None:
    write = run("echo made > made.txt")
    model.on("Make a file", write, patch(add("patched.txt", "hi\n")), say(PLAN))
    model.on("call it so", write, say(PLAN.replace("a file", "it so")))
    model.on("The plan is approved", write, say("Done"))

    def tree() -> set[str]:
        return {path.name for path in git_repo.iterdir()}

    before = tree()
    session = await helm.extras.plans.start(
        "Make a file", cwd=git_repo, sandbox="workspace-write", approval_policy="on-request"
    )
    for expected, answer in (("Make a file.", "revise: call it so"), ("Make it so.", "approve")):
        with anyio.fail_after(SECONDS):
            while not any(expected in str(one.details.get("plan")) for one in session.questions):
                assert session.state.is_running, session.error
                await session.feed.changed()
        assert tree() == before
        await session.respond(session.questions[0].id, answer)
    assert (await ended(session)).result == "Done"
    assert tree() - before == {"made.txt"}
    assert "<proposed_plan>" in model.requests[0].instructions


@on_its_own_engine
async def test_plan_first_and_then_with_the_users_sandbox(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, verdict: object
) -> None:
    """What the person configured holds again after the plan, which could only read."""
    codex_home.configure(sandbox_mode="workspace-write", approval_policy="on-request")
    write = run("echo made > made.txt")
    model.on("Make a file", write, say(PLAN))
    model.on("The plan is approved", write, say("Done"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.extras.plans.start("Make a file", cwd=git_repo)
        assert await session.wait(until="attention", timeout=SECONDS)
        assert not (git_repo / "made.txt").exists()
        await session.respond(session.questions[0].id, "approve")
        assert (await ended(session)).result == "Done"
    assert (git_repo / "made.txt").exists()
