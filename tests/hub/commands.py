"""Commands in separate processes, for tests of hubs."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from helmsman.hub.control import ask_hub
from tests import warm
from tests.pseudo_terminal import PseudoTerminal

if TYPE_CHECKING:
    from tests.hub.conftest import Place  # it imports this module

SECONDS = 60


THIN = """
import sys
sys.argv[0] = "helmsman"
from helmsman.cli import main
try:
    main()
finally:
    assert "click" not in sys.modules, "it did the work itself"
"""
"""`helmsman`, which fails where the hub did not render the answer."""


def thin(*arguments: str) -> list[str]:
    return [sys.executable, "-c", THIN, *arguments]


def whole(*arguments: str) -> list[str]:
    """`helmsman`, however it does it. A hub that it starts has everything imported."""
    return warm.command(*arguments)


@dataclass(frozen=True)
class Done:
    code: int
    stdout: str
    stderr: str


async def done(
    command: Sequence[str], place: Place, env: Mapping[str, str] | None = None, *, stdin: bytes = b""
) -> Done:
    with anyio.fail_after(SECONDS):
        ended = await anyio.run_process(
            command,
            input=stdin,
            env={**place.env, **(env or {})},
            cwd=place.directory,
            check=False,
            start_new_session=True,
        )
    return Done(ended.returncode, ended.stdout.decode(), ended.stderr.decode())


@asynccontextmanager
async def begun(command: Sequence[str], place: Place) -> AsyncIterator[anyio.abc.Process]:
    process = await anyio.open_process(command, env=place.env, cwd=place.directory, start_new_session=True)
    async with process:
        try:
            yield process
        except BaseException:
            process.kill()  # leaving the block waits for its end
            raise


@asynccontextmanager
async def on_terminal(
    command: Sequence[str], place: Place, env: Mapping[str, str] | None = None, *, columns: int = 80, lines: int = 40
) -> AsyncIterator[tuple[PseudoTerminal, anyio.abc.Process]]:
    terminal = PseudoTerminal(columns=columns, lines=lines)
    side = terminal.program_side
    try:
        process = await anyio.open_process(
            command,
            stdin=side,
            stdout=side,
            stderr=side,
            env={**place.env, "TERM": "xterm", **(env or {})},
            cwd=place.directory,
            start_new_session=True,
        )
        async with process:
            yield terminal, process
    finally:
        terminal.close()


async def until_nobody_is_served(place: Place) -> None:
    def clients() -> list[Any]:
        status = ask_hub(place.state_dir, "status")
        return [] if status is None else list(status["clients"])

    with anyio.fail_after(SECONDS):
        while await anyio.to_thread.run_sync(clients):
            await anyio.sleep(0.02)


def write_session(home: Path, number: int, directory: str, prompt: str) -> None:
    """A session as Codex leaves it on disk."""
    stamp = f"2026-11-0{1 + number // 1000}T10:{number // 60 % 60:02}:{number % 60:02}.000Z"
    session_id = f"00000000-0000-7000-8000-{number:012x}"
    place = home / "sessions" / "2026" / "11" / stamp[8:10]
    place.mkdir(parents=True, exist_ok=True)
    head = {"id": session_id, "timestamp": stamp, "cwd": directory, "originator": "test", "source": "cli"}
    lines = [
        {"timestamp": stamp, "type": "session_meta", "payload": head},
        {"timestamp": stamp, "type": "event_msg", "payload": {"type": "user_message", "message": prompt}},
    ]
    name = f"rollout-{stamp[:19].replace(':', '-')}-{session_id}.jsonl"
    (place / name).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def home_with(place: Place, name: str, *prompts: str) -> Path:
    home = place.directory / name
    home.mkdir()
    for number, prompt in enumerate(prompts):
        write_session(home, number, str(place.directory), prompt)
    return home
