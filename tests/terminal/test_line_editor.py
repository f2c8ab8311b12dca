"""The editor of a typed line: asked while it is still getting ready, and keys that come at once."""

from __future__ import annotations

import os

import anyio
import anyio.lowlevel
import pytest

from helmsman.terminal.line_editor import Key, LineEditor

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


async def test_a_key_for_a_line_with_text_takes_effect_before_the_keys_after_it() -> None:
    import pty

    leader, follower = pty.openpty()
    cleared: list[str] = []
    editor = LineEditor(follower, [Key("c-c", lambda: cleared.append(editor.take()), on_text=True)], lambda: None)
    try:
        with anyio.fail_after(30):
            async with editor.reading(lambda: None, lambda: None):
                os.write(leader, b"old\x03new")
                while editor.text != "new":
                    await anyio.sleep(0.01)
    finally:
        os.close(leader)
        os.close(follower)
    assert cleared == ["old"]
