"""Tests of rules for patches, and of the switch for the workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helmsman.approvals.policy import Workspace, led_elsewhere, sandbox_of
from helmsman.base.structs import replace
from helmsman.model.options import WRITES
from helmsman.model.question_text import describe
from helmsman.model.rules import Rule
from tests.approvals.policy_questions import LS, ask, decided, deny, patch


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "repo" / "src").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "repo" / "out").symlink_to(tmp_path / "other")
    (tmp_path / "repo" / "file").symlink_to(tmp_path / "other" / "file")
    return tmp_path / "repo"


def test_the_switch_allows_changes_inside_the_writable_roots(repo: Path) -> None:
    workspace = Workspace(directory=repo, writes="workspace", writable_roots=(repo.parent / "other",))
    question = patch(repo / "a.txt", repo / "src" / "new" / "b.txt", repo.parent / "other" / "c.txt")
    assert decided(question, workspace=workspace, switch=True).effect == "allow"
    assert decided(question, workspace=workspace, switch=False).effect == "ask"


@pytest.mark.parametrize("sandbox", ["read-only", "danger-full-access", None])
def test_the_switch_is_for_workspace_write_sessions_alone(repo: Path, sandbox: str | None) -> None:
    workspace = Workspace(directory=repo, writes=WRITES.get(sandbox or ""))
    assert decided(patch(repo / "a.txt"), workspace=workspace, switch=True).effect == "ask"


def test_where_an_agent_says_that_nothing_holds_it_no_change_counts_as_inside(repo: Path) -> None:
    workspace = Workspace(directory=repo, writes="workspace")
    held, free = (
        ask("patch_approval", paths=[str(repo / "a.txt")], sandbox=sandbox) for sandbox in ("inside", "outside")
    )
    assert sandbox_of(held, workspace) == "inside"
    assert sandbox_of(free, workspace) == "outside"
    assert decided(free, workspace=workspace, switch=True).effect == "ask"


def test_where_nothing_holds_the_agent_a_plain_rule_covers_no_patch(repo: Path) -> None:
    workspace = Workspace(directory=repo, writes="workspace")
    inside = Rule(effect="allow", type="patch_approval", directory=repo)
    question = patch(repo / "a.txt", sandbox="outside")
    assert decided(question, inside, workspace=workspace, switch=True).effect == "ask"
    assert decided(question, replace(inside, outside=True), workspace=workspace).effect == "allow"


def test_a_change_through_a_link_says_where_it_leads(repo: Path) -> None:
    (repo.parent / "way").symlink_to(repo)
    here, other = repo.parent / "way", repo.parent / "other"
    names = [str(here / "a.txt"), str(here / "out" / "b.txt"), str(here / "out" / ".." / "c.txt"), "file", "../d.txt"]
    question = patch(*names)
    led = led_elsewhere(question, here)
    assert led == {
        names[1]: str(other / "b.txt"),
        names[2]: str(repo.parent / "c.txt"),  # not where the dots seem to lead
        "file": str(other / "file"),
    }
    shown = describe(replace(question, details={**question.details, "leadsTo": led})).text()
    assert f"Changes: {other}/b.txt, where {names[1]} leads" in shown


@pytest.mark.parametrize(
    "path",
    [
        "../other/x", "out/x", "file", "src/../../other/x", "/etc/passwd", ".git/hooks/pre-commit", "src/.git/config",
        ".GIT/config", ".codex/config.toml", ".agents/x", "helmsman.toml", "src/helmsman.toml", "Helmsman.TOML", "",
        ".claude/settings.json", "src/.mcp.json", ".gemini/settings.json", ".opencode/plugin/x.js", "opencode.json",
        ".qwen/settings.json", ".github/hooks/x.json",
    ],
)  # fmt: skip
def test_the_switch_covers_no_path_that_leads_out_or_is_protected(repo: Path, path: str) -> None:
    workspace = Workspace(directory=repo, writes="workspace")
    question = patch(repo / "a.txt", f"{repo}/{path}" if not path.startswith("/") else path)
    assert decided(question, workspace=workspace, switch=True).effect == "ask"


@pytest.mark.parametrize(
    "details",
    [
        {},
        {"paths": []},
        {"paths": None},
        {"paths": "/x"},
        {"paths": ["relative.txt"]},
        {"paths": [7]},
        {"paths": ["/x\0y"]},
        {"paths": ["/x\ud800"]},
        {"diff": "diff --git a/x b/x"},
    ],
)
def test_a_patch_that_does_not_say_what_it_changes_is_asked(details: dict[str, Any]) -> None:
    workspace = Workspace(directory=Path("/"), writes="workspace")
    rule = Rule(effect="allow", type="patch_approval", directory=Path("/"))
    assert decided(ask("patch_approval", **details), rule, workspace=workspace, switch=True).effect == "ask"
    denied = Rule(effect="deny", type="patch_approval", directory=Path("/src"))
    assert decided(ask("patch_approval", **details), denied, workspace=workspace).effect == "deny"


def test_a_patch_that_asks_for_a_whole_directory_is_asked(repo: Path) -> None:
    workspace = Workspace(directory=repo, writes="workspace")
    question = patch(repo / "a.txt", grantRoot=str(repo))
    assert decided(question, workspace=workspace, switch=True).effect == "ask"


def test_the_files_of_the_legacy_form_are_its_keys_and_where_they_move(repo: Path) -> None:
    workspace = Workspace(directory=repo, writes="workspace")
    files = {str(repo / "a"): {"add": {"content": "x"}}, str(repo / "b"): {"update": {"move_path": None}}}
    assert decided(ask("patch_approval", files=files), workspace=workspace, switch=True).effect == "allow"
    files[str(repo / "b")] = {"update": {"move_path": "/etc/b"}}
    assert decided(ask("patch_approval", files=files), workspace=workspace, switch=True).effect == "ask"


def test_a_patch_rule_covers_the_files_below_its_directory(repo: Path) -> None:
    workspace = Workspace(directory=repo, writes="workspace")
    for rule in (
        Rule(effect="allow", type="patch_approval", directory=repo / "src"),
        Rule(effect="allow", type="patch_approval", directory=repo / "src", outside=True),
    ):
        assert decided(patch(repo / "src" / "a", repo / "src" / "b" / "c"), rule, workspace=workspace).effect == "allow"
        assert decided(patch(repo / "src" / "a", repo / "a"), rule, workspace=workspace).effect == "ask"
        assert decided(patch(repo / "src" / ".git" / "a"), rule, workspace=workspace).effect == "ask"
    only_there = Rule(effect="allow", type="patch_approval", directory=repo / "src", below=False)
    assert decided(patch(repo / "src" / "a"), only_there, workspace=workspace).effect == "allow"
    assert decided(patch(repo / "src" / "b" / "c"), only_there, workspace=workspace).effect == "ask"


@pytest.mark.parametrize("sandbox", ["read-only", "danger-full-access", None])
def test_a_plain_patch_rule_answers_only_where_the_session_may_write(repo: Path, sandbox: str | None) -> None:
    plain = Rule(effect="allow", type="patch_approval", directory=repo.parent)
    leaves = Rule(effect="allow", type="patch_approval", directory=repo.parent, outside=True)
    elsewhere = patch(repo / "a", repo.parent / "other" / "b")
    for question, workspace in [
        (patch(repo / "a"), Workspace(directory=repo, writes=WRITES.get(sandbox or ""))),
        (elsewhere, Workspace(directory=repo, writes="workspace")),
    ]:
        assert decided(question, plain, workspace=workspace).effect == "ask"
        assert decided(question, leaves, workspace=workspace).effect == "allow"
    reaches = Workspace(directory=repo, writes="workspace", writable_roots=(repo.parent / "other",))
    assert decided(elsewhere, plain, workspace=reaches).effect == "allow"


def test_a_denied_directory_may_not_be_patched_in_any_file(repo: Path) -> None:
    workspace = Workspace(directory=repo, writes="workspace")
    rule = Rule(effect="deny", directory=repo / "SRC")
    assert decided(patch(repo / "a"), rule, workspace=workspace, switch=True).effect == "allow"
    assert decided(patch(repo / "a", repo / "src" / "b"), rule, workspace=workspace, switch=True).effect == "deny"


def test_a_command_rule_says_nothing_about_patches(repo: Path) -> None:
    assert decided(patch(repo / "a"), LS, deny("ls"), Rule(effect="allow", type="patch_approval")).effect == "ask"
