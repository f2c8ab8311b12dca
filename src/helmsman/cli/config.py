"""`helmsman config rules`: list approval rules, test a command against them, and remove granted rules."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio
import click

from helmsman._version import __version__
from helmsman.base.caller_context import environment, from_here
from helmsman.base.files import file_lock, replace_file
from helmsman.base.sanitize import one_line, visible
from helmsman.cli.command import cli_command, cli_group, limit_option, option, yes_option
from helmsman.cli.consoles import echo, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import Column, agree, local, print_json, print_list, print_message, print_result, the_only_one
from helmsman.errors import HelmsmanError, HostUnreachable, InvalidInput, InvalidSetting
from helmsman.hub.hosts import HostFailed, checked_host, hosts_file, known_hosts
from helmsman.hub.launch import is_newer
from helmsman.hub.service_client import ServiceClient
from helmsman.notices.config import with_recipient
from helmsman.settings import own_file
from helmsman.shapes.agents import all_agents
from helmsman.shapes.notices import delivery_as_dict, way_as_dict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from helmsman.approvals.rule_book import ListedRule, RuleBook
    from helmsman.hub.hosts import OtherHost
    from helmsman.model.rules import Effect
    from helmsman.notices.store import Delivery


def _existing(_ctx: click.Context, _param: click.Parameter, value: str) -> Path:
    """Return the directory relative to the user's current one."""
    # The command may run inside the hub, whose directory is another.
    if not (place := from_here(value)).is_dir():
        raise click.BadParameter(f"Directory {value!r} does not exist.")
    return place


_directory_option: Final = option(
    "-C --cd DIR",
    "Where the work is done, if not in the current directory.",
    to="directory",
    default=".",
    callback=_existing,
    show_default=False,
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
    # An invalid rules file is a problem to report; the list shows the rest.
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
        # A rule that cannot be read may be a denial, so nothing is allowed by rule.
        print_message(f"Nothing is allowed by rule now: {visible(problem)}")
    elif not listed and not switch:
        print_message("There are no rules. You are asked every question.")


@cli_command(
    "test",
    "Say which rule decides a command.",
    "helmsman config rules test 'git push --force'",
    "helmsman config rules test -C ~/src/site --inside 'rm -rf build'",
    group=command,
)
@click.argument("text", metavar="COMMAND")
@option("--inside", "As if it were proved to stay in the sandbox.  [default: it may leave]")
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
@option("--prefix", "To allow: also with further words after these.")
@option("--outside", "To allow: also where it may leave the sandbox.")
@option("--everywhere", "To deny or ask: in all directories.")
@option("--reason TEXT", "To deny: what the agent is told.")
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
    from helmsman.approvals.rule_book import rule_as_toml, rule_of_person

    is_allow = effect == "allow"
    # Options that do not fit the effect would be ignored silently.
    if (is_allow and everywhere) or (not is_allow and (outside or prefix)) or (effect != "deny" and reason is not None):
        raise InvalidInput("--prefix and --outside are to allow, --everywhere is to deny or ask, --reason is to deny.")
    place = None if everywhere else directory.resolve()
    rule = rule_of_person(effect, text, place, prefix=prefix, outside=outside, reason=reason)
    if not as_json:
        # The exact text that is stored.
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
    changes=True,
)
@click.argument("rule_id", metavar="ID")
@yes_option
@_directory_option
def _remove(rule_id: str, agreed: bool, directory: Path, as_json: bool) -> None:
    """Take back a rule that was given with "always". ID is as `helmsman config rules` shows it; any unique prefix works.

    A rule that you wrote yourself is not touched: you get its location.
    """
    rule = _named(rule_id, directory)
    # A file of the user has comments and an order that a program should not change.
    if not rule.permanent:
        raise InvalidInput(f"Rule {rule.id} is in a rules file. Remove it there: {_place(rule)}.")
    _agree(rule, "Remove this rule?", agreed=agreed, as_json=as_json)
    removed = _book().remove(rule.id)
    print_result(f"Removed rule {removed.id}.", {"removed": removed.as_dict()}, as_json=as_json)


def _named(rule_id: str, directory: Path) -> ListedRule:
    """Return the rule with this id, or the beginning of it."""
    found = [one for one in _book().listed(directory) if rule_id and one.id.startswith(rule_id)]
    return the_only_one(found, "rule", rule_id, "helmsman config rules")


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
    changes=True,
)
@click.argument("rule_id", metavar="ID")
@yes_option
@_directory_option
def _confirm(rule_id: str, agreed: bool, directory: Path, as_json: bool) -> None:
    """Confirm a rule that an MCP client's model has proposed with "always". `helmsman config rules` shows its ID.

    The rule is shown first.
    """
    rule = _named(rule_id, directory)
    # Only proposals of models need confirmation.
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


_HOST_COLUMNS: Final = (Column("HOST", "cyan"), Column("ADDRESS"), Column("HELMSMAN THERE", usual=""))
# A stale lock must not hold a command up for ever.
_LOCK_SECONDS: Final = 10.0


@cli_group(
    "hosts",
    "Work on other machines, over SSH.",
    "helmsman config hosts add build ssh://me@build",
    "helmsman config hosts check",
    "helmsman --host build list",
)
def hosts_command(as_json: bool) -> None:
    """List the machines that `helmsman --host NAME` can work on: over SSH, with the Helmsman installed there.

    They are stored next to your own helmsman.toml, for you only; a repository cannot add one.
    """
    hosts = sorted(_known_hosts().values())
    rows = [list(host) for host in hosts]
    nothing = "No other machine is known. Add one: helmsman config hosts add build ssh://me@build"
    shown = {"hosts": [_described(host) for host in hosts]}
    print_list(shown, rows, _HOST_COLUMNS, nothing=nothing, as_json=as_json)


@cli_command(
    "add",
    "Add a machine.",
    "helmsman config hosts add build ssh://me@build",
    "helmsman config hosts add lab ssh://lab:2222 --command /opt/helmsman/bin/helmsman",
    group=hosts_command,
)
@click.argument("name")
@click.argument("address")
@option("--command PATH", "Where helmsman is there, if not on the PATH.", to="program", default="", show_default=False)
@option("--no-check", "Add it even if it cannot be reached now.")
def _add_host(name: str, address: str, program: str, no_check: bool, as_json: bool) -> int:
    """Add a machine under a NAME. ADDRESS is ssh://HOST, ssh://USER@HOST or ssh://USER@HOST:PORT.

    Your own ssh configuration applies, so HOST may be one of its names. The login must work without a prompt: with a key.
    The machine is checked immediately (`helmsman config hosts check`), and added if Helmsman answers there.
    """
    try:
        host = checked_host(name, address, program)
    except ValueError as error:
        raise InvalidInput(str(error)) from error
    # Checked before it is stored, because a typing error would be found only at the first use.
    report = None if no_check else _checked(host)
    if report is not None and not report["ok"]:
        _show_reports([report], as_json=as_json)
        if not as_json:
            click.echo("It was not added. --no-check adds it anyway.", err=True)
        return ExitCode.FAILED
    _change(lambda hosts: hosts.update({name: host}))
    if report is None:
        print_result(f"Added {name}, unchecked.", {"added": _described(host)}, as_json=as_json)
    else:
        _show_reports([report], as_json=as_json)
    return ExitCode.OK


@cli_command("remove", "Remove a machine.", "helmsman config hosts remove build", group=hosts_command)
@click.argument("name")
def _remove_host(name: str, as_json: bool) -> None:
    """Remove a machine. Work there continues."""
    _hosts_called(name)
    _change(lambda hosts: hosts.pop(name, None))
    print_result(f"Removed {name}.", {"removed": name}, as_json=as_json)


@cli_command(
    "check",
    "Check whether machines answer.",
    "helmsman config hosts check",
    "helmsman config hosts check build --json",
    group=hosts_command,
)
@click.argument("name", required=False)
def _check(name: str | None, as_json: bool) -> int:
    """Check whether a machine, or each of them, answers: which Helmsman is there, which agents, and their logins."""
    reports = [_checked(host) for host in _hosts_called(name)]
    _show_reports(reports, as_json=as_json)
    return ExitCode.OK if all(report["ok"] for report in reports) else ExitCode.FAILED


def _hosts_called(name: str | None) -> list[OtherHost]:
    """Return the host of this name, or all."""
    hosts = _known_hosts()
    if name is None:
        return sorted(hosts.values())
    return [the_only_one([hosts[name]] if name in hosts else [], "host", repr(name), "helmsman config hosts")]


def _known_hosts() -> dict[str, OtherHost]:
    try:
        return known_hosts(environment())
    except HostFailed as error:
        raise HelmsmanError(str(error)) from error


def _change(change: Callable[[dict[str, OtherHost]], object]) -> None:
    path = Path(hosts_file(environment()))
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Several commands may add hosts at a time.
        with file_lock(path.with_name(f".{path.name}.lock"), timeout=_LOCK_SECONDS):
            hosts = _known_hosts()
            change(hosts)
            lines = ("\t".join(host).rstrip("\t") for host in sorted(hosts.values()))
            replace_file(path, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise HelmsmanError(f"{path} cannot be written: {error.strerror}.") from error


def _described(host: OtherHost) -> dict[str, Any]:
    return {"name": host.name, "address": host.address, **({"command": host.command} if host.command else {})}


def _checked(host: OtherHost) -> dict[str, Any]:
    """Return the description of a reachable host with its agents. `notes` are warnings."""
    about = _described(host)
    try:
        version, agents = anyio.run(_look, host)
    except HelmsmanError as error:
        return about | {"ok": False, "error": error.as_dict()}
    except (LookupError, TypeError, ValueError, AttributeError):
        # A shell's greeting or another program may answer there.
        why = f"{host.name} gives an answer that cannot be read. Look there: helmsman doctor"
        return about | {"ok": False, "error": HostUnreachable(why).as_dict()}
    notes = []
    if version != __version__:
        where = "here" if is_newer(version, __version__) else f"on {host.name}"
        update = f"Update it {where}: pipx upgrade codex-helmsman"
        notes.append(f"Helmsman is {version} there and {__version__} here. {update}")
    there = [one for one in agents if one.get("installed")]
    if not there:
        notes.append("No agent is installed there. Install one there, for example: npm install -g @openai/codex")
    # A login may be in a place that cannot be seen from here, so it is a note.
    unknown = [one["agent"] for one in there if "login" not in one]
    notes += [f"{agent} has no login there, as far as one sees. Log in on that machine." for agent in unknown]
    kept = ("agent", "version", "login")
    shown = [{key: one[key] for key in kept if key in one} for one in there]
    return about | {"ok": True, "version": version, "agents": shown, "notes": notes}


async def _look(host: OtherHost) -> tuple[str, list[dict[str, Any]]]:
    """Return the version of Helmsman and the agents on another machine."""
    async with ServiceClient(host=host) as helm:
        agents = await all_agents(helm)
        # The connection may end during the answer, which then has only a part.
        if helm.is_lost:
            raise HostUnreachable(f"{host.name} has ended the connection. Look at its hub there: helmsman hub log")
        return helm.version_there, agents


def _show_reports(reports: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json({"hosts": reports})
        return
    for report in reports:
        if not report["ok"]:
            click.echo(f"✗ {report['name']}  {one_line(report['error']['message'])}")
            continue
        agents = ", ".join(f"{one['agent']} {one.get('version', '?')}" for one in report["agents"])
        click.echo(one_line(f"✓ {report['name']}  Helmsman {report['version']}" + (f"; {agents}" if agents else "")))
        for note in report["notes"]:
            click.echo(f"  {one_line(note)}")


_WAYS: Final = (
    Column("NAME", "cyan"),
    Column("WAY"),
    Column("STATUS"),
    Column("LAST", left_out=2),
    Column("EVENTS", left_out=1),
    Column("NOTE", gives_way="at its end", left_out=3),
)
_LOG_COLUMNS: Final = (
    Column("WHEN"),
    Column("TO", "cyan"),
    Column("STATUS"),
    Column("KIND", left_out=1),
    Column("WHAT", gives_way="at its end", left_out=3),
    Column("NOTE", gives_way="at its end", left_out=2),
)


@cli_group(
    "notify",
    "Notifications for what is waiting or has ended: list, add, test, log.",
    "helmsman config notify",
    "helmsman config notify add desktop",
    "helmsman config notify test",
    "helmsman config notify log --limit 50",
)
def notify_command(as_json: bool) -> None:
    """Notices when something needs you or ends while you are not looking. Without a command: list the ways and their state.

    `helmsman config notify add` sets one up. Without any, notifications go to your desktop, if there is one.
    """
    ways = with_helmsman(lambda helm: helm.extras.notices.ways())
    rows = [
        (
            one.name,
            one.way,
            one.status,
            "" if one.last_at is None else local(one.last_at),
            ", ".join(one.events),
            one_line(one.note or ""),
        )
        for one in ways
    ]
    shown = {"ways": [way_as_dict(one) for one in ways]}
    nobody = "No notifications are set up. Add some: helmsman config notify add desktop, ntfy, webhook or command"
    print_list(shown, rows, _WAYS, nothing=nobody, as_json=as_json)


_READERS: Final = {
    "desktop": "Everyone who sees your screen can read them; nothing leaves this machine.",
    "ntfy": "Everyone who knows the topic's name can read them, and the server; they name the project and what happened, "
    "not what was asked. No one can answer through them.",
    "webhook": "The server at this address reads them; they name the project and what happened, not what was asked. No "
    "one can answer through them.",
    "command": "The program gets them as JSON; they name the project and what happened, not what was asked.",
}
"""Who can read the notifications of a channel, and who can answer, as it is set up by `add`."""


@cli_command(
    "add",
    "Set up a way to be notified.",
    "helmsman config notify add desktop",
    "helmsman config notify add ntfy",
    "helmsman config notify add webhook https://example.org/helmsman",
    "helmsman config notify add command /home/me/bin/tell",
    group=notify_command,
)
@click.argument("way", type=click.Choice(list(_READERS)))
@click.argument("target", nargs=-1)
@option("--name NAME", "Its name in lists.  [default: the way]")
@option("--server URL", "For ntfy: the server.  [default: https://ntfy.sh]")
@yes_option
def _add_channel(
    way: str, target: tuple[str, ...], name: str | None, server: str | None, agreed: bool, as_json: bool
) -> int:
    """Add a way to your own helmsman.toml, and send a test by it. The entry is shown first.

    WAY is desktop, ntfy (TARGET: a topic; without one a random name is made), webhook (TARGET: an https
    address) or command (TARGET: a program and its arguments, which gets JSON on stdin).
    """
    entry = _entry(way, target, name, server)
    path = own_file()
    content = with_recipient(path, entry)
    reader = _READERS[way]
    if not as_json:
        echo("\n".join(f"{key} = {value}" for key, value in entry.items()), err=True)
        print_message(f"{reader}\n")
    agree(f"Add this to {path}?", agreed=agreed, as_json=as_json, otherwise=f"{path} would be changed. {reader}")
    host().begin_change()
    path.parent.mkdir(parents=True, exist_ok=True)
    # The file may contain topics and addresses, which are secrets.
    replace_file(path, content, mode=0o600)
    if way == "ntfy" and not as_json:
        where = (server or "https://ntfy.sh").rstrip("/")
        echo(f"Subscribe to it on your phone: {where}/{entry['topic']}", err=True)
    called = str(entry.get("name", way))
    # A test shows a mistake now, and not when the first question is missed.
    sent = with_helmsman(lambda helm: helm.extras.notices.test(called))
    _print_deliveries(sent, as_json=as_json)
    return ExitCode.OK if all(one.status == "sent" for one in sent) else ExitCode.FAILED


def _entry(way: str, target: tuple[str, ...], name: str | None, server: str | None) -> dict[str, Any]:
    """Return the table for the file.

    Raises:
        click.exceptions.UsageError: The way needs another target.
    """
    entry: dict[str, Any] = {"way": way} | ({} if name is None else {"name": name})
    most = {"desktop": 0, "ntfy": 1, "webhook": 1}.get(way, len(target))
    if len(target) > most or (way in ("webhook", "command") and not target):
        raise click.UsageError(
            f"{way} takes {'no target' if most == 0 else 'a target'}: helmsman config notify add --help"
        )
    if server is not None and way != "ntfy":
        raise click.UsageError("--server is for ntfy.")
    if way == "ntfy":
        # ntfy has no accounts by default: who knows the topic reads it, so the name is random.
        entry["topic"] = target[0] if target else f"helmsman-{secrets.token_urlsafe(12).replace('_', '-')}"
        entry |= {} if server is None else {"server": server}
    elif way == "webhook":
        entry["url"] = target[0]
    elif way == "command":
        entry["command"] = list(target)
    return entry


@cli_command(
    "test",
    "Send a notice to try it.",
    "helmsman config notify test",
    "helmsman config notify test desktop",
    group=notify_command,
    changes=True,
)
@click.argument("way", required=False)
def _test_channels(way: str | None, as_json: bool) -> int:
    """Send a test notice and report whether it arrived. WAY is a name that `helmsman config notify` lists; without one, all.

    It ignores filters and quiet hours. An open dashboard has three seconds to show it.
    """
    sent = with_helmsman(lambda helm: helm.extras.notices.test(way))
    _print_deliveries(sent, as_json=as_json)
    return ExitCode.OK if all(one.status == "sent" for one in sent) else ExitCode.FAILED


@cli_command("log", "Show the notices sent.", "helmsman config notify log --json", group=notify_command)
@limit_option
def _log(limit: int, as_json: bool) -> None:
    """Show the notices sent and whether they arrived, newest first."""
    _print_deliveries(with_helmsman(lambda helm: helm.extras.notices.log(limit)), as_json=as_json)


def _print_deliveries(deliveries: Sequence[Delivery], *, as_json: bool) -> None:
    rows = [
        (
            local(one.created_at),
            one.recipient,
            # `doubtful`: it may have arrived twice, or not at all.
            f"{one.status}, doubtful" if one.is_doubtful and one.status != "doubtful" else one.status,
            one.notification.kind,
            one_line(one.notification.headline),
            one_line(one.note or ""),
        )
        for one in deliveries
    ]
    shown = {"notices": [delivery_as_dict(one) for one in deliveries]}
    print_list(shown, rows, _LOG_COLUMNS, nothing="No notices yet.", as_json=as_json)
