"""Where the command line writes for people: colours on a terminal, plain text everywhere else."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Final, TypeVar

from helmsman.base.surroundings import environment
from helmsman.cli.host import host

if TYPE_CHECKING:
    import logging
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rich.console import Console

    from helmsman.settings import Settings

HandlerT = TypeVar("HandlerT", bound="logging.Handler")

COMMAND_LOG: Final = "%(levelname)s %(name)s: %(message)s"
PROCESS_LOG: Final = f"%(asctime)s {COMMAND_LOG}"
"""Of a process that goes on for long: the hub, a worker."""
_LOG_WIDTH: Final = 100
"""How wide lines may be where there is no terminal to ask."""


def message_console() -> Console:
    """For everything that is not the result: stderr."""
    return _console(stderr=True)


def result_console() -> Console:
    """For the result: stdout."""
    return _console(stderr=False)


def is_terminal(console: Console) -> bool:
    """Whether a person is looking, on something that can move a cursor. `FORCE_COLOR` alone makes no terminal."""
    return console.file.isatty() and not console.is_dumb_terminal


def at_work(what: str, *, as_json: bool) -> AbstractContextManager[object]:
    """Says what takes so long, to whoever looks, for as long as it does."""
    console = message_console()
    return console.status(what) if is_terminal(console) and not as_json else nullcontext()


def settings_of_command(flags: Mapping[str, object] | None = None, directory: Path | None = None) -> Settings:
    """The person's settings, with `flags` of the command line, for work in `directory`; logs are then as they say."""
    from helmsman.settings import load_settings

    settings = load_settings(flags, cwd=None if host().is_elsewhere else directory)
    configure_logs(settings)
    return settings


def configure_logs(settings: Settings) -> None:
    """Logs go to stderr, without secrets. A command shows what goes wrong itself, so only errors come unasked."""
    log_to_stderr(COMMAND_LOG, settings.log_level if logs_wanted(settings) else "error")


def log_to_stderr(form: str, level: str) -> None:
    """Write logs in this form, from this level on."""
    import logging

    handler = in_form(logging.StreamHandler(sys.stderr), form)
    handler.setLevel(level.upper())  # others may want more
    logging.basicConfig(level=level.upper(), handlers=[handler])


def in_form(handler: HandlerT, form: str) -> HandlerT:
    """Let a handler write in this form, without secrets and without what could fool a reader."""
    import logging

    from helmsman.base.redaction import RedactingFilter
    from helmsman.base.shown_text import visible

    class Formatter(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return visible(super().format(record))  # it quotes programs and models

    handler.addFilter(RedactingFilter())
    handler.setFormatter(Formatter(form))
    return handler


def log_level(settings: Settings) -> int:
    """Return from which level on logs are for whoever runs a command or a server: errors, unless a level is set."""
    import logging

    return logging.getLevelNamesMapping()[settings.log_level.upper()] if logs_wanted(settings) else logging.ERROR


def logs_wanted(settings: Settings) -> bool:
    """Whether somebody set a log level."""
    return bool(environment().get("LOG_LEVEL")) or any("log_level" in file.content for file in settings.files)


def _console(*, stderr: bool) -> Console:
    from rich.console import Console

    variables, size = environment(), host().size
    if size is not None:
        variables = {"COLUMNS": str(size[0]), "LINES": str(size[1]), **variables}
    console = Console(stderr=stderr, highlight=False, markup=False, emoji=False, _environ=variables)
    if not is_terminal(console) and "COLUMNS" not in environment():
        console.width = _LOG_WIDTH
    return console
