"""`helmsman rules`: the rules that answer Codex's questions; which decides a command, and away with one that was given."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.consent import confirmed, yes_option

if TYPE_CHECKING:
    from helmsman.approvals.listed_rules import ListedRule
    from helmsman.approvals.rule_book import RuleBook

_directory_option: Final = click.option(
    "-C",
    "--cd",
    "directory",
    metavar="DIR",
    default=".",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where the work is done, if not in the current directory.",
)


@click.group(
    "rules",
    invoke_without_command=True,
    short_help="List, test and remove the rules that answer questions.",
    epilog="""\b
Examples:
  helmsman rules
  helmsman rules test 'git push'
  helmsman rules remove 3f2a9c1e
""",
)
@_directory_option
@json_option
@click.pass_context
def command(ctx: click.Context, directory: Path, as_json: bool) -> int | None:
    """List, test and remove the rules that answer Codex's questions before anyone is asked."""
    ctx.obj = as_json
    return list_rules(directory, as_json=as_json) if ctx.invoked_subcommand is None else None


@command.command(
    "list",
    short_help="List the rules that concern work in a directory.",
    epilog="""\b
Example:
  helmsman rules list -C ~/src/site
""",
)
@_directory_option
@json_option
@click.pass_obj
def _list(json_of_group: bool, directory: Path, as_json: bool) -> int:
    """List the rules that concern work in a directory: your own, those given with "always", those of the project.

    A rule that decides less than it did with Helmsman 0.1 is marked, with the lines that would restore it.
    """
    return list_rules(directory, as_json=as_json or json_of_group)


@reports_errors
def list_rules(directory: Path, *, as_json: bool) -> None:
    """List them all."""
    from helmsman.base.shown_text import visible
    from helmsman.errors import InvalidSetting
    from helmsman.shapes.rendering import json_line

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
        click.echo(json_line({"rules": rules, "allowWorkspacePatches": switch, "problem": problem}))
        return
    for one in listed:
        click.echo(_shown(one))
    if switch:
        click.echo("allow_workspace_patches is on: changes inside the writable roots of a workspace-write session.")
    if problem is not None:
        click.echo(f"Nothing is allowed by rule now: {visible(problem)}", err=True)
    elif not listed and not switch:
        click.echo("There are no rules. Whatever Codex asks, you are asked.", err=True)


@command.command(
    "test",
    short_help="Say which rule decides a command.",
    epilog="""\b
Examples:
  helmsman rules test 'git push --force'
  helmsman rules test -C ~/src/site --inside 'rm -rf build'
""",
)
@click.argument("text", metavar="COMMAND")
@click.option("--inside", is_flag=True, help="As if it were proved to stay in the sandbox.  [default: it may leave]")
@_directory_option
@json_option
@click.pass_obj
def _test(json_of_group: bool, text: str, inside: bool, directory: Path, as_json: bool) -> int:
    """Say what would happen if Codex asked to run COMMAND (one argument, as one would type it), and which rule decides.

    Nothing is run.
    """
    return test_rules(text, directory, inside=inside, as_json=as_json or json_of_group)


@reports_errors
def test_rules(text: str, directory: Path, *, inside: bool, as_json: bool) -> None:
    """Explain a decision."""
    from helmsman.base.shown_text import visible
    from helmsman.shapes.rendering import json_line

    decision = _book().explain(text, directory.resolve(), inside=inside)
    rule = decision.rule
    if as_json:
        shown = {"effect": decision.effect, "rule": rule and rule.describe(), "reason": decision.reason}
        click.echo(json_line({**shown, "inside": inside}))
        return
    words = {"allow": "Allowed", "deny": "Denied", "ask": "Asked"}
    click.echo(f"{words[decision.effect]}. {visible(decision.reason)}")
    if rule is not None and decision.reason == rule.reason:  # the rule's own words, which do not say which rule it is
        click.echo(f"  {visible(rule.describe())}")


@command.command(
    "remove",
    short_help='Take back a rule that was given with "always".',
    epilog="""\b
Examples:
  helmsman rules remove 3f2a9c1e
  helmsman rules remove 3f2a9c1e --yes
""",
)
@click.argument("rule_id", metavar="ID")
@yes_option
@_directory_option
@json_option
@click.pass_obj
def _remove(json_of_group: bool, rule_id: str, agreed: bool, directory: Path, as_json: bool) -> int:
    """Take back a rule that was given with "always". ID is as `helmsman rules` shows it; any unique beginning will do.

    A rule that you wrote yourself is not touched: you are told where it stands.
    """
    return remove_rule(rule_id, directory, agreed=agreed, as_json=as_json or json_of_group)


@reports_errors
def remove_rule(rule_id: str, directory: Path, *, agreed: bool, as_json: bool) -> None:
    """Remove one, after it was shown."""
    from helmsman.errors import InvalidInput
    from helmsman.shapes.rendering import json_line

    book = _book()
    found = [one for one in book.listed(directory) if rule_id and one.id.startswith(rule_id)]
    if len(found) != 1:
        problem = "There is no rule" if not found else "There is more than one rule"
        raise InvalidInput(f"{problem} {rule_id}. `helmsman rules` lists them.")
    (rule,) = found
    if not rule.permanent:
        raise InvalidInput(f"Rule {rule.id} is in a file that somebody wrote. Remove it there: {_place(rule)}.")
    if as_json and not agreed:
        raise InvalidInput("Nothing was removed. Give --yes beside --json, since nobody can be asked.")
    if not as_json:
        click.echo(_shown(rule), err=True)
    if not agreed and not confirmed("Remove this rule?"):
        click.echo("Nothing was removed.", err=True)
        return
    removed = book.remove(rule.id)
    if as_json:
        click.echo(json_line({"removed": removed.as_dict()}))
    else:
        click.echo(f"Removed rule {removed.id}.", err=True)


def _book() -> RuleBook:
    from helmsman.approvals.rule_book import RuleBook
    from helmsman.cli.consoles import configure_logs
    from helmsman.settings import load_settings

    settings = load_settings()
    configure_logs(settings)
    return RuleBook(settings.files, settings.state_dir)


def _shown(one: ListedRule) -> str:
    from helmsman.base.shown_text import one_line

    rule = one.rule
    lines = [f"{one.id}  {one_line(rule.describe().removesuffix(f' ({rule.origin})'))}", f"  {_place(one)}"]
    if one.ignored is not None:
        lines.append(f"  Not used: {one_line(one.ignored)}")
    if one.restore is not None:
        where = "put this into your own helmsman.toml" if one.restore_elsewhere else "add to it"
        lines.append(
            f"  Decides less than with 0.1: only what is proved to stay in the sandbox. To restore that, {where}:"
        )
        lines += [f"    {one_line(line)}" for line in one.restore.strip().splitlines()]
        lines.append("  Or say `outside = false`, if that is what you want.")
    return "\n".join(lines)


def _place(one: ListedRule) -> str:
    from helmsman.base.shown_text import one_line

    line = f", line {one.line}" if one.line is not None else ""
    return f"rule {one.number} of {one_line(str(one.path))}{line}"
