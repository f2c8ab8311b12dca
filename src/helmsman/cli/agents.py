"""`helmsman agents`: list the available agents and their capabilities."""

from __future__ import annotations

import subprocess
import tomllib
from typing import TYPE_CHECKING, Any, Final

import anyio
import click

from helmsman.agents.acp_registry import look_up, registered, registry
from helmsman.base.caller_context import environment
from helmsman.base.config_values import as_toml, dotted, key_path, pair, read_value
from helmsman.base.files import replace_file
from helmsman.base.redaction import redact, redact_value
from helmsman.base.sanitize import exact, one_line, visible
from helmsman.cli.command import cli_command, cli_group, option, yes_option
from helmsman.cli.consoles import at_work, echo, settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import Column, agree, print_json, print_list, print_result
from helmsman.errors import HelmsmanError, InvalidInput
from helmsman.model.inputs import directory as existing_directory
from helmsman.model.options import DEFAULT_AGENT
from helmsman.settings import own_file
from helmsman.shapes.agents import all_agents
from helmsman.shapes.rendering import fields_as_dict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from helmsman.agents.protocol import AgentConfig, Login, Model
    from helmsman.capabilities.configuration import ConfigChange
    from helmsman.client import Helmsman

_COLUMNS: Final = (
    Column("AGENT", "cyan"),
    Column("VERSION"),
    Column("LOGIN", left_out=4),
    Column("PATH", left_out=1),
    Column("HELD BY", left_out=3),
    Column("CANNOT", "dim", gives_way="at its end", left_out=2),
)


@cli_group(
    "agents",
    "List the agents and what each can do; their models, logins and limits.",
    "helmsman agents",
    "helmsman agents models",
)
def command(as_json: bool) -> None:
    """List the agents Helmsman can steer, the default one first: which version of each is here, the file or variable with
    its login, where it is, what confines it, and what it cannot do.

    Each is tested in the sandbox that will confine it. Logins are looked for in the usual places only: an agent without one
    may have it elsewhere, such as in a keychain. Not on a terminal, the columns are separated by tabs: name, version, login,
    path, what confines it, what it cannot do. --json also says which agents can do what one cannot. For an agent that is not
    installed, it says how to get it.
    """
    with at_work("Trying each agent in its sandbox", as_json=as_json):
        found = with_helmsman(_look)
    rows = [[one_line(cell) for cell in _cells(agent)] for agent in found]
    print_list(
        {"agents": found},
        rows,
        _COLUMNS,
        lambda _: [[one_line(cell) for cell in _short_cells(agent)] for agent in found],
        nothing="There are no agents.",
        as_json=as_json,
        note="\n".join(_advice(found)) or None,
    )


async def _look(helm: Helmsman) -> list[dict[str, Any]]:
    found = await all_agents(helm)
    # A sandbox can be tried on the machine itself only, and its default agent is not ours.
    if host().is_elsewhere:
        return [{name: value for name, value in about.items() if name != "isDefault"} for about in found]
    # At the same time, because each try starts a process.
    async with anyio.create_task_group() as tasks:
        for about in found:
            if about["installed"]:
                tasks.start_soon(_try_sandbox, helm, about)
    return found


async def _try_sandbox(helm: Helmsman, about: dict[str, Any]) -> None:
    try:
        about["heldBy"] = await helm.agents[about["agent"]].try_sandbox(helm.settings, None)
    except HelmsmanError as error:
        # An agent without a sandbox must not hide the others.
        about["notHeld"] = error.message


def _short_cells(about: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of a table row; details are in the advice below the table."""
    name, version, login, path, held_by, cannot = _cells(about)
    if not about["installed"]:
        return name, "not installed", "", "", "", ""
    return name, version, "none found" if login == "-" else login, path, held_by, cannot


def _advice(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield advice for agents that are not installed or not sandboxed."""
    for about in found:
        if not about["installed"]:
            yield about["problem"]
        elif "notHeld" in about:
            yield f"{about['agent']}: {about['notHeld']}"


def _cells(about: dict[str, Any]) -> tuple[str, ...]:
    name = about["agent"] + (" (default)" if about.get("isDefault") else "")
    if not about["installed"]:
        return name, "-", "", "", "", about["problem"]
    version, login = about.get("version", "?"), about.get("login", "-")
    return name, version, login, about.get("path", ""), about.get("heldBy", "nothing"), ", ".join(about["cannot"])


@cli_command(
    "account",
    "Show Codex's login and its rate limits.",
    "helmsman agents account",
    "helmsman agents account --json",
    group=command,
)
def account_command(as_json: bool) -> None:
    """Show how Codex is logged in, what is left of its rate limits, and whether a large task is likely to fit."""
    # `detach=False`: nothing here needs a hub, so a look starts none.
    report = with_helmsman(lambda helm: helm.extras.account.read(), detach=False)
    if as_json:
        print_json(fields_as_dict(report))
        return
    who = ", ".join(part for part in (report.email, f"plan {report.plan}" if report.plan else None) if part)
    echo(one_line(report.login + (f" ({who})" if who else "")))
    for limit in report.limits:
        echo(f"  {one_line(str(limit))}")
    echo(one_line(report.advice))


_MODEL_COLUMNS: Final = (
    Column("MODEL", "cyan"),
    Column(""),
    Column("EFFORTS"),
    Column("DEFAULT"),
    Column("WHAT", "dim", gives_way="at its end", left_out=1),
)


@cli_command("models", "List the models Codex can use.", "helmsman agents models", group=command)
def models_command(as_json: bool) -> None:
    """List the models Codex can use, with their efforts.

    Not on a terminal, the columns are separated by tabs: id, whether it is the default (`*`), efforts, default effort,
    description.
    """
    models = with_helmsman(lambda helm: helm.extras.account.models(), detach=False)
    rows = [_model_cells(model) for model in models]
    shown = {"models": [fields_as_dict(model) for model in models]}
    print_list(shown, rows, _MODEL_COLUMNS, nothing="Codex names no models.", as_json=as_json)


def _model_cells(model: Model) -> list[str]:
    mark = "*" if model.is_default else ""
    cells = (model.id, mark, ",".join(model.efforts), model.default_effort or "", model.description or "")
    return [one_line(cell) for cell in cells]


@cli_command(
    "login",
    "Log Codex in.",
    "helmsman agents login",
    "helmsman agents login --device-code",
    "helmsman agents login --with-api-key < key.txt",
    group=command,
)
@option("--device-code", "Show a code to enter in a browser on any machine.", to="with_code")
@option("--with-api-key", "Log in with the API key on stdin.", to="with_key")
def login_command(with_code: bool, with_key: bool, as_json: bool) -> int:
    """Log Codex in with ChatGPT: open the page that is shown in a browser on this machine, and come back.

    On a machine without a browser, --device-code shows a code and the page to enter it on. It waits until that is done;
    Ctrl-C gives up. With --with-api-key Codex logs in with the key that it reads from stdin, and stores it.
    """
    if with_code and with_key:
        raise click.UsageError("--device-code is for ChatGPT: give it or --with-api-key.")
    if with_key:
        return _print_login(_log_in_with_key(), as_json=as_json)

    def show(login: Login) -> None:
        if as_json:
            print_json({"url": login.url} | ({} if login.code is None else {"code": login.code}))
            return
        # The page on stdout and the explanation on stderr: a program can read the address alone.
        echo("Open this page to log in:", err=True)
        echo(visible(login.url))
        if login.code is not None:
            echo("and enter this code there:", err=True)
            echo(visible(login.code))

    error = with_helmsman(lambda helm: helm.extras.account.log_in(show, with_code=with_code), detach=False)
    return _print_login(error, as_json=as_json)


def _log_in_with_key() -> str | None:
    """Log Codex in with the key on stdin, and return its reason if it refuses. The key never enters this process."""
    if host().is_elsewhere:
        raise click.UsageError("A key stays on its machine: run this there.")
    host().require_own_process()

    settings = settings_of_command()
    codex = with_helmsman(lambda helm: helm.installed(DEFAULT_AGENT), detach=False)
    assert codex is not None
    # The same home as in sessions, or the login would be in another one.
    env = {**environment(), "CODEX_HOME": str(settings.codex_home)}
    command = [codex.path, "login", "--with-api-key"]
    # Codex reads the key from this process's stdin itself.
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    # Its error may repeat a part of the key.
    return None if done.returncode == 0 else redact(done.stderr or done.stdout).strip() or "Codex gave no reason."


def _print_login(error: str | None, *, as_json: bool) -> int:
    if error is None:
        print_result("Codex is logged in.", {"loggedIn": True}, as_json=as_json)
        return ExitCode.OK
    print_result(f"Codex is not logged in: {error}", {"loggedIn": False, "error": error}, as_json=as_json)
    return ExitCode.FAILED


_directory_option = option(
    "-C --cd DIR", "For work in this directory.  [default: here]", to="directory", default=".", show_default=False
)


@cli_group(
    "config",
    "Read and change Codex's configuration.",
    "helmsman agents config",
    "helmsman agents config set model=gpt-5.5",
    parent=command,
    itself=None,
)
def config_command(as_json: bool) -> None:
    """Show Codex's configuration as it applies here. The same as `helmsman agents config get`."""
    _show(None, ".", as_json=as_json)


@cli_command(
    "get",
    "Show Codex's configuration, or one key of it.",
    "helmsman agents config get",
    "helmsman agents config get sandbox_workspace_write.network_access -C ~/src/app --json",
    group=config_command,
)
@click.argument("key", required=False)
@_directory_option
def _get(key: str | None, directory: str, as_json: bool) -> int:
    """Show Codex's configuration for work in a directory: everything that is set, or one KEY and where it comes from.

    The exit code is 1 for a key that nothing sets. Values that look like secrets are not shown.
    """
    return _show(key, directory, as_json=as_json)


@cli_command(
    "set",
    "Change your Codex configuration.",
    "helmsman agents config set model=gpt-5.5 model_reasoning_effort=high",
    "helmsman agents config set --unset model_verbosity --yes",
    group=config_command,
)
@click.argument("pairs", metavar="[KEY=VALUE]...", nargs=-1)
@option("--unset KEY...", "Remove a key. Repeatable.", to="removed")
@yes_option
def _set(pairs: tuple[str, ...], removed: tuple[str, ...], agreed: bool, as_json: bool) -> int:
    """Change keys of your own Codex configuration, all of them or none. What would change is shown first, and you are asked.

    VALUE is read as TOML if it is TOML, as in `codex -c KEY=VALUE`. Codex itself writes the file, and refuses invalid
    values and keys that it does not know. If the file has changed since it was shown, nothing is written.
    """
    from helmsman.agents.protocol import ConfigEdit

    try:
        # All values are read before anything is asked or written: all or none.
        edits = [ConfigEdit(key=key, value=read_value(key, text)) for key, text in map(pair, pairs)]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    edits += [ConfigEdit(key=key, value=None) for key in removed]
    if not edits:
        raise click.UsageError("Name what is to be set, as KEY=VALUE.")
    change = with_helmsman(lambda helm: helm.extras.configuration.plan(edits), detach=False)
    shown: dict[str, Any] = {"file": change.file, "changes": list(_changes(change)), "written": False}
    if change.is_nothing:
        if as_json:
            print_json(shown)
        else:
            click.echo(visible(f"{change.file} says so already; nothing to change."), err=True)
        return ExitCode.OK
    if not as_json:
        click.echo(visible(change.file), err=True)
        for line in _diff(change):
            click.echo(f"  {visible(line)}", err=True)
    # Shown above; `otherwise` is the error without a terminal.
    agree(
        "Change it?",
        agreed=agreed,
        as_json=as_json,
        otherwise=f"{change.file} is changed only with --yes or after you confirm it.",
    )
    # The change knows the file's state when it was shown, and is refused if that has changed.
    overridden = with_helmsman(lambda helm: helm.extras.configuration.write(change), detach=False)
    if as_json:
        print_json(shown | {"written": True} | ({} if overridden is None else {"overridden": overridden}))
    else:
        click.echo("Written." if overridden is None else visible(f"Written. {overridden}"), err=True)
    return ExitCode.OK


def _show(key: str | None, directory: str, *, as_json: bool) -> int:
    from helmsman.capabilities.configuration import value_at

    place: Path = existing_directory("directory", directory)
    config = with_helmsman(
        lambda helm: helm.extras.configuration.read(place), settings=settings_of_command(directory=place), detach=False
    )
    values: Mapping[str, Any] = redact_value(dict(config.values))
    if key is None:
        if as_json:
            print_json({"config": values, "layers": [_layer(layer.kind, layer.file) for layer in config.layers]})
        else:
            for line in _lines(values):
                click.echo(visible(line))
        return ExitCode.OK
    found = value_at(values, key)
    source = _source(config, key)
    if as_json:
        print_json({"key": key} | ({} if found is None else {"value": found}) | ({} if source is None else source))
    elif found is None:
        click.echo(visible(f"Nothing sets {key}."), err=True)
    else:
        click.echo(visible(as_toml(found)))
        if source is not None:
            click.echo(visible(f"  from {source.get('file') or source['layer']}"), err=True)
    # A script can ask whether a key is set.
    return ExitCode.FAILED if found is None else ExitCode.OK


def _source(config: AgentConfig, key: str) -> dict[str, str] | None:
    """Return the layer that sets a value, or None for a built-in default."""
    from helmsman.capabilities.configuration import value_at

    # The layers come in the order in which they win.
    for layer in config.layers:
        if value_at(layer.values, key) is not None:
            return _layer(layer.kind, layer.file)
    return None


def _layer(kind: str, file: str | None) -> dict[str, str]:
    return {"layer": kind} if file is None else {"layer": kind, "file": file}


def _lines(values: Mapping[str, Any], before: tuple[str, ...] = ()) -> Iterator[str]:
    for key, value in sorted(values.items()):  # Codex returns them in varying order
        if isinstance(value, dict):
            yield from _lines(value, (*before, key))
        elif value is not None:
            yield f"{dotted((*before, key))} = {as_toml(value)}"


def _changes(change: ConfigChange) -> Iterator[dict[str, Any]]:
    for edit in change.edits:
        name = key_path(edit.key)[-1]  # redaction recognises secrets by key
        shown = {"before": change.before.get(edit.key), "after": edit.value}
        (before,), (after,) = (redact_value({name: shown[which]}).values() for which in ("before", "after"))
        yield {"key": edit.key} | {
            which: value for which, value in (("before", before), ("after", after)) if shown[which] is not None
        }


def _diff(change: ConfigChange) -> Iterator[str]:
    for entry in _changes(change):
        key = exact(entry["key"])
        if "before" in entry:
            yield f"- {key} = {as_toml(entry['before'])}"
        if "after" in entry:
            yield f"+ {key} = {as_toml(entry['after'])}"


# --- Agents of the ACP registry ---------------------------------------------------------------------------------------

_REGISTERED_COLUMNS: Final = (
    Column("NAME", "cyan"),
    Column("VERSION"),
    Column("LICENSE", left_out=1),
    Column("WHAT", gives_way="at its end", left_out=2),
)


@cli_command(
    "add",
    "Install an agent of the ACP registry.",
    "helmsman agents add",
    "helmsman agents add codex-acp",
    group=command,
)
@click.argument("name", required=False)
@yes_option
@option("--refresh", "Ask the registry for its present version; the checksum is npm's of now.")
def add_command(name: str | None, refresh: bool, agreed: bool, as_json: bool) -> int:
    """Install the agent NAME with npm, and add it to your own helmsman.toml. Without NAME, list them.

    The version and the checksum of the package are those that this Helmsman was made with; with --refresh any agent of the
    registry that is a package of npm, in its present version. Its install scripts are not run. Like every agent of your own,
    it works in Codex's sandbox.
    """
    if name is None:
        agents = registry().values()
        rows = [(one.id, one.version, one.license, one.description) for one in agents]
        shown = {"agents": [{"name": one.id, "version": one.version, "package": one.package} for one in agents]}
        print_list(shown, rows, _REGISTERED_COLUMNS, nothing="", as_json=as_json)
        return ExitCode.OK
    agent, path = look_up(name) if refresh else registered(name), own_file()
    content = path.read_text(encoding="utf-8") if path.exists() else ""
    # The table is appended as text, and TOML forbids it twice.
    if agent.id in (tomllib.loads(content).get("agents") or {}):
        raise InvalidInput(f"{path} has [agents.{agent.id}] already. Remove it first.", parameter="name")
    what = f"{agent.package} {agent.version} would be installed, and [agents.{agent.id}] added to {path}."
    agree(
        f"Install {agent.package} {agent.version}, and add it to {path}?",
        agreed=agreed,
        as_json=as_json,
        otherwise=what,
    )
    # Refused for a command of an agent, which must not change the user's files.
    host().begin_change()
    with at_work(f"Installing {agent.name}", as_json=as_json):
        words = agent.install()
    path.parent.mkdir(parents=True, exist_ok=True)
    # At the end of the file: comments and order of the user's entries stay.
    replace_file(path, f"{content.rstrip()}\n\n{agent.table(words)}".lstrip(), mode=0o600)
    trust = "" if agent.examined else " --trust-repository"
    said = f"Installed. Try it: helmsman run --agent {agent.id}{trust}"
    print_result(said, {"agent": agent.id, "version": agent.version, "command": list(words)}, as_json=as_json)
    return ExitCode.OK
