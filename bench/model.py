"""Scripted model in a separate process, so that it takes no time from the measured programs.

`python -m bench.model` prints its address, and ends when its standard input is closed.
"""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

from helmsman.testing import ScriptedModel, always, run, say
from helmsman.testing.script import Gate

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SENTENCE = "One sentence, and that is all."
ASK_SENTENCE = "Do a sentence."
ASK_COMMAND = "Do a command and a sentence."
ASK_APPROVAL = "Do what needs an approval."
ASK_STREAM = "Stream."
ASK_AFTER_THOUGHT = "Think first."

FIRST_WORD_SECONDS = 0.5
"""Typical time to the first word of real models."""

STREAMED_DELTAS = 400
_BETWEEN_DELTAS = 0.05
_END_SECONDS = 10


class _Pause(Gate):
    """Short pause in the stream, like that of a real model."""

    def __init__(self, seconds: float = _BETWEEN_DELTAS) -> None:
        super().__init__()
        self._seconds = seconds

    async def pass_through(self) -> None:
        await anyio.sleep(self._seconds)


async def _serve() -> None:
    async with ScriptedModel() as model:
        model.on(ASK_SENTENCE, always(say(SENTENCE)))
        model.on(ASK_COMMAND, run("ls"), always(say(SENTENCE)))
        model.on(ASK_APPROVAL, run("true", escalate="please"), always(say(SENTENCE)))
        chunks = [part for number in range(STREAMED_DELTAS) for part in (f"word {number} ", _Pause())]
        model.on(ASK_STREAM, always(say(*chunks)))
        model.on(ASK_AFTER_THOUGHT, always(say(_Pause(FIRST_WORD_SECONDS), SENTENCE)))
        print(model.base_url, flush=True)
        await anyio.to_thread.run_sync(sys.stdin.read)


@asynccontextmanager
async def model_process() -> AsyncIterator[str]:
    """Run a model during the block and yield its address."""
    process = await anyio.open_process([sys.executable, "-m", "bench.model"], stderr=None)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield (await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 1000)).decode().strip()
    finally:
        with anyio.CancelScope(shield=True):
            await process.stdin.aclose()
            with anyio.move_on_after(_END_SECONDS):
                await process.wait()
            if process.returncode is None:
                process.kill()
            await process.aclose()


if __name__ == "__main__":
    anyio.run(_serve)
