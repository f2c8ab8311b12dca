"""A real terminal for tests: tmux, in which a program runs that draws a whole screen."""

from __future__ import annotations

import shlex
import subprocess
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

SECONDS = 40


class Tmux:
    """A terminal of its own, with one program on it."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._server = ("tmux", "-L", f"helmsman-{uuid.uuid4().hex}", "-f", "/dev/null")
        self._env = {**env, "TERM": "xterm-256color"}

    def call(self, *words: str) -> str:
        done = subprocess.run(
            [*self._server, *words], env=self._env, capture_output=True, encoding="utf-8", timeout=SECONDS, check=False
        )
        return done.stdout

    @property
    def screen(self) -> str:
        """What can be read on it now, and what has scrolled away."""
        return self.call("capture-pane", "-p", "-J", "-S", "-")

    async def shows(self, text: str, times: int = 1) -> None:
        """Wait until a text stands there, so often."""
        screen = ""
        with anyio.move_on_after(SECONDS):
            while (screen := await anyio.to_thread.run_sync(lambda: self.screen)).count(text) < times:
                await anyio.sleep(0.1)
            return
        pytest.fail(f"{text!r} did not appear. Instead:\n{screen}", pytrace=False)

    async def answer(self, key: str, asked: str) -> None:
        """Press a key until what is asked is gone: a program that has just drawn it may not read keys yet."""
        with anyio.fail_after(SECONDS):
            while asked in (shown := self.call("capture-pane", "-p")):
                self.press(key)
                with anyio.move_on_after(2):
                    while self.call("capture-pane", "-p") == shown:
                        await anyio.sleep(0.1)

    def press(self, *keys: str) -> None:
        """Press keys, by tmux's names for them."""
        self.call("send-keys", *keys)


@contextmanager
def on_tmux(command: Sequence[str], env: Mapping[str, str], directory: Path, *, size: str = "100x40") -> Iterator[Tmux]:
    """A terminal with a program on it; the block ends both. What the program leaves on the screen stays."""
    terminal = Tmux(env)
    columns, _, lines = size.partition("x")
    try:
        terminal.call(
            *("new-session", "-d", "-x", columns, "-y", lines, "-c", str(directory)),
            f"{shlex.join(command)}; echo EXIT $?; exec sleep 600",
        )
        yield terminal
    finally:
        terminal.call("kill-server")
