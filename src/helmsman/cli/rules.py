"""`helmsman config rules`: list approval rules, test a command against them, and remove granted rules."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

import click

from helmsman.base.caller_context import from_here
from helmsman.base.sanitize import one_line, visible
from helmsman.cli.command import cli_command, cli_group
from helmsman.cli.consent import agree, yes_option
from helmsman.cli.consoles import echo, settings_of_command
from helmsman.cli.host import host
from helmsman.cli.output import print_json, print_result
from helmsman.errors import InvalidInput, InvalidSetting
from helmsman.model.rules import Effect, Rule

if TYPE_CHECKING:
    from pathlib import Path

    from helmsman.approvals.rule_book import ListedRule, RuleBook


def _existing(_ctx: click.Context, _param: click.Parameter, value: str) -> Path:
    """Return the directory relative to the user's current one."""
    if not (place := from_here(value)).is_dir():
        raise click.BadParameter(f"Directory {value!r} does not exist.")
    return place


_directory_option: Final = click.option(
    *("-C", "--cd", "directory"),
    metavar="DIR",
    default=".",
    callback=_existing,
    help="Where the work is done, if not in the current directory.",
)


@cli_group(
    "rules",
    "List, add, test and remove the rules that answer questions.",
    "helmsman config rules",
    "helmsman config rules add allow 'npm test'",
    "helmsman config rules test 'git push'",
    "helmsman config rules remove 3f2a9c1e",
)
@_directory_option
def command(directory: Path, as_json: bool) -> None:
    """List, test and remove the rules that answer agents' questions before anyone is asked."""
    book = _book()
    listed = book.listed(directory)
    switch = book.rules_for(directory).allow_workspace_patches
    problem = None
    try:
        book.check(directory)
    except InvalidSetting as error:
        problem = error.message
    if as_json:
        rules = [one.as_dict() for one in listed]
        print_json({"rules": rules, "allowWorkspacePatches": switch, "problem": problem})
        return
    for one in listed:
        echo(_shown(one))
    if switch:
        echo("allow_workspace_patches is on: changes inside the writable roots of a workspace-write session.")
    if problem is not None:
        echo(f"Nothing is allowed by rule now: {visible(problem)}", err=True)
    elif not listed and not switch:
        echo("There are no rules. You are asked every question.", err=True)


@cli_command(
    "test",
    "Say which rule decides a command.",
    "helmsman config rules test 'git push --force'",
    "helmsman config rules test -C ~/src/site --inside 'rm -rf build'",
    group=command,
)
@click.argument("text", metavar="COMMAND")
@click.option("--inside", is_flag=True, help="As if it were proved to stay in the sandbox.  [default: it may leave]")
@_directory_option
def _test(text: str, inside: bool, directory: Path, as_json: bool) -> None:
    """Say what would happen if an agent asked to run COMMAND (one argument, as you would type it), and which rule decides.

    Nothing is run.
    """
    decision = _book().explain(text, directory.resolve(), inside=inside)
    rule = decision.rule
    if as_json:
        shown = {"effect": decision.effect, "rule": rule and rule.describe(), "reason": decision.reason}
        print_json({**shown, "inside": inside})
        return
    words = {"allow": "Allowed", "deny": "Denied", "ask": "Asked"}
    echo(f"{words[decision.effect]}. {visible(decision.reason)}")
    if rule is not None and decision.reason == rule.reason:  # the rule's reason does not name the rule
        echo(f"  {visible(rule.describe())}")


@cli_command(
    "add",
    "Add a rule of your own.",
    "helmsman config rules add allow 'npm test'",
    "helmsman config rules add deny 'git push' --everywhere --reason 'Ask me to push.'",
    group=command,
)
@click.argument("effect", type=click.Choice(["allow", "deny", "ask"]))
@click.argument("text", metavar="COMMAND")
@click.option("--prefix", is_flag=True, help="To allow: also with further words after these.")
@click.option("--outside", is_flag=True, help="To allow: also where it may leave the sandbox.")
@click.option("--everywhere", is_flag=True, help="To deny or ask: in all directories.")
@click.option("--reason", metavar="TEXT", help="To deny: what the agent is told.")
@yes_option
@_directory_option
def _add(
    effect: Effect,
    text: str,
    prefix: bool,
    outside: bool,
    everywhere: bool,
    reason: str | None,
    agreed: bool,
    directory: Path,
    as_json: bool,
) -> None:
    """Add a rule that answers questions about COMMAND (one argument, as you would type it) without asking you.

    It holds in this directory and below it. The rule is shown first. A rule to deny or ask matches the first words of a
    command; one to allow the whole command, unless --prefix is given.
    """
    from helmsman.approvals.rule_book import rule_as_toml
    from helmsman.approvals.shell_words import sensible_prefix

    try:
        words = tuple(shlex.split(text))
    except ValueError:
        words = ()
    if not words:
        raise InvalidInput("That is no command. Give it as one argument, in quotes.")
    is_allow = effect == "allow"
    if (is_allow and everywhere) or (not is_allow and (outside or prefix)) or (effect != "deny" and reason is not None):
        raise InvalidInput("--prefix and --outside are to allow, --everywhere is to deny or ask, --reason is to deny.")
    if prefix and sensible_prefix(words) != words:
        raise InvalidInput(f"Everything that begins with {text!r:.100} is too much. Name the command and what it does.")
    rule = Rule(
        effect=effect,
        command=words,
        directory=None if everywhere else directory.resolve(),
        resolved=not everywhere,
        prefix=prefix,
        outside=outside,
        reason=reason,
        origin="added by you",
    )
    if not as_json:
        echo(visible(rule_as_toml(rule)), err=True)
    agree("Add this rule?", agreed=agreed, as_json=as_json, otherwise=f"This rule would be added: {rule.describe()}.")
    host().begin_change()
    rule_id = _book().add(rule)
    said = f"Added rule {rule_id}." if rule_id else "There is this rule already."
    print_result(said, {"added": rule_id, "rule": rule.describe()}, as_json=as_json)


@cli_command(
    "remove",
    'Take back a rule that was given with "always".',
    "helmsman config rules remove 3f2a9c1e",
    "helmsman config rules remove 3f2a9c1e --yes",
    group=command,
)
@click.argument("rule_id", metavar="ID")
@yes_option
@_directory_option
def _remove(rule_id: str, agreed: bool, directory: Path, as_json: bool) -> None:
    """Take back a rule that was given with "always". ID is as `helmsman config rules` shows it; any unique prefix works.

    A rule that you wrote yourself is not touched: you get its location.
    """
    host().begin_change()
    rule = _named(rule_id, directory)
    if not rule.permanent:
        raise InvalidInput(f"Rule {rule.id} is in a rules file. Remove it there: {_place(rule)}.")
    _agree(rule, "Remove this rule?", agreed=agreed, as_json=as_json)
    removed = _book().remove(rule.id)
    print_result(f"Removed rule {removed.id}.", {"removed": removed.as_dict()}, as_json=as_json)


def _named(rule_id: str, directory: Path) -> ListedRule:
    """Return the rule with this id, or the beginning of it."""
    found = [one for one in _book().listed(directory) if rule_id and one.id.startswith(rule_id)]
    if len(found) != 1:
        problem = "There is no rule" if not found else "There is more than one rule"
        raise InvalidInput(f"{problem} {rule_id}. `helmsman config rules` lists them.")
    return found[0]


def _agree(rule: ListedRule, question: str, *, agreed: bool, as_json: bool) -> None:
    if not as_json:
        echo(_shown(rule), err=True)
    agree(question, agreed=agreed, as_json=as_json, otherwise=f"Rule {rule.id} is changed only if you say so.")


@cli_command(
    "confirm",
    "Let a proposed rule decide.",
    "helmsman config rules confirm 3f2a9c1e",
    "helmsman config rules confirm 3f2a9c1e --yes",
    group=command,
)
@click.argument("rule_id", metavar="ID")
@yes_option
@_directory_option
def _confirm(rule_id: str, agreed: bool, directory: Path, as_json: bool) -> None:
    """Let a rule decide that the model of an MCP client has proposed with "always". `helmsman config rules` shows its ID.

    The rule is shown first.
    """
    host().begin_change()
    rule = _named(rule_id, directory)
    if rule.rule.proposed_by is None:
        raise InvalidInput(f"There is no proposed rule {rule_id}. `helmsman config rules` lists them.")
    _agree(rule, "Let this rule decide?", agreed=agreed, as_json=as_json)
    known = _book().confirm(rule.id)
    print_result(f"Confirmed rule {known.id}.", {"confirmed": known.as_dict()}, as_json=as_json)


def _book() -> RuleBook:
    from helmsman.approvals.rule_book import RuleBook

    settings = settings_of_command()
    return RuleBook(settings.files, settings.state_dir)


def _shown(one: ListedRule) -> str:
    rule = one.rule
    lines = [f"{one.id}  {one_line(rule.describe().removesuffix(f' ({rule.origin})'))}", f"  {_place(one)}"]
    if one.ignored is not None:
        lines.append(f"  Not used: {one_line(one.ignored)}")
    return "\n".join(lines)


def _place(one: ListedRule) -> str:
    line = f", line {one.line}" if one.line is not None else ""
    return f"rule {one.number} of {one_line(str(one.path))}{line}"
