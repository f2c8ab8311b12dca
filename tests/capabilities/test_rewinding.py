"""Rewinds by the library: what goes wrong in the middle of one, and agents other than Codex."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.base.processes import running_process
from helmsman.errors import ApplyConflict, CannotRewind, EngineRefused, InvalidInput, SessionBusy
from helmsman.git.turn_snapshots import read_snapshots
from helmsman.model.events import RewindRequested
from helmsman.model.options import WorktreeOptions
from helmsman.model.questions import Question
from helmsman.service import HelmsmanService
from helmsman.sessions.session import Session
from helmsman.settings import Settings, load_settings
from helmsman.testing import CodexHome, ScriptedModel, add, fail, patch, run, say
from helmsman.testing.repository import git, make_repository

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git, pytest.mark.usefixtures("snapshots")]


async def settled(session: Session) -> Session:
    assert await session.wait(until="end", timeout=30)
    return session


async def two_turns(helm: HelmsmanService, place: Path) -> Session:
    session = await settled(await helm.start("first", cwd=place, sandbox="danger-full-access", approval_policy="never"))
    return await settled(await session.say("second"))


@pytest.mark.long
async def test_a_rewind_that_fails_or_is_cut_off_in_the_middle_is_whole_in_the_end(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.on("first", run("echo one > a.txt"), say("Made."))
    model.on("second", run("echo two > a.txt; git rm -q --cached README.md"), say("Changed."))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await two_turns(helm, git_repo)
        rewinding = helm.extras.rewinding
        shown = await rewinding.preview(session.id)
        refused = EngineRefused("Codex does not want to. Try again.")

        async def refuse(*_: object) -> None:
            assert isinstance(session.feed.since(0).events[-1], RewindRequested)  # before anything is touched
            raise refused

        with monkeypatch.context() as broken:
            broken.setattr(helm.extras.upkeep, "roll_back", refuse)
            with pytest.raises(EngineRefused):
                await rewinding.rewind(session.id, digest=shown.digest)
        assert (git_repo / "a.txt").read_text(encoding="utf-8") == "two\n"  # put back
        with monkeypatch.context() as broken, pytest.raises(KeyboardInterrupt):  # as if killed
            broken.setattr(rewinding, "_keep_conversation", _killed)
            await rewinding.rewind(session.id, digest=shown.digest)
        assert (git_repo / "a.txt").read_text(encoding="utf-8") == "one\n"
        again = await rewinding.preview(session.id)
        assert (again.diff is not None and again.diff.files, len(again.forgotten)) == ((), 1)
        await rewinding.rewind(session.id, digest=again.digest)
        assert len(await helm.history(session.id)) == 1
        undo = await rewinding.preview(session.id, undo=True)
        await rewinding.rewind(session.id, undo=True, digest=undo.digest)
        assert (git_repo / "a.txt").read_text(encoding="utf-8") == "two\n"
        assert undo.conversation is not None
        assert len(await helm.history(undo.conversation)) == 2
        assert git(git_repo, "for-each-ref", "refs/helmsman") != ""
        for one in (session.id, undo.conversation):
            await helm.extras.upkeep.archive(one)
        assert git(git_repo, "for-each-ref", "refs/helmsman") == ""


async def test_no_turn_and_no_other_rewind_begins_while_a_session_is_taken_back(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.on("first", run("echo one > a.txt"), say("Made."))
    model.on("second", run("echo two > a.txt"), say("Changed."))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await two_turns(helm, git_repo)
        rewinding = helm.extras.rewinding
        shown = await rewinding.preview(session.id)
        refused: list[type[Exception]] = []
        roll_back = helm.extras.upkeep.roll_back

        async def meanwhile(*arguments: Any) -> object:
            """The files are written, and the turns not yet forgotten."""
            for begin in (lambda: session.say("second"), lambda: rewinding.rewind(session.id, digest=shown.digest)):
                with pytest.raises(SessionBusy, match="being taken back") as caught:
                    await begin()
                refused.append(caught.type)
            return await roll_back(*arguments)

        monkeypatch.setattr(helm.extras.upkeep, "roll_back", meanwhile)
        await rewinding.rewind(session.id, digest=shown.digest)
        assert refused == [SessionBusy, SessionBusy]
        assert (git_repo / "a.txt").read_text(encoding="utf-8") == "one\n"
        assert len(await helm.history(session.id)) == 1
        await settled(await session.say("second"))
        assert (git_repo / "a.txt").read_text(encoding="utf-8") == "two\n"


@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux tells whose command it is.")
async def test_a_command_that_was_left_running_ends_before_files_are_taken_back(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("first", run("echo one > a.txt"), say("Made."))
    model.on("second", run("echo two > a.txt; setsid sleep 1000 > /dev/null 2>&1 & echo $! > pid"), say("Left."))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await settled(
            await helm.start("first", cwd=git_repo, sandbox="danger-full-access", approval_policy="never")
        )
        await settled(await session.say("second"))
        left = running_process(int((git_repo / "pid").read_text()))
        assert left is not None
        shown = await helm.extras.rewinding.preview(session.id)
        await helm.extras.rewinding.rewind(session.id, digest=shown.digest)
        assert not left.is_alive()
        assert (git_repo / "a.txt").read_text(encoding="utf-8") == "one\n"


async def _killed(*_: object) -> None:
    raise KeyboardInterrupt


async def test_sessions_without_snapshots_or_outside_the_allowed_roots_are_not_rewound(
    codex_binary: Path, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    model.on("first", run("echo one > a.txt"), say("Made."))
    (git_repo / "inside").mkdir()
    flags = {"codex_path": str(codex_binary), "detach": False, "allowed_roots": [str(git_repo / "inside")]}
    settings = load_settings(flags, codex_home.env, tmp_path)
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await settled(
            await helm.start("first", cwd=git_repo / "inside", sandbox="workspace-write", approval_policy="never")
        )
        assert read_snapshots(settings.state_dir, session.id) is None
        with pytest.raises(InvalidInput, match="outside the allowed roots"):
            await helm.extras.rewinding.preview(session.id)
    settings = load_settings(
        {"codex_path": str(codex_binary), "detach": False, "snapshots": False}, codex_home.env, tmp_path
    )
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await settled(
            await helm.start("first", cwd=git_repo, sandbox="workspace-write", approval_policy="never")
        )
        with pytest.raises(CannotRewind) as refused:
            await helm.extras.rewinding.preview(session.id)
        assert refused.value.details["reason"] == "no_snapshot"


async def test_the_files_of_all_repositories_of_a_session_are_taken_back_or_none(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    lib = make_repository(tmp_path / "lib")
    model.on(
        "first", run("echo one > a.txt; cp a.txt ../lib-*/; mv ../lib-*/a.txt $(echo ../lib-*)/b.txt"), say("Made.")
    )
    model.on("second", run("echo two > a.txt; cd ../lib-*; rm b.txt; echo two > c.txt"), say("Changed."))
    model.on("elsewhere", run("cd ../lib-*; echo three > c.txt"), say("Changed."))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        trees = WorktreeOptions(add_dirs=(lib,))
        session = await settled(await helm.start("first", cwd=git_repo, worktree=trees, full_auto=True))
        await settled(await session.say("second"))
        assert session.worktree is not None
        ours, theirs = (tree.path for tree in session.worktree.each)

        def files() -> list[tuple[str, str]]:
            found = [*sorted(theirs.glob("*.txt")), *sorted(ours.glob("*.txt"))]
            return [(path.name, path.read_text(encoding="utf-8")) for path in found]

        after = files()
        rewinding = helm.extras.rewinding
        shown = await rewinding.preview(session.id)
        assert shown.diff is not None
        assert [(file.path, file.kind) for file in shown.diff.files] == [
            (f"{git_repo.name}/a.txt", "modified"),
            ("lib/b.txt", "added"),
            ("lib/c.txt", "deleted"),
        ]
        (lib / ".git" / "info").mkdir(exist_ok=True)
        (lib / ".git" / "info" / "exclude").write_text("*.log\n", encoding="utf-8")
        in_the_way = theirs / "b.txt"
        in_the_way.mkdir()
        (in_the_way / "ignored.log").touch()
        with pytest.raises(ApplyConflict, match=r"b\.txt"):
            await rewinding.rewind(session.id, digest=(await rewinding.preview(session.id)).digest)
        (in_the_way / "ignored.log").unlink()
        in_the_way.rmdir()
        assert files() == after, "neither is touched where one cannot be taken back"
        shown = await rewinding.preview(session.id)
        await rewinding.rewind(session.id, digest=shown.digest)
        assert files() == [("b.txt", "one\n"), ("a.txt", "one\n")]
        fork = await settled(await helm.fork(session.id, "elsewhere"))
        with pytest.raises(
            CannotRewind, match=r"lib/c\.txt"
        ) as refused:  # the work of another session is in the second
            await rewinding.preview(session.id, undo=True)
        assert refused.value.details["sessions"] == [fork.id]
        undone = await rewinding.preview(fork.id, part="files")
        await rewinding.rewind(fork.id, part="files", digest=undone.digest)
        undo = await rewinding.preview(session.id, undo=True)
        await rewinding.rewind(session.id, undo=True, digest=undo.digest)
        assert files() == after
        assert all(git(one, "for-each-ref", "refs/helmsman") for one in (git_repo, lib))
        assert undo.conversation is not None
        for one in (session.id, fork.id, undo.conversation):
            await helm.extras.upkeep.archive(one)
        assert not any(git(one, "for-each-ref", "refs/helmsman") for one in (git_repo, lib))


@pytest.mark.long
async def test_approved_writes_of_a_read_only_session_are_rewound_and_conflict_with_others(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("first", patch(add("a.txt", "one\n")), say("Made."))
    model.on("look", say("Seen."))
    model.on("second", patch(add("b.txt", "two\n")), say("Made."))

    async def approve(_session: Session, _question: Question) -> Sequence[str]:
        return ["approve"]

    async with HelmsmanService(settings, env=codex_home.env) as helm:

        async def done(prompt: str) -> Session:
            session = await settled(
                await helm.start(
                    prompt, cwd=git_repo, sandbox="read-only", approval_policy="on-request", on_question=approve
                )
            )
            with anyio.fail_after(30):  # the snapshot after a turn is taken after its end
                while not (known := read_snapshots(settings.state_dir, session.id)) or known.turns[-1].after is None:
                    await anyio.sleep(0.02)
            return session

        session = await done("first")
        assert (git_repo / "a.txt").exists()
        await done("look")
        rewinding = helm.extras.rewinding
        shown = await rewinding.preview(session.id)
        assert shown.diff is not None
        assert [file.path for file in shown.diff.files] == ["a.txt"]
        other = await done("second")
        with pytest.raises(CannotRewind) as refused:
            await rewinding.preview(session.id)
        assert refused.value.details["sessions"] == [other.id]
        shown = await rewinding.preview(other.id)
        await rewinding.rewind(other.id, digest=shown.digest)
        assert [path.name for path in git_repo.glob("*.txt")] == ["a.txt"]


@pytest.mark.long
async def test_only_changes_of_others_that_would_be_lost_are_in_the_way(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    """Not sessions that changed nothing, that failed before they said anything, or whose changes were reverted."""
    model.on("first", run("echo one > a.txt"), say("Made."))
    model.on("look", say("Seen."))
    model.on("fail", fail(400))
    model.on(
        "there and back", run("echo two > b.txt; echo two > a.txt"), run("rm b.txt; echo one > a.txt"), say("Done.")
    )
    model.on("make b", run("echo two > b.txt"), say("Made."))
    model.on("revert b", run("rm b.txt"), say("Gone."))
    model.on("change a", run("echo three > a.txt"), say("Made."))
    async with HelmsmanService(settings, env=codex_home.env) as helm:

        async def done(prompt: str) -> Session:
            return await settled(await helm.start(prompt, cwd=git_repo, full_auto=True))

        session = await done("first")
        for prompt in ("look", "fail", "there and back"):
            await done(prompt)
        reverting = await done("make b")
        with pytest.raises(CannotRewind, match=r"b\.txt") as refused:
            await helm.extras.rewinding.preview(session.id)
        assert refused.value.details["sessions"] == [reverting.id]
        await settled(await reverting.say("revert b"))
        shown = await helm.extras.rewinding.preview(session.id)
        assert shown.diff is not None
        assert [file.path for file in shown.diff.files] == ["a.txt"]
        other = await done("change a")
        with pytest.raises(CannotRewind, match=r"a\.txt") as refused:
            await helm.extras.rewinding.preview(session.id)
        assert refused.value.details["sessions"] == [other.id]
        (git_repo / "a.txt").write_text("one\n", encoding="utf-8")
        shown = await helm.extras.rewinding.preview(session.id)
        await helm.extras.rewinding.rewind(session.id, digest=shown.digest)
        assert not (git_repo / "a.txt").exists()
