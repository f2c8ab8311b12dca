"""Shell completion of session and task names.

It runs on a key press, so it only reads from disk and starts nothing. Errors yield no completions, because a shell
cannot display them.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import get_completion_class

from helmsman.base.caller_context import environment
from helmsman.cli.command import cli_command
from helmsman.cli.exit_codes import ExitCode
from helmsman.cli.host import host
from helmsman.cli.thin import COMPLETION
from helmsman.errors import HelmsmanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click.shell_completion import CompletionItem

    from helmsman.settings import Settings
    from helmsman.tasks.model import Task


SHORT: Final = 8
"""Characters at the end of an id, which are random; the first encode the time and are shared by sessions of the same
minute.
"""

_COMP_TYPE: Final = "COMP_TYPE"
_LISTS: Final = tuple(str(ord(kind)) for kind in "?!@")
"""Values of bash's `COMP_TYPE` when it lists the candidates."""
_OFFERED: Final = 50
_HELP_WIDTH: Final = 60


def complete_session(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the newest sessions by short id, or by full id if more was typed. Those that are running come first."""
    from helmsman.settings import load_settings
    from helmsman.steering.listing import page_of_all
    from helmsman.tasks.model import RUNNING

    try:
        settings = load_settings()
        found, _ = page_of_all(host().indexes(settings), limit=_OFFERED, cursor=None)
        running = {task.session_id for task in _tasks(settings, status=RUNNING)}
    except (HelmsmanError, OSError):
        # A shell has no place for an error.
        return []
    # Stable: the newest of those that run come first.
    found.sort(key=lambda info: info.session_id not in running)
    return [
        _item(name, info.about)
        for info in found
        for name in (info.session_id[-SHORT:], info.session_id)
        if name.startswith(typed) and (typed or name != info.session_id)
    ]


def complete_task(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete the newest tasks by alias and id."""
    from helmsman.settings import load_settings

    try:
        found = _tasks(load_settings())
    except (HelmsmanError, OSError):
        return []
    return [_item(name, task.instruction) for task in found for name in (task.alias, task.id) if name.startswith(typed)]


def _tasks(settings: Settings, **filters: Any) -> Sequence[Task]:
    """Return the newest tasks.

    Raises:
        HelmsmanError: The store cannot be read.
    """
    from helmsman.tasks.registry import REGISTRY_NAME, Registry

    path = settings.state_dir / REGISTRY_NAME
    # A look must not create the database.
    if settings.store is None and not path.exists():
        return ()
    with closing(Registry(path, address=settings.store)) as registry:
        return registry.list(limit=_OFFERED, **filters)[0]


def complete_schedule(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete schedules by id."""
    from helmsman.schedules.store import ScheduleStore
    from helmsman.settings import load_settings
    from helmsman.store import open_store
    from helmsman.tasks.registry import REGISTRY_NAME

    try:
        settings = load_settings()
        path = settings.state_dir / REGISTRY_NAME
        if settings.store is None and not path.exists():
            return []
        with closing(open_store(path, settings.store)) as database:
            found = ScheduleStore(database).read()
    except (HelmsmanError, OSError):
        return []
    return [_item(one.id, one.prompt) for one in found if one.id.startswith(typed)]


def complete_session_or_task(context: click.Context, parameter: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete sessions, and tasks by id. A task's alias does not identify a session."""
    # Aliases name a task, and these commands take sessions.
    tasks = [item for item in complete_task(context, parameter, typed) if item.value.startswith("T-")]
    return [*complete_session(context, parameter, typed), *tasks]


def completions(app: click.Command, shell: str) -> int:
    """Print completions for the words in the shell's variables and return the exit code."""
    from click.shell_completion import get_completion_class, split_arg_string

    from helmsman.cli.consoles import echo

    kind = get_completion_class(shell)
    if kind is None:
        return ExitCode.FAILED
    words, typed = split_arg_string(environment()["COMP_WORDS"])[1:], environment()["COMP_CWORD"]
    if shell == "fish":  # fish passes the current word, other shells pass its index
        begun = split_arg_string(typed)[0] if typed else ""
        before = words[:-1] if begun and words[-1:] == [begun] else words
    else:
        at = int(typed) - 1
        begun, before = "".join(words[at : at + 1]), words[:at]
    completer = kind(app, {}, "helmsman", "")
    items = completer.get_completions(before, begun)
    # bash inserts what it is given; only in a list it can show more than the name.
    if shell == "bash" and len(items) > 1 and environment().get(_COMP_TYPE) in _LISTS:
        for item in items:  # bash shows no help, but it shows a list as it is and inserts none of it
            item.value = f"{item.value}  {item.help}" if item.help else item.value
    echo("\n".join(map(completer.format_completion, items)))
    return ExitCode.OK


def _item(name: str, about: str | None) -> CompletionItem:
    from click.shell_completion import CompletionItem

    from helmsman.base.sanitize import one_line

    return CompletionItem(name, help=one_line(about or "")[:_HELP_WIDTH])


_PLACES = {
    "bash": 'eval "$(helmsman config completion bash)" in ~/.bashrc',
    "zsh": 'eval "$(helmsman config completion zsh)" in ~/.zshrc',
    "fish": "helmsman config completion fish > ~/.config/fish/completions/helmsman.fish",
}


@cli_command("completion", "Print a shell's completion script.", *_PLACES.values(), has_json=False)
@click.argument("shell", type=click.Choice(list(_PLACES)))
def completion_command(shell: str) -> None:
    """Print the script that lets SHELL complete commands, options, session ids, task ids and aliases."""
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(click.get_current_context().find_root().command, {}, "helmsman", COMPLETION).source()
    if shell == "bash":
        # The script of click passes no COMP_TYPE, which tells whether bash lists.
        script = script.replace("COMP_CWORD=$COMP_CWORD", f"COMP_CWORD=$COMP_CWORD {_COMP_TYPE}=$COMP_TYPE")
    click.echo(script)
