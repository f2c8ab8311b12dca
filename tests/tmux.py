"""A real terminal for tests: tmux, with what stands on its screen, keys to press, and a size that can change."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import anyio
import anyio.to_thread
import pytest

SECONDS = 30
_LOOK_SECONDS = 0.05


class Tmux:
    """One terminal with one program in it. The block ends it, and the program with it."""

    def __init__(self, *, columns: int = 80, lines: int = 24) -> None:
        if shutil.which("tmux") is None:
            pytest.skip("There is no tmux here.")
        self._folder = Path(tempfile.mkdtemp(prefix="tmux-"))  # a socket's path has to be short
        self._socket = self._folder / "socket"
        self._size = (columns, lines)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket.exists():
            self._do("kill-server")
        shutil.rmtree(self._folder)

    def start(self, command: Sequence[str], *, env: Mapping[str, str], directory: Path) -> None:
        columns, lines = self._size
        words = ["env", "-i", *(f"{name}={value}" for name, value in env.items()), *command]
        self._do("new-session", "-d", "-x", str(columns), "-y", str(lines), "-c", str(directory), "cat")
        self._do("set-option", "-g", "remain-on-exit", "on")
        self._do("set-option", "-g", "history-limit", "5000")
        # tmux itself does not always say how a program ended.
        script = f"{shlex.join(words)}; echo $? > {self._folder / 'exit-code'}"
        self._do("respawn-pane", "-k", "-c", str(directory), script)

    @property
    def screen(self) -> str:
        """What can be read on it now."""
        return self._do("capture-pane", "-p")

    @property
    def coloured(self) -> str:
        """That with its colours, as escape sequences."""
        return self._do("capture-pane", "-p", "-e")

    def press(self, *keys: str) -> None:
        """Keys by tmux's names (`Enter`, `Escape`, `C-c`), or text."""
        self._do("send-keys", *keys)

    def type(self, text: str) -> None:
        self._do("send-keys", "-l", text)

    def resize(self, columns: int, lines: int) -> None:
        self._do("resize-window", "-x", str(columns), "-y", str(lines))

    async def shows(self, *texts: str) -> str:
        """Wait until all of the texts stand on the screen; what it looks like then."""
        return await self.until(lambda shown: all(text in shown for text in texts), f"{texts} did not appear")

    async def shows_no(self, text: str) -> str:
        return await self.until(lambda shown: text not in shown, f"{text!r} did not go away")

    async def has_shown(self, text: str, times: int = 1) -> None:
        """Wait until a text stands there, or has scrolled away, so often."""
        everything = ("capture-pane", "-p", "-J", "-S", "-")
        await self.until(lambda _: self._do(*everything).count(text) >= times, f"{text!r} did not appear {times} times")

    async def answer(self, key: str, asked: str) -> None:
        """Press a key until what is asked is gone: a program that has just drawn it may not read keys yet."""
        with anyio.fail_after(SECONDS):
            while asked in (shown := self.screen):
                self.press(key)
                with anyio.move_on_after(2):
                    while self.screen == shown:
                        await anyio.sleep(_LOOK_SECONDS)

    async def exit_code(self) -> int:
        code = self._folder / "exit-code"
        await self.until(lambda _: code.exists() and code.read_text().endswith("\n"), "It did not end")
        return int(code.read_text())

    async def until(self, is_there: Callable[[str], bool], otherwise: str) -> str:
        shown = ""
        with anyio.move_on_after(SECONDS):
            while not is_there(shown := self.screen):
                await anyio.sleep(_LOOK_SECONDS)
            return shown
        raise AssertionError(f"{otherwise}. Instead:\n{shown}")

    def _do(self, *words: str) -> str:
        env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": "/nonexistent", "TERM": "xterm-256color"}
        command = ["tmux", "-u", "-S", str(self._socket), "-f", "/dev/null", *words]
        return subprocess.run(
            command, env=env, capture_output=True, encoding="utf-8", timeout=SECONDS, check=True
        ).stdout


@contextmanager
def on_tmux(command: Sequence[str], env: Mapping[str, str], directory: Path) -> Iterator[Tmux]:
    """A terminal with a program on it; the block ends both. What the program leaves on the screen stays."""
    with Tmux(columns=100, lines=40) as terminal:
        terminal.start(command, env={**env, "TERM": "xterm-256color"}, directory=directory)
        yield terminal
