"""Tests of the precedence of rules, and of permanent rules with several processes, odd words and full disks."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helmsman.approvals import rule_book
from helmsman.approvals.rule_book import RuleBook
from helmsman.base.files import file_lock
from helmsman.errors import InvalidSetting
from helmsman.model.rules import Rule
from helmsman.settings import load_settings

ALLOW = '[[rules]]\neffect = "allow"\ncommand = ["ls"]\n'
DENY = '[[rules]]\neffect = "deny"\ncommand = ["rm"]\n'


class Place:
    """User's file, a repository with a directory, and a state directory."""

    def __init__(self, root: Path) -> None:
        self.user_file = root / "config" / "helmsman.toml"
        self.repo = root / "repo"
        self.sub = self.repo / "sub"
        self.state = root / "state"
        self.user_file.parent.mkdir()
        self.sub.mkdir(parents=True)
        (self.repo / ".git").mkdir()
        (self.repo / ".git" / "HEAD").touch()
        self.user("")

    def user(self, text: str) -> None:
        self.user_file.write_text(text, encoding="utf-8")

    def project(self, text: str, directory: Path | None = None) -> None:
        ((directory or self.repo) / "helmsman.toml").write_text(text, encoding="utf-8")

    def book(self) -> RuleBook:
        read = load_settings({}, {"HOME": str(self.repo.parent)}, self.repo.parent, user_file=self.user_file)
        return RuleBook(read.files, self.state)

    def described(self, directory: Path | None = None) -> list[str]:
        return [rule.describe() for rule in self.book().rules_for(directory or self.sub).rules]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_repository_inside_another_hides_no_rule_of_the_outer_one(place: Place) -> None:
    place.project(DENY)
    for mark in (place.sub / ".git", place.sub / "deeper" / ".git"):
        mark.mkdir(parents=True)
        (mark / "HEAD").touch()
    for directory in (place.sub, place.sub / "deeper"):
        assert place.described(directory) == [f"deny rm (rule 1 of {place.repo / 'helmsman.toml'})"]


def test_rules_of_user_prompt_and_project_hold_together(place: Place) -> None:
    place.user(ALLOW)
    place.book().add(Rule(effect="allow", command=("wc",), directory=place.repo))
    place.project(DENY)
    assert place.described() == [
        f"allow ls (rule 1 of {place.user_file})",
        f"allow wc in {place.repo} (rule 1 of {place.state / 'rules.toml'})",
        f"deny rm (rule 1 of {place.repo / 'helmsman.toml'})",
    ]


def test_without_any_file_there_are_no_rules(place: Place) -> None:
    book = RuleBook([], place.state)
    assert book.rules_for(place.sub).rules == book.rules_for(None).rules == ()
    book.check(place.sub)


def test_a_project_that_is_not_trusted_may_only_narrow(place: Place) -> None:
    place.project("allow_workspace_patches = true\n" + ALLOW + DENY)
    found = place.book().rules_for(place.sub)
    assert [rule.effect for rule in found.rules] == ["deny"]
    assert found.allow_workspace_patches is False


def test_a_project_that_the_user_trusts_may_allow_within_itself(place: Place) -> None:
    place.user(f'trusted_projects = ["{place.repo}"]')
    place.project("allow_workspace_patches = true\n" + ALLOW)
    found = place.book().rules_for(place.sub)
    assert [(rule.effect, rule.directory) for rule in found.rules] == [("allow", place.repo)]
    assert found.allow_workspace_patches is True


def test_trust_is_for_one_directory_and_not_for_what_lies_in_it(place: Place) -> None:
    place.user(f'trusted_projects = ["{place.repo}", "{place.repo.parent}"]')
    place.project(ALLOW, place.sub)
    assert place.described() == []


def test_trust_follows_links_to_the_project_it_names(place: Place) -> None:
    link = place.repo.parent / "link"
    link.symlink_to(place.repo)
    place.user(f'trusted_projects = ["{link}"]')
    place.project(ALLOW)
    assert len(place.described()) == 1


def test_only_the_user_can_choose_trusted_repositories(place: Place) -> None:
    place.project(f'trusted_projects = ["{place.repo}"]\n' + ALLOW)
    with pytest.raises(InvalidSetting, match="trusted_projects, which a project's file may not"):
        place.book().check(place.sub)


def test_the_files_of_a_project_add_up_from_the_directory_to_the_git_root(place: Place) -> None:
    place.project(DENY)
    place.project(DENY.replace("rm", "mv"), place.sub)
    place.project(DENY.replace("rm", "cp"), place.repo.parent)
    assert [text.split(" (")[0] for text in place.described()] == ["deny mv", "deny rm"]
    outside = [text.split(" (")[0] for text in place.described(place.repo.parent)]
    assert outside == ["deny cp"]


def test_the_users_own_file_is_not_taken_for_a_projects(place: Place) -> None:
    place.user(ALLOW)
    (place.repo / "helmsman.toml").symlink_to(place.user_file)
    assert len(place.described()) == 1


def test_a_file_that_changed_is_read_again(place: Place) -> None:
    place.user(ALLOW)
    book = place.book()
    assert len(book.rules_for(place.sub).rules) == 1
    place.user(ALLOW + DENY)
    assert len(book.rules_for(place.sub).rules) == 2
    place.project(DENY)
    assert len(book.rules_for(place.sub).rules) == 3
    (place.repo / "helmsman.toml").unlink()
    assert len(book.rules_for(place.sub).rules) == 2


def test_a_file_that_did_not_change_is_not_read_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.user(ALLOW)
    book = place.book()
    before = book.rules_for(place.sub)
    monkeypatch.setattr(rule_book, "read_rules", None)
    assert book.rules_for(place.sub) == before


def test_the_memory_of_files_is_bounded(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule_book, "_FILES_REMEMBERED", 2)
    place.user(ALLOW)
    place.project(DENY)
    place.project(DENY, place.sub)
    book = place.book()
    assert len(book.rules_for(place.sub).rules) == len(book.rules_for(place.sub).rules) == 3


@pytest.mark.parametrize("broken", ["[[rules]", "[[rules]]\neffect = 1", "\xff" * 2_000_000, "a = " + "[" * 20_000])
def test_while_one_file_is_broken_nothing_is_allowed_and_all_else_is_still_denied(place: Place, broken: str) -> None:
    place.user("allow_workspace_patches = true\n" + ALLOW + DENY)
    book = place.book()
    place.project(broken)
    found = book.rules_for(place.sub)
    assert [rule.effect for rule in found.rules] == ["deny"]
    assert found.allow_workspace_patches is False
    assert found.problem is not None
    assert str(place.repo / "helmsman.toml") in found.problem
    with pytest.raises(InvalidSetting) as error:
        book.check(place.sub)
    assert error.value.message == found.problem


def test_a_project_cannot_make_helmsman_wait_for_a_pipe(place: Place) -> None:
    os.mkfifo(place.repo / "helmsman.toml")
    problem = place.book().rules_for(place.sub).problem
    assert problem is not None
    assert "is not a file" in problem


def test_a_project_file_that_may_not_be_read_allows_nothing(place: Place) -> None:
    (place.repo / "helmsman.toml").symlink_to(place.repo / "helmsman.toml")  # a loop
    place.user(ALLOW)
    assert place.described() == []


# --- rules given for good --------------------------------------------------------------------------------------------


def test_a_rule_is_kept_once_and_for_the_user_alone(place: Place) -> None:
    rule = Rule(effect="allow", command=("git", "push"), directory=place.repo, origin="approved always")
    place.book().add(rule)
    place.book().add(rule)
    path = place.book().permanent_path
    assert len(place.described()) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in sorted(path.parent.iterdir())] == ["rules.lock", "rules.toml"]


def test_a_link_in_the_place_of_its_directory_leads_a_kept_rule_nowhere_else(place: Place) -> None:
    rule = Rule(effect="allow", command=("ls",), directory=place.sub, below=False, resolved=True, outside=True)
    place.book().add(rule)
    assert place.book().explain("ls", place.sub).effect == "allow"
    place.sub.rmdir()
    elsewhere = place.repo.parent / "elsewhere"
    elsewhere.mkdir()
    place.sub.symlink_to(elsewhere)
    assert place.book().explain("ls", place.sub).effect == "ask"
    assert place.book().explain("ls", elsewhere).effect == "ask"


def test_manual_changes_of_the_rules_file_are_kept(place: Place) -> None:
    path = place.book().permanent_path
    place.book().add(Rule(effect="allow", command=("ls",), directory=place.repo))
    path.write_text("# mine\n" + path.read_text(encoding="utf-8") + "# and this", encoding="utf-8")
    place.book().add(Rule(effect="allow", command=("wc",), directory=place.repo))
    assert len(place.described()) == 2
    assert "# mine" in path.read_text(encoding="utf-8")


def test_a_file_that_others_can_write_is_not_believed(place: Place) -> None:
    place.book().add(Rule(effect="allow", command=("ls",), directory=place.repo))
    path = place.book().permanent_path
    path.chmod(0o622)
    assert place.described() == []
    with pytest.raises(InvalidSetting, match="Other users can write to"):
        place.book().add(Rule(effect="allow", command=("wc",), directory=place.repo))


def test_a_users_file_that_all_users_can_write_is_not_trusted(place: Place) -> None:
    place.user(ALLOW + DENY)
    place.user_file.chmod(0o664)  # a group of one's own
    assert len(place.described()) == 2
    place.user_file.chmod(0o666)
    assert place.described() == []
    with pytest.raises(InvalidSetting, match="Other users can write to"):
        place.book().check(place.sub)


def test_a_broken_file_is_neither_believed_nor_overwritten(place: Place) -> None:
    place.state.mkdir(mode=0o700)
    path = place.book().permanent_path
    path.write_text("[[rules]", encoding="utf-8")
    path.chmod(0o600)
    with pytest.raises(InvalidSetting, match="is not valid TOML"):
        place.book().add(Rule(effect="allow", command=("ls",), directory=place.repo))
    assert path.read_text(encoding="utf-8") == "[[rules]"


@pytest.mark.parametrize(
    "rule",
    [
        Rule(effect="allow"),
        Rule(effect="allow", command=("eval",)),
        Rule(effect="allow", type="patch_approval", paths=("/x",)),
        Rule(effect="allow", command=("ls",), directory=Path("/a\u202eb")),
        Rule(effect="allow", text="\ud800", directory=Path("/a")),
    ],
)
def test_a_rule_that_could_not_be_read_again_is_not_written(place: Place, rule: Rule) -> None:
    with pytest.raises(InvalidSetting):
        place.book().add(rule)
    assert not place.book().permanent_path.exists()


def test_a_disk_without_room_leaves_the_old_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.book().add(Rule(effect="allow", command=("ls",), directory=place.repo))

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InvalidSetting, match="No space left on device"):
        place.book().add(Rule(effect="allow", command=("wc",), directory=place.repo))
    assert len(place.described()) == 1
    assert not list(place.state.glob(".rules.toml*"))


def test_a_lock_that_is_never_given_back_is_an_error_and_not_a_wait(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule_book, "_LOCK_SECONDS", 0.05)
    place.state.mkdir(mode=0o700)
    with (
        file_lock(place.state / "rules.lock", timeout=1),
        pytest.raises(InvalidSetting, match="is held by another process"),
    ):
        place.book().add(Rule(effect="allow", command=("ls",), directory=place.repo))
    place.book().add(Rule(effect="allow", command=("ls",), directory=place.repo))


ADD_SOME = """
import sys
from pathlib import Path
from helmsman.model.rules import Rule
from helmsman.approvals.rule_book import RuleBook

for number in range(8):
    RuleBook([], Path(sys.argv[1])).add(Rule(effect="allow", command=(sys.argv[2], str(number)), directory=Path("/src")))
"""


def test_rules_of_several_processes_are_all_kept(place: Place) -> None:
    names = ("p0", "p1", "p2")
    started = [subprocess.Popen([sys.executable, "-c", ADD_SOME, place.state, name]) for name in names]
    assert [process.wait(60) for process in started] == [0, 0, 0]
    found = {rule.command for rule in place.book().rules_for(None).rules}
    assert found == {(name, str(number)) for name in names for number in range(8)}


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1), words=st.lists(st.text(min_size=1), min_size=1)
)
def test_the_file_stays_readable_whatever_is_added(
    tmp_path_factory: pytest.TempPathFactory, text: str, words: list[str]
) -> None:
    state = tmp_path_factory.mktemp("state")
    book = RuleBook([], state)
    for rule in (Rule(effect="allow", text=text), Rule(effect="deny", command=tuple(words))):
        book.add(rule)
    content = tomllib.loads(book.permanent_path.read_text(encoding="utf-8"))
    assert [entry.get("text", entry.get("command")) for entry in content["rules"]] == [text, words]
    assert book.rules_for(None).problem is None
