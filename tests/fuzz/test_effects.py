"""Rules against real programs: what they let through is run, and what it does outside is compared with what they mean.

Two questions. Does a command that rules allow ever do more outside the workspace than the exact words of a rule do there?
(A rule with `prefix = true` claims nothing of the kind, so there is none here.) And is there a way to have what a deny rule
means that is neither denied nor asked about?

Each defence is then switched off, and the same search must find what it keeps out: within a minute, mostly at once.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

from helmsman.approvals import option_effects, policy, shell_words
from helmsman.approvals.option_effects import Certainty
from helmsman.approvals.policy import RuleSet, Workspace, decide
from helmsman.approvals.shell_words import SimpleCommand
from helmsman.model.questions import Prompt, Question
from helmsman.model.rules import Rule
from tests.fuzz.effect_commands import ALLOWED, DENIED, Denied, denied_commands, twisted_commands
from tests.fuzz.effects_laboratory import PROGRAMS, EffectsLaboratory
from tests.fuzz.effort import FACTOR, effort

_Example = TypeVar("_Example")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.name != "posix" or any(shutil.which(name) is None for name in PROGRAMS),
        reason="Some of the programs are not here.",
    ),
]

SHELLS: Final = [shell for shell in ("bash", "dash") if shutil.which(shell)]
SECONDS: Final = 60
"""How long the search for a hole may take where a defence is off."""


@pytest.fixture(scope="module")
def laboratory() -> Iterator[EffectsLaboratory]:
    laboratory = EffectsLaboratory()
    yield laboratory
    laboratory.close()


@pytest.fixture(scope="module")
def own_effects(laboratory: EffectsLaboratory) -> set[str]:
    """What the rules' own words change outside."""
    return {path for words in ALLOWED for path in laboratory.effects("bash", shlex.join(words), laboratory.work)}


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> Iterator[None]:
    """Parsing with a defence differs from parsing without it."""
    for remembers in (option_effects.canonical_name, option_effects._read_rule):
        remembers.cache_clear()
    yield
    for remembers in (option_effects.canonical_name, option_effects._read_rule):
        remembers.cache_clear()


def question(text: str, directory: Path) -> Question:
    return Question(
        asker="Codex",
        id="q_1",
        type="command_approval",
        session_id="T1",
        turn_id="U1",
        prompts=(Prompt(text="May I?", options=("approve", "deny")),),
        details={"command": text, "directory": str(directory), "sandbox": "outside"},
    )


def searched(examples: int) -> settings:
    """The same examples in every run of the tests; others each time where more effort is wanted (`make fuzz`)."""
    return settings(effort(examples), derandomize=FACTOR == 1, phases=[Phase.generate, Phase.shrink], database=None)


def found(strategy: SearchStrategy[_Example], is_hole: Callable[[_Example], bool]) -> _Example:
    """Return the first hole; fail if there is none within the time."""
    end = time.monotonic() + SECONDS

    def is_hole_in_time(example: _Example) -> bool:
        if time.monotonic() > end:
            pytest.fail(f"Nothing was found within {SECONDS} seconds.")
        return is_hole(example)

    every = settings(
        max_examples=100_000,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    try:
        return find(strategy, is_hole_in_time, settings=every)
    except NoSuchExample:
        pytest.fail("Nothing was found.")


# --- allowed commands ------------------------------------------------------------------------------------------------


def allows_too_much(laboratory: EffectsLaboratory, own_effects: set[str], text: str, directory: Path) -> bool:
    """Whether the rules allow a command that does more outside than their own words do."""
    work = laboratory.work
    exact = [Rule(effect="allow", command=words, outside=True, directory=work, below=False) for words in ALLOWED]
    plain = [Rule(effect="allow", command=words[:1], directory=work) for words in ALLOWED]
    decision = decide(question(text, directory), RuleSet(rules=(*exact, *plain)), Workspace(directory=work))
    if decision.effect != "allow":
        return False
    return any(not laboratory.effects(shell, text, directory) <= own_effects for shell in SHELLS)


@pytest.mark.parametrize("words", ALLOWED)
def test_the_words_that_are_twisted_are_allowed_and_work(laboratory: EffectsLaboratory, words: tuple[str, ...]) -> None:
    rule = Rule(effect="allow", command=words, outside=True, directory=laboratory.work, below=False)
    asked = question(shlex.join(words), laboratory.work)
    assert decide(asked, RuleSet(rules=(rule,)), Workspace(directory=laboratory.work)).effect == "allow"
    assert laboratory.run("bash", shlex.join(words), laboratory.work) == 0


def test_an_allowed_command_does_nothing_outside_beyond_the_words_of_its_rule(
    laboratory: EffectsLaboratory, own_effects: set[str]
) -> None:
    @searched(120)
    @given(twisted_commands(laboratory))
    def check(command: tuple[str, Path]) -> None:
        assert not allows_too_much(laboratory, own_effects, *command)

    check()


def _words_may_follow(rule: Rule, command: SimpleCommand, *, inside: bool) -> bool:
    words = rule.command or ()
    plain = not command.env and not command.writes
    return (inside or rule.outside) and plain and command.words[: len(words)] == words


def _files_are_nothing(rule: Rule, command: SimpleCommand, *, inside: bool) -> bool:
    return (inside or rule.outside) and not command.env and command.words == rule.command


def _variables_are_nothing(rule: Rule, command: SimpleCommand, *, inside: bool) -> bool:
    return (inside or rule.outside) and not command.writes and command.words == rule.command


def _below_is_there(place: str, directory: Path, *_: object, **__: object) -> bool:
    return os.path.realpath(place).startswith(os.path.realpath(directory))


def _first_part_only(text: str) -> tuple[SimpleCommand, ...] | None:
    commands = shell_words.parse_command(text)
    return commands[:1] if commands else None


ALLOWING_DEFENCES: dict[str, tuple[object, str, Any]] = {
    "a rule's words are all the words": (policy, "_covers", _words_may_follow),
    "a rule holds in exactly its directory": (policy, "_inside", _below_is_there),
    "what leaves needs a rule that says outside": (policy, "sandbox_of", lambda *_: "inside"),
    "a redirection is a part of the command": (policy, "_covers", _files_are_nothing),
    "a variable is a part of the command": (policy, "_covers", _variables_are_nothing),
    "every part of a command counts": (policy, "parse_command", _first_part_only),
    "a rule holds where cd leads": (policy, "directories_after", lambda start, _: [start]),
    "a shell lies where shells lie": (shell_words, "_SHELL_PLACES", frozenset(["", "/bin", ".", "sub"])),
}


@pytest.mark.rare
@pytest.mark.parametrize("defence", ALLOWING_DEFENCES)
def test_without_this_defence_an_unintended_command_is_allowed(
    laboratory: EffectsLaboratory, own_effects: set[str], monkeypatch: pytest.MonkeyPatch, defence: str
) -> None:
    monkeypatch.setattr(*ALLOWING_DEFENCES[defence])
    found(twisted_commands(laboratory), lambda command: allows_too_much(laboratory, own_effects, *command))


# --- denied commands -------------------------------------------------------------------------------------------------


def slips_through(laboratory: EffectsLaboratory, denied: Denied, text: str) -> bool:
    """Whether a command does what the rule denies, and only the rule could have kept it from being allowed."""
    rules = (
        Rule(effect="deny", command=tuple(denied.rule.split())),
        Rule(effect="allow", text=text, outside=True),
    )
    decision = decide(question(text, laboratory.work), RuleSet(rules=rules), Workspace(directory=laboratory.work))
    return decision.effect == "allow" and does(laboratory, denied, text)


def does(laboratory: EffectsLaboratory, denied: Denied, text: str) -> bool:
    return denied.happened(laboratory, laboratory.run("bash", text, laboratory.work))


@pytest.mark.parametrize("denied", DENIED, ids=str)
def test_no_way_to_have_what_a_rule_denies_is_allowed(laboratory: EffectsLaboratory, denied: Denied) -> None:
    @searched(150)
    @given(denied_commands(denied))
    def check(text: str) -> None:
        assert not slips_through(laboratory, denied, text)

    check()


@pytest.mark.parametrize("denied", DENIED, ids=str)
def test_the_tried_commands_really_do_what_the_rule_denies(laboratory: EffectsLaboratory, denied: Denied) -> None:
    laboratory.run("bash", "true", laboratory.work)
    assert not denied.happened(laboratory, 1)
    found(denied_commands(denied), lambda text: does(laboratory, denied, text))


def _compare_by_spelling(rule: tuple[str, ...], command: tuple[str, ...], _: object) -> Certainty:
    if rule[0] != command[0]:
        return "no"
    return "yes" if option_effects.compare_spelling(rule[1:], command[1:]) == "yes" else "no"


def _certain_only(prefix: tuple[str, ...], possible: list[policy.PossibleCommand]) -> Certainty:
    return "yes" if policy.may_run(prefix, possible) == "yes" else "no"


class _Everything:
    def __contains__(self, _: object) -> bool:
        return True


class _Nothing:
    def search(self, _: str) -> None:
        return None


DENYING_DEFENCES: dict[str, tuple[str, object, str | tuple[str, ...], Any]] = {
    "options are what they do": ("rm -rf", policy, "compare", _compare_by_spelling),
    "options are what they do, in git": ("git push --force", policy, "compare", _compare_by_spelling),
    "what nobody understands is asked about": ("rm -rf", policy, "may_run", _certain_only),
    "letters stand together": ("rm --recursive --force", option_effects, "_read_bundle", lambda *_: 0),
    "a plus is a forced update": ("git push --force", option_effects, "_read_refspecs", lambda *_: None),
    "settings of git are options": ("git push --force", option_effects, "_read_setting", lambda *_: None),
    "variables are options": ("git push --force", option_effects, "VARIABLES", {"git": "-"}),
    "aliases of git, and its commands that run others, are asked about": (
        "git push --force",
        option_effects,
        ("GIT_COMMANDS", "git_runs_others"),
        (_Everything(), lambda *_: False),
    ),
    "a program is itself under any path": ("sed -i", option_effects, "program_name", lambda word: word),
    "programs run programs": ("chmod -R", policy, "runs_words", lambda _: False),
    "words are code": ("git clean -f", policy, "may_run_text", lambda _: False),
    "what is not understood is searched": ("git reset --hard", policy, "_guesses", lambda *_, **__: []),
    "what a shell computes is anything": ("tar -x", policy, "COMPUTED", " "),
    "names can be defined": ("git branch -D", policy, "_DEFINITION", _Nothing()),
}


@pytest.mark.rare
@pytest.mark.parametrize("defence", DENYING_DEFENCES)
def test_without_this_defence_something_slips_through_a_deny_rule(
    laboratory: EffectsLaboratory, monkeypatch: pytest.MonkeyPatch, defence: str
) -> None:
    rule, module, names, weaker = DENYING_DEFENCES[defence]
    denied = next(denied for denied in DENIED if denied.rule == rule)
    for name, value in [(names, weaker)] if isinstance(names, str) else zip(names, weaker, strict=True):
        monkeypatch.setattr(module, name, value)
    found(denied_commands(denied), lambda text: slips_through(laboratory, denied, text))
