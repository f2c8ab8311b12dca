"""What Helmsman adds to a turn of each agent beside Codex: its library, and a bare client of the agent's own protocol.

Both sides have one session of the same agent on the same model, warm, and take turns. With a model that takes as long to its
first word as real ones do, the goal is a ratio. With one that answers at once a whole turn takes some ten milliseconds, less
than a durable write may cost on some disks; there the goal is what is added. Where an agent was not fetched
(`scripts/fetch_agents.py`, `scripts/fetch_clients.py`) there is no row.
"""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import anyio
from tests.claude import find_claude_binary
from tests.real_agents import find_agent_command

from bench.figures import Row, Sample, by_turns, compared
from bench.model import ASK_AFTER_THOUGHT, ASK_SENTENCE, FIRST_WORD_SECONDS, SENTENCE, model_process
from bench.place import MEMORY, NothingToMeasure
from bench.wire import Message, Wire
from helmsman import Helmsman, load_settings
from helmsman.agents.acp.agent import KNOWN
from helmsman.base.structs import replace
from helmsman.model.options import SessionOptions
from helmsman.settings import ConfigFile
from helmsman.testing.agents import SCRIPTED_AGENTS, agent_environment
from helmsman.testing.repository import make_repository

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence

    from helmsman import Settings

ROUNDS = 20
PAUSE = 0.1
AT_MOST = 1.05
MOST_ADDED_SECONDS = 0.005
_SECONDS = 120
_AT_ONCE = ", model answers at once"
_AFTER_THOUGHT = f", first word after {FIRST_WORD_SECONDS * 1000:.0f} ms"


async def measure(rounds: int = ROUNDS) -> list[Row]:
    rows: list[Row] = []
    for name in SCRIPTED_AGENTS:
        command = (find_claude_binary(),) if name == "claude" else find_agent_command(name)
        if command is not None and command[0] is not None:
            rows += await _measure(name, [os.fspath(word) for word in command if word is not None], rounds)
    if not rows:
        raise NothingToMeasure("No agent beside Codex is here. Run: python scripts/fetch_agents.py")
    return rows


async def _measure(name: str, command: Sequence[str], rounds: int) -> list[Row]:
    what = f"a turn of a sentence of {title_of(name)}, by the library"
    with tempfile.TemporaryDirectory(prefix="helmsman-bench-", dir=MEMORY) as folder:
        async with model_process() as url, _sides(name, command, Path(folder), url) as turns:

            async def timed(prompt: str) -> tuple[Sample, Sample]:
                sides = {side: partial(turn, prompt) for side, turn in turns.items()}
                times = await by_turns(sides, rounds, pause=PAUSE)
                return times["helmsman"], times["bare"]

            thinking = compared(what + _AFTER_THOUGHT, *await timed(ASK_AFTER_THOUGHT), "bare", AT_MOST)
            ours, bare = await timed(ASK_SENTENCE)
    added = ours.median - bare.median
    goal, met = f"at most {MOST_ADDED_SECONDS * 1000:g} ms more than bare", added <= MOST_ADDED_SECONDS
    return [thinking, replace(compared(what + _AT_ONCE, ours, bare, "bare", None), goal=goal, met=met)]


@asynccontextmanager
async def _sides(
    name: str, command: Sequence[str], folder: Path, url: str
) -> AsyncIterator[Mapping[str, Callable[[str], Awaitable[float]]]]:
    address = url.removesuffix("/v1")
    repository = make_repository(folder / "repository")

    def environment(side: str) -> dict[str, str]:
        home = folder / side
        return {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **agent_environment(name, address, home)}

    env = environment("ours") | {"HELMSMAN_STATE_DIR": str(folder / "state")}
    settings = agent_settings(name, command, env, folder)
    async with (
        _bare(name, command, environment("bare"), folder, repository) as bare,
        Helmsman(settings, env=env, inside=True) as helm,
    ):
        session = await helm.start(ASK_SENTENCE, cwd=repository, agent=name, sandbox="danger-full-access")
        assert await session.wait(until="end", timeout=_SECONDS)

        async def ours(prompt: str) -> float:
            began = time.perf_counter()
            await session.say(prompt)
            assert await session.wait(until="end", timeout=_SECONDS)
            taken = time.perf_counter() - began
            assert session.result == SENTENCE, session.error
            return taken

        async def theirs(prompt: str) -> float:
            began = time.perf_counter()
            await bare(prompt)
            return time.perf_counter() - began

        yield {"bare": theirs, "helmsman": ours}


def title_of(name: str) -> str:
    return "Claude Code" if name == "claude" else next(one.title for one in KNOWN if one.name == name)


def agent_settings(name: str, command: Sequence[str], env: Mapping[str, str], folder: Path) -> Settings:
    if name == "claude":
        return load_settings({"claude_path": command[0], "detach": False}, env, folder)
    named = ConfigFile(folder / "helmsman.toml", {"agents": {name: {"command": list(command)}}}, trusted=True)
    return replace(load_settings({"detach": False}, env, folder), files=(named,))


# --- bare clients ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _bare(
    name: str, command: Sequence[str], env: Mapping[str, str], folder: Path, repository: Path
) -> AsyncIterator[Callable[[str], Awaitable[None]]]:
    """Run turns in one session. The agent is started as Helmsman starts it, apart from the client's name."""
    if name == "claude":
        async with ClaudeWire.open([command[0], *_CLAUDE], env, repository) as wire:
            yield wire.turn
        return
    profile = next(profile for profile in KNOWN if profile.name == name)
    options = SessionOptions(agent=name, cwd=repository, writes="anything")
    given = profile.environment(env, options, folder)
    async with AcpWire.open(command, given, repository) as acp:
        made = await acp.request("session/new", {"cwd": str(repository), "mcpServers": []})
        if profile.trust.asking_mode is not None:
            await acp.request("session/set_mode", {"sessionId": made["sessionId"], "modeId": profile.trust.asking_mode})

        async def turn(prompt: str) -> None:
            content = [{"type": "text", "text": prompt}]
            await acp.request("session/prompt", {"sessionId": made["sessionId"], "prompt": content})

        yield turn


class AcpWire(Wire):
    """Client of an agent over the Agent Client Protocol."""

    version: ClassVar[Mapping[str, str]] = {"jsonrpc": "2.0"}

    async def shake_hands(self) -> None:
        able = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        about = {"name": "bench", "title": "Bench", "version": "1"}
        params = {"protocolVersion": 1, "clientCapabilities": able, "clientInfo": about}
        await self.request("initialize", params)


_CLAUDE = (
    *("-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"),
    *("--permission-prompt-tool", "stdio", "--include-partial-messages", "--setting-sources", "user"),
)


class ClaudeWire(Wire):
    """Client of Claude Code's own protocol, whose lines are not JSON-RPC."""

    def __init__(self, process: Any) -> None:
        super().__init__(process)
        self._news: dict[str, anyio.Event] = {"control_response": anyio.Event(), "result": anyio.Event()}

    def take(self, message: Message) -> None:
        if message.get("type") in self._news:
            self._news[message["type"]].set()

    async def shake_hands(self) -> None:
        greeting = {"subtype": "initialize", "hooks": None}
        await self._said({"type": "control_request", "request_id": "1", "request": greeting}, "control_response")

    async def turn(self, prompt: str) -> None:
        message = {"role": "user", "content": prompt}
        line = {"type": "user", "message": message, "parent_tool_use_id": None, "session_id": "default"}
        await self._said({**line, "uuid": str(uuid.uuid4())}, "result")

    async def _said(self, line: Message, answer: str) -> None:
        self._news[answer] = anyio.Event()
        await self.send(line)
        with anyio.fail_after(_SECONDS):
            await self._news[answer].wait()
