"""Execution context of a command: its own process, or the hub, which renders what a command asks for.

Commands do not depend on which of the two it is; this module has all differences. The environment, the directory and the
output streams are those of the caller (`helmsman.base.caller_context`).
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, TypeVar

from helmsman.base.caller_context import from_here
from helmsman.base.programs import check_program_words, environment_for
from helmsman.errors import HelmsmanError, InvalidInput, ProgramRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping

    from helmsman.agents.protocol import SessionIndex
    from helmsman.client import Helmsman
    from helmsman.sessions.session import QuestionHandler
    from helmsman.settings import Settings

_SHELL: Final = "/bin/sh"
_NOT_FOUND: Final = 127
_NOT_RUN: Final = 126


def page(text: str, *, as_git: bool = False) -> bool:
    """Show a text by `$PAGER` or `less`, or by the user's pager for git. False if it was not shown: there is no terminal or
    no pager to show it on.
    """
    if not as_git:
        return _show_by(os.environ.get("PAGER") or "less", text)
    from helmsman.git.command import pager

    chosen = pager()
    return chosen is not None and _show_by(chosen, text)


def _show_by(command: str, text: str) -> bool:
    """Run the pager. Ctrl-C is for the pager."""
    # `cat` as pager means no pager.
    if not sys.stdout.isatty() or command.strip() in ("", "cat"):
        return False
    try:
        # A pager that a session could have written must not run.
        check_program_words(command)
    except ProgramRefused as error:
        sys.stderr.write(f"helmsman: {error}\n")
        return False
    # F ends less if all fits on a screen, R shows colours, X leaves the text on screen.
    env = {"LESS": "FRX", "LV": "-c", **environment_for(os.environ)}
    before = None
    with suppress(ValueError):  # not the main thread, which has no signals
        # Ctrl-C belongs to the pager (less stops a search with it), and must not end the command.
        before = signal.signal(signal.SIGINT, lambda *_: None)
    # Through a shell, because PAGER may have options and quotes.
    words = [_SHELL, "-c", command] if os.name == "posix" else shlex.split(command, posix=False)
    try:
        done = subprocess.run(words, input=text.encode("utf-8", "backslashreplace"), env=env, check=False)
    except OSError:
        return False
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)
    # The shell's codes for a program that does not exist, or cannot run.
    return done.returncode not in (_NOT_FOUND, _NOT_RUN)


ResultT = TypeVar("ResultT")

_REFUSED: Final = 403


# An exception, so that a command can find out late that it needs a terminal, before it has changed anything.
class NeedsOwnProcess(Exception):
    """Raised if the command changes something, or needs the terminal: it runs in the process that was started for it."""


class Host:
    """Process that was started for the command."""

    is_elsewhere = False  # whether directories and settings belong to another machine
    name = ""  # name of the machine, if it is not the user's
    size: tuple[int, int] | None = None  # columns and lines of a remote terminal

    @property
    def stdout(self) -> TextIO:
        return sys.stdout

    @property
    def stderr(self) -> TextIO:
        return sys.stderr

    def on_terminal(self, number: int) -> bool:
        """Return whether a standard stream, by its descriptor, is a terminal."""
        return (sys.stdin, sys.stdout, sys.stderr)[number].isatty()

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

    def page(self, text: str, *, as_git: bool = False) -> None:
        """Show a long text in the pager, or in that for git."""
        import click

        if not page(text, as_git=as_git):
            click.echo(text, nl=False, color=True)

    def require_own_process(self) -> None:
        """Require the user's terminal. Call this before any change.

        Raises:
            NeedsOwnProcess: This process does not have it; the command is run again in the process that does.
        """

    def begin_change(self) -> None:
        """Announce a change.

        Raises:
            HelmsmanError: The hub does not serve this process, an agent's command for example.
            NeedsOwnProcess: This process only renders.
        """
        from helmsman.hub.control import HUB_PATH, request
        from helmsman.settings import load_settings

        settings = load_settings()
        # Without a hub there is nothing that could refuse.
        answer = request(str(settings.state_dir), "GET", HUB_PATH) if settings.detach else None
        status, content = answer or (0, {})
        if status == _REFUSED:
            raise HelmsmanError(f"{content.get('detail', '')} Nothing was done.")


class OtherMachine(Host):
    """Command's own process, which calls the hub of another machine."""

    is_elsewhere = True

    def __init__(self, name: str) -> None:
        self.name = name

    def begin_change(self) -> None:
        """Allow it: the hub there says whether it serves this machine."""

    def helmsman(self, settings: Settings, on_question: QuestionHandler | None) -> Helmsman:
        from helmsman.client import Helmsman

        return Helmsman(on_question=on_question, host=self.name)

    def indexes(self, settings: Settings) -> Mapping[str, SessionIndex]:
        # Sessions of another machine are not on this disk.
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
            # A relative path would mean a directory of this machine.
            raise InvalidInput(f"Name the directory on {self.name}, as an absolute path.")
        return Path(directory)


class TreeElsewhere(OtherMachine):
    """Another machine that works on a tree of the local machine: paths in arguments are local."""

    is_elsewhere = False

    def place(self, directory: str | None) -> Path:
        return Host.place(self, directory)


# A context variable: the hub renders several commands at a time.
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
