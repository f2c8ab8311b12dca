"""The set-up command of a repository: asked about like a command, run in the sandbox, and said what became of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from helmsman.base.structs import replace
from helmsman.capabilities.repository_commands import CommandAllowance, consent_of, run_command
from helmsman.errors import EngineStartFailed, InvalidSetting
from helmsman.git import tree_changes
from helmsman.git.worktree import set_up_of
from helmsman.model.events import CommandExecution
from helmsman.service import HelmsmanService
from helmsman.settings import ConfigFile, Settings, read_toml
from helmsman.steering.worktree_settings import WorktreeTable, repository_table
from helmsman.testing import CodexHome, ScriptedModel, run, say
from helmsman.testing.repository import git

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git]

SECONDS = 60


async def until(is_so: Callable[[], bool]) -> None:
    with anyio.fail_after(SECONDS):
        while not is_so():
            await anyio.sleep(0.01)


def _set_up_by(repository: Path, command: str) -> None:
    (repository / "helmsman.toml").write_text(f"[worktree]\nsetup = {command!r}\n", encoding="utf-8")
    (repository / ".gitignore").write_text("made/\n.env\n", encoding="utf-8")
    (repository / ".worktreeinclude").write_text(".env\n", encoding="utf-8")
    (repository / ".env").write_text("A=1\n", encoding="utf-8")
    git(repository, "add", ".")
    git(repository, "commit", "--quiet", "--message=Set-up")


async def test_it_is_asked_once_runs_in_the_sandbox_before_the_first_turn_and_is_no_change(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    command = "mkdir made && cat .env > made/env && echo ready; touch ../outside || echo held"
    _set_up_by(git_repo, command)
    model.on("look", run("cat made/env"), say("done"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("look", cwd=git_repo, worktree=True, sandbox="workspace-write")
        await until(lambda: bool(session.questions))
        (question,) = session.questions
        assert (question.type, question.asker, question.details["command"]) == ("command_approval", "Helmsman", command)
        assert question.details["directory"] == str(git_repo)
        assert session.worktree is not None
        assert not (session.worktree.path / "made").exists()
        await session.respond(question.id, "approve_always")
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.status == "done"
        assert (session.worktree.path / "made" / "env").read_text(encoding="utf-8") == "A=1\n"
        assert not (session.worktree.path.parent / "outside").exists()
        assert [item.output for item in session.items if isinstance(item, CommandExecution)] == ["A=1\n"]
        said = " ".join(session.notes)
        assert "The worktree was set up" in said
        assert ".worktreeinclude says: .env" in said
        assert "held" in set_up_of(session.worktree).read_text(encoding="utf-8")
        assert tree_changes.diff(session.worktree).files == ()
        consent = consent_of(helm, session)  # no turn runs, so that rules alone decide
        assert await consent(command, session.worktree, CommandAllowance(), "A check.") is None
        refused = await consent("make trap", session.worktree, CommandAllowance(), "A check.")
        assert refused is not None
        assert "no one can be asked now" in refused
        audit = (settings.state_dir / "audit.jsonl").read_text(encoding="utf-8").splitlines()
        assert ["make trap" in line and '"deny"' in line for line in audit[-3:]] == [False, False, True]
        again = await helm.start("look", cwd=git_repo, worktree=True, sandbox="workspace-write")
        assert await again.wait(until="end", timeout=SECONDS)  # no question: the rule is for this repository
        assert again.worktree is not None
        assert (again.worktree.path / "made" / "env").exists()


async def test_without_a_yes_nothing_runs_and_the_work_begins_all_the_same(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    _set_up_by(git_repo, "touch trap")
    model.on("look", say("done"))
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        refused = await helm.start("look", cwd=git_repo, worktree=True, sandbox="workspace-write")
        await until(lambda: bool(refused.questions))
        await refused.respond(refused.questions[0].id, "deny: not now")
        unasked = await helm.start(
            "look", cwd=git_repo, worktree=True, sandbox="workspace-write", approval_policy="never"
        )
        reader = await helm.start("look", cwd=git_repo, worktree=True, sandbox="read-only")
        reasons = ("it was refused: not now", "the session never asks", "the session may not write")
        for session, reason in zip((refused, unasked, reader), reasons, strict=True):
            assert await session.wait(until="end", timeout=SECONDS)
            assert session.status == "done"
            assert session.worktree is not None
            assert not (session.worktree.path / "trap").exists()
            assert any("was not set up (touch trap)" in note and reason in note for note in session.notes)


async def test_a_failure_is_said_and_an_interrupt_ends_it(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    _set_up_by(git_repo, "echo no such package; exit 3")
    model.on("look", say("done"))
    rule = '[[rules]]\neffect = "allow"\ncommand = ["sleep"]\n[[rules]]\neffect = "allow"\ncommand = ["touch"]\n'
    async with HelmsmanService(settings, env=codex_home.env) as helm:
        session = await helm.start("look", cwd=git_repo, worktree=True, sandbox="workspace-write")
        await until(lambda: bool(session.questions))
        await session.respond(session.questions[0].id, "approve")
        assert await session.wait(until="end", timeout=SECONDS)
        assert any("exit code 3" in note and "no such package" in note for note in session.notes)
        _set_up_by(git_repo, "touch begun; sleep 600")
        helm.rules.permanent_path.write_text(rule, encoding="utf-8")
        slow = await helm.start("look", cwd=git_repo, worktree=True, sandbox="workspace-write")
        tree = slow.worktree
        assert tree is not None
        await until(lambda: (tree.path / "begun").exists())
        await slow.interrupt()
        assert slow.status == "interrupted"
        assert slow.questions == []


async def test_a_command_that_cannot_be_started_fails_as_any_other_does(settings: Settings, tmp_path: Path) -> None:
    anything = CommandAllowance(writes="anything")
    with pytest.raises(EngineStartFailed, match="Cannot run /bin/sh"):
        await run_command("ls", tmp_path, anything, settings=settings, timeout=SECONDS, more={"ODD": "\0"}, env=None)


def test_a_file_that_makes_no_sense_is_refused(tmp_path: Path) -> None:
    assert repository_table(tmp_path) == WorktreeTable()
    for line in ("setup = 3", "other = 'x'", "env = 3", "env = {'A=B' = 'x'}", "env = {A = 3}"):
        (tmp_path / "helmsman.toml").write_text(f"[worktree]\n{line}\n", encoding="utf-8")
        with pytest.raises(InvalidSetting, match="worktree"):
            repository_table(tmp_path)
    (tmp_path / "helmsman.toml").write_text('[worktree]\nsetup = " make deps "\n', encoding="utf-8")
    assert repository_table(tmp_path) == WorktreeTable(setup="make deps")


async def test_a_worktree_has_its_port_its_variables_and_a_tear_down_that_was_agreed_on(
    settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    down = "echo $HELMSMAN_PORT > down; touch ../outside || echo held"
    table = f"[worktree]\nsetup = 'echo $APP > up'\nteardown = {down!r}\n[worktree.env]\nTRAP = 'x'\n"
    (git_repo / "helmsman.toml").write_text(table, encoding="utf-8")
    (git_repo / ".gitignore").write_text("up\ndown\n", encoding="utf-8")
    git(git_repo, "add", ".")
    git(git_repo, "commit", "--quiet", "--message=Set-up")
    own = tmp_path / "own.toml"
    own.write_text("[worktree.env]\nAPP = 'http://127.0.0.1:{port}/{name}'\n", encoding="utf-8")
    mine = replace(settings, files=(ConfigFile(path=own, content=read_toml(own), trusted=True),))
    model.on("look", run('echo "$HELMSMAN_PORT $APP [$TRAP] $PATH"; echo new > made.txt'), say("done"))
    async with HelmsmanService(mine, env=codex_home.env) as helm:
        session = await helm.start("look", cwd=git_repo, worktree=True, sandbox="workspace-write")
        for command in (down, "echo $APP > up"):
            await until(lambda: bool(session.questions))
            assert session.questions[0].details["command"] == command
            await session.respond(session.questions[0].id, "approve")
        assert await session.wait(until="end", timeout=SECONDS)
        tree = session.worktree
        assert tree is not None
        address = f"http://127.0.0.1:{tree.port}/{tree.name}"
        (ran,) = (item for item in session.items if isinstance(item, CommandExecution))
        assert (ran.output or "").startswith(
            f"{tree.port} {address} [] /"
        )  # the repository's variables are not trusted
        assert (tree.path / "up").read_text(encoding="utf-8") == f"{address}\n"
        assert not (tree.path / "down").exists()
        (git_repo / "helmsman.toml").write_text("[worktree]\nteardown = 'touch trap'\n", encoding="utf-8")
        applied = await helm.extras.changes.apply(session.id, allow_dirty=True)
        assert applied.notes[0].startswith(f"The worktree was torn down ({down})")  # as it was approved
        assert (tree.path / "down").read_text(encoding="utf-8") == f"{tree.port}\n"
        assert not (tree.path.parent / "outside").exists()
        gone = await helm.extras.changes.discard(session.id)
        assert len(gone.notes) == 1
