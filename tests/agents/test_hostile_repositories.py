"""Tests with every real agent that work in an untrusted repository runs none of its files unasked."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.errors import InvalidInput
from helmsman.testing import ScriptedModel, run, say
from tests.agents.test_stories import Stage, approved, ended, question_of, stage
from tests.hostile_repository import git, make_git_hostile, make_hostile

__all__ = ["stage"]

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]


@pytest.mark.long
async def test_git_runs_no_program_that_the_repository_names(
    stage: Stage, model: ScriptedModel, git_repo: Path
) -> None:
    ran = git_repo / "ran"  # where a sandboxed process can write too
    ran.mkdir()
    commands = ("git status", "git diff; git log -1 -p", "git ls-remote origin; git show --show-signature")
    for command in commands:
        model.on(command, run(command), say("looked"))
    make_git_hostile(git_repo, ran)
    async with stage.opened() as helm:
        session = await helm.start(commands[0], cwd=git_repo, agent=stage.name, **stage.policy)
        await approved(session)
        for command in commands[1:]:
            await session.say(command)
            await approved(session)
    assert names(ran) == []
    git(git_repo, "status")
    assert {"git-fsmonitor", "git-hook-post-index-change"} <= set(names(ran))


@pytest.mark.matrix
@pytest.mark.parametrize("layout", ["links", "a repository in it", "a directory above"])
async def test_however_it_is_laid_out_a_repository_runs_nothing(
    stage: Stage, model: ScriptedModel, git_repo: Path, layout: str
) -> None:
    ran = git_repo / "ran"
    ran.mkdir()
    directory = git_repo
    async with ScriptedModel() as foreign:
        if layout == "links":
            elsewhere = git_repo.parent / "elsewhere"
            elsewhere.mkdir()
            make_hostile(elsewhere, ran, foreign)
            for path in elsewhere.iterdir():
                (git_repo / path.name).symlink_to(path)
        elif layout == "a repository in it":
            directory = git_repo / "inner"
            git(git_repo, "worktree", "add", "-d", str(directory))
            make_hostile(directory, ran, foreign)
        else:
            directory = git_repo / "one" / "two"
            directory.mkdir(parents=True)
            make_hostile(git_repo / "one", ran, foreign)
        model.on("make it", run("touch made.txt"), say("made"))
        async with stage.opened() as helm:
            try:
                session = await helm.start("make it", cwd=directory, agent=stage.name, **stage.policy)
            except InvalidInput as refusal:
                assert stage.name in {"opencode", "copilot"}
                for name in refusal.details["files"]:
                    Path(name).unlink()
                session = await helm.start("make it", cwd=directory, agent=stage.name, **stage.policy)
            await session.respond((await question_of(session)).id, "deny")
            await ended(session)
        assert foreign.requests == []
    assert names(ran) == []


@pytest.mark.matrix
async def test_files_added_to_a_repository_later_are_not_run_either(
    stage: Stage, model: ScriptedModel, git_repo: Path
) -> None:
    ran = git_repo / "ran"
    ran.mkdir()
    model.on("begin", say("begun"))
    model.on("make it", run("touch made.txt"), say("made"))
    async with ScriptedModel() as foreign, stage.opened() as helm:
        session = await helm.start("begin", cwd=git_repo, agent=stage.name, **stage.policy)
        await ended(session)
        make_hostile(git_repo, ran, foreign)
        await session.say("make it")
        await session.respond((await question_of(session)).id, "deny")
        await ended(session)
        assert foreign.requests == []
    assert names(ran) == []


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]
