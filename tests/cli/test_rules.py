"""Tests of `helmsman config rules`: list, test, add and remove rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from helmsman.approvals.rule_book import RuleBook
from helmsman.model.rules import Rule
from tests.cli.conftest import Cli, Done

pytestmark = pytest.mark.anyio

WRITTEN = '[[rules]]\neffect = "allow"\ncommand = ["git", "status"]\n\n[[rules]]\neffect = "deny"\ncommand = ["rm"]\n'


@pytest.fixture
def own_file(bare_cli: Cli, tmp_path: Path) -> Path:
    path = tmp_path / "home" / ".config" / "helmsman" / "helmsman.toml"
    path.parent.mkdir(parents=True)
    path.write_text(WRITTEN, encoding="utf-8")
    return path


@pytest.fixture
def book(tmp_path: Path) -> RuleBook:
    """The rules that answers have made."""
    book = RuleBook([], tmp_path / "state")
    book.add(Rule(effect="allow", text="/bin/bash -lc 'npm test'", directory=tmp_path, below=False, outside=True))
    return book


async def test_each_rule_is_shown_with_its_place_and_what_restores_it(
    bare_cli: Cli, own_file: Path, book: RuleBook
) -> None:
    for arguments in (["config", "rules"], ["config", "rules", "list"]):
        done = await bare_cli.run(*arguments)
        assert done.exit_code == 0
        lines = done.stdout.splitlines()
        assert lines[0].endswith("  allow git status")
        assert lines[1] == f"  rule 1 of {own_file}, line 1"
        assert lines[2].endswith("  deny rm")
        assert "allow /bin/bash -lc 'npm test' outside the sandbox in" in lines[4]
        assert lines[5] == f"  rule 1 of {book.permanent_path}, line 1"


async def test_a_directory_holds_for_the_command_behind_it(bare_cli: Cli, book: RuleBook, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    for arguments in (["-C", "elsewhere", "test"], ["test", "-C", "elsewhere"]):
        assert (await bare_cli.run("config", "rules", *arguments, "npm test")).stdout.startswith("Asked.")
    assert (await bare_cli.run("config", "rules", "test", "npm test")).stdout.startswith("Allowed.")


async def test_programs_get_the_rules_as_json(bare_cli: Cli, own_file: Path, book: RuleBook) -> None:
    (said,) = (await bare_cli.run("config", "rules", "list", "--json")).json
    assert [(rule["effect"], rule["removable"]) for rule in said["rules"]] == [
        ("allow", False),
        ("deny", False),
        ("allow", True),
    ]
    assert (said["allowWorkspacePatches"], said["problem"]) == (False, None)


async def test_missing_rules_are_reported_and_a_broken_file_is_named(bare_cli: Cli) -> None:
    assert "There are no rules" in (await bare_cli.run("config", "rules")).stderr
    (bare_cli.directory / "helmsman.toml").write_text('[[rules]]\neffect = "permit"\n', encoding="utf-8")
    shown = (await bare_cli.run("config", "rules")).stderr
    assert "Nothing is allowed by rule now: rules[1].effect in" in shown
    assert "Set it to one of allow, deny, ask" in shown


async def test_the_deciding_rule_of_a_command_is_shown(bare_cli: Cli, own_file: Path, book: RuleBook) -> None:
    asked = await bare_cli.run("config", "rules", "test", "git status")
    assert asked.stdout.startswith(
        "Asked. A yes may let it leave the sandbox, and this rule has no `outside = true`: allow"
    )
    assert (await bare_cli.run("config", "rules", "test", "--inside", "git status")).stdout.startswith(
        "Allowed. Rules allow"
    )
    assert (await bare_cli.run("config", "rules", "test", "sudo rm x")).stdout.startswith(
        "Denied. A rule says so: deny rm"
    )
    assert (await bare_cli.run("config", "rules", "test", "npm test")).stdout.startswith("Allowed.")
    (said,) = (await bare_cli.run("config", "rules", "test", "--json", "rm x")).json
    assert (said["effect"], said["rule"]) == ("deny", f"deny rm (rule 2 of {own_file})")


async def test_a_rule_is_removed_after_it_was_shown_and_agreed_to(bare_cli: Cli, book: RuleBook) -> None:
    (rule,) = book.listed(None)
    refused = await bare_cli.run("config", "rules", "remove", rule.id)
    assert refused.exit_code == 2
    assert "npm test" in refused.stderr
    assert "Nothing was done. Add --yes" in refused.stderr
    assert (await bare_cli.run("config", "rules", "remove", rule.id, "--json")).exit_code != 0
    assert len(book.listed(None)) == 1
    assert (await bare_cli.run("config", "rules", "remove", rule.id[:4], "--yes")).exit_code == 0
    assert book.listed(None) == []


async def test_keys_typed_before_a_question_are_no_answer_to_it(bare_cli: Cli, book: RuleBook) -> None:
    (rule,) = book.listed(None)
    async with bare_cli.on_terminal("config", "rules", "remove", rule.id) as program:
        program.press("y\n")
        await program.shows("Remove this rule?")
        program.press("\n")
        await program.shows("Nothing was done.")
        assert await program.exit_code() == 1
    assert book.listed(None) == [rule]


async def test_json_removes_what_was_agreed_to(bare_cli: Cli, book: RuleBook) -> None:
    (rule,) = book.listed(None)
    (said,) = (await bare_cli.run("config", "rules", "remove", rule.id, "--yes", "--json")).json
    assert said["removed"]["id"] == rule.id
    assert book.listed(None) == []


async def test_a_hand_written_rule_is_not_changed(bare_cli: Cli, own_file: Path) -> None:
    (said,) = (await bare_cli.run("config", "rules", "--json")).json
    done = await bare_cli.run("config", "rules", "remove", said["rules"][0]["id"], "--yes")
    assert done.exit_code != 0
    assert f"Remove it there: rule 1 of {own_file}, line 1." in done.stderr
    assert own_file.read_text(encoding="utf-8") == WRITTEN
    assert "There is no rule ffff" in (await bare_cli.run("config", "rules", "remove", "ffff", "--yes")).stderr


async def test_the_doctor_names_rules_that_cannot_be_read(bare_cli: Cli, own_file: Path) -> None:
    def rules_line(done: Done) -> dict[str, str]:
        (report,) = done.json
        return next(check for check in report["checks"] if check["name"] == "Rules")

    assert rules_line(await bare_cli.run("doctor", "--json"))["status"] == "ok"
    own_file.write_text("rules = 3", encoding="utf-8")
    assert rules_line(await bare_cli.run("doctor", "--json"))["status"] == "failed"


async def test_a_rule_is_added_after_it_was_shown_and_decides_from_then_on(bare_cli: Cli, tmp_path: Path) -> None:
    add = ("config", "rules", "add")
    refused = await bare_cli.run(*add, "allow", "npm run build")
    assert refused.exit_code == 2
    assert 'command = ["npm", "run", "build"]' in refused.stderr
    assert RuleBook([], tmp_path / "state").listed(None) == []
    (added,) = (await bare_cli.run(*add, "allow", "npm run build", "--yes", "--json")).json
    assert added["added"]
    test = ("config", "rules", "test", "--inside")
    assert (await bare_cli.run(*test, "npm run build")).stdout.startswith("Allowed.")
    assert (await bare_cli.run(*test, "npm publish")).stdout.startswith("Asked.")
    denied = await bare_cli.run(*add, "deny", "git push", "--everywhere", "--reason", "Ask me to push.", "--yes")
    assert denied.exit_code == 0, denied.stderr
    assert (await bare_cli.run(*test, "git push --force", "-C", "/")).stdout.startswith("Denied. Ask me to push.")
    for words in (
        ("allow", ""),
        ("allow", "'open"),
        ("allow", "sudo", "--prefix"),
        ("allow", "npm test", "--everywhere"),
        ("deny", "rm", "--outside"),
        ("ask", "rm", "--reason", "no"),
    ):
        assert (await bare_cli.run(*add, *words, "--yes")).exit_code == 2, words
