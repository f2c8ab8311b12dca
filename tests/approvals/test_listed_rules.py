"""Rules can be listed, explained and removed."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from helmsman.approvals.rule_book import lines_of_rules, rule_as_toml, without_rule
from helmsman.errors import InvalidInput, InvalidSetting
from helmsman.model.rules import Rule
from tests.approvals.test_policy_rule_book import Place

WRITTEN = """# mine
allow_workspace_patches = true

[[rules]]
effect = "allow"
command = ["git", "status"]
directory = "/src"

[[rules]]
effect = "deny"
command = ["git", "push", "--force"]

[[rules]]
effect = "allow"
mcp = { server = "notes", tool = "search" }

[[rules]]
effect = "allow"
text = "/bin/bash -lc 'npm test'"

[[rules]]
effect = "allow"
type = "patch_approval"
directory = "/src/site"
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_rules_are_listed_with_their_places(place: Place) -> None:
    place.user(WRITTEN)
    listed = place.book().listed(place.sub)
    assert [(one.number, one.line) for one in listed] == [(1, 4), (2, 9), (3, 13), (4, 17), (5, 21)]
    assert {one.path for one in listed} == {place.user_file}
    assert not any(one.permanent or one.ignored for one in listed)


def test_a_permanent_rule_without_outside_answers_only_what_stays_inside(place: Place) -> None:
    place.state.mkdir(mode=0o700, exist_ok=True)
    rules = place.state / "rules.toml"
    rules.write_text(f'[[rules]]\neffect = "allow"\ncommand = ["git", "push"]\ndirectory = "{place.repo}"\n\n')
    rules.chmod(0o600)
    (one,) = place.book().listed(place.sub)
    assert one.permanent
    assert place.book().explain("git push", place.sub).effect == "ask"
    assert place.book().explain("git push", place.sub, inside=True).effect == "allow"


def test_a_rule_that_does_not_count_says_why(place: Place) -> None:
    place.project('[[rules]]\neffect = "allow"\ncommand = ["ls"]\n[[rules]]\neffect = "deny"\ncommand = ["rm"]\n')
    allowing, denying = place.book().listed(place.sub)
    assert allowing.ignored is not None
    assert "trusted_projects" in allowing.ignored
    assert denying.ignored is None
    place.user('[[rules]]\neffect = "allow"\ncommand = ["ls"]\n')
    place.project("rules = 3", place.sub)
    own = place.book().listed(place.sub)[0]
    assert own.ignored is not None
    assert "cannot be read" in own.ignored


def test_no_project_can_carry_outside_not_even_a_trusted_one(place: Place) -> None:
    place.user(f'trusted_projects = ["{place.repo}"]\n[[rules]]\neffect = "allow"\ncommand = ["ls"]\noutside = true\n')
    assert place.book().explain("ls", place.sub).effect == "allow"
    place.project('[[rules]]\neffect = "allow"\ncommand = ["make"]\noutside = true\n')
    with pytest.raises(InvalidSetting, match="outside = true, which no project may allow"):
        place.book().check(place.sub)
    assert place.book().explain("make", place.sub).effect == "ask"


# --- explained -------------------------------------------------------------------------------------------------------


def test_the_deciding_rule_is_shown(place: Place) -> None:
    place.user(
        '[[rules]]\neffect = "allow"\ncommand = ["npm", "test"]\noutside = true\n'
        '[[rules]]\neffect = "deny"\ncommand = ["rm"]\nreason = "Not here."\n'
    )
    book = place.book()
    allowed = book.explain("npm test", place.sub)
    assert allowed.effect == "allow"
    assert allowed.rule is not None
    assert allowed.rule.origin == f"rule 1 of {place.user_file}"
    denied = book.explain("/bin/bash -lc 'npm test; rm x'", place.sub)
    assert (denied.effect, denied.reason) == ("deny", "Not here.")
    assert book.explain("npm test -- --watch", place.sub).reason.startswith("No rule allows this part")


def test_a_command_is_found_by_what_one_types_although_the_rule_has_what_codex_shows(place: Place) -> None:
    text = "/bin/bash -lc 'npm test > log'"
    place.book().add(Rule(effect="allow", text=text, directory=place.repo, below=False, outside=True))
    book = place.book()
    assert book.explain("npm test > log", place.repo).effect == "allow"
    assert book.explain(text, place.repo).effect == "allow"
    assert book.explain("npm test > log", place.sub).effect == "ask"


# --- taken back ------------------------------------------------------------------------------------------------------


def made(place: Place) -> list[Rule]:
    return [
        Rule(effect="allow", text=f"/bin/bash -lc 'echo {number}'", directory=place.repo, below=False, outside=True)
        for number in range(3)
    ]


def test_a_permanent_rule_can_be_taken_back_and_the_others_stay(place: Place) -> None:
    book = place.book()
    for rule in made(place):
        book.add(rule)
    file = place.state / "rules.toml"
    file.write_text("# kept\n" + file.read_text(encoding="utf-8"), encoding="utf-8")
    second = book.listed(None)[1]
    assert book.remove(second.id) == second
    assert [one.rule.text for one in book.listed(None)] == ["/bin/bash -lc 'echo 0'", "/bin/bash -lc 'echo 2'"]
    assert file.read_text(encoding="utf-8").startswith("# kept\n")
    assert file.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidInput, match="has no rule"):
        book.remove(second.id)


def test_an_id_never_means_another_rule(place: Place) -> None:
    book = place.book()
    first, *_ = made(place)
    book.add(first)
    (shown,) = book.listed(None)
    (place.state / "rules.toml").write_text(rule_as_toml(made(place)[1]), encoding="utf-8")
    with pytest.raises(InvalidInput):
        book.remove(shown.id)
    assert len(book.listed(None)) == 1


def test_a_hand_written_rule_is_not_removed(place: Place) -> None:
    place.user(WRITTEN)
    before = place.user_file.read_bytes()
    with pytest.raises(InvalidInput):
        place.book().remove(place.book().listed(place.sub)[0].id)
    assert place.user_file.read_bytes() == before


def test_a_rule_in_a_rewritten_file_is_left_for_the_user_to_remove(place: Place) -> None:
    book = place.book()
    book.add(made(place)[0])
    file = place.state / "rules.toml"
    text = file.read_text(encoding="utf-8") + "[mine]\nkept = true\n"
    file.write_text(text, encoding="utf-8")
    (shown,) = book.listed(None)
    with pytest.raises(InvalidSetting, match="Remove rule 1 there by hand"):
        book.remove(shown.id)
    assert file.read_text(encoding="utf-8") == text


def test_a_rule_that_cannot_be_cut_out_cleanly_is_left_alone() -> None:
    quoted = '[[rules]]\ntext = """\n[[rules]]\n"""\n[["rules"]]\n'
    assert [without_rule(quoted, number) for number in (1, 2)] == [None, None]
    rule = '[[rules]]\neffect = "allow"\ntext = """\n[[rules]]\n"""\n'
    assert without_rule(rule, 1) is None
    assert without_rule('rules = [{ effect = "deny" }]\n', 1) is None
    assert without_rule('[[rules]]\neffect = "deny"\n[other]\na = 1\n', 1) is None
    kept = without_rule('a = 1\n[[rules]]\neffect = "deny"\n', 1)
    assert kept is not None
    assert tomllib.loads(kept) == {"a": 1}


def test_lines_are_told_only_where_they_are_known() -> None:
    assert lines_of_rules('a = 1\n\n[[rules]]\neffect = "deny"\n [[ rules ]]\neffect = "deny"\n', 2) == [3, 5]
    assert lines_of_rules('rules = [{ effect = "deny" }]', 1) == [None]
