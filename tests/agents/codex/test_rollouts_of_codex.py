"""Sessions on disk as every real Codex writes them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from helmsman.agents.agent_process import open_child_process
from helmsman.agents.codex.binary import find_codex
from helmsman.agents.codex.connection import AppServer, user_input
from helmsman.agents.codex.storage import CodexSessions
from helmsman.base.jsonrpc import Peer
from helmsman.testing import ScriptedModel, always, say, spawn_agent
from helmsman.testing.home import CodexHome


class Turns:
    """Connection to a real app-server that runs turns to their end."""

    def __init__(self, api: AppServer) -> None:
        self.api = api
        self._ended: set[str] = set()
        self._news = anyio.Event()

    def notified(self, method: str, params: Mapping[str, Any]) -> None:
        if method == "turn/completed":
            self._ended.add(params["threadId"])
            self._news.set()
            self._news = anyio.Event()

    async def open(self, method: str, **params: str) -> str:
        return (await self.api.open_thread(method, **params)).id

    async def run(self, thread_id: str, prompt: str) -> None:
        self._ended.clear()
        await self.api.begin_turn("turn/start", threadId=thread_id, input=user_input(prompt))
        await self._until_ended(thread_id)

    async def review(self, thread_id: str, instructions: str) -> None:
        self._ended.clear()
        target = {"type": "custom", "instructions": instructions}
        await self.api.begin_turn("review/start", threadId=thread_id, target=target)
        await self._until_ended(thread_id)

    async def _until_ended(self, thread_id: str) -> None:
        while thread_id not in self._ended:
            await self._news.wait()


@asynccontextmanager
async def connected(codex_binary: Path, codex_home: CodexHome) -> AsyncIterator[Turns]:
    binary = await find_codex(explicit=codex_binary, env=codex_home.env)
    async with (
        anyio.create_task_group() as tasks,
        open_child_process(tasks, [binary.path, "app-server"], title="Codex", env=codex_home.env) as transport,
    ):
        peer = Peer(
            transport,
            other="Codex",
            on_notification=lambda *note: turns.notified(*note),
            on_request=lambda _request: False,
        )
        turns = Turns(AppServer(peer, binary))
        tasks.start_soon(peer.run)
        await turns.api.initialize()
        yield turns
        tasks.cancel_scope.cancel()


@pytest.mark.matrix
@pytest.mark.anyio
async def test_rollouts_of_a_real_codex_are_listed(
    codex_binary: Path, codex_version: tuple[int, int, int], codex_home: CodexHome, model: ScriptedModel, git_repo: Path
) -> None:
    model.otherwise(always(say("done")))
    model.on("delegate", spawn_agent("look around"), always(say("done")))
    if codex_version < (0, 115, 0):
        codex_home.configure(features={"collab": True})
    with anyio.fail_after(60):
        async with connected(codex_binary, codex_home) as turns:
            api, cwd = turns.api, str(git_repo)
            first = await turns.open("thread/start", cwd=cwd, developerInstructions="be kind")
            await turns.run(first, "the first prompt\nof two lines")
            await turns.run(first, "the second prompt")
            await api.call("thread/name/set", threadId=first, name="A name")
            bare_fork = await turns.open("thread/fork", threadId=first)
            fork = await turns.open("thread/fork", threadId=first)
            await turns.run(fork, "a prompt in the fork")
            archived = await turns.open("thread/start", cwd=cwd)
            await turns.run(archived, "to be archived")
            await api.call("thread/archive", threadId=archived)
            parent = await turns.open("thread/start", cwd=cwd)
            await turns.run(parent, "delegate this")
            await model.wait_for_request(lambda request: request.last_user_text == "look around")
            await turns.review(first, "look at it")
        command = [codex_binary, "exec", "--json", "--skip-git-repo-check", "-C", git_repo, "the prompt of exec"]
        ran = await anyio.run_process(list(map(str, command)), env=codex_home.env, cwd=git_repo, input=b"")
        executed = json.loads(ran.stdout.splitlines()[0])["thread_id"]

    index = CodexSessions(codex_home.path)
    listed, cursor = index.list()
    found = {info.session_id: info for info in listed}
    assert cursor is None
    assert set(found) == {first, bare_fork, fork, parent, executed}
    assert listed == sorted(listed, key=lambda info: info.updated_at, reverse=True)

    info = found[first]
    assert (info.name, info.first_prompt) == ("A name", "the first prompt\nof two lines")
    assert (info.directory, info.model) == (str(git_repo), codex_home.config["model"])
    assert info.engine_version == ".".join(map(str, codex_version))
    assert (info.source, info.originator, info.archived, info.parent_id) == ("helmsman", "helmsman", False, None)
    assert info.created_at is not None
    assert info.created_at <= info.updated_at
    assert info.path is not None
    assert first in info.path.name
    assert found[bare_fork].first_prompt == "the first prompt\nof two lines"
    assert found[fork].first_prompt in ("the first prompt\nof two lines", "a prompt in the fork")
    assert (found[executed].source, found[executed].first_prompt) == ("exec", "the prompt of exec")

    everything = {info.session_id: info for info in index.list(include_archived=True, include_sub_agents=True)[0]}
    assert everything[archived].archived
    assert everything[archived].first_prompt == "to be archived"
    agents = [info for info in everything.values() if info.source == "subagent"]
    assert [info.parent_id for info in agents if info.first_prompt == "look around"] == [parent]
    assert index.find(archived) == everything[archived]
    assert index.list(query="SECOND exec")[0] == []
    assert [info.session_id for info in index.list(query="PROMPT exec")[0]] == [executed]
