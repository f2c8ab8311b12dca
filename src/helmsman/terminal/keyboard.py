"""Single keys from the terminal, read without blocking the event loop.

A read waits for the terminal as for any other file, so it can be cancelled at any time, and the terminal is then put
back as it was. Keys pressed before the question was on the screen for a moment,
keys that are held down, and text pasted where one key is expected, are thrown away: nothing is approved by accident.
"""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import anyio

if TYPE_CHECKING:
    from collections.abc import Iterator

_READ_SIZE: Final = 4096
_ALONE_SECONDS: Final = 0.15
"""A key counts if no other follows for so long. Keys that do are a paste, words, or a key that is held: keyboards begin to
repeat after up to a second, which is longer than `MOMENT`, and then repeat ten times a second or more."""
MOMENT: Final = 0.6
"""Seconds for which a question is on screen, and no key comes, before it offers its choices: none was meant for it."""
_INPUT_FLAGS: Final = 0
_LOCAL_FLAGS: Final = 3
_CONTROL_CHARS: Final = 6


class Keyboard:
    """The keys of one terminal. Made by `open_keyboard`."""

    def __init__(self, fd: int, modes: list[Any]) -> None:
        self.fd = fd
        self._modes = modes

    async def key(self) -> str:
        """The next key; Enter is `\\n`. Several characters at once (a paste, a function key) are no key: ''.

        Raises:
            EOFError: The terminal is gone.
        """
        key_by_key(self.fd, self._modes)
        typed = await self._read()
        while not await self._nothing_comes(_ALONE_SECONDS):
            typed = ""
        return typed.replace("\r", "\n") if len(typed) == 1 else ""

    async def quiet(self) -> None:
        """Wait until no key has come for a moment; those that do are thrown away.

        Raises:
            EOFError: The terminal is gone.
        """
        key_by_key(self.fd, self._modes)
        while not await self._nothing_comes(MOMENT):
            pass

    def is_in_foreground(self) -> bool:
        """Whether the terminal is this process's now: not in the background, nor where it is gone or not its own."""
        try:
            return os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError:
            return False

    async def _nothing_comes(self, seconds: float) -> bool:
        """Whether no key comes for so long; one that does is thrown away."""
        with anyio.move_on_after(seconds) as waiting:
            await self._read()
        return waiting.cancelled_caught

    async def _read(self) -> str:
        await anyio.wait_readable(self.fd)
        try:
            typed = os.read(self.fd, _READ_SIZE)
        except OSError:  # what a closed terminal answers
            typed = b""
        if not typed:
            raise EOFError
        return typed.decode("utf-8", errors="replace")


@contextmanager
def open_keyboard() -> Iterator[Keyboard | None]:
    """The keyboard of the terminal that messages go to; None where there is no such terminal."""
    with ExitStack() as stack:
        fd = terminal_keys(stack)
        if fd is None:
            yield None
            return
        import termios

        modes = termios.tcgetattr(fd)
        termios.tcflush(fd, termios.TCIFLUSH)
        try:
            yield Keyboard(fd, modes)
        finally:
            termios.tcflush(fd, termios.TCIFLUSH)  # half an answer is not the next program's input
            termios.tcsetattr(fd, termios.TCSADRAIN, modes)


def key_by_key(fd: int, before: list[Any], *, without_input: int = 0, without_local: int = 0) -> None:
    """Have a terminal give each key as it comes, and not show it; more flags of its modes can be taken away."""
    import termios

    modes = [*before]
    modes[_INPUT_FLAGS] &= ~without_input
    modes[_LOCAL_FLAGS] &= ~(termios.ICANON | termios.ECHO | without_local)
    modes[_CONTROL_CHARS] = [*modes[_CONTROL_CHARS]]
    modes[_CONTROL_CHARS][termios.VMIN], modes[_CONTROL_CHARS][termios.VTIME] = 1, 0
    termios.tcsetattr(fd, termios.TCSADRAIN, modes)


def in_background(fd: int) -> bool:
    """Whether the keys of the terminal are somebody else's now: a process that reads them all the same is stopped."""
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:  # it is gone, or does not control this process
        return False


def has_terminal() -> bool:
    """Whether a person can be asked: messages go to a terminal, and it has a keyboard."""
    with ExitStack() as stack:
        return terminal_keys(stack) is not None


def terminal_keys(stack: ExitStack) -> int | None:
    """A file descriptor to read keys from.

    Questions are shown on stderr. Where stdin is something else (a prompt piped in), the terminal that stderr is on is
    read instead, as password prompts do.
    """
    if sys.platform == "win32":
        return None  # its console has neither these modes nor a way to wait for a key together with other things
    shown, typed = _descriptor(sys.stderr), _descriptor(sys.stdin)
    if shown is None:
        return None
    if typed is not None:
        return typed
    try:
        fd = os.open(os.ttyname(shown), os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return None
    stack.callback(os.close, fd)
    return fd


def _descriptor(stream: Any) -> int | None:
    """The stream's file descriptor, if it is a terminal."""
    try:
        fd: int = stream.fileno()
        return fd if os.isatty(fd) else None
    except (AttributeError, OSError, ValueError):  # none at all, closed, or replaced by something that is no file
        return None
