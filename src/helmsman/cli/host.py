"""The process that a command runs in: the one that was started for it, or the hub, for a thin one that shows what it says.

Commands do not know which of the two it is. Whatever differs is here; the environment and the directory are those of
whoever asks (`helmsman.base.surroundings`), and so are `sys.stdin`, `sys.stdout` and `sys.stderr`.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from helmsman.base.surroundings import from_here
from helmsman.errors import HelmsmanError, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from helmsman.agents.protocol import SessionIndex
    from helmsman.service import Helmsman
    from helmsman.sessions.session import QuestionHandler
    from helmsman.settings import Settings

ResultT = TypeVar("ResultT")

Repeatability = Literal["once", "repeatable"]
"""How a command changes something. One that is asked for again since its hub died is `repeatable` if it can find out what
came of it, or does no harm when it is done twice; else it says that the outcome is unknown."""


class NeedsOwnProcess(Exception):
    """A command turns out to need the terminal, or something else that only the process has that was started for it."""


class Host:
    """The process that was started for the command."""

    outlives_commands = False
    """Whether what a command began goes on here when the command has ended."""
    is_elsewhere = False
    """Whether directories and settings are those of another machine."""
    name = ""
    """What the machine is called, where it is another than that of the person who asks."""
    size: tuple[int, int] | None = None
    """Columns and lines of the terminal, where this process cannot be asked."""

    def __init__(self, refused: str = "") -> None:
        self._refused = refused

    @property
    def sees_others(self) -> bool:
        """Whether the other machines that are known here are the person's: who asks from elsewhere has their own."""
        return not self.name

    def run(self, body: Callable[[], Awaitable[ResultT]]) -> ResultT:
        """Run something asynchronous to its end."""
        import anyio

        return anyio.run(body)

    def helmsman(self, settings: Settings, on_question: QuestionHandler | None) -> Helmsman:
        """A Helmsman, to be opened."""
        from helmsman.service import Helmsman

        return Helmsman(settings, on_question=on_question)

    def indexes(self, settings: Settings) -> Mapping[str, SessionIndex]:
        """The sessions on disk, of each agent, which may be looked up without a Helmsman."""
        from helmsman.agents.registry import Agents

        return Agents(files=settings.files).indexes(settings)

    def place(self, directory: str | None) -> Path:
        """The directory that a person means, or is in."""
        return from_here(directory or ".").resolve()

    def run_there(self, *_arguments: str) -> int | None:
        """Run a command on the terminal of the machine that is meant; its exit code. None where that is this one."""
        return None

    def page(self, text: str) -> None:
        """Show a text that is longer than the screen."""
        import click

        from helmsman.base.pager import page

        if not page(text):
            click.echo(text, nl=False, color=True)

    def page_as_git(self, text: str) -> None:
        """Show a text by the user's pager for git."""
        import click

        from helmsman.base.pager import page_as_git

        if not page_as_git(text):
            click.echo(text, nl=False, color=True)

    def require_own_process(self) -> None:
        """What follows needs the terminal. Nothing may have been done yet.

        Raises:
            NeedsOwnProcess: This is not the process that has it; the command is run once more, there.
        """

    def begin_change(self, change: Repeatability) -> None:
        """Something is about to be changed.

        Raises:
            HelmsmanError: It must not be.
        """
        if self._refused:
            raise HelmsmanError(f"The hub does not serve this process: {self._refused}. Nothing was done.")


class OtherMachine(Host):
    """The process that was started for the command, which asks the hub of another machine for everything."""

    outlives_commands = True
    is_elsewhere = True

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def helmsman(self, settings: Settings, on_question: QuestionHandler | None) -> Helmsman:
        from helmsman.service import Helmsman

        return Helmsman(on_question=on_question, host=self.name)

    def indexes(self, settings: Settings) -> Mapping[str, SessionIndex]:
        return {}

    def run_there(self, *arguments: str) -> int | None:
        import subprocess

        from helmsman.base.programs import environment_for
        from helmsman.base.surroundings import environment
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
    """The same for one command that works with a tree of this machine there: paths that it is given are here."""

    is_elsewhere = False

    def place(self, directory: str | None) -> Path:
        return Host.place(self, directory)


_HOST: ContextVar[Host] = ContextVar("host", default=Host())  # noqa: B039 - it is never changed


def host() -> Host:
    """Where the command runs."""
    return _HOST.get()


def command_here(words: str) -> str:
    """A command as the person gives it who is to give it, for the machine that this is about."""
    name = host().name
    return f"helmsman --host {name} {words}" if name else f"helmsman {words}"


@contextmanager
def hosted(by: Host) -> Iterator[None]:
    """Commands in the block run there."""
    before = _HOST.set(by)
    try:
        yield
    finally:
        _HOST.reset(before)
