"""The editor of a typed line, asked while it is still getting ready."""

from __future__ import annotations

import os

import anyio
import anyio.lowlevel
import pytest

from helmsman.terminal.line_editor import LineEditor

pytestmark = [pytest.mark.anyio, pytest.mark.skipif(os.name == "nt", reason="there are no such terminals")]


async def test_a_screen_may_ask_for_keys_while_the_terminal_is_still_being_set_up() -> None:
    import pty

    leader, follower = pty.openpty()
    editor = LineEditor(follower, [], lambda: None)
    done = False

    async def draw() -> None:
        while not done:
            _ = editor.has_keys
            await anyio.lowlevel.checkpoint()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(draw)
            with anyio.fail_after(30):
                async with editor.reading(lambda: None, lambda: None):
                    pass
            done = True
    finally:
        os.close(leader)
        os.close(follower)
