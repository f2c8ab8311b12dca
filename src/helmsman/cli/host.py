"""Execution context of a command: its own process, or the hub on behalf of a thin client.

Commands do not depend on which of the two runs them; this module has all differences. The environment, the directory
and the standard streams are those of the caller (`helmsman.base.caller_context`).
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from helmsman.base.caller_context import from_here
from helmsman.errors import HelmsmanError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from helmsman.agents.protocol import SessionIndex
    from helmsman.client import Helmsman
    from helmsman.sessions.session import QuestionHandler
    from helmsman.settings import Settings

ResultT = TypeVar("ResultT")

Repeatability = Literal["once", "repeatable"]
"""How a command changes state. After a hub crash a `repeatable` command is run again, because it can look up its
outcome or because repeating it is harmless. Otherwise the outcome is reported as unknown.
"""


class NeedsOwnProcess(Exception):
    """Command needs the terminal, or another resource of the process that was started for it."""


class Host:
    """Process that was started for the command."""

    outlives_commands = False  # whether work of a command continues here after the command
    is_elsewhere = False  # whether directories and settings belong to another machine
    name = ""  # name of the machine, if it is not the user's
    size: tuple[int, int] | None = None  # columns and lines of a remote terminal

    def __init__(self, refused: str = "") -> None:
        self._refused = refused

    @property
    def sees_others(self) -> bool:
        """Return whether the user may use the other machines known here. Remote users have their own list."""
        return not self.name

    def run(self, body: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Run an async function to completion."""
        import anyio

        return anyio.run(body)

    def helmsman(self, settings: Settings, on_question: QuestionHandler | None) -> Helmsman:
        """Return a Helmsman that is not yet open."""
        from helmsman.client import Helmsman

        return Helmsman(settings, on_question=on_question)

    def indexes(self, settings: Settings) -> Mapping[str, SessionIndex]:
        """Return the session indexes on disk by agent, for lookups without a Helmsman."""
        from helmsman.agents.registry import Agents

        return Agents(files=settings.files).indexes(settings)

    def place(self, directory: str | None) -> Path:
        """Return the given directory, or the current one."""
        return from_here(directory or ".").resolve()

    def run_there(self, *_arguments: str) -> int | None:
        """Run a command on the terminal of the selected machine and return its exit code; None for the local machine."""
        return None

    def page(self, text: str) -> None:
        """Show a long text in the pager."""
        import click

        from helmsman.base.pager import page

        if not page(text):
            click.echo(text, nl=False, color=True)

    def page_as_git(self, text: str) -> None:
        """Show a text in the user's pager for git."""
        import click

        from helmsman.base.pager import page_as_git

        if not page_as_git(text):
            click.echo(text, nl=False, color=True)

    def require_own_process(self) -> None:
        """Require the user's terminal. Call this before any change.

        Raises:
            NeedsOwnProcess: This process does not have it; the command is run again in the process that does.
        """

    def begin_change(self, change: Repeatability) -> None:
        """Announce a change.

        Raises:
            HelmsmanError: The change is not allowed.
        """
        if self._refused:
            raise HelmsmanError(f"The hub does not serve this process: {self._refused}. Nothing was done.")


class OtherMachine(Host):
    """Command's own process, which calls the hub of another machine."""

    outlives_commands = True
    is_elsewhere = True

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def helmsman(self, settings: Settings, on_question: QuestionHandler | None) -> Helmsman:
        from helmsman.client import Helmsman

        return Helmsman(on_question=on_question, host=self.name)

    def indexes(self, settings: Settings) -> Mapping[str, SessionIndex]:
        return {}

    def run_there(self, *arguments: str) -> int | None:
        import subprocess

        from helmsman.base.caller_context import environment
        from helmsman.base.programs import environment_for
        from helmsman.hub.hosts import HostFailed, named_host

        env = environment()
        try:
            command = named_host(self.name, env).terminal_command(arguments, env)
            return subprocess.run(command, env=environment_for(env), check=False).returncode
        except (HostFailed, OSError) as error:
            raise HelmsmanError(str(error)) from error

    def place(self, directory: str | None) -> Path:
        if directory is None or not directory.startswith("/"):
            raise InvalidInput(f"Name the directory on {self.name}, as an absolute path.")
        return Path(directory)


class TreeElsewhere(OtherMachine):
    """Another machine that works on a tree of the local machine: paths in arguments are local."""

    is_elsewhere = False

    def place(self, directory: str | None) -> Path:
        return Host.place(self, directory)


_HOST: ContextVar[Host] = ContextVar("host", default=Host())  # noqa: B039 - it is never changed


def host() -> Host:
    """Return the execution context of the command."""
    return _HOST.get()


def command_here(words: str) -> str:
    """Return the command line that the user types for the selected machine."""
    name = host().name
    return f"helmsman --host {name} {words}" if name else f"helmsman {words}"


@contextmanager
def hosted(by: Host) -> Iterator[None]:
    """Run commands in the block in this context."""
    before = _HOST.set(by)
    try:
        yield
    finally:
        _HOST.reset(before)
