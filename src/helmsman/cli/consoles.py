"""Consoles for human-readable output: colours on a terminal, plain text otherwise."""

from __future__ import annotations

import logging
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, TypeVar

from helmsman.base.caller_context import environment
from helmsman.base.redaction import RedactingFilter
from helmsman.base.sanitize import visible
from helmsman.cli.host import host
from helmsman.settings import load_settings

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rich.console import Console

    from helmsman.settings import Settings

HandlerT = TypeVar("HandlerT", bound="logging.Handler")

COMMAND_LOG: Final = "%(levelname)s %(name)s: %(message)s"
PROCESS_LOG: Final = f"%(asctime)s {COMMAND_LOG}"  # for long-running processes: the hub and workers
_LOG_WIDTH: Final = 100  # line width without a terminal


def echo(message: object = "", *, err: bool = False, nl: bool = True, color: bool | None = None) -> None:
    """Print to stdout or stderr of the caller."""
    import click

    # The streams of the caller: a command may run inside the hub for a thin client.
    click.echo(message, file=host().stderr if err else host().stdout, nl=nl, color=color)


def message_console() -> Console:
    """Return the console for messages: stderr."""
    return _console(stderr=True)


def result_console() -> Console:
    """Return the console for results: stdout."""
    return _console(stderr=False)


def is_terminal(console: Console) -> bool:
    """Return whether output goes to a terminal with cursor control. `FORCE_COLOR` alone does not count."""
    # With FORCE_COLOR a log gets colours, but no cursor movements.
    return console.file.isatty() and not console.is_dumb_terminal


def at_work(what: str, *, as_json: bool) -> AbstractContextManager[object]:
    """Show a status line on a terminal during the block."""
    console = message_console()
    return console.status(what) if is_terminal(console) and not as_json else nullcontext()


def settings_of_command(flags: Mapping[str, object] | None = None, directory: Path | None = None) -> Settings:
    """Load the settings for `directory` with command-line `flags`, and configure logging."""
    # On another machine its own configuration applies, not that of a local directory.
    settings = load_settings(flags, cwd=None if host().is_elsewhere else directory)
    configure_logs(settings)
    return settings


def configure_logs(settings: Settings) -> None:
    """Send redacted logs to stderr. Commands report their own failures, so only errors are logged by default."""
    # Logs at the usual level would appear between the lines of a transcript.
    log_to_stderr(COMMAND_LOG, settings.log_level if logs_wanted(settings) else "error")


def log_to_stderr(form: str, level: str) -> None:
    """Log to stderr in this format, from this level up."""
    handler = in_form(logging.StreamHandler(sys.stderr), form)
    handler.setLevel(level.upper())  # other handlers may need lower levels
    # The root's level limits all handlers, so it is set as well.
    logging.basicConfig(level=level.upper(), handlers=[handler])


def in_form(handler: HandlerT, form: str) -> HandlerT:
    """Make a handler write this format, with secrets redacted and control characters made visible."""

    class Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return visible(super().format(record))  # records quote output of programs and models

    handler.addFilter(RedactingFilter())
    handler.setFormatter(Formatter(form))
    return handler


def log_level(settings: Settings) -> int:
    """Return the level for logs of a command or server: error, unless a level is set."""
    return logging.getLevelNamesMapping()[settings.log_level.upper()] if logs_wanted(settings) else logging.ERROR


def logs_wanted(settings: Settings) -> bool:
    """Return whether a log level is set."""
    return bool(environment().get("LOG_LEVEL")) or any("log_level" in file.content for file in settings.files)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    variables, size = environment(), host().size
    if size is not None:
        # The thin client's terminal, not the hub's.
        variables = {"COLUMNS": str(size[0]), "LINES": str(size[1]), **variables}
    file = host().stderr if stderr else host().stdout
    console = Console(file=file, stderr=stderr, highlight=False, markup=False, emoji=False, _environ=variables)
    # A log has no width; a fixed one makes output the same everywhere.
    if not is_terminal(console) and "COLUMNS" not in environment():
        console.width = _LOG_WIDTH
    return console
