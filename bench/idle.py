"""What idle sessions cost: the memory of ten of each agent in which nothing runs, and the time until it is given back.

Most agents have a process per session. It ends when it was idle for `engine_idle` (by default 15 minutes; Claude Code at
most 2 minutes), and starts again with the next message. The limit is shorter here. Codex has one process for all sessions,
which stays for as long as a client is connected.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
from tests.claude import find_claude_binary
from tests.real_agents import find_agent_command

from bench.agents import agent_settings, title_of
from bench.figures import Row
from bench.model import ASK_SENTENCE, model_process
from bench.place import MEMORY, NothingToMeasure, open_place
from bench.processes import proportional_memory_mb
from helmsman import Helmsman, load_settings
from helmsman.base.processes import Process, descendants
from helmsman.base.structs import replace
from helmsman.testing.agents import SCRIPTED_AGENTS, agent_environment
from helmsman.testing.repository import make_repository

if TYPE_CHECKING:
    from collections.abc import Mapping

    from helmsman import Settings

SESSIONS = 10
IDLE_SECONDS = 60.0
MOST_LATE_SECONDS = 35.0
"""Seconds after the limit: sessions are checked twice a minute, and a process needs some seconds to end."""
_SECONDS = 400
_POLL = 0.1


async def measure(sessions: int = SESSIONS) -> list[Row]:
    rows: list[Row] = []
    async with open_place() as place:
        home = place.home("idle")
        settings = load_settings({"codex_path": str(place.binary), "detach": False}, home.env, place.folder)
        rows.append(await _idle("Codex", "codex", settings, home.env, place.repository, sessions))
    for name in SCRIPTED_AGENTS:
        command = (find_claude_binary(),) if name == "claude" else find_agent_command(name)
        if command is None or command[0] is None:
            continue
        with tempfile.TemporaryDirectory(prefix="helmsman-bench-", dir=MEMORY) as made:
            folder = Path(made)
            async with model_process() as url:
                env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
                env |= agent_environment(name, url.removesuffix("/v1"), folder / "home")
                env["HELMSMAN_STATE_DIR"] = str(folder / "state")
                settings = agent_settings(name, [os.fspath(word) for word in command if word is not None], env, folder)
                repository = make_repository(folder / "repository")
                rows.append(await _idle(title_of(name), name, settings, env, repository, sessions))
    if len(rows) == 1:
        raise NothingToMeasure("No agent beside Codex is here. Run: python scripts/fetch_agents.py")
    return rows


async def _idle(
    title: str, agent: str, settings: Settings, env: Mapping[str, str], repository: Path, sessions: int
) -> Row:
    settings = replace(settings, engine_idle=IDLE_SECONDS, max_sessions=sessions)
    others = _below()
    async with Helmsman(settings, env=env, inside=True) as helm:
        most, last = 0.0, time.monotonic()
        async with anyio.create_task_group() as tasks:

            async def one() -> None:
                nonlocal last
                session = await helm.start(ASK_SENTENCE, cwd=repository, agent=agent, sandbox="danger-full-access")
                assert await session.wait(until="end", timeout=_SECONDS)
                assert session.status == "done", session.error
                last = time.monotonic()

            for _ in range(sessions):
                tasks.start_soon(one)
        most = sum(map(proportional_memory_mb, _below() - others))
        given_back: float | None = None
        while agent != "codex" and given_back is None and time.monotonic() - last < IDLE_SECONDS + _SECONDS:
            if not _below() - others:
                given_back = time.monotonic() - last
            await anyio.sleep(_POLL)
    return _row(title, agent, sessions, most, given_back)


def _below() -> set[int]:
    return {process.pid for process in descendants(Process.me())}


def _row(title: str, agent: str, sessions: int, most: float, given_back: float | None) -> Row:
    kept = "kept while a client is connected"
    late = None if given_back is None else given_back - IDLE_SECONDS
    return Row(
        what=f"memory of {sessions} idle sessions of {title}, and when it is given back",
        goal="none" if agent == "codex" else f"at most {MOST_LATE_SECONDS:g} s after the limit",
        helmsman=f"{most:,.0f} MB, {most / sessions:,.0f} MB a session",
        beside=kept if late is None else f"{late:.1f} s after the limit of {IDLE_SECONDS:g} s",
        met=None if agent == "codex" else late is not None and late <= MOST_LATE_SECONDS,
    )
