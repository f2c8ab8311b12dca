"""Paths are taken for what they lead to: before anything is compared with the allowed roots, links are followed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from helmsman import Helmsman
from helmsman.base.structs import replace
from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.model.inputs import session_options, turn_input
from helmsman.model.options import StartOptions
from helmsman.settings import Settings
from helmsman.testing import CodexHome, ScriptedModel, git, make_repository, say

SECONDS = 60


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """A directory that is allowed, and one that is not; `link` in the first leads to the second."""
    allowed, outside = (tmp_path / "allowed").resolve(), (tmp_path / "outside").resolve()
    allowed.mkdir()
    outside.mkdir()
    (outside / "secret.png").write_bytes(b"png")
    (allowed / "link").symlink_to(outside)
    return allowed, outside


def test_a_sibling_that_begins_like_a_root_is_outside(tmp_path: Path) -> None:
    for name in ("root", "root-of-others"):
        (tmp_path / name).mkdir()
    with pytest.raises(InvalidInput, match="outside the allowed roots"):
        session_options(tmp_path / "root-of-others", {}, [tmp_path / "root"])


@pytest.mark.parametrize(
    "options",
    [
        {"sandbox": "danger-full-access"},
        {"dangerously_bypass_approvals_and_sandbox": True},
    ],
)
def test_a_session_without_a_sandbox_knows_no_roots_and_is_refused(
    roots: tuple[Path, Path], options: StartOptions
) -> None:
    with pytest.raises(InvalidInput, match="outside the allowed roots"):
        session_options(roots[0], options, [roots[0]])


def test_an_image_from_outside_is_not_shown_to_the_model(roots: tuple[Path, Path]) -> None:
    allowed, outside = roots
    (allowed / "inside.png").write_bytes(b"png")
    (allowed / "disguised.png").symlink_to(outside / "secret.png")
    assert turn_input("look", images=[allowed / "inside.png"], allowed_roots=[allowed]).images == (
        allowed / "inside.png",
    )
    for image in (outside / "secret.png", allowed / "disguised.png", allowed / "link" / "secret.png"):
        with pytest.raises(InvalidInput, match="outside the allowed roots"):
            turn_input("look", images=[image], allowed_roots=[allowed])


def test_a_link_that_is_swapped_after_the_check_changes_nothing(roots: tuple[Path, Path]) -> None:
    """What is handed on is where the link led when it was looked at, so a later change of the link is of no use."""
    allowed, outside = roots
    (allowed / "real").mkdir()
    (allowed / "real" / "a.png").write_bytes(b"png")
    (allowed / "moving").symlink_to(allowed / "real")
    options = session_options(allowed / "moving", {"writable_roots": [allowed / "moving"]}, [allowed])
    turn = turn_input("look", images=[allowed / "moving" / "a.png"], allowed_roots=[allowed])
    (allowed / "moving").unlink()
    (allowed / "moving").symlink_to(outside)
    assert options.cwd == allowed / "real"
    assert options.writable_roots == (allowed / "real",)
    assert turn.images == (allowed / "real" / "a.png",)


def test_a_loop_of_links_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(InvalidInput, match="does not exist"):
        session_options(tmp_path / "a", {}, ())
    with pytest.raises(InvalidInput, match="no image"):
        turn_input("look", images=[tmp_path / "a"])


# --- on a real Codex -------------------------------------------------------------------------------------------------


@pytest.fixture
def narrow(settings: Settings, git_repo: Path) -> Settings:
    return replace(settings, allowed_roots=(git_repo.resolve(),))


@pytest.mark.anyio
async def test_every_verb_keeps_to_the_roots(
    narrow: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    model.otherwise(say("ok"))
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"png")
    outside: dict[str, Any] = {"sandbox": "workspace-write", "writable_roots": [tmp_path]}
    async with Helmsman(narrow, env=codex_home.env) as helm:
        session = await helm.start("hello", cwd=git_repo)
        assert await session.wait(until="end", timeout=SECONDS)
        for refused in (
            helm.start("x", cwd=tmp_path),
            helm.start("x", cwd=git_repo, images=[secret]),
            helm.start("x", cwd=git_repo, **outside),
            helm.say(session.id, "x", images=[secret]),
            helm.say(session.id, "x", **outside),
            helm.fork(session.id, "x", **outside),
        ):
            with pytest.raises(InvalidInput, match="outside the allowed roots"):
                await refused
    assert len(model.requests) == 1


@pytest.mark.anyio
async def test_a_session_that_was_left_elsewhere_is_not_gone_on_with(
    settings: Settings, narrow: Settings, codex_home: CodexHome, model: ScriptedModel, tmp_path: Path
) -> None:
    model.otherwise(say("ok"))
    elsewhere = make_repository(tmp_path / "elsewhere")
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start("hello", cwd=elsewhere)
        assert await session.wait(until="end", timeout=SECONDS)
    async with Helmsman(narrow, env=codex_home.env) as helm:
        with pytest.raises(InvalidInput, match="outside the allowed roots"):
            await helm.say(session.id, "x")


@pytest.mark.anyio
async def test_stored_session_paths_are_checked_against_the_current_roots(
    settings: Settings, narrow: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    model.otherwise(say("ok"))
    inside = git_repo / "inside"
    inside.mkdir()
    async with Helmsman(settings, env=codex_home.env) as helm:
        session = await helm.start("hello", cwd=git_repo, sandbox="workspace-write", writable_roots=[inside])
        assert await session.wait(until="end", timeout=SECONDS)
    inside.rmdir()
    inside.symlink_to(tmp_path)
    async with Helmsman(narrow, env=codex_home.env) as helm:
        assert (await helm.session(session.id)).options.writable_roots == ()
    with closing(sqlite3.connect(settings.state_dir / "registry.sqlite3")) as registry, registry:
        options = {"writes": "anything", "config": {"sandbox_mode": "danger-full-access"}}
        kept = json.dumps({"type": "options_changed", "sessionId": session.id, "options": options})
        registry.execute("UPDATE events SET body = ? WHERE kind = 'options_changed'", (kept,))
    async with Helmsman(narrow, env=codex_home.env) as helm:
        held = (await helm.session(session.id)).options
        assert (held.writes, held.config) == (None, {})


@pytest.mark.anyio
@pytest.mark.needs_git
async def test_a_worktree_is_made_of_an_allowed_repository_only_and_stays_inside_itself(
    narrow: Settings, codex_home: CodexHome, model: ScriptedModel, git_repo: Path, tmp_path: Path
) -> None:
    model.otherwise(say("ok"))
    elsewhere = make_repository(tmp_path / "elsewhere")
    (git_repo / "way-out").symlink_to(elsewhere)
    git(git_repo, "add", "way-out")
    git(git_repo, "commit", "--quiet", "--message=A link")
    async with Helmsman(narrow, env=codex_home.env) as helm:
        for place in (elsewhere, git_repo / "way-out"):
            with pytest.raises(InvalidInput, match="outside the allowed roots"):
                await helm.start("x", cwd=place, worktree=True)
        session = await helm.start("hello", cwd=git_repo, worktree=True)
        assert await session.wait(until="end", timeout=SECONDS)
        assert session.options.cwd is not None
        assert session.options.cwd.resolve().is_relative_to(narrow.state_dir.resolve() / "worktrees")
        with pytest.raises(HelmsmanError):
            await helm.start("x", cwd=narrow.state_dir)
