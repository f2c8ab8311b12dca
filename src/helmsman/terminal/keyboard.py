"""Read single keys from the terminal without blocking the event loop.

A read can be cancelled at any time, which restores the terminal. Keys pressed before the question was shown for a
moment, repeated keys and pasted text are discarded, so nothing is approved by accident.
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
"""Key counts only if no other follows within this time.

Otherwise it is a paste, typed text or a repeated key. Keyboards start to repeat after up to a second, which is longer
than `MOMENT`, and then repeat at least ten times a second.
"""
MOMENT: Final = 0.6
"""Seconds without a key before a new question offers its choices. Earlier keys were not meant for it."""
_INPUT_FLAGS: Final = 0
_LOCAL_FLAGS: Final = 3
_CONTROL_CHARS: Final = 6


class Keyboard:
    """Keys of one terminal. Created by `open_keyboard`."""

    def __init__(self, fd: int, modes: list[Any]) -> None:
        self.fd = fd
        self._modes = modes

    def listen(self) -> None:
        """Take keys one by one from now on, before the user sees that a key is expected."""
        key_by_key(self.fd, self._modes)

    async def key(self) -> str:
        r"""Return the next key; Enter is `\n`. Several characters together (a paste, a function key) return ''.

        Raises:
            EOFError: The terminal is gone.
        """
        typed = await self.typed()
        return typed if len(typed) == 1 else ""

    async def typed(self) -> str:
        r"""Return the next key, or the beginning of what comes together: a paste, a function key. Enter is `\n`.

        Raises:
            EOFError: The terminal is gone.
        """
        self.listen()
        typed = await self._read()
        # Every further key restarts the wait: a paste that arrives in pieces must not end in one that counts.
        while (more := await self._soon(_ALONE_SECONDS)) is not None:
            typed = (typed + more)[:_READ_SIZE]
        # Terminals in key-by-key mode send a carriage return for Enter.
        return typed.replace("\r", "\n")

    async def quiet(self) -> None:
        """Discard keys until none has arrived for a moment.

        Raises:
            EOFError: The terminal is gone.
        """
        self.listen()
        # Repeats of a held key keep this loop running until the key is released.
        while await self._soon(MOMENT) is not None:
            pass

    def is_in_foreground(self) -> bool:
        """Return whether this process is in the terminal's foreground; False without a controlling terminal."""
        # Pausing the deadline of a question that a background job shows would hold it open unseen.
        try:
            return os.tcgetpgrp(self.fd) == os.getpgrp()
        except OSError:
            return False

    async def _soon(self, seconds: float) -> str | None:
        """Return the keys that arrive within this time; None without any."""
        with anyio.move_on_after(seconds):
            return await self._read()
        return None

    async def _read(self) -> str:
        # Cancellable, unlike a read in a thread.
        await anyio.wait_readable(self.fd)
        try:
            typed = os.read(self.fd, _READ_SIZE)
        except OSError:  # the terminal was closed
            typed = b""
        if not typed:
            raise EOFError
        # A key may be split by a slow connection.
        return typed.decode("utf-8", errors="replace")


@contextmanager
def open_keyboard() -> Iterator[Keyboard | None]:
    """Open the keyboard of the terminal on stderr; yields None without one."""
    with ExitStack() as stack:
        fd = terminal_keys(stack)
        if fd is None:
            yield None
            return
        import termios

        modes = termios.tcgetattr(fd)
        # Keys typed before now were meant for the program that ran then.
        termios.tcflush(fd, termios.TCIFLUSH)
        try:
            yield Keyboard(fd, modes)
        finally:
            termios.tcflush(fd, termios.TCIFLUSH)  # a partial answer must not become input of the next program
            # TCSADRAIN does not discard input, as TCSAFLUSH would: it was flushed above.
            termios.tcsetattr(fd, termios.TCSADRAIN, modes)


def key_by_key(
    fd: int, before: list[Any], *, without_input: int = 0, without_local: int = 0, without: int | None = None
) -> None:
    """Switch a terminal to unbuffered input without echo; further flags, and a control character, can be switched off."""
    import termios

    modes = [*before]
    modes[_INPUT_FLAGS] &= ~without_input
    # ISIG stays set: Ctrl-C and Ctrl-Z must work while a question waits.
    modes[_LOCAL_FLAGS] &= ~(termios.ICANON | termios.ECHO | without_local)
    modes[_CONTROL_CHARS] = [*modes[_CONTROL_CHARS]]
    # A read returns as soon as one byte is there, and waits for it without a timeout.
    modes[_CONTROL_CHARS][termios.VMIN], modes[_CONTROL_CHARS][termios.VTIME] = 1, 0
    if without is not None:
        modes[_CONTROL_CHARS][without] = bytes([os.fpathconf(fd, "PC_VDISABLE")])
    termios.tcsetattr(fd, termios.TCSADRAIN, modes)


def in_background(fd: int) -> bool:
    """Return whether another process has the terminal; a background process that reads is stopped."""
    try:
        return os.tcgetpgrp(fd) != os.getpgrp()
    except OSError:  # gone, or not the controlling terminal
        return False


def has_terminal() -> bool:
    """Return whether a person can be asked: stderr is a terminal with a keyboard."""
    with ExitStack() as stack:
        return terminal_keys(stack) is not None


def terminal_keys(stack: ExitStack) -> int | None:
    """Return a file descriptor to read keys from.

    Questions are shown on stderr. If stdin is not a terminal (a prompt is piped in), the terminal of stderr is read
    instead, as password prompts do.
    """
    if sys.platform == "win32":
        return None  # the Windows console has neither these modes nor a way to wait for keys together with other events
    shown, typed = _descriptor(sys.stderr), _descriptor(sys.stdin)
    if shown is None:
        return None
    if typed is not None:
        return typed
    try:
        # Opening a terminal could make it the controlling one.
        fd = os.open(os.ttyname(shown), os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return None
    stack.callback(os.close, fd)
    return fd


def _descriptor(stream: Any) -> int | None:
    """Return the stream's file descriptor, if it is a terminal."""
    try:
        fd: int = stream.fileno()
        return fd if os.isatty(fd) else None
    except (AttributeError, OSError, ValueError):  # missing, closed, or replaced by an object without a descriptor
        return None
