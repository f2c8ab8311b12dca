"""Reviews by a real Codex, whose reviewer is the scripted model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.agents.protocol import Finding
from helmsman.capabilities.reviews import BegunReview, VerifiedReview
from helmsman.errors import InvalidInput, SessionBusy, Unsupported
from helmsman.model.options import ReviewTarget
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings, load_settings
from helmsman.testing import CodexHome, ScriptedModel, hang, run, say
from helmsman.testing.repository import git
from tests.shared_engine import on_its_own_engine, on_shared_engine

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git, on_shared_engine]

SECONDS = 60


def answer(repo: Path, *findings: dict[str, Any], explanation: str = "It breaks the port.") -> str:
    """Answer of a reviewer."""
    return json.dumps(
        {
            "findings": list(findings),
            "overall_correctness": "patch is incorrect" if findings else "patch is correct",
            "overall_explanation": explanation,
            "overall_confidence_score": 0.75,
        }
    )


def finding(
    repo: Path, title: str = "[P1] The port is wrong", priority: int | None = 1, file: str = "README.md", last: int = 2
) -> dict[str, Any]:
    place = {"absolute_file_path": str(repo / file), "line_range": {"start": 1, "end": last}}
    return {"title": title, "body": "It must be 80.", "confidence_score": 0.9, "priority": priority} | {
        "code_location": place
    }


async def ended(begun: BegunReview) -> Session:
    assert begun.session is not None
    assert await begun.session.wait(until="end", timeout=SECONDS)
    return begun.session


async def reported(helm: HelmsmanService, begun: BegunReview) -> VerifiedReview:
    session = await ended(begun)
    assert session.status == "done", session.error
    report = await helm.extras.reviews.report(session.id)
    assert report is not None
    return report


@pytest.fixture
def changed(git_repo: Path) -> Path:
    (git_repo / "README.md").write_text("# Changed\nTwice\n", encoding="utf-8")
    return git_repo


async def test_findings_come_as_data_and_as_text(helm: HelmsmanService, model: ScriptedModel, changed: Path) -> None:
    second = finding(changed, "No test", None) | {"confidence_score": 0.4}
    elsewhere = finding(changed, "Old trouble", file="other.py")
    told = answer(changed, finding(changed), second, elsewhere)
    model.on("Review the current code changes", run("git diff"), say(told))
    report = await reported(helm, await helm.extras.reviews.start(cwd=changed))
    file = str(changed / "README.md")
    place: dict[str, Any] = {"file": file, "start_line": 1, "end_line": 2}
    assert report.findings == (
        Finding(title="The port is wrong", body="It must be 80.", priority=1, confidence=0.9, **place),
        Finding(title="No test", body="It must be 80.", priority=None, confidence=0.4, **place),
    )
    assert (report.verdict, report.explanation, report.confidence) == (
        "patch is incorrect",
        "It breaks the port.",
        0.75,
    )
    assert "The port is wrong" in report.text
    assert "It must be 80." in report.text
    assert [(one.title, one.why) for one in report.rejected] == [
        ("Old trouble", f"{changed / 'other.py'} is not part of the diff.")
    ]
    assert report.verified is True
    assert [one.what for one in report.evidence] == [
        "2 of 3 findings cite lines of the diff.",
        "Nothing in the working tree was changed.",
    ]


async def test_changes_during_a_review_are_reported_once(
    helm: HelmsmanService, model: ScriptedModel, changed: Path
) -> None:
    gate = model.gate()
    model.otherwise(run("true"), [gate, say(answer(changed))])
    begun = await helm.extras.reviews.start(cwd=changed)
    (changed / "made.txt").write_text("by somebody else\n", encoding="utf-8")
    gate.release()
    report = await reported(helm, begun)
    assert (report.verified, [one.ok for one in report.evidence]) == (False, [True, False])
    (changed / "made.txt").unlink()
    assert await reported(helm, begun) == report


async def test_a_review_is_a_task_whose_result_is_the_text(
    helm: HelmsmanService, model: ScriptedModel, changed: Path
) -> None:
    model.otherwise(say(answer(changed, finding(changed))))
    told: list[str] = []
    session = await ended(await helm.extras.reviews.start(cwd=changed, on_task=told.append))
    task = await helm.tasks.get(told[0])
    assert (task.status, task.session_id, task.instruction) == (
        "completed",
        session.id,
        "Review the uncommitted changes.",
    )
    assert task.result is not None
    assert "The port is wrong" in task.result


async def test_a_review_in_its_own_session_can_change_nothing(
    helm: HelmsmanService, model: ScriptedModel, changed: Path
) -> None:
    model.otherwise(run("echo no > made.txt"), say(answer(changed)))
    report = await reported(helm, await helm.extras.reviews.start(cwd=changed))
    assert report.findings == ()
    assert not (changed / "made.txt").exists()


async def test_a_reviewer_that_answers_in_prose_gives_its_text(
    helm: HelmsmanService, model: ScriptedModel, changed: Path
) -> None:
    model.otherwise(say("It looks fine to me."))
    report = await reported(helm, await helm.extras.reviews.start(cwd=changed))
    assert (report.findings, report.text) == ((), "It looks fine to me.")


@on_its_own_engine
@pytest.mark.parametrize(
    ("target", "words"),
    [
        (ReviewTarget(), "no uncommitted changes"),
        (ReviewTarget(kind="base", value="main"), "nothing differs from main"),
        (ReviewTarget(kind="commit", value="empty"), "changes nothing"),
    ],
    ids=["uncommitted", "base", "commit"],
)
async def test_where_nothing_changed_no_turn_runs(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path, target: ReviewTarget, words: str
) -> None:
    git(git_repo, "commit", "--quiet", "--allow-empty", "--message=Nothing")
    git(git_repo, "tag", "empty")
    begun = await helm.extras.reviews.start(target, cwd=git_repo)
    assert begun.session is None
    assert begun.nothing is not None
    assert words in begun.nothing
    assert model.requests == []
    assert helm.sessions == {}


async def test_an_untracked_file_is_a_change(helm: HelmsmanService, model: ScriptedModel, git_repo: Path) -> None:
    (git_repo / "new.txt").write_text("new\n", encoding="utf-8")
    model.otherwise(say(answer(git_repo)))
    assert (await reported(helm, await helm.extras.reviews.start(cwd=git_repo))).findings == ()


async def test_a_branch_is_compared_with_where_it_began(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    base = git(git_repo, "rev-parse", "HEAD").strip()
    git(git_repo, "switch", "--quiet", "--create", "work")
    (git_repo / "README.md").write_text("# Work\nMore\n", encoding="utf-8")
    git(git_repo, "commit", "--quiet", "--all", "--message=Work")
    model.on("base branch 'main'", say(answer(git_repo, finding(git_repo))))
    begun = await helm.extras.reviews.start(ReviewTarget(kind="base", value="main"), cwd=git_repo)
    assert len((await reported(helm, begun)).findings) == 1
    assert base in model.requests[0].last_user_text


async def test_a_commit_is_named_by_its_whole_id(helm: HelmsmanService, model: ScriptedModel, git_repo: Path) -> None:
    commit = git(git_repo, "rev-parse", "HEAD").strip()
    model.on(f"introduced by commit {commit}", say(answer(git_repo, finding(git_repo, last=1))))
    begun = await helm.extras.reviews.start(ReviewTarget(kind="commit", value="HEAD"), cwd=git_repo)
    assert len((await reported(helm, begun)).findings) == 1


async def test_instructions_are_sent_beside_the_target(
    helm: HelmsmanService, model: ScriptedModel, changed: Path
) -> None:
    model.otherwise(say(answer(changed)))
    await reported(helm, await helm.extras.reviews.start(cwd=changed, instructions="Look only at security."))
    asked = model.requests[0].last_user_text
    assert "staged, unstaged, and untracked" in asked
    assert asked.endswith("Look only at security.")


async def test_instructions_alone_need_no_repository(
    helm: HelmsmanService, model: ScriptedModel, tmp_path: Path
) -> None:
    place = tmp_path / "plain"
    place.mkdir()
    model.on("Look at everything", say(answer(place)))
    target = ReviewTarget(kind="custom", value="Look at everything")
    assert (await reported(helm, await helm.extras.reviews.start(target, cwd=place))).findings == ()


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (ReviewTarget(kind="base", value="no-such-branch"), "no-such-branch"),
        (ReviewTarget(kind="commit", value="--output=x"), "--output=x"),
        (ReviewTarget(kind="base", value="\ud800"), "no branch"),
        (ReviewTarget(kind="commit", value="HEAD\0"), "no commit"),
        (ReviewTarget(kind="commit"), "needs the commit"),
        (ReviewTarget(kind="custom"), "needs the instructions"),
    ],
    ids=["branch", "option", "no text", "nul", "no commit", "no instructions"],
)
async def test_a_wrong_target_is_refused_before_anything_starts(
    helm: HelmsmanService, model: ScriptedModel, changed: Path, target: ReviewTarget, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words):
        await helm.extras.reviews.start(target, cwd=changed)
    assert model.requests == []


async def test_outside_of_a_repository_there_are_no_changes_to_review(helm: HelmsmanService, tmp_path: Path) -> None:
    place = tmp_path / "plain"
    place.mkdir()
    with pytest.raises(InvalidInput, match="not in a git repository"):
        await helm.extras.reviews.start(cwd=place)


async def test_a_session_reviewed_in_itself_knows_the_findings(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("work", run("echo new > new.txt"), say("Done"))
    found = finding(git_repo, file="new.txt", last=1)
    model.on("Review the current code changes", say(answer(git_repo, found)))
    model.on("mend it", run("rm new.txt"), say("Mended"))
    session = await helm.start("work", cwd=git_repo, sandbox="workspace-write", approval_policy="never")
    assert await session.wait(until="end", timeout=SECONDS)
    begun = await helm.extras.reviews.start(session_id=session.id)
    assert begun.session is session
    assert len((await reported(helm, begun)).findings) == 1
    await session.say("mend it")
    assert await session.wait(until="end", timeout=SECONDS)
    assert session.result == "Mended"
    assert "The port is wrong" in json.dumps(model.requests[-1].body)
    assert not (git_repo / "new.txt").exists()
    assert len(session.task_ids) == 3


async def test_a_detached_review_leaves_the_session_alone(
    helm: HelmsmanService, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("work", run("echo new > new.txt"), say("Done"))
    found = finding(git_repo, file="new.txt", last=1)
    model.on("Review the current code changes", say(answer(git_repo, found)))
    session = await helm.start("work", cwd=git_repo, sandbox="workspace-write", approval_policy="never")
    assert await session.wait(until="end", timeout=SECONDS)
    begun = await helm.extras.reviews.start(session_id=session.id, detached=True)
    assert len((await reported(helm, begun)).findings) == 1
    assert begun.session is not session
    assert session.turn_count == 1


async def test_the_second_review_of_a_session_gives_its_own_findings(
    helm: HelmsmanService, model: ScriptedModel, changed: Path
) -> None:
    first, second = finding(changed, "First"), finding(changed, "Second")
    model.otherwise(say(answer(changed, first)))
    session = await ended(await helm.extras.reviews.start(cwd=changed))
    model.otherwise(say(answer(changed, second)))
    begun = await helm.extras.reviews.start(session_id=session.id)
    assert [found.title for found in (await reported(helm, begun)).findings] == ["Second"]


async def test_a_busy_session_is_not_reviewed(helm: HelmsmanService, model: ScriptedModel, changed: Path) -> None:
    model.on("work", hang())
    session = await helm.start("work", cwd=changed)
    with pytest.raises(SessionBusy):
        await helm.extras.reviews.start(session_id=session.id)
    await session.interrupt()


async def test_an_interrupted_review_stops_and_has_no_findings(
    helm: HelmsmanService, model: ScriptedModel, changed: Path
) -> None:
    model.otherwise(run("true"), hang())
    begun = await helm.extras.reviews.start(cwd=changed)
    assert begun.session is not None
    with anyio.fail_after(SECONDS):
        await model.wait_for_request(2)
        await begun.session.interrupt()
    assert begun.session.status == "interrupted"
    assert await helm.extras.reviews.report(begun.session.id) is None


@on_its_own_engine
async def test_a_later_helmsman_reads_what_was_found(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, changed: Path
) -> None:
    model.otherwise(say(answer(changed, finding(changed))))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await ended(await helm.extras.reviews.start(cwd=changed))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        report = await helm.extras.reviews.report(session.id)
    assert report is not None
    assert [(found.title, found.confidence) for found in report.findings] == [("The port is wrong", 0.9)]


@on_its_own_engine
async def test_the_exec_engine_refuses_and_names_the_one_that_can(
    codex_binary: Path, codex_home: CodexHome, changed: Path, tmp_path: Path
) -> None:
    settings = load_settings({"codex_path": str(codex_binary), "engine": "exec"}, codex_home.env, tmp_path)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        with pytest.raises(Unsupported, match="app-server"):
            await helm.extras.reviews.start(cwd=changed)
