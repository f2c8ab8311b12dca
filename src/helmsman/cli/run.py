"""`helmsman run`: one step of Codex, live."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from helmsman.cli.app import json_option, reports_errors
from helmsman.cli.completing import complete_session
from helmsman.errors import InvalidInput
from helmsman.model.options import ApprovalPolicy, SandboxMode

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from helmsman.model.inputs import StartOptions
    from helmsman.settings import Settings

_STDIN: Final = "-"


STEP_OPTIONS: Final = (
    click.argument("prompt"),
    click.option("-C", "--cd", "directory", metavar="DIR", help="Work in this directory instead of the current one."),
    click.option("-m", "--model", metavar="MODEL", help="The model, by Codex's name for it."),
    click.option("-s", "--sandbox", type=click.Choice(get_args(SandboxMode)), help="What commands may do."),
    click.option(
        "-a", "--approval-policy", type=click.Choice(get_args(ApprovalPolicy)), help="When Codex asks before it acts."
    ),
    click.option("--full-auto", is_flag=True, help="The same as -s workspace-write -a on-request."),
    click.option("--profile", metavar="NAME", help="A profile of your Codex configuration."),
    click.option(
        "-c",
        "--config",
        "config",
        metavar="KEY=VALUE",
        multiple=True,
        help="Set a key of Codex's configuration. Repeatable.",
    ),
    click.option("--image", "images", metavar="FILE", multiple=True, help="Show the model an image. Repeatable."),
    click.option(
        "--output-schema", "schema_file", metavar="FILE", help="A JSON schema that the final message has to fit."
    ),
    click.option("--effort", metavar="LEVEL", help="How hard the model is to think: low, medium, high, …"),
)
"""What every command that starts a step takes."""


def step_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options."""
    for option in reversed(STEP_OPTIONS):
        command = option(command)
    return command


@click.command(
    "run",
    short_help="Run one step of Codex, live.",
    epilog="""\b
Examples:
  helmsman run "Fix the failing test" --full-auto
  helmsman run -s read-only "Where is the port read from?" > answer.txt
  git diff | helmsman run - --output-schema review.json --json
""",
)
@step_options
@click.option(
    "--session",
    "session_id",
    metavar="SESSION",
    shell_complete=complete_session,
    help="Go on in this session (`helmsman list` shows them).",
)
@click.option("--engine", type=click.Choice(["auto", "app-server", "exec"]), help="How to run Codex.  [default: auto]")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Give up on an attempt in which Codex shows no sign of life for so long.  [default: 60 at first, then 600]",
)
@click.option(
    "--attempts", type=click.IntRange(min=1), metavar="N", help="How often to try; a retry goes on.  [default: 3]"
)
@json_option
@reports_errors
def command(
    prompt: str,
    directory: str | None,
    model: str | None,
    sandbox: SandboxMode | None,
    approval_policy: ApprovalPolicy | None,
    full_auto: bool,
    profile: str | None,
    config: Sequence[str],
    images: Sequence[str],
    schema_file: str | None,
    effort: str | None,
    session_id: str | None,
    engine: str | None,
    timeout: float | None,
    attempts: int | None,
    as_json: bool,
) -> int:
    """Run one step of Codex and show it as it happens.

    PROMPT is what to do; `-` reads it from stdin. Questions of Codex are asked on the terminal; without one they are
    denied. The final message goes to stdout and everything else to stderr, so the answer can be piped. Ctrl-C stops the
    turn, a second Ctrl-C leaves at once.
    """
    if session_id is not None and directory is not None:
        raise click.UsageError("A session stays in its directory: --cd and --session cannot go together.")
    options: StartOptions = {
        "model": model,
        "sandbox": sandbox,
        "approval_policy": approval_policy,
        "full_auto": full_auto,
        "profile": profile,
        "config": config_values(config),
    }
    limits: dict[str, Any] = {}
    if timeout is not None:
        limits |= {"first_event_timeout": timeout, "inactivity_timeout": timeout}
    if attempts is not None:
        limits["attempts"] = attempts
    turn: dict[str, Any] = {"images": images, "output_schema": schema_in(schema_file), "effort": effort} | limits
    text = prompt_text(prompt)

    import anyio

    from helmsman.settings import load_settings

    settings = load_settings({"engine": engine}, cwd=None if directory is None else Path(directory))
    return anyio.run(_run, text, directory, session_id, settings, turn, options, as_json)


async def _run(
    prompt: str,
    directory: str | None,
    session_id: str | None,
    settings: Settings,
    turn: dict[str, Any],
    options: StartOptions,
    as_json: bool,
) -> int:
    from dataclasses import replace
    from functools import partial

    from helmsman.cli.consoles import configure_logs, logs_wanted
    from helmsman.cli.displays import HumanDisplay, JsonDisplay
    from helmsman.cli.follow import follow
    from helmsman.cli.session_ids import full_session_id
    from helmsman.service import Helmsman
    from helmsman.step import run_step

    configure_logs(settings)
    if session_id is None:  # a session that goes on may be open in a detached engine, and Codex opens it nowhere else
        settings = replace(settings, detach=False)
    async with Helmsman(settings) as helm:
        if session_id is not None:
            session_id = await full_session_id(helm, session_id)
        step = partial(run_step, prompt, cwd=directory, session_id=session_id, helm=helm, **turn, **given(options))
        display = JsonDisplay() if as_json else HumanDisplay(live=not logs_wanted(settings))
        outcome = await follow(step, display)
    return outcome.exit_code


def given(options: StartOptions) -> dict[str, Any]:
    """The options that were given: a session that is continued keeps its own for the rest."""
    return {key: value for key, value in options.items() if value}


def prompt_text(prompt: str) -> str:
    """What is to be done, as given or from stdin."""
    if prompt != _STDIN:
        return prompt
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput("What comes on stdin is not UTF-8 text. Give the prompt as text.") from None


def config_values(pairs: Sequence[str]) -> dict[str, Any]:
    """Settings of Codex given as KEY=VALUE."""
    config: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{pair!r} is not of the form KEY=VALUE.", param_hint="--config")
        config[key.strip()] = _toml_value(value.strip())
    return config


def _toml_value(text: str) -> Any:
    """The value as TOML, and what is no TOML as it stands: as Codex itself reads `-c`."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        return text


def schema_in(file: str | None) -> dict[str, Any] | None:
    """The JSON schema in a file."""
    if file is None:
        return None
    try:
        schema = json.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise click.BadParameter(f"{file} cannot be read: {error.strerror}.", param_hint="--output-schema") from None
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(f"{file} is not JSON: {error}.", param_hint="--output-schema") from None
    if not isinstance(schema, dict):
        raise click.BadParameter(f"{file} is not a JSON schema: it must be an object.", param_hint="--output-schema")
    return schema
