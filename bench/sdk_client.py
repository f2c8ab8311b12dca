"""`openai-codex` SDK in a separate Python, driven line by line."""

from __future__ import annotations

import json
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

import anyio
import anyio.abc
from anyio.streams.buffered import BufferedByteReceiveStream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

_SECONDS = 120

# Reads a prompt a line, runs it in a new thread, and says how long that took by the clock and by the processor.
PROGRAM = """
import json, sys, time
from openai_codex import Codex, CodexConfig
binary, directory = sys.argv[1:]
with Codex(CodexConfig(launch_args_override=(binary, "app-server"), cwd=directory)) as codex:
    for line in sys.stdin:
        clock, processor, events = time.perf_counter(), time.process_time(), 0
        thread = codex.thread_start(cwd=directory)
        for event in thread.turn(json.loads(line)).stream():
            events += 1
        answer = {"seconds": time.perf_counter() - clock, "cpu": time.process_time() - processor, "events": events}
        print(json.dumps(answer), flush=True)
"""


class SdkClient:
    """SDK client with its own `codex app-server`."""

    def __init__(self, process: anyio.abc.Process) -> None:
        assert process.stdout is not None
        assert process.stdin is not None
        self._stdin = process.stdin
        self._lines = BufferedByteReceiveStream(process.stdout)

    @classmethod
    @asynccontextmanager
    async def open(cls, python: Path, binary: Path, env: Mapping[str, str], directory: Path) -> AsyncIterator[Self]:
        command = [str(python), "-c", PROGRAM, str(binary), str(directory)]
        process = await anyio.open_process(command, env=env, cwd=directory, stderr=subprocess.DEVNULL)
        try:
            yield cls(process)
        finally:
            with anyio.CancelScope(shield=True):
                assert process.stdin is not None
                await process.stdin.aclose()
                with anyio.move_on_after(10):
                    await process.wait()
                if process.returncode is None:
                    process.kill()
                await process.aclose()

    async def run(self, prompt: str) -> dict[str, Any]:
        """Run a turn in a new thread, and return `seconds`, `cpu` and `events`."""
        await self._stdin.send(json.dumps(prompt).encode() + b"\n")
        with anyio.fail_after(_SECONDS):
            answer: dict[str, Any] = json.loads(await self._lines.receive_until(b"\n", 100_000))
        return answer

    async def turn(self, prompt: str) -> float:
        """Return the seconds of a turn."""
        return float((await self.run(prompt))["seconds"])
