"""`helmsman agents config`: read and change Codex's configuration through Codex."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from helmsman.base.config_values import as_toml, dotted, key_path, pair, read_value
from helmsman.base.sanitize import exact, visible
from helmsman.cli.command import cli_command, cli_group
from helmsman.cli.consent import agree, yes_option
from helmsman.cli.consoles import settings_of_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.on_session import with_helmsman
from helmsman.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from helmsman.agents.protocol import AgentConfig
    from helmsman.capabilities.configuration import ConfigChange

_directory_option = click.option(
    "-C", "--cd", "directory", default=".", metavar="DIR", help="For work in this directory.  [default: here]"
)


@cli_group(
    "config",
    "Read and change Codex's configuration.",
    "helmsman agents config",
    "helmsman agents config set model=gpt-5.5",
)
def command(as_json: bool) -> None:
    """Show Codex's configuration as it applies here. The same as `helmsman agents config get`."""
    _show(None, ".", as_json=as_json)


@cli_command(
    "get",
    "Show Codex's configuration, or one key of it.",
    "helmsman agents config get",
    "helmsman agents config get sandbox_workspace_write.network_access -C ~/src/app --json",
    group=command,
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
    group=command,
)
@click.argument("pairs", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--unset", "removed", metavar="KEY", multiple=True, help="Remove a key. Repeatable.")
@yes_option
def _set(pairs: tuple[str, ...], removed: tuple[str, ...], agreed: bool, as_json: bool) -> int:
    """Change keys of your own Codex configuration, all of them or none. What would change is shown first, and you are asked.

    VALUE is read as TOML if it is TOML, as in `codex -c KEY=VALUE`. Codex itself writes the file, and refuses invalid
    values. If the file has changed since it was shown, nothing is written.
    """
    from helmsman.agents.protocol import ConfigEdit

    try:
        edits = [ConfigEdit(key=key, value=read_value(key, text)) for key, text in map(pair, pairs)]
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    edits += [ConfigEdit(key=key, value=None) for key in removed]
    if not edits:
        raise click.UsageError("Name what is to be set, as KEY=VALUE.")
    change = with_helmsman(lambda helm: helm.extras.configuration.plan(edits), detach=False)
    shown: dict[str, Any] = {"file": change.file, "changes": list(_changes(change)), "written": False}
    shown |= {"unknown": list(change.unknown)} if change.unknown else {}
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
        for key in change.unknown:
            click.echo(
                visible(f"Warning: Codex does not know {key}, and ignores it. Check how it is spelled."), err=True
            )
    agree(
        "Change it?",
        agreed=agreed,
        as_json=as_json,
        otherwise=f"{change.file} is changed only with --yes or after you confirm it.",
    )
    overridden = with_helmsman(lambda helm: helm.extras.configuration.write(change), detach=False)
    if as_json:
        print_json(shown | {"written": True} | ({} if overridden is None else {"overridden": overridden}))
    else:
        click.echo("Written." if overridden is None else visible(f"Written. {overridden}"), err=True)
    return ExitCode.OK


def _show(key: str | None, directory: str, *, as_json: bool) -> int:
    from helmsman.base.redaction import redact_value
    from helmsman.capabilities.configuration import value_at
    from helmsman.model.inputs import directory as existing_directory

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
    return ExitCode.FAILED if found is None else ExitCode.OK


def _source(config: AgentConfig, key: str) -> dict[str, str] | None:
    """Return the layer that sets a value, or None for a built-in default."""
    from helmsman.capabilities.configuration import value_at

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
    from helmsman.base.redaction import redact_value

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
