"""`helmsman diff`, `apply`, `discard` and `worktrees`: what worktree sessions left, from another process."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from helmsman import Helmsman
from helmsman.errors import InvalidInput
from helmsman.git.worktree import Worktree, release
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, run, say
from helmsman.testing.repository import git, make_repository
from tests.cli.conftest import Cli

pytestmark = [pytest.mark.anyio, pytest.mark.needs_git]

SECONDS = 60


@dataclass
class Left:
    """A session that was, and its worktree."""

    id: str
    task_id: str
    tree: Worktree


@pytest.fixture
async def left(settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path) -> Left:
    model.on("write", run(r"printf 'a\033[2Jb\n' > made.txt; printf 'caf\351\n' > latin.txt"), say("done"))
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start(
            "write", cwd=git_repo, worktree=True, approval_policy="never", sandbox="workspace-write"
        )
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.worktree is not None
        release(session.worktree)  # as the end of its process does
        return Left(session.id, session.task_ids[-1], session.worktree)


async def test_git_applies_the_output_of_diff(cli: Cli, left: Left, git_repo: Path) -> None:
    async with cli.started("diff", left.id) as process:
        assert process.stdout is not None
        patch = b"".join([chunk async for chunk in process.stdout])
        assert await process.wait() == 0
    (git_repo.parent / "change.patch").write_bytes(patch)
    git(git_repo, "apply", "../change.patch")
    assert (git_repo / "latin.txt").read_bytes() == b"caf\xe9\n"
    assert (git_repo / "made.txt").read_bytes() == b"a\x1b[2Jb\n"


async def test_on_a_terminal_a_diff_cannot_move_the_cursor(cli: Cli, left: Left) -> None:
    async with cli.on_terminal("diff", left.id) as program:
        assert await program.exit_code() == 0
        await program.shows("add made.txt")
        await program.shows("+a\\x1b[2Jb")


async def test_a_diff_goes_through_gits_pager_and_never_through_one_of_the_repository(
    cli: Cli, left: Left, git_repo: Path
) -> None:
    git(git_repo, "config", "core.pager", "sed s/^/planted:/")
    for name in ("PAGER", "GIT_PAGER"):
        cli.env[name] = "sed s/^/paged:/"
        async with cli.on_terminal("diff", left.id) as program:
            await program.shows("paged:+a")
            assert await program.exit_code() == 0
        assert "paged:\x1b[32m+a" in program.terminal.raw
        cli.env[name] = "false"
    del cli.env["GIT_PAGER"]
    for pager in ("cat", "there-is-no-such-pager"):
        async with cli.on_terminal("diff", left.id, PAGER=pager) as program:
            await program.shows("add made.txt")
            assert await program.exit_code() == 0
        assert "planted:" not in program.screen


async def test_a_diff_for_programs_has_files_and_scope(cli: Cli, left: Left) -> None:
    (shown,) = (await cli.run("diff", "--json", left.task_id)).json
    assert (shown["sessionId"], shown["scope"]) == (left.id, "worktree")
    assert {file["path"]: file["kind"] for file in shown["files"]} == {"latin.txt": "added", "made.txt": "added"}
    stat = await cli.run("diff", "--stat", left.id[-8:])
    assert "worktree since it was made" in stat.stderr
    assert "2 files changed" in stat.stdout
    assert "@@" not in stat.stdout


async def test_changes_are_applied_and_the_worktree_discarded(cli: Cli, left: Left, git_repo: Path) -> None:
    done = await cli.run("apply", "--yes", left.id[-8:])
    assert (done.exit_code, done.stdout.split()) == (0, ["latin.txt", "made.txt"])
    assert f"2 files brought into {git_repo}." in done.stderr
    async with cli.on_terminal("session", "discard", left.id) as program:
        await program.shows("Nothing in it would be lost. [y/N]")
        program.press("n")
        assert await program.exit_code() == 1
    (shown,) = (await cli.run("session", "discard", "--json", left.id[-8:])).json
    (gone,) = shown["discarded"]
    assert (gone["sessionId"], gone["branchKept"]) == (left.id, False)
    assert not left.tree.path.exists()
    again = await cli.run("session", "discard", left.id)
    assert again.exit_code == 2
    assert "has no worktree" in again.stderr
    assert git(git_repo, "status", "--porcelain") == "?? latin.txt\n?? made.txt\n"


@pytest.mark.long
async def test_without_an_id_the_session_with_a_worktree_is_meant_and_several_are_listed(
    cli: Cli, left: Left, model: ScriptedModel
) -> None:
    model.on("hello", say("Hello."))
    last = (await cli.run("run", "--json", "hello")).json[-1]["sessionId"]
    assert (await cli.run("status", "--json")).json[0]["sessionId"] == last
    done = await cli.run("apply", "--yes")
    assert (done.exit_code, done.stdout.split()) == (0, ["latin.txt", "made.txt"])
    async with cli.on_terminal("apply") as program:
        await program.shows("Your tree has all of these changes already. Nothing was done.")
        assert await program.exit_code() == 0
    model.on("more", run("echo more > more.txt"), say("done"))
    words = ("--worktree", "-s", "workspace-write", "-a", "never")
    other = (await cli.run("run", "--json", *words, "more")).json[-1]["sessionId"]
    several = await cli.run("apply", "--yes")
    assert (several.exit_code, "2 sessions here have a worktree." in several.stderr) == (2, True)
    assert all(session_id[-8:] in several.stderr for session_id in (left.id, other))


async def test_work_that_is_nowhere_else_is_not_dropped_without_a_yes(cli: Cli, left: Left) -> None:
    refused = await cli.run("session", "discard", left.id)
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "would be lost: 2 changed files" in refused.stderr
    assert "--yes" in refused.stderr
    (said,) = (await cli.run("session", "discard", left.id, "--json")).json
    assert said["error"]["code"] == "confirmation_needed"
    async with cli.on_terminal("session", "discard", left.id) as program:
        await program.shows("made.txt")
        await program.shows("Drop it? [y/N]")
        program.press("\n")
        assert await program.exit_code() == 1
    git(left.tree.path, "commit", "--quiet", "--allow-empty", "-m", "only here")
    assert "1 commit, 2 changed files" in (await cli.run("session", "discard", left.id)).stderr
    assert left.tree.path.exists()
    async with cli.on_terminal("session", "discard", left.id) as program:
        await program.shows("only here")
        await program.shows("Drop it? [y/N]")
        program.press("y")
        assert await program.exit_code() == 0
    assert not left.tree.path.exists()


async def test_yes_drops_a_worktree_without_a_question(cli: Cli, left: Left) -> None:
    (shown,) = (await cli.run("session", "discard", "--yes", "--json", left.id)).json
    assert len(shown["discarded"][0]["files"]) == 2
    assert not left.tree.path.exists()


async def test_work_that_came_after_the_question_is_not_dropped(
    settings: Settings, left: Left, codex_home: CodexHome
) -> None:
    async with Helmsman(settings, env=codex_home.env) as helm:
        shown = await helm.extras.changes.unsaved(left.id)
        (left.tree.path / "later.txt").write_text("more", encoding="utf-8")
        with pytest.raises(InvalidInput, match="look again"):
            await helm.extras.changes.discard(left.id, losing=shown)
        assert (left.tree.path / "later.txt").exists()


async def test_a_person_is_shown_the_changes_and_asked(cli: Cli, left: Left, git_repo: Path) -> None:
    async with cli.on_terminal("apply", left.id) as program:
        await program.shows("Apply ")
        assert "+a\\x1b[2Jb" in program.screen
        program.press("n")
        assert await program.exit_code() == 1
    assert git(git_repo, "status", "--porcelain") == ""
    async with cli.on_terminal("apply", left.id) as program:
        await program.shows("Apply ")
        program.press("y")
        assert await program.exit_code() == 0
    assert git(git_repo, "status", "--porcelain") == "?? latin.txt\n?? made.txt\n"


async def test_a_yes_is_to_what_was_on_the_screen(cli: Cli, left: Left, git_repo: Path) -> None:
    async with cli.on_terminal("apply", left.id) as program:
        await program.shows("Apply ")
        (left.tree.path / "made.txt").write_text("slipped in\n", encoding="utf-8")
        program.press("y")
        assert await program.exit_code() == 1
        await program.shows("are not those")
    assert git(git_repo, "status", "--porcelain") == ""


async def test_without_a_person_to_ask_the_digest_says_what_was_meant(cli: Cli, left: Left, git_repo: Path) -> None:
    refused = await cli.run("apply", left.id)
    assert (refused.exit_code, "--digest" in refused.stderr) == (2, True)
    (shown,) = (await cli.run("diff", "--json", left.id)).json
    assert shown["digest"] in (await cli.run("diff", "--stat", left.id)).stderr
    (left.tree.path / "latin.txt").unlink()
    changed = await cli.run("apply", "--json", "--digest", shown["digest"], left.id)
    assert changed.exit_code == 1
    error = changed.json[0]["error"]
    assert (error["code"], error["shown"]) == ("diff_changed", shown["digest"])
    assert git(git_repo, "status", "--porcelain") == ""
    applied = await cli.run("apply", "--digest", error["digest"], left.id)
    assert applied.stderr.splitlines()[-1] == f"1 file brought into {git_repo}."
    assert git(git_repo, "status", "--porcelain") == "?? made.txt\n"


async def test_a_dirty_tree_is_refused_with_its_files(cli: Cli, left: Left, git_repo: Path) -> None:
    (git_repo / "README.md").write_text("mine\n", encoding="utf-8")
    done = await cli.run("apply", "--yes", "--json", left.id)
    assert done.exit_code == 1
    assert (done.json[0]["error"]["code"], done.json[0]["error"]["files"]) == ("dirty_tree", ["README.md"])
    assert done.json[0]["error"]["message"].endswith("or allow a dirty tree (--allow-dirty).")
    assert (await cli.run("apply", "-y", "--allow-dirty", left.id)).exit_code == 0


async def test_worktrees_are_listed_and_pruned_only_if_nothing_is_lost(cli: Cli, left: Left, git_repo: Path) -> None:
    (listed,) = (await cli.run("session", "worktrees", "--json")).json
    (entry,) = listed["worktrees"]
    assert (entry["sessionId"], entry["use"], entry["repository"]) == (left.id, "left over", str(git_repo))
    assert (await cli.run("list")).stdout.split("\t")[2] == str(git_repo)
    row = (await cli.run("session", "worktrees", "list")).stdout.rstrip("\n").split("\t")
    assert (row[0], row[1], row[3], row[4]) == (left.id, "left over", str(git_repo), str(left.tree.path))
    (found,) = (await cli.run("session", "worktrees", "leftovers", "--json")).json
    assert len(found["leftovers"][0]["files"]) == 2
    assert "2 files changed" in (await cli.run("session", "worktrees", "leftovers")).stdout
    kept = await cli.run("session", "worktrees", "prune")
    assert (kept.exit_code, kept.stdout) == (0, "")
    assert "--force drops them" in kept.stderr
    assert left.tree.path.exists()
    refused = await cli.run("session", "worktrees", "prune", "--force")
    assert (refused.exit_code, left.tree.path.exists()) == (2, True)
    assert "--yes" in refused.stderr
    async with cli.on_terminal("session", "worktrees", "prune", "--force") as program:
        await program.shows("2 files changed")
        await program.shows("Drop it? [y/N]")
        program.press("\n")
        assert await program.exit_code() == 1
    assert left.tree.path.exists()
    pruned = await cli.run("session", "worktrees", "prune", "--force", "--yes")
    assert "made.txt" in pruned.stdout
    assert not left.tree.path.exists()
    assert "There are no worktrees" in (await cli.run("session", "worktrees")).stderr
    assert "No worktree is left over" in (await cli.run("session", "worktrees", "prune")).stderr


async def test_prune_keeps_a_worktree_with_a_repository_or_a_commit_of_its_own(
    cli: Cli, settings: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.on("nothing", say("done"))
    trees: list[Worktree] = []
    async with Helmsman(settings, env=codex_home.env) as helm:
        for _ in range(2):
            session = await helm.start("nothing", cwd=git_repo, worktree=True)
            assert await session.wait(until="end", timeout=SECONDS)
            assert session.worktree is not None
            release(session.worktree)
            trees.append(session.worktree)
    make_repository(trees[0].path / "vendor")
    git(trees[1].path, "commit", "--quiet", "--allow-empty", "-m", "only here")
    kept = await cli.run("session", "worktrees", "prune")
    assert "2 worktrees with changes stay" in kept.stderr
    assert all(tree.path.exists() for tree in trees)


async def test_a_terminal_gets_a_table_of_worktrees(cli: Cli, left: Left) -> None:
    async with cli.on_terminal("session", "worktrees") as program:
        assert await program.exit_code() == 0
        await program.shows("left over")
    assert program.screen.splitlines()[0].split() == ["SESSION", "STATE", "MADE", "REPOSITORY", "WHAT"]


async def test_bad_input_exits_with_2(bare_cli: Cli) -> None:
    for command in (["diff"], ["apply"], ["session", "discard"]):
        assert (await bare_cli.run(*command)).exit_code == 2
        assert (await bare_cli.run(*command, "x")).exit_code == 2
        assert (await bare_cli.run(*command, "0199a0f2")).exit_code == 2
        assert (await bare_cli.run(*command, "--json", "T-local-none")).json[0]["error"]["code"] == "task_not_found"
