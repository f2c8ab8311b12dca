"""A terminal for tests, made of a pseudo-terminal: what is shown on it can be read, and keys can be pressed."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, Any

import anyio
import anyio.to_thread
import pytest

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_CONTROLS = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)")

_SECONDS = 30


class PseudoTerminal:
    """The side of the person."""

    def __init__(self, *, columns: int = 80, lines: int = 40) -> None:
        self._master, self._slave = pty.openpty()
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._seen = ""
        self._read_to = 0
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def program_side(self) -> int:
        """The file descriptor for a program's streams."""
        return self._slave

    @contextmanager
    def attached(self, *, stdin: IO[str] | None = None) -> Iterator[None]:
        """Make it the program's terminal. (pytest sets the streams anew for each phase of a test, so not in a fixture.)"""
        with ExitStack() as stack:
            patch = stack.enter_context(pytest.MonkeyPatch.context())
            patch.setattr(sys, "stdin", stdin or stack.enter_context(self._stream("r")))
            patch.setattr(sys, "stderr", stack.enter_context(self._stream("w")))
            yield

    def _stream(self, mode: str) -> IO[str]:
        return os.fdopen(os.dup(self._slave), mode, encoding="utf-8")

    @property
    def modes(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    @property
    def raw(self) -> str:
        """Everything that was sent to it so far."""
        return self._seen

    @property
    def screen(self) -> str:
        """Everything shown so far, without colours and movements."""
        return _ESCAPES.sub("", self._seen).replace("\r\n", "\n")

    @property
    def standing(self) -> str:
        """What can be read on it now: without what was drawn over, as a part that changes is ten times a second."""
        lines = [""]
        row = column = 0
        for part in _CONTROLS.split(self._seen):
            if part == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif part == "\r":
                column = 0
            elif part.startswith("\x1b["):
                if part.endswith("A"):
                    row -= int(part[2:-1] or 1)
                elif part.endswith("C"):
                    column += int(part[2:-1] or 1)
                elif part[2:] in ("K", "J"):
                    lines[row] = lines[row][:column]
                    lines = lines if part[2:] == "K" else lines[: row + 1]
            else:
                lines[row] = lines[row][:column].ljust(column) + part + lines[row][column + len(part) :]
                column += len(part)
        return "\n".join(lines)

    async def shows(self, text: str) -> None:
        """Wait until the text appears, after what was waited for before."""
        found = await anyio.to_thread.run_sync(self._wait_for, text, abandon_on_cancel=True)
        assert found, f"{text!r} did not appear. Instead:\n{self.screen[self._read_to :][-2000:]}"

    def _wait_for(self, text: str) -> bool:
        with self._news:
            if not self._news.wait_for(lambda: text in self.screen[self._read_to :], timeout=_SECONDS):
                return False
            self._read_to = self.screen.index(text, self._read_to) + len(text)
            return True

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def close(self) -> None:
        os.close(self._slave)
        self._reader.join(5)
        if not self._reader.is_alive():  # else it would go on reading whatever gets this number next
            os.close(self._master)

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while True:
            try:
                data = os.read(self._master, 4096)
            except OSError:  # the other side is closed
                return
            with self._news:
                self._seen += decoder.decode(data)
                self._news.notify_all()
