"""A directory that is replaced by a link does not move the sandbox of a session or a schedule that was opened in it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path

import pytest

from helmsman import Helmsman, Session
from helmsman.errors import InvalidInput
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, run, say
from tests.schedules.test_scheduler import Clock
from tests.schedules.test_scheduler import opened as house

pytestmark = pytest.mark.anyio

SECONDS = 60


def swap(place: Path, private: Path) -> None:
    """What a session can do whose directory is above `place`."""
    private.mkdir(exist_ok=True)
    place.rename(place.with_name("was"))
    place.symlink_to(private)


async def done(session: Session) -> None:
    assert await session.wait(until="end", timeout=SECONDS)


VERBS: dict[str, Callable[[Helmsman, Session], Awaitable[object]]] = {
    "say": lambda helm, session: helm.say(session.id, "touch it"),
    "say with options": lambda helm, session: helm.say(session.id, "touch it", sandbox="workspace-write"),
    "fork": lambda helm, session: helm.fork(session.id, "touch it"),
    "fork with options": lambda helm, session: helm.fork(session.id, "touch it", sandbox="workspace-write"),
}


@pytest.mark.needs_git
@pytest.mark.parametrize(
    "swapped", ["sub", *(pytest.param(one, marks=pytest.mark.long) for one in ("sub/deeper", "repo"))]
)
async def test_no_verb_follows_the_link_and_both_paths_are_named(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path, swapped: str
) -> None:
    model.on("hello", say("ok"))
    model.on("touch it", run("touch touched.txt"), say("touched"))
    place, private = git_repo / "sub" / "deeper", tmp_path.resolve() / "private"
    place.mkdir(parents=True)
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start("hello", cwd=place, sandbox="workspace-write", approval_policy="never")
        await done(session)
        private.mkdir()
        (private / "deeper").mkdir()
        (private / "sub" / "deeper").mkdir(parents=True)
        swap({"sub": git_repo / "sub", "sub/deeper": place, "repo": git_repo}[swapped], private)
        for verb in VERBS.values():
            with pytest.raises(InvalidInput) as refused:
                await verb(helm, session)
            assert str(place) in refused.value.message
            assert str(private) in refused.value.message
            assert "start a new session" in refused.value.message
        assert (await helm.session(session.id)).status == "done"
    async with Helmsman(settings, env=codex_home.env) as helm:  # one that knows the session from disk alone
        with pytest.raises(InvalidInput, match="leads to"):
            await helm.say(session.id, "touch it")
        assert (await helm.session(session.id)).directory == str(place)
    assert len(model.requests) == 1
    assert not list(private.rglob("touched.txt"))


@pytest.mark.needs_git
async def test_a_writable_root_is_not_followed_either(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    model.otherwise(say("ok"))
    root = git_repo / "more"
    root.mkdir()
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start("hello", cwd=git_repo, sandbox="workspace-write", writable_roots=[root])
        await done(session)
        swap(root, tmp_path.resolve() / "private")
        with pytest.raises(InvalidInput, match="leads to"):
            await helm.say(session.id, "more")
    async with Helmsman(settings, env=codex_home.env) as helm:
        with pytest.raises(InvalidInput, match="leads to"):
            await helm.say(session.id, "more")
    assert len(model.requests) == 1


@pytest.mark.needs_git
async def test_a_directory_that_was_made_again_is_worked_in_and_said(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    """As a checkout of another branch does."""
    model.otherwise(say("ok"))
    place = git_repo / "sub"
    place.mkdir()
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start("hello", cwd=place, sandbox="workspace-write")
        await done(session)
    place.rename(git_repo / "was")
    place.mkdir()
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.say(session.id, "more")
        await done(session)
        await session.say("again")
        await done(session)
        assert sum("is another directory than before" in note for note in session.notes) == 1


async def test_a_schedule_does_not_follow_the_link(tmp_path: Path) -> None:
    place, private, clock = tmp_path.resolve() / "sub", tmp_path.resolve() / "private", Clock()
    place.mkdir()
    async with house(tmp_path / "state", clock) as opened:
        schedule = await opened.schedules.add("tidy", cwd=place, every="1h")
        assert tuple(schedule.spec["place"]) == (place.stat().st_dev, place.stat().st_ino)
        swap(place, private)
        clock.move(clock.now + timedelta(hours=1, seconds=1))
        (task,) = await opened.until(lambda tasks: [task.status for task in tasks] == ["failed"])
        assert task.error is not None
        assert str(place) in task.error["message"]
        assert str(private) in task.error["message"]


@pytest.mark.needs_git
async def test_a_message_that_waits_is_not_sent_into_the_link(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    place, private = git_repo / "sub", tmp_path.resolve() / "private"
    place.mkdir()
    model.on("first", run("mkdir x && mv x ../y"), say("ok"))
    model.on("second", say("never said"))
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start("first", cwd=place, sandbox="workspace-write", approval_policy="untrusted")
        await session.wait(until="attention", timeout=SECONDS)
        await helm.say(session.id, "second", when_busy="queue")
        swap(place, private)
        with pytest.raises(InvalidInput, match="leads to"):
            await helm.steer(session.id, "and this")
        await session.respond(session.questions[0].id, "deny")
        await done(session)
        tasks, _ = await helm.tasks.list()
        assert session.error is not None
        assert str(private) in session.error.message
        assert {task.status for task in tasks} == {"failed", "completed"}
